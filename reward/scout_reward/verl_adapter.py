"""The reward as verl 0.9.1's custom reward function.

    reward.custom_reward_function.path=pkg://scout_reward.verl_adapter
    reward.custom_reward_function.name=compute_score
    +reward.custom_reward_function.reward_kwargs.format_score=0.1

What reaches this function (read in verl 0.9.1): the agent loop's ``AgentLoopOutput.extra_fields`` travel as
``tool_extra_fields`` (experimental/agent_loop/agent_loop.py, ``_compute_score``) and the reward managers
``naive``, ``dapo``, ``limited`` and ``remote`` merge them into ``extra_info`` before the call
(experimental/reward_loop/reward_manager/naive.py, ``run_single``). So the agent loop puts the policy's own
turns into ``extra_fields["policy_texts"]`` and they are read here. ``solution_str`` is the decoded response
*with* the tool's text and without special tokens: it is never scored.

The keys of the returned dict become ``reward_extra_info``: metrics, and candidates for
``algorithm.filter_groups.metric``. verl stacks them over a batch by the first trajectory's keys, so the keys
are always the same and the values are numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scout_protocol.dialect import get_dialect
from scout_protocol.errors import UserError
from scout_reward.score import FORMAT_SCORE, score

POLICY_TEXTS = "policy_texts"  # the key in AgentLoopOutput.extra_fields


def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: Any,
    extra_info: Mapping[str, Any] | None = None,
    *,
    format_score: float = FORMAT_SCORE,
    dialect: str = "search-r1",
    **_: Any,
) -> dict[str, float]:
    """Score one trajectory for verl.

    Args:
        data_source, solution_str: part of verl's signature; not read.
        ground_truth: ``{"target": [accepted answers]}``, Search-R1's shape.
        extra_info: must hold ``policy_texts``, the policy's own turns in order.
        format_score, dialect: from ``reward_kwargs``.

    Returns:
        ``score`` (the reward), ``acc`` (exact match), ``em``, ``f1``, ``format``, ``n_answers``.

    Raises:
        ValueError: ``policy_texts`` is absent or is not a list of strings, or ``ground_truth`` is not usable.
            verl counts the prompt's group as failed; nothing is ever scored from mixed text.
    """
    # ValueError with one string, because Ray must be able to pickle what is raised here.
    texts = (extra_info or {}).get(POLICY_TEXTS)
    if texts is None:
        raise ValueError(
            f"extra_info.{POLICY_TEXTS} is absent: the agent loop must set extra_fields['{POLICY_TEXTS}'] to "
            "the policy's own turns; solution_str also holds tool text and is never scored"
        )
    policy_texts = _strings(texts, f"extra_info.{POLICY_TEXTS}")
    if not isinstance(ground_truth, Mapping) or "target" not in ground_truth:
        raise ValueError(f"ground_truth: {ground_truth!r}: must be {{'target': [accepted answers]}}")
    golden_answers = _strings(ground_truth["target"], "ground_truth.target")
    try:
        result = score(policy_texts, golden_answers, get_dialect(dialect), format_score)
    except UserError as error:
        raise ValueError(str(error)) from error
    return {
        "score": result.total,
        "acc": result.em,
        "em": result.em,
        "f1": result.f1,
        "format": result.format,
        "n_answers": float(result.n_answers),
    }


def _strings(value: Any, field: str) -> list[str]:
    items = value.tolist() if hasattr(value, "tolist") else value  # parquet columns come as numpy arrays
    if not isinstance(items, (list, tuple)) or not all(isinstance(item, str) for item in items):
        raise ValueError(f"{field}: {value!r}: must be a list of strings")
    return list(items)
