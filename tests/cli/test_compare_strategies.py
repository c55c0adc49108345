"""The comparison of strategies: its stages, and its table from files made by hand."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from scout_cli.compare_strategies import STRATEGIES, _parser, main, stages_of, table
from scout_protocol.errors import UserError


def test_every_command_is_one_that_scout_takes(tmp_path: Path) -> None:
    args = _parser().parse_args(["--run", str(tmp_path)])
    # each kind of command once: the strategies' harvests differ, the rest does not
    stages = [stage for name in STRATEGIES for stage in stages_of(tmp_path, "http://x", name, args)]
    assert [s.name.partition("_")[2] for s in stages[:5]] == ["demos", "sft", "eval_sft", "grpo", "eval_grpo"]
    commands = [c for s in stages for c in s.commands if s in stages[:5] or s.name.endswith("demos")]
    for command in commands:
        line = [sys.executable, "-m", "scout_cli.main", *map(str, command), "--no-such-option"]
        done = subprocess.run(line, capture_output=True, text=True, timeout=60)
        assert "arguments: unrecognized arguments: --no-such-option:" in done.stderr, (command, done.stderr)


def _write(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value), encoding="utf-8")


def test_the_table(tmp_path: Path) -> None:
    here = tmp_path / "bridge"
    card = {
        "demonstrations": 40,
        "query_reveals_answer": 10,
        "searches": {"1": 30, "3": 10},
        "strategies": {"bridge": {"questions": 50, "in context": 45, "kept": 40}},
    }
    _write(here / "demos.parquet.card.json", card)
    assert "| bridge | not finished |" in table(tmp_path, ["bridge"])
    for stage, em in (("sft", 0.25), ("grpo", 0.5)):
        overall = {"em": {"mean": em}, "searches": 1.5}
        _write(here / "eval" / stage / "summary.json", {"metrics": {"overall": overall}})
    line = table(tmp_path, ["bridge"]).splitlines()[-1]
    assert line == "| bridge | 90.0% of 50 | 40 | 25.0% | 1.50 | 0.250 | 0.500 | 1.50 |"


def test_policy_needs_the_oracles_model(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="add oracle"):
        main(["--run", str(tmp_path / "r"), "--only", "policy"])
    assert not (tmp_path / "r").exists()
