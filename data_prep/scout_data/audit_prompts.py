"""Prompts: present, with their question, without an answer to copy, and short enough."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from scout_data.findings import AuditSettings, Finding, Verdict, counted
from scout_data.prompt_lengths import MARK, load_tokenizer, template_key, token_lengths
from scout_protocol.dialect import DIALECTS
from scout_protocol.prompt import recognise

if TYPE_CHECKING:
    import pyarrow as pa

# What stands between two answer markers that merely name the tag.
_MENTION = re.compile(
    r"\W*(and|or|to|tags?|answer|your answer|the answer|final answer|text)?\W*", re.IGNORECASE
)
_EXAMPLE = re.compile(
    r"(?i:for example|for instance|e\.g\.)[,:]?\s+[\"'“]?([A-Z][\w'-]*(?: [A-Z][\w'-]*){0,3})"
)
_CHUNK = 16_384


def prompt_findings(
    table: pa.Table, settings: AuditSettings
) -> tuple[list[Finding], list[str], dict[str, Any]]:
    """``(findings, what was not checked, series for the charts)``."""
    total = table.num_rows
    none: list[int] = []
    apart: list[int] = []
    kinds: Counter[Any] = Counter()
    names: dict[Any, str] = {}
    for row, (messages, question) in enumerate(_prompts(table)):
        if not messages or not any((m.get("content") or "").strip() for m in messages):
            none.append(row)
            continue
        key = template_key(messages, question) if question else None
        if key is None:
            if question and not any(question in (m.get("content") or "") for m in messages):
                apart.append(row)
            continue
        kinds[key] += 1
        if key not in names and len(names) < 1000:
            known = recognise(messages, question)
            names[key] = f"{known.name} ({known.sha256[:12]})" if known else "not one of Scout's"
    by_name = Counter[str]()
    for key, n in kinds.items():
        by_name[names.get(key, "not one of Scout's")] += n
    shown = (
        ", ".join(f"{name} {n:,}" for name, n in by_name.most_common(4)) or "none that has its question once"
    )
    findings = [
        counted("prompts", none, total, "have no prompt", "make the rows again"),
        counted("prompts without question", apart, total, "have a prompt without it", "make the rows again"),
        Finding("prompt templates", Verdict.OK, shown, {"rows": dict(by_name)}),
        _examples(table, kinds),
    ]
    if settings.tokenizer is None:
        return findings, ["prompt lengths: no --tokenizer"], {}
    finding, lengths = _lengths(table, settings)
    return (
        [*findings, finding],
        [],
        {"prompt_tokens": lengths, "max_prompt_tokens": settings.max_prompt_tokens},
    )


def _prompts(table: pa.Table) -> Iterator[tuple[Any, str]]:
    for batch in table.select(["prompt", "question"]).to_batches(max_chunksize=_CHUNK):
        columns = batch.to_pydict()
        for messages, question in zip(columns["prompt"], columns["question"], strict=True):
            yield messages, question or ""


def example_answers(text: str) -> list[str]:
    """What a prompt shows as an answer: a model copies it, whatever was asked."""
    found = []
    for dialect in DIALECTS.values():
        pattern = f"{re.escape(dialect.answer.open)}(.{{0,80}}?){re.escape(dialect.answer.close)}"
        found += [between.strip() for between in re.findall(pattern, text, re.DOTALL)]
    found = [between for between in found if not _MENTION.fullmatch(between)]
    found += [word.rstrip("'") for word in _EXAMPLE.findall(text)]
    return list(dict.fromkeys(found))


def _examples(table: pa.Table, kinds: Counter[Any]) -> Finding:
    rows: Counter[str] = Counter()
    for key, n in kinds.items():
        # the question itself may well say "e.g. Paris"
        for example in example_answers("\n".join(content.replace(MARK, " ") for _, content in key)):
            rows[example] += n
    if not rows:
        return Finding("example answers", Verdict.OK, "no prompt shows an answer to copy")
    golden = Counter(
        a.strip().lower() for row in table.column("golden_answers").to_pylist() for a in row or () if a
    )
    said = ", ".join(
        f'"{example}" in {n:,} prompts, the answer of {golden[example.lower()]:,} rows'
        for example, n in rows.most_common(4)
    )
    remedy = "models copy it: choose a prompt without one, such as system_user"
    return Finding("example answers", Verdict.WARN, said, {"rows": dict(rows)}, remedy=remedy)


def _lengths(table: pa.Table, settings: AuditSettings) -> tuple[Finding, dict[int, int]]:
    tokenizer = load_tokenizer(str(settings.tokenizer))
    pairs = (
        (messages or [{"role": "user", "content": "?"}], question) for messages, question in _prompts(table)
    )
    lengths = token_lengths(tokenizer, pairs)
    limit = settings.max_prompt_tokens
    over = [row for row, n in enumerate(lengths) if n > limit]
    ordered = sorted(lengths)
    middle, most = ordered[len(ordered) // 2], ordered[-1]
    p99 = ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]
    numbers = {"median": middle, "p99": p99, "longest": most, "limit": limit}
    finding = counted(
        "prompt length",
        over,
        table.num_rows,
        f"exceed {limit:,} tokens",
        "leave them out, or raise data.max_prompt_length",
        settings.refuse_share,
        numbers=numbers,
    )
    finding.said += f"; median {middle:,}, 99 % {p99:,}, longest {most:,} tokens"
    width = max(1, -(-most // 60))
    return finding, dict(sorted(Counter(n // width * width for n in lengths).items()))
