"""Engine verl_tool's group loader on verl's own batches: rows, carrying, resuming, validation."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from verl_tool_place import needs_engine

pytestmark = needs_engine


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the probe did."""
    from scout_train.verl_tool import paths, start

    folder = tmp_path_factory.mktemp("loader")
    probe = Path(__file__).with_name("verl_tool_loader_probe.py")
    done = subprocess.run(
        [str(paths.python()), str(probe), str(folder)],
        capture_output=True,
        text=True,
        timeout=500,
        env=start.environment(dict(os.environ), str(folder)),
    )
    assert done.returncode == 0, done.stderr[-3000:]
    line = next(x for x in done.stdout.splitlines() if x.startswith("PROBE"))
    return json.loads(line.removeprefix("PROBE"))  # type: ignore[no-any-return]


def test_rows_belong_to_their_questions_and_groups_are_mixed(found: dict[str, Any]) -> None:
    for step in found["unbroken"]:
        assert step["asked"] == step["played"] and len(step["played"]) == 6
        groups = [step["right"][i : i + 3] for i in (0, 3)]
        assert all(len(set(g)) == 2 for g in groups)
        assert step["lost"] == 0
        assert step["prompt_width"] == 2 and step["width"] <= 3  # shared padding is gone
    assert sum(step["counts"]["scout/groups_lost"] for step in found["unbroken"]) > 0


def test_surplus_groups_are_trained_one_step_later_and_say_so(found: dict[str, Any]) -> None:
    assert any(1 in step["ages"] for step in found["unbroken"])
    for step in found["unbroken"]:
        carried = step["counts"]["scout/groups_carried_in"]
        assert sum(age > 0 for age in step["ages"]) == 3 * carried
    # the old log-probabilities of a carried group are those of sampling, of a fresh one those computed anew
    assert found["old_log_probs"] == [-1.0, -2.0]


def test_a_resumed_run_trains_what_an_unbroken_one_does(found: dict[str, Any]) -> None:
    assert found["resumed"] == found["unbroken"]


def test_a_validation_is_whole_or_none(found: dict[str, Any]) -> None:
    calm, shaken, gone = found["validation"]
    assert calm == shaken == [3, 1, 4]
    assert "validation lost 3 trajectories" in gone
