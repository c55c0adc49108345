"""What a comparison runs: one warm-up, every algorithm from it, and as many rollouts on a cold start."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scout_cli.compare_algos import _batches, _parser, main, stages
from scout_protocol.errors import UserError


def test_every_algorithm_starts_from_the_same_warm_up(tmp_path: Path) -> None:
    args = _parser().parse_args(["--algos", "grpo", "dapo"])
    made = stages(tmp_path, "http://x", 3, args)
    assert [s.name for s in made] == ["demos", "sft", "eval_sft", "grpo", "eval_grpo", "dapo", "eval_dapo"]
    for stage in made:
        if stage.name in ("grpo", "dapo"):
            line = list(map(str, stage.commands[0]))
            assert line[line.index("--model") + 1] == str(tmp_path / "sft/hf")
            assert line[line.index("--steps") + 1] == "30" and line[line.index("--seed") + 1] == "3"


def test_grpo_takes_the_steps_that_make_as_many_groups(tmp_path: Path) -> None:
    lines = [{"scout/groups_generated": n} for n in (64, 80, 33)]
    (tmp_path / "m").write_text("\n".join(map(json.dumps, lines)))
    assert _batches(tmp_path / "m") == 12  # 177 groups, 16 a step


def test_a_seed_named_twice_is_refused() -> None:
    with pytest.raises(UserError, match="each seed once"):
        main(["--seeds", "1", "1"])
