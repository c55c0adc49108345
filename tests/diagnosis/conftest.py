"""Traces written by hand as JSON, not by the code under test."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


def _span(author: str, text: str, token_ids: list[int]) -> dict[str, Any]:
    logprobs = [-1] * len(token_ids) if author == "policy" else None
    return {"author": author, "text": text, "token_ids": token_ids, "logprobs": logprobs}


def _trace(**changes: Any) -> dict[str, Any]:
    base: dict[str, Any] = {
        "trace_id": "t",
        "question_id": "q",
        "data_source": "made-up",
        "question": "Who founded Ambleforth?",
        "golden_answers": ["Ida Quill"],
        "spans": [
            _span("prompt", "PROMPT", [1, 2, 3]),
            _span("policy", "<search> Ambleforth </search>", [4, 5]),
            _span("tool", "\n\n<information>PAGE</information>\n\n", [6]),
            _span("policy", "<answer> Ida Quill </answer>", [7, 8]),
        ],
        "tool_calls": [{"query": "Ambleforth", "latency_s": 0.012, "valid": True}],
        "stop_reason": "answer",
        "n_turns": 2,
        "n_searches": 1,
        "n_policy_tokens": 4,
        "n_tool_tokens": 1,
        "score": {"total": 1.0, "em": 1.0, "f1": 1.0, "format": 1.0},
        "model": "m",
        "stage": "grpo",
        "step": 1,
        "prompt_sha256": "",
        "dialect": "search-r1",
        "wall_s": 1.5,
        "extra": {},
    }
    return base | changes


@pytest.fixture
def trace() -> Callable[..., dict[str, Any]]:
    """A right answer after one search; keyword arguments replace fields."""
    return _trace


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Writes traces, one JSON line each; returns the file."""

    def _write(traces: list[dict[str, Any]], name: str = "traces.jsonl") -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(t) + "\n" for t in traces), encoding="utf-8")
        return path

    return _write
