"""Algorithms side by side: every number worked out by hand from the files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from scout_eval.algos import START, load_algos, tokens_so_far
from scout_eval.algos_sheet import algos_sheet
from scout_eval.cli import main
from scout_protocol.errors import UserError
from scout_protocol.records import Trace

Write = Callable[..., list[Trace]]


def _step(step: int, **changes: float) -> dict[str, float]:
    return {
        "step": step,
        "scout/em": 0.1 * step,
        "scout/zero_variance_group_share": 0.5,
        "scout/policy_tokens": 10.0,
        "scout/trajectories": 64,
        "scout/infra_errors": 4,
        "scout/generate_s": 1.0,
        "timing_s/update_actor": 2.0,
        "timing_s/step": 3.3,
    } | changes


def _train(run: Path, algo: str, steps: list[dict[str, float]]) -> None:
    (run / algo).mkdir(parents=True)
    (run / algo / "metrics.jsonl").write_text("".join(json.dumps(step) + "\n" for step in steps))


@pytest.fixture
def folder(tmp_path: Path, write_eval: Write) -> Path:
    for seed, right in ((0, 6), (1, 8)):
        run = tmp_path / f"seed{seed}"
        write_eval(run, START, [1.0] * 2 + [0.0] * 8)
        write_eval(run, "grpo", [1.0] * right + [0.0] * (10 - right), n_searches=2)
        write_eval(run, "grpo.blank", [0.0] * 10)
        _train(run, "grpo", [_step(1), _step(2, **{"scout/zero_variance_group_share": 0.25})])
    run = tmp_path / "seed0"
    write_eval(run, "dapo", [1.0] * 9 + [0.0])
    filtered = {
        "scout/groups_generated": 8,
        "scout/groups_accept_rate": 1.0,
        "scout/zero_variance_group_share": 0,
    }
    more = filtered | {"scout/groups_generated": 24, "scout/groups_accept_rate": 0.5, "timing_s/step": 6.0}
    _train(run, "dapo", [_step(1, **filtered), _step(2, **more)])
    return tmp_path


def test_numbers_of_every_run(folder: Path) -> None:
    runs = load_algos(folder)
    assert [(r.result.seed, r.result.algo) for r in runs] == [
        *((0, "sft"), (0, "dapo"), (0, "grpo")),
        *((1, "sft"), (1, "grpo")),
    ]
    grpo, dapo = runs[2].result, runs[1].result
    assert (grpo.em, grpo.searches, grpo.steps, grpo.accept_rate) == (0.6, 2.0, 2, None)
    assert grpo.zero_gradient_share == pytest.approx((0.5 + 0.25) / 2)
    assert grpo.generated_tokens == 2 * 10 * 60  # an outage's trajectories sampled nothing that counts
    assert grpo.overhead_share == pytest.approx(3.3 / 3.0 - 1)
    assert grpo.zero_gradient_share_first == grpo.zero_gradient_share  # two steps, both among the first five
    assert dapo.accept_rate == pytest.approx((8 * 1.0 + 24 * 0.5) / 32)  # per group, not per step
    assert dapo.zero_gradient_share == 0.0
    assert dapo.step_s == pytest.approx((3.3 + 6.0) / 2)
    assert runs[2].curve is not None and tokens_so_far(runs[2].curve) == [600, 1200]


def test_the_sheet_takes_means_and_says_what_is_missing(folder: Path) -> None:
    sheet = algos_sheet("compare", load_algos(folder))
    means = {row[0].text: row for row in sheet.blocks[0].rows}  # type: ignore[union-attr]
    assert means["GRPO"][1].text == ".700" and means["GRPO"][1].interval == ".600–.800"
    assert means["start"][1].text == ".200" and means["start"][6].text == "–"
    assert "GRPO 2, DAPO 1" in sheet.warnings[0]
    assert sheet.headline.endswith("EM start 0.200; GRPO 0.700; DAPO 0.900")


def test_the_command_writes_three_files(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["algos", str(folder)]) == 0
    assert "DAPO" in capsys.readouterr().out
    found: list[dict[str, Any]] = msgspec.json.decode((folder / "algos.json").read_bytes())
    assert {(r["seed"], r["algo"]): r["em"] for r in found}[(1, "grpo")] == 0.8
    page = (folder / "algos.html").read_text()
    assert page.count("<svg") >= 3 and "swatch line1" in page
    assert "| GRPO | .700" in (folder / "algos.md").read_text()


def test_a_run_without_its_metrics_is_refused_not_left_out(folder: Path) -> None:
    path = folder / "seed1/grpo/metrics.jsonl"
    path.write_text(path.read_text() + "{half a li")
    with pytest.raises(UserError, match="1 of 3 lines"):
        load_algos(folder)
    path.write_text("")
    with pytest.raises(UserError, match=r"seed1/grpo.*train it again"):
        load_algos(folder)


def test_nothing_there(tmp_path: Path, write_eval: Write) -> None:
    write_eval(tmp_path / "seed0", START, [1.0])
    with pytest.raises(UserError, match="no trained and evaluated run"):
        load_algos(tmp_path)
