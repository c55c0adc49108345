"""Going on after a crash: the files of a killed run end with the lines of an unkilled one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scout_train import resume
from scout_train.metrics_log import MetricsLog, plain


def checkpoint(folder: Path, step: int, whole: bool = True) -> Path:
    path = folder / f"global_step_{step}"
    (path / "actor").mkdir(parents=True)
    (path / "actor" / "model.pt").write_text("weights")
    if whole:
        (path / "data.pt").write_text("loader")
    return path


def test_trim_keeps_exactly_the_steps_up_to_the_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "traces.jsonl"
    lines = [json.dumps({"step": s, "n": n}) for s in (1, 2, 3, 4) for n in range(3)]
    path.write_text("\n".join(lines) + "\n" + '{"step": 2, "cut of')
    assert resume.trim(path, 2) == 7
    assert path.read_text().splitlines() == lines[:6]


@given(st.lists(st.integers(1, 9), max_size=30), st.integers(0, 9))
def test_trim_is_a_filter_whatever_the_order(
    tmp_path_factory: pytest.TempPathFactory, steps: list[int], last: int
) -> None:
    path = tmp_path_factory.mktemp("trim") / "m.jsonl"
    path.write_text("".join(f'{{"step": {s}, "i": {i}}}\n' for i, s in enumerate(steps)))
    dropped = resume.trim(path, last)
    left = [json.loads(line) for line in path.read_text().splitlines()]
    assert [x["i"] for x in left] == [i for i, s in enumerate(steps) if s <= last]
    assert dropped == sum(s > last for s in steps)


def test_trim_of_a_missing_file_is_nothing(tmp_path: Path) -> None:
    assert resume.trim(tmp_path / "none.jsonl", 3) == 0
    assert not (tmp_path / "none.jsonl").exists()


def test_a_line_that_is_not_ours_goes_rather_than_stops_the_run(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    path.write_bytes(b'{"step": 1}\nnot json\n{"no_step": 1}\n\xff\xfe\n{"step": 2}\n')
    assert resume.trim(path, 5) == 3
    assert path.read_text() == '{"step": 1}\n{"step": 2}\n'


@pytest.mark.parametrize("tracker", ["", "4", "garbage", None])
def test_repair_finds_the_newest_whole_checkpoint(tmp_path: Path, tracker: str | None) -> None:
    checkpoint(tmp_path, 2)
    checkpoint(tmp_path, 3)
    checkpoint(tmp_path, 4, whole=False)
    if tracker is not None:
        (tmp_path / resume.TRACKER).write_text(tracker)
    assert resume.repair(tmp_path) == 3
    assert (tmp_path / resume.TRACKER).read_text() == "3"
    assert not (tmp_path / "global_step_4").exists()


def test_repair_goes_back_to_what_the_tracker_names(tmp_path: Path) -> None:
    """A folder newer than the tracker was being written when the run died, even if it looks whole."""
    for step in (2, 4):
        checkpoint(tmp_path, step)
    (tmp_path / resume.TRACKER).write_text("2")
    assert resume.repair(tmp_path) == 2
    assert sorted(p.name for p in tmp_path.glob("global_step_*")) == ["global_step_2"]


def test_repair_of_nothing_starts_from_the_beginning(tmp_path: Path) -> None:
    assert resume.repair(tmp_path / "absent") == 0
    checkpoint(tmp_path, 1, whole=False)
    (tmp_path / resume.TRACKER).write_text("1")
    assert resume.repair(tmp_path) == 0
    assert not (tmp_path / resume.TRACKER).exists()


def test_old_checkpoints_of_earlier_processes_are_seen(tmp_path: Path) -> None:
    for step in (5, 10, 15, 100):
        checkpoint(tmp_path, step)
    assert [p.name for p in resume.old_checkpoints(tmp_path, 2)] == ["global_step_5", "global_step_10"]
    assert [p.name for p in resume.old_checkpoints(tmp_path, 0)][-1] == "global_step_15"  # one always stays


def test_metrics_are_on_disk_before_the_checkpoint_of_their_step(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    seen: list[tuple[int, int]] = []
    log = MetricsLog(path, lambda step: seen.append((step, resume.last_logged_step(path))))
    log.log({"scout/em": 0.5}, 1)
    log.log({"scout/em": 0.25}, 2)
    log.close()
    assert seen == [(1, 1), (2, 2)]


def test_a_second_process_appends(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    for step in (1, 2):
        log = MetricsLog(path, lambda _step: None)
        log.log({"a": step}, step)
        log.close()
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [1, 2]


def test_metrics_are_valid_json_whatever_verl_reports() -> None:
    import numpy as np
    import torch

    values = [
        np.float32(0.5),
        np.int64(3),
        torch.tensor(2.5),
        float("nan"),
        np.float64("inf"),
        True,
        "text",
        None,
    ]
    found = [plain(v) for v in values]
    assert found == [0.5, 3, 2.5, None, None, True, "text", None]
    json.dumps(found, allow_nan=False)


def test_changed_settings_are_named_and_free_ones_are_not() -> None:
    before = {"a": {"b": 1, "c": {"d": 2}}, "e": [1]}
    now = {"a": {"b": 1, "c": {"d": 3}}, "e": [2], "f": 0}
    assert resume.changed_keys(before, now, ()) == ["a.c.d", "e", "f"]
    assert resume.changed_keys(before, now, ("a.c", "f")) == ["e"]
    assert resume.changed_keys(before, before, ()) == []
