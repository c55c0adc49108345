"""Credit for turns: GiGPO (arXiv:2505.10978), an advantage estimator in verl's registry.

A trajectory's scalar, broadcast to every turn, praises a useless search as much as the one that found the
answer. GiGPO adds an advantage of each turn among the turns of the group that were taken in the same state:

    A(a_t) = A_E(τ) + ω A_S(a_t)                                    (sec. 4.2)
    A_E(τ_i) = (R(τ_i) - mean R) / F                                (sec. 4.1)
    A_S(a_t) = (R_t - mean of R over G(s_t)) / F,  R_t = Σ_{k>=t} γ^(k-t) r_k     (sec. 4.2)

with F the standard deviation, or 1 (``algorithm.norm_adv_by_std_in_grpo``). The state of a turn, its anchor,
is what the tool had just said, as the paper takes the environment's observation; the first turns of a group
all share one state, the question. A state that one turn alone was in says nothing about that turn: 0.

Turns need no boundaries in the batch: the policy's tokens of a turn are a run of ones in the response mask,
since a tool's text stands between any two turns.
"""

from __future__ import annotations

import contextlib
import contextvars
import hashlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from verl.trainer.ppo.core_algos import register_adv_est

from scout_protocol.records import Author, Span

GIGPO = "gigpo"
START = "start"  # the anchor of a first turn
EPSILON = 1e-6  # beside a standard deviation, as in verl's GRPO


@dataclass(frozen=True)
class Turns:
    """What verl's call of an estimator leaves out.

    Attributes:
        anchors: of each row of the batch, the state of each of its turns.
        step_weight: ω, the weight of A_S.
    """

    anchors: Sequence[Sequence[str]]
    step_weight: float


_TURNS: contextvars.ContextVar[Turns] = contextvars.ContextVar("scout_turns")


@contextlib.contextmanager
def turns(anchors: Sequence[Sequence[str]], step_weight: float) -> Iterator[None]:
    """Within this block the estimator knows the turns of the rows that it is given."""
    token = _TURNS.set(Turns(anchors, step_weight))
    try:
        yield
    finally:
        _TURNS.reset(token)


def anchors(spans: Sequence[Span]) -> list[str]:
    """The state in which each turn of a response was written, by a short digest.

    Args:
        spans: the response, in order; a policy span without tokens is no turn.
    """
    found: list[str] = []
    heard = ""
    for span in spans:
        if span.author is not Author.POLICY:
            heard += span.text
        elif span.token_ids:
            found.append(hashlib.sha256(heard.encode()).hexdigest()[:16] if found or heard else START)
            heard = ""
    return found


def runs(mask: Sequence[int]) -> list[tuple[int, int]]:
    """``[start, end)`` of each run of ones: the turns of a response."""
    edges = [0, *(int(bool(m)) for m in mask), 0]
    starts = [i for i in range(len(mask)) if edges[i + 1] and not edges[i]]
    return [(s, next(e for e in range(s + 1, len(mask) + 1) if not edges[e + 1])) for s in starts]


def relative(values: Sequence[float], by_std: bool) -> list[float]:
    """``(v - mean) / F`` of a group; a lone member has nothing to be compared with and gets 0."""
    if len(values) < 2:
        return [0.0] * len(values)
    group = torch.tensor(values, dtype=torch.float64)
    scale = group.std() + EPSILON if by_std else 1.0
    return [float(v) for v in (group - group.mean()) / scale]


@register_adv_est(GIGPO)  # type: ignore[untyped-decorator]
def gigpo(
    token_level_rewards: torch.Tensor,
    response_mask: torch.Tensor,
    index: Sequence[str],
    config: Any = None,
    **_unused: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """GiGPO's advantages, called by verl.

    Args:
        token_level_rewards: (rows, response), summed to the trajectory's reward.
        response_mask: (rows, response), 1 on the policy's own tokens.
        index: the group of each row.
        config: verl's ``algorithm`` section: ``gamma``, ``norm_adv_by_std_in_grpo``.

    Returns:
        Advantages and, the same, returns: (rows, response), 0 where the mask is 0.

    Raises:
        ValueError: a row has other turns than its anchors say.
    """
    known = _TURNS.get()
    by_std, gamma = bool(config.norm_adv_by_std_in_grpo), float(config.gamma)
    rewards = [float(r) for r in token_level_rewards.sum(dim=-1)]
    groups: dict[str, list[int]] = defaultdict(list)
    states: dict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
    for row, uid in enumerate(index):
        groups[uid].append(row)
        for turn, anchor in enumerate(known.anchors[row]):
            states[uid, anchor].append((row, turn))
    episode: dict[int, float] = {}
    for rows in groups.values():
        episode.update(zip(rows, relative([rewards[r] for r in rows], by_std), strict=True))
    step: dict[tuple[int, int], float] = {}
    for members in states.values():
        # the reward comes with the last turn: R_t = γ^(T-1-t) R
        discounted = [gamma ** (len(known.anchors[r]) - 1 - t) * rewards[r] for r, t in members]
        step.update(zip(members, relative(discounted, by_std), strict=True))
    advantages = torch.zeros_like(token_level_rewards)
    for row, mask in enumerate(response_mask.tolist()):
        found = runs(mask)
        if found and len(found) != len(known.anchors[row]):
            raise ValueError(f"row {row}: {len(found)} turns in the mask, {len(known.anchors[row])} anchors")
        for turn, (start, end) in enumerate(found):
            advantages[row, start:end] = episode[row] + known.step_weight * step[row, turn]
    return advantages, advantages
