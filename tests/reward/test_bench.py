"""The benchmark makes what it says, and its limit is a limit."""

from __future__ import annotations

import pytest

from scout_protocol.errors import UserError
from scout_reward.bench import measure
from scout_reward.cli import main
from scout_reward.settings import RewardSettings


@pytest.mark.parametrize("share", [1.0, 0.3])
def test_trajectories_have_the_size_and_every_outcome(share: float) -> None:
    found = measure(300, 4.0, share, RewardSettings())
    assert 3800 < found.mean_bytes < 4800
    assert 0.3 < found.mean_total < 0.6  # about 40 % are right
    assert found.seconds > 0 and found.n == 300
    assert measure(300, 4.0, share, RewardSettings(format_score=0.0)).mean_total < found.mean_total


def test_a_limit_that_is_missed_is_status_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--n", "50", "--at-most-s", "20"]) == 0
    assert capsys.readouterr().out.startswith("50 trajectories of 4.")
    assert main(["bench", "--n", "50", "--at-most-s", "0"]) == 1
    assert "--at-most-s" in capsys.readouterr().err
    with pytest.raises(UserError, match="--n"):
        main(["bench", "--n", "0"])
