"""Over-long trajectories: no loss, or less reward, never both.

Masking is DAPO's "overlong filtering" (arXiv:2503.14476, sec. 3.4): a trajectory that ran out of room says
nothing about its quality, so its tokens carry no loss; its reward stays in the group. Only
`StopReason.LENGTH` counts as running out: an answer on the last allowed turn is whole, however long the
trajectory is. The soft punishment, eq. 13 of that paper, is a term of the reward (`scout_reward.shaping`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from scout_protocol.errors import UserError
from scout_protocol.records import StopReason

if TYPE_CHECKING:
    from scout_train.settings import RewardSection


def masks(reward: RewardSection, stop: StopReason) -> bool:
    """Whether a trajectory that ended like this carries no loss."""
    return reward.overlong_mask and stop is StopReason.LENGTH


def check(reward: RewardSection) -> None:
    """Raise if over-long trajectories were both masked and punished.

    Raises:
        UserError: both are switched on.
    """
    if reward.overlong_mask and reward.overlong_penalty:
        raise UserError(
            "scout.reward.overlong_mask",
            reward.overlong_mask,
            "choose one: with overlong_penalty over-long trajectories are punished, not masked",
        )
