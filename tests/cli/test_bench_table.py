"""The table of several quickstarts: numbers as they are in the files, and targets that can be missed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from scout_cli.bench_table import main, missed, read_seed
from scout_protocol.errors import UserError

GOOD = {"base": (0.0, 0.0), "sft": (0.3, 0.0), "grpo": (0.7, 0.6), "dapo": (0.8, 0.7)}


def _write(run: Path, ems: dict[str, tuple[float, float]], blank: float = 0.0) -> None:
    for stage, (em, two_hop) in ems.items():
        for name, value in ((stage, em), (f"{stage}.blank", blank), (f"{stage}.shuffled", 0.01)):
            hops = {h: {"em": {"mean": two_hop if h == "2" else em}} for h in "123"}
            overall = {"em": {"mean": value}, "searches": 1.0 + em}
            folder = run / "eval" / name
            folder.mkdir(parents=True)
            (folder / "summary.json").write_text(
                json.dumps({"metrics": {"overall": overall, "by": {"hops": hops}}})
            )
    (run / "stages.json").write_text(
        json.dumps({"a": {"wall_s": 10, "cpu_s": 15}, "b": {"wall_s": 2.5, "cpu_s": 3}})
    )
    for algo, seconds in (("grpo", (2.0, 9.0, 3.0)), ("dapo", (4.0,))):
        (run / algo).mkdir()
        lines = (json.dumps({"timing_s/step": s}) for s in seconds)
        (run / algo / "metrics.jsonl").write_text("\n".join(lines))


def test_a_table_of_two_seeds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _write(tmp_path / "seed0", GOOD)
    _write(tmp_path / "seed1", {**GOOD, "dapo": (0.9, 0.85)})
    assert main([str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "| 0 | sft | 0.300 | 0.30 | 0.00 | 0.30 | 1.30 | 0.000 | 0.010 |" in out
    assert "| 1 | dapo | 0.900 | 0.90 | 0.85 | 0.90 | 1.90 | 0.000 | 0.010 |" in out
    assert "| 0 | 12 | 18 | 3.0 | 4.0 |" in out
    assert "every target reached for 2 seeds" in out


@pytest.mark.parametrize(
    ("changes", "blank", "name"),
    [
        ({"dapo": (0.64, 0.5)}, 0.0, "EM after DAPO at least 0.65"),
        ({"sft": (0.7, 0.0)}, 0.0, "at least 0.2 above after SFT"),
        ({"sft": (0.3, 0.1)}, 0.0, "2-hop EM after SFT at most 0.05"),
        ({"dapo": (0.8, 0.39)}, 0.0, "2-hop EM after DAPO at least 0.4"),
        ({}, 0.02, "blanked EM below 0.02"),
    ],
)
def test_each_target_can_be_missed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: Any, blank: float, name: str
) -> None:
    _write(tmp_path / "seed4", {**GOOD, **changes}, blank)
    assert missed(read_seed(tmp_path / "seed4")) == [name]
    assert main([str(tmp_path)]) == 1
    assert f"seed 4: missed: {name}" in capsys.readouterr().out


def test_an_unfinished_run_is_not_averaged_over(tmp_path: Path) -> None:
    _write(tmp_path / "seed0", GOOD)
    (tmp_path / "seed0/eval/dapo.blank/summary.json").unlink()
    with pytest.raises(UserError, match=r"has no eval/dapo\.blank"):
        main([str(tmp_path)])
    with pytest.raises(UserError, match="holds no seed"):
        main([str(tmp_path / "seed0")])
