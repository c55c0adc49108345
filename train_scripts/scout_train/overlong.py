"""What happens to a trajectory that is too long: nothing, or no loss, or less reward; never the last two.

Masking is DAPO's "overlong filtering" (arXiv:2503.14476, sec. 3.4): a trajectory that ran out of room says
nothing about its quality, so its tokens carry no loss. Only `StopReason.LENGTH` counts as running out: an
answer on the last allowed turn is whole, however long the trajectory is.

The soft punishment is eq. 13 of the same paper, on the policy's own tokens: what a tool returned is not the
policy's length. It never goes below ``-penalty``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from scout_protocol.errors import UserError
from scout_protocol.records import StopReason


@dataclass(frozen=True)
class Overlong:
    """The rule of a run, ``scout.reward.overlong_…``.

    Attributes:
        mask: take trajectories that ended by LENGTH out of the loss; their reward stays in the group.
        max_tokens: L_max of eq. 13, in policy tokens.
        buffer_tokens: L_cache, the interval before it in which the punishment grows; 0: no punishment.
        penalty: the most that is taken away, a reward.
    """

    mask: bool
    max_tokens: int
    buffer_tokens: int
    penalty: float

    def __post_init__(self) -> None:
        if self.mask and self.buffer_tokens:
            raise UserError(
                "scout.reward.overlong_mask",
                self.mask,
                "choose one: with overlong_buffer_tokens over-long trajectories are punished, not masked",
            )
        if self.buffer_tokens < 0 or (self.buffer_tokens and self.max_tokens <= self.buffer_tokens):
            raise UserError(
                "scout.reward.overlong_buffer_tokens",
                self.buffer_tokens,
                f"must be at least 0 and below overlong_max_tokens ({self.max_tokens})",
            )
        if self.penalty < 0:
            raise UserError("scout.reward.overlong_penalty", self.penalty, "must be at least 0")

    def masks(self, stop: StopReason) -> bool:
        """Whether a trajectory that ended like this carries no loss."""
        return self.mask and stop is StopReason.LENGTH

    def punishment(self, n_policy_tokens: int) -> float:
        """Eq. 13, times ``penalty``: 0, then linear over the buffer, then ``-penalty``."""
        if not self.buffer_tokens:
            return 0.0
        over = n_policy_tokens - (self.max_tokens - self.buffer_tokens)
        return -self.penalty * min(max(over / self.buffer_tokens, 0.0), 1.0)


def overlong_rule(config: Any) -> Overlong:
    """The rule that a composed configuration asks for; L_max is the whole response where none is given.

    Raises:
        UserError: masked and punished at once, or numbers that make no sense.
    """
    reward = config.scout.reward
    return Overlong(
        bool(reward.overlong_mask),
        int(reward.overlong_max_tokens or config.data.max_response_length),
        int(reward.overlong_buffer_tokens),
        float(reward.overlong_penalty),
    )
