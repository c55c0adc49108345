"""The reward as verl 0.9.1's custom reward function, in the process or over HTTP.

    reward.custom_reward_function.path=pkg://scout_reward.verl_adapter
    reward.custom_reward_function.name=compute_score             # or compute_score_http
    +reward.custom_reward_function.reward_kwargs.format_score=0.1

What reaches this function (read in verl 0.9.1): the agent loop's ``AgentLoopOutput.extra_fields`` travel as
``tool_extra_fields`` (experimental/agent_loop/agent_loop.py, ``_compute_score``) and the reward managers
``naive``, ``limited`` and ``remote`` merge them into ``extra_info`` before the call
(experimental/reward_loop/reward_manager/naive.py, ``run_single``); ``dapo`` does not. So the agent loop puts
what `extra_fields` returns into its own, and it is read here. ``solution_str`` is the decoded response *with*
the tool's text and without special tokens: it is never scored.

The keys of the returned dict become ``reward_extra_info``: metrics, and candidates for
``algorithm.filter_groups.metric``. verl stacks them over a batch by the first trajectory's keys, so the keys
are always the same and the values are numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from scout_protocol.dialect import get_dialect
from scout_protocol.errors import UserError
from scout_reward import gate
from scout_reward.exact_match import accepted_answers, strings
from scout_reward.reading import Reading
from scout_reward.score import score
from scout_reward.settings import RewardSettings

POLICY_TEXTS, TOOL_TEXTS = "policy_texts", "tool_texts"  # keys in AgentLoopOutput.extra_fields
N_POLICY_TOKENS, STEP, INFRA_FAILED = "n_policy_tokens", "reward_step", "infra_failed"


def extra_fields(reading: Reading, step: int = 0) -> dict[str, Any]:
    """What an agent loop puts into ``AgentLoopOutput.extra_fields``, so that its trajectory can be scored."""
    return {
        POLICY_TEXTS: list(reading.policy_texts),
        TOOL_TEXTS: list(reading.tool_texts),
        N_POLICY_TOKENS: reading.n_policy_tokens,
        STEP: step,
    }


def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: Any,
    extra_info: Mapping[str, Any] | None = None,
    *,
    dialect: str = "search-r1",
    reward_router_address: str | None = None,
    reward_model_tokenizer: Any = None,
    **settings: Any,
) -> dict[str, float]:
    """Score one trajectory for verl.

    Args:
        data_source, solution_str, reward_router_address, reward_model_tokenizer: verl's; not read.
        ground_truth: ``{"target": [accepted answers]}``, Search-R1's shape; ``aliases`` may stand beside.
        extra_info: must hold ``policy_texts``, the policy's own turns in order; see `extra_fields`.
        dialect, settings: from ``reward_kwargs``; the settings are those of `RewardSettings`.

    Returns:
        ``score`` (the reward) and the parts of `Score.as_metrics`.

    Raises:
        ValueError: what is needed is absent, or an outage ended the trajectory: it has no reward. verl counts
            the prompt's group as failed; nothing is ever scored from mixed text.
    """
    # ValueError with one string, because Ray must be able to pickle what is raised here.
    try:
        chosen = checked_settings(frozenset(settings.items()))
        info = extra_info or {}
        return score_reading(reading_of(info), ground_truth, dialect, chosen, step_of(info, chosen))
    except UserError as error:
        raise ValueError(str(error)) from error


async def compute_score_http(
    data_source: str,
    solution_str: str,
    ground_truth: Any,
    extra_info: Mapping[str, Any] | None = None,
    *,
    url: str,
    timeout_s: float = 30.0,
    **_: Any,
) -> dict[str, float]:
    """The same score, asked of `scout reward serve` at ``url``, which holds the settings.

    For the managers that await a reward function: ``naive`` and ``limited``. (verl's ``remote`` manager is a
    pool of Ray processes, not an HTTP hook, and refuses coroutines.)

    Raises:
        ValueError: as `compute_score`, or the service refused or did not answer within ``timeout_s``.
    """
    try:
        reading = reading_of(extra_info or {})
        body = {
            **extra_fields(reading, int((extra_info or {}).get(STEP) or 0)),
            "golden_answers": accepted_answers(ground_truth),
        }
        body["step"] = body.pop(STEP)
        import aiohttp

        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=timeout_s)) as session,
            session.post(f"{url.rstrip('/')}/score", json={"trajectories": [body]}) as response,
        ):
            answer = await response.json()
            if response.status != 200:
                raise UserError(f"{url}/score", response.status, str(answer.get("error", "refused")))
        found: dict[str, float] = {"score": answer["scores"][0]["total"], **answer["metrics"][0]}
        return found
    except UserError as error:
        raise ValueError(str(error)) from error
    except (TimeoutError, aiohttp.ClientError) as error:
        raise ValueError(f"{url}/score: no answer from the reward service: {type(error).__name__}") from error


@lru_cache(maxsize=64)
def checked_settings(options: frozenset[tuple[str, Any]]) -> RewardSettings:
    """The settings of ``reward_kwargs``, through the golden gate at their first use in a process.

    Raises:
        UserError: an unknown or impossible setting, or the gate refuses.
    """
    try:
        settings = RewardSettings(**dict(options))
    except TypeError as error:
        raise UserError("reward_kwargs", sorted(name for name, _ in options), str(error)) from error
    gate.check(settings)
    return settings


def score_reading(
    reading: Reading, ground_truth: Any, dialect: str, settings: RewardSettings, step: int
) -> dict[str, float]:
    """The reward and its parts, as verl wants them."""
    result = score(reading, accepted_answers(ground_truth), get_dialect(dialect), settings, step)
    return {"score": result.total, **result.as_metrics()}


def reading_of(extra_info: Mapping[str, Any]) -> Reading:
    """The reading that `extra_fields` packed.

    Raises:
        UserError: it is not there, or an outage ended the trajectory.
    """
    if extra_info.get(INFRA_FAILED):
        raise UserError(
            f"extra_info.{INFRA_FAILED}",
            True,
            "has no reward: the agent loop must return [] and leave it out",
        )
    texts = extra_info.get(POLICY_TEXTS)
    if texts is None:
        raise UserError(
            f"extra_info.{POLICY_TEXTS}",
            "absent",
            f"the agent loop must set extra_fields['{POLICY_TEXTS}'] to the policy's own turns; solution_str "
            "also holds tool text and is never scored",
        )
    tokens = extra_info.get(N_POLICY_TOKENS)
    return Reading(
        strings(texts, f"extra_info.{POLICY_TEXTS}"),
        strings(extra_info.get(TOOL_TEXTS, ()), f"extra_info.{TOOL_TEXTS}"),
        None if tokens is None else int(tokens),
    )


def step_of(extra_info: Mapping[str, Any], settings: RewardSettings) -> int:
    """The training step.

    Raises:
        UserError: the format score follows a schedule and no step came along.
    """
    step = extra_info.get(STEP)
    if step is None and settings.format_schedule != "constant":
        raise UserError(f"extra_info.{STEP}", "absent", "format_schedule needs the step of the trajectory")
    return int(step or 0)
