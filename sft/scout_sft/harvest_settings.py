"""What a user chooses for a harvest, and the mark by which a resumed one knows that it is the same."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from scout_protocol.dialect import get_dialect
from scout_protocol.errors import UserError
from scout_protocol.records import RLRow
from scout_sft.strategies import MOST_SEARCHES, PLAN, POLICY

LIMITS = ("max_turns", "max_turn_tokens", "max_response_tokens", "max_obs_tokens")


@dataclass(frozen=True, slots=True)
class HarvestSettings:
    """What a user chooses.

    ``early_stop_share``: of the demonstrations that could go on after a search, the share that answers there,
    too early, with what that search yields. ``keep_unfound``: keep those whose answer no result holds.
    ``strategies``: shares of `strategies.STRATEGIES`. ``searches``: fewest and most searches of a ``bridge``
    or ``keywords`` demonstration. ``max_revealing_share``: most of the kept ones that may put the answer into
    a query before a result had it. ``long_chain_repeat``: how often a demonstration of at least
    ``long_chain_from`` searches is written. ``policy``, ``samples``, ``temperature`` and the limits of an
    episode are of the strategy ``policy``; give it those that its model was trained with.
    """

    server: str = "http://127.0.0.1:5000"
    tools_token_env: str = ""  # variable with the tool server's bearer token
    dialect: str = "search-r1"
    strategies: tuple[tuple[str, float], ...] = ((PLAN, 1.0),)
    searches: tuple[int, int] | None = None
    max_revealing_share: float = 0.2
    long_chain_repeat: int = 1
    long_chain_from: int = 3
    policy: str = ""
    samples: int = 4
    temperature: float = 1.0
    max_turns: int = 6
    max_turn_tokens: int = 256
    max_response_tokens: int = 2048
    max_obs_tokens: int = 512
    early_stop_share: float = 0.6
    keep_unfound: bool = False
    seed: int = 0
    concurrency: int = 64
    call_timeout_s: float = 30.0
    retries: int = 3
    retry_wait_s: float = 2.0

    def __post_init__(self) -> None:
        if not 0 <= self.early_stop_share <= 1:
            raise UserError("--early-stop-share", self.early_stop_share, "must be between 0 and 1")
        if not 0 <= self.max_revealing_share <= 1:
            raise UserError("--max-revealing-share", self.max_revealing_share, "must be between 0 and 1")
        if self.searches and not 1 <= self.searches[0] <= self.searches[1] <= MOST_SEARCHES:
            told = f"{self.searches[0]}-{self.searches[1]}"
            raise UserError("--searches", told, f"must ascend from 1 to {MOST_SEARCHES} at most")
        for name in (
            "concurrency",
            "call_timeout_s",
            "retry_wait_s",
            "samples",
            "long_chain_repeat",
            "long_chain_from",
            *LIMITS,
        ):
            if getattr(self, name) <= 0:
                raise UserError(f"--{name.replace('_', '-')}", getattr(self, name), "must be greater than 0")
        if (self.strategies[0][0] == POLICY) != bool(self.policy):
            raise UserError("--policy", repr(self.policy), f"goes with --strategy {POLICY}, and only with it")
        if self.retries < 0:
            raise UserError("--retries", self.retries, "must not be negative")
        get_dialect(self.dialect)


def fingerprint(rows: Sequence[RLRow], settings: HarvestSettings) -> dict[str, Any]:
    """Whatever changes what is harvested; the journal's first line."""
    digest = hashlib.sha256()
    for row in rows:
        digest.update(
            msgspec.json.encode([row.id, row.prompt, row.golden_answers, row.extra_info.get("oracle")])
        )
    mark: dict[str, Any] = {
        "rows": digest.hexdigest(),
        "dialect": settings.dialect,
        "early_stop_share": settings.early_stop_share,
        "keep_unfound": settings.keep_unfound,
        "seed": settings.seed,
    }
    if settings.policy:
        names = ("policy", "samples", "temperature", *LIMITS)
        mark |= {name: getattr(settings, name) for name in names}
    if settings.strategies != ((PLAN, 1.0),) or settings.searches:  # as before where only plans are played
        mark |= {
            "strategies": [[name, share] for name, share in settings.strategies],
            "searches": list(settings.searches or ()),
        }
    return mark
