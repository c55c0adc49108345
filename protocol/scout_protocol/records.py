"""Rows that the rooms exchange through files: questions, demonstrations and traces."""

from __future__ import annotations

import enum
from typing import Any

import msgspec


class RLRow(msgspec.Struct):
    """One training or evaluation question, in Search-R1's parquet schema.

    ``reward_model`` is ``{"ground_truth": {"target": [str, …]}, "style": "rule"}``; ``extra_info`` holds at
    least ``index`` and ``split`` and whatever describes the question (``question``, ``hops``, ``type``,
    ``level``, ``supporting_titles``, ``oracle``).
    """

    data_source: str
    prompt: list[dict[str, str]]
    ability: str
    reward_model: dict[str, Any]
    extra_info: dict[str, Any]
    id: str
    question: str
    golden_answers: list[str]


class SFTTurn(msgspec.Struct):
    """A piece of a demonstration; ``loss`` is True only where the policy is meant to write it."""

    role: str  # "policy" or "tool"
    text: str
    loss: bool


class SFTRow(msgspec.Struct):
    """One demonstration. ``messages`` is the prompt followed by one assistant message, the joined turns."""

    messages: list[dict[str, str]]
    chosen: str
    question: str
    golden_answers: list[str]
    found_answer_context: bool
    turns: list[SFTTurn]
    data_source: str = ""
    id: str = ""
    n_searches: int = 0
    complete: bool = True  # False where the demonstration stops before the evidence is complete
    strategy: str = ""  # how its queries were chosen
    query_reveals_answer: bool = False  # a query has the answer before any result had it


class StopReason(enum.StrEnum):
    """Why a trajectory ended; a closed set."""

    ANSWER = "answer"
    MAX_TURNS = "max_turns"  # the search budget is spent
    LENGTH = "length"  # the response has no room left, or a turn hit its token limit
    EOS = "eos"  # the policy ended its message without an action
    MALFORMED = "malformed"  # the turn could not be executed and no more turns were allowed
    TURN_TIMEOUT = "turn_timeout"
    TRAJECTORY_TIMEOUT = "trajectory_timeout"
    INFRA_ERROR = "infra_error"  # the tool was not there: no evidence about the policy


class Author(enum.StrEnum):
    PROMPT = "prompt"
    POLICY = "policy"
    TOOL = "tool"


class Span(msgspec.Struct):
    """A piece of the trajectory by one author. ``token_ids`` is None where only text is known."""

    author: Author
    text: str
    token_ids: list[int] | None = None
    logprobs: list[float] | None = None


class ToolCall(msgspec.Struct):
    """One request to the tool server."""

    query: str
    latency_s: float
    valid: bool
    infra_error: bool = False
    error_kind: str = ""
    cache: str = ""


class Trace(msgspec.Struct):
    """One trajectory; one JSON line. ``score`` holds the parts of the reward, ``extra`` whatever else."""

    trace_id: str
    question_id: str
    data_source: str
    question: str
    golden_answers: list[str]
    spans: list[Span]
    tool_calls: list[ToolCall]
    stop_reason: StopReason
    n_turns: int
    n_searches: int
    n_policy_tokens: int | None
    n_tool_tokens: int | None
    score: dict[str, Any]
    model: str
    stage: str
    step: int
    prompt_sha256: str
    dialect: str
    wall_s: float
    extra: dict[str, Any] = {}
