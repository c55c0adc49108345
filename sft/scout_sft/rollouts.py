"""Figures of sampled rollouts: what a warm-up has taught so far, before any reinforcement learning.

Everything here is computed from traces, so that a figure can be checked against the texts it came from.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

from scout_data.language import language_of
from scout_protocol.dialect import Dialect
from scout_protocol.errors import UserError
from scout_protocol.records import Author, StopReason, Trace
from scout_protocol.turn import Action, parse
from scout_reward.score import score_trace

UNCLEAR = "unclear"


def well_formed(trace: Trace, dialect: Dialect) -> bool:
    """Whether every turn is one closed action, none forges an observation, and the last one answers.

    Text after the action counts against it, white space aside: nothing stops a trainer's engine there but
    the stop string. A think block is not asked for: the reward does not ask for one either.
    """
    turns = [span.text for span in trace.spans if span.author is Author.POLICY]
    parsed = [parse(text, dialect) for text in turns]
    if trace.stop_reason is not StopReason.ANSWER or not parsed or parsed[-1].action is not Action.ANSWER:
        return False
    return all(
        turn.action is not Action.MALFORMED and not turn.forged_observation and not text[turn.end :].strip()
        for turn, text in zip(parsed, turns, strict=True)
    )


def pass_at_k(n: int, c: int, k: int) -> float:
    """Chance that at least one of ``k`` draws without replacement from ``n`` samples, ``c`` right, is right.

    Source: Chen et al. 2021 (arXiv:2107.03374), eq. 1.
    """
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)


def action_key(trace: Trace, dialect: Dialect) -> tuple[tuple[str, str], ...]:
    """What the policy did, case and spaces aside: actions with their texts, or all of a malformed turn."""
    texts = [span.text for span in trace.spans if span.author is Author.POLICY]
    turns = [(parse(text, dialect), text) for text in texts]
    return tuple((t.action.value, " ".join((t.text or text).casefold().split())) for t, text in turns)


def mixes_languages(trace: Trace, dialect: Dialect) -> bool:
    """Whether a thought is clearly in another language than the question."""
    asked = language_of(trace.question)
    thoughts = [parse(span.text, dialect).think or "" for span in trace.spans if span.author is Author.POLICY]
    return asked != UNCLEAR and any(language_of(thought) not in (asked, UNCLEAR) for thought in thoughts)


def entropy_nats(traces: Sequence[Trace]) -> float | None:
    """Mean of -log p over the sampled tokens: an unbiased estimate of the policy's entropy a token.

    At the sampling temperature, whose distribution the log-probabilities are of. None where a policy does not
    tell them (an endpoint, a scripted policy) or sampled greedily.
    """
    spans = [s for trace in traces for s in trace.spans if s.author is Author.POLICY]
    if not spans or any(span.logprobs is None for span in spans):
        return None
    logprobs = [value for span in spans for value in span.logprobs or ()]
    return -statistics.fmean(logprobs) if logprobs else None


def figures(groups: Sequence[Sequence[Trace]], dialect: Dialect, batch: int) -> dict[str, Any]:
    """All figures of a set of groups, one group of rollouts for each question.

    Args:
        groups: in the order of the questions; trajectories that an outage ended are left out beforehand.
        batch: questions of the first training batch: the first so many groups.

    Raises:
        UserError: no rollout at all.
    """
    flat = [trace for group in groups for trace in group]
    if not flat:
        raise UserError("rollouts", "none", "every one was ended by an outage: start the tool server")
    scores = [[score_trace(trace) for trace in group] for group in groups]
    em = [[s.em if s else 0.0 for s in group] for group in scores]
    total = [[s.total if s else 0.0 for s in group] for group in scores]
    full = [index for index, group in enumerate(groups) if len(group) > 1]
    first_em = [value for group in em[:batch] for value in group]
    lengths = sorted(trace.n_policy_tokens or 0 for trace in flat)
    k = min(len(group) for group in groups if group)

    def share(wanted: Sequence[bool]) -> float:
        return sum(wanted) / len(wanted) if wanted else 0.0

    return {
        "questions": len(groups),
        "rollouts": len(flat),
        "format_adherence": share([well_formed(trace, dialect) for trace in flat]),
        "searching_share": share([trace.n_searches > 0 for trace in flat]),
        "searches_mean": statistics.fmean(trace.n_searches for trace in flat),
        "pass_at_1": statistics.fmean(statistics.fmean(group) for group in em if group),
        "k": k,
        "pass_at_k": statistics.fmean(pass_at_k(len(group), round(sum(group)), k) for group in em if group),
        "first_batch_rewarded_share": share([value == 1.0 for value in first_em]),
        "first_batch_rollouts": len(first_em),
        "mixed_group_share": share([max(total[i]) > min(total[i]) for i in full]),
        "all_right_group_share": share([min(em[i]) == 1.0 for i in full]),
        "all_wrong_group_share": share([max(em[i]) == 0.0 for i in full]),
        "same_action_group_share": share(
            [len({action_key(trace, dialect) for trace in groups[i]}) == 1 for i in full]
        ),
        "entropy_nats": entropy_nats(flat),
        "language_mixing_share": share([mixes_languages(trace, dialect) for trace in flat]),
        "policy_tokens_mean": statistics.fmean(lengths),
        "policy_tokens_p95": lengths[min(len(lengths) - 1, math.ceil(0.95 * len(lengths)) - 1)],
        "cut_share": share([trace.stop_reason is StopReason.LENGTH for trace in flat]),
        "stop_reasons": {
            reason.value: n
            for reason in StopReason
            if (n := sum(trace.stop_reason is reason for trace in flat))
        },
    }
