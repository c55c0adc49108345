"""Trajectories as HTML: every span in the colour of who wrote it, and the reward with its parts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from typing import Any

from scout_eval.report_picks import Pick, right
from scout_protocol.records import Author, Span, Trace

MAX_CHARS = 4000  # of one span; the rest stays in traces.jsonl
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
WHO = {Author.PROMPT: "prompt", Author.POLICY: "policy", Author.TOOL: "tool"}


def safe(text: object) -> str:
    """Text for HTML, in an element or an attribute. Retrieved text is untrusted.

    Control characters, direction overrides and lone surrogates become U+FFFD: they can hide or reorder what
    a reader sees.
    """
    return escape(visible(str(text)), quote=True)


def visible(text: str) -> str:
    """The text with every character that a reader cannot see, or that moves others, as U+FFFD."""
    return _CONTROL.sub("\ufffd", text)


def trajectory_cards(picks: Sequence[Pick]) -> str:
    """All picked trajectories, one card each."""
    return "".join(_card(pick) for pick in picks)


def _card(pick: Pick) -> str:
    trace = pick.trace
    good = right(trace)
    verdict = (
        f'<span class="verdict {"good" if good else "bad"}">{"✓ right" if good else "✗ not right"}</span>'
    )
    facts = [
        f"gold: {' | '.join(trace.golden_answers)}",
        f"stopped by {trace.stop_reason.value}",
        f"{trace.n_turns} turns, {trace.n_searches} searches",
        f"id {trace.question_id}",
    ]
    return (
        f'<article class="card run">{verdict}<h3>{safe(pick.title)}</h3>'
        f'<p class="question">{safe(trace.question)}</p>'
        f'<p class="meta">{" · ".join(map(safe, facts))}</p>'
        f"{''.join(_span(span) for span in trace.spans)}{_reward(trace)}</article>"
    )


def _span(span: Span) -> str:
    who = WHO[span.author]
    tokens = "" if span.token_ids is None else f" · {len(span.token_ids)} tokens"
    text, more = span.text.strip("\n"), ""
    if len(text) > MAX_CHARS:
        more = f"\n… {len(text) - MAX_CHARS} more characters in traces.jsonl"
        text = text[:MAX_CHARS]
    return (
        f'<div class="span {who}"><span class="who">{who}{tokens}</span>'
        f'<pre tabindex="0">{safe(text)}{more}</pre></div>'
    )


def _reward(trace: Trace) -> str:
    if not trace.score:
        return '<p class="parts">no reward: not scored</p>'
    parts = [f"{safe(name)} <b>{safe(_value(value))}</b>" for name, value in trace.score.items()]
    return f'<p class="parts">reward: {" · ".join(parts)}</p>'


def _value(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value) or "–"
