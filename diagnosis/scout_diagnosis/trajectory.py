"""One trajectory on the terminal: every span in the colour of who wrote it.

Everything from a file goes through `plain` or `one_line` and into `Text`, which knows no markup.
"""

from __future__ import annotations

import json
from typing import Any

from rich.console import Console
from rich.rule import Rule
from rich.text import Text

from scout_diagnosis.choose import exact_match, met_outage, right, stage_of, wrong
from scout_diagnosis.plain import one_line, plain
from scout_diagnosis.trace_files import Found
from scout_protocol.records import Author, Span, ToolCall, Trace

STYLES = {Author.PROMPT: "dim", Author.POLICY: "green", Author.TOOL: "bright_blue"}
MAX_SPAN_CHARS = 20_000
_LABEL_COLUMNS = 10


def legend() -> Text:
    """The three authors in their colours."""
    names = [Text(f"▌{author.value}", STYLES[author]) for author in Author]
    return Text("  ").join([Text("written by:"), *names])


def show(found: Found, number: int, console: Console) -> None:
    """Print one trajectory; ``number`` counts from 1."""
    trace = found.trace
    console.print(Rule(_title(trace, number), align="left", style="bold"))
    _line(console, "question", one_line(trace.question), "bold")
    _line(console, "gold", one_line(" | ".join(trace.golden_answers)))
    calls = list(trace.tool_calls)
    for span in trace.spans:
        _span(span, f"{found.path}:{found.line}", console)
        # Every policy turn but the last sends one request, see scout_agent.episode.
        if span.author is Author.POLICY and calls:
            console.print(_call(calls.pop(0)), soft_wrap=True)
    for call in calls:
        console.print(_call(call), soft_wrap=True)
    for label, text in _facts(found):
        _line(console, label, text)
    if error := trace.extra.get("policy_error"):
        _line(console, "outage", f"policy: {one_line(error)}", "red")
    console.print()


def _title(trace: Trace, number: int) -> Text:
    if met_outage(trace):
        verdict = Text("! outage", "bold red")
    elif right(trace):
        verdict = Text("✓ right", "bold green")
    elif wrong(trace):
        verdict = Text("✗ wrong", "bold red")
    else:
        verdict = Text("? not scored" if exact_match(trace) is None else "✗ no answer", "bold yellow")
    where = Text(f"{one_line(stage_of(trace))} step {trace.step} · stopped by {trace.stop_reason.value}")
    return Text(" · ").join([Text(str(number)), verdict, where])


def _span(span: Span, where: str, console: Console) -> None:
    style = STYLES[span.author]
    tokens = "" if span.token_ids is None else f" · {len(span.token_ids)} tokens"
    console.print(Text(f"▌{span.author.value}{tokens}", f"{style} bold"))
    shown = span.text[:MAX_SPAN_CHARS]
    body = shown.strip("\n")
    # Line ends at the edges are tokens too; as marks they take no lines of their own.
    before = len(shown) - len(shown.lstrip("\n")) if body else 0
    after = len(shown) - before - len(body)
    text = Text.assemble(("↵" * before, "dim"), (plain(body), style), ("↵" * after, "dim"))
    if (more := len(span.text) - len(shown)) > 0:
        text.append(f" … {more:,} more characters in {one_line(where)}", "dim")
    text.expand_tabs(8)
    for line in text.wrap(console, max(console.width - 2, 20)):
        line.rstrip()
        console.print(Text.assemble(("▌", style), " ", line), soft_wrap=True)


def _call(call: ToolCall) -> Text:
    text = Text("  → ")
    text.append("tool call ", "bold")
    text.append(f'"{one_line(call.query)}"' if call.query else "without a query")
    text.append(f" · {_seconds(call.latency_s)}")
    if call.cache:
        text.append(f" · cache {one_line(call.cache)}")
    kind = f": {one_line(call.error_kind)}" if call.error_kind else ""
    if call.infra_error:
        text.append(f" · outage{kind}", "bold red")
    elif not call.valid:
        text.append(f" · refused{kind}", "yellow")
    return text


def _facts(found: Found) -> list[tuple[str, str]]:
    trace = found.trace
    score = " · ".join(f"{one_line(name)} {_value(value)}" for name, value in trace.score.items())
    tokens = f"policy {_count(trace.n_policy_tokens)} · tool {_count(trace.n_tool_tokens)}"
    facts = [
        ("score", score or "none: not scored"),
        ("tokens", tokens),
        ("turns", f"{trace.n_turns} · searches {trace.n_searches} · {_seconds(trace.wall_s)}"),
        ("id", f"{one_line(trace.question_id)} · {one_line(trace.data_source)}"),
        ("model", one_line(trace.model) or "–"),
    ]
    extra = {k: v for k, v in trace.extra.items() if k not in ("policy_error", "turns") and v != {}}
    if extra:
        facts.append(("extra", " · ".join(f"{one_line(k)} {_value(v)}" for k, v in extra.items())))
    facts.append(("in", f"{one_line(found.path)}:{found.line}"))
    return facts


def _line(console: Console, label: str, text: str, style: str = "") -> None:
    console.print(Text.assemble((f"{label:<{_LABEL_COLUMNS}}", "dim"), (text, style)), soft_wrap=True)


def _value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3g}"
    if isinstance(value, dict | list):
        value = json.dumps(value, ensure_ascii=False)
    text = one_line(value)
    return (text[:300] + "…" if len(text) > 300 else text) or "–"


def _count(tokens: int | None) -> str:
    return "unknown" if tokens is None else str(tokens)


def _seconds(value: float) -> str:
    return f"{value * 1000:.3g} ms" if value < 1 else f"{value:.3g} s"
