"""Checks with the model's own tokenizer: prompts fit and arrive whole, stop strings survive."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from scout_protocol.dialect import get_dialect
from scout_protocol.records import RLRow
from scout_train.preflight.finding import Finding, ok, refuse

MOST_ROWS = 2000  # tokenised one by one; `scout data audit --tokenizer` looks at every row
_QUERY = "Zürich 北京 O'Neill & Søn, 1984?"  # what people search for is not all ASCII


def prompts(config: Any, tokenizer: Any, rows: Sequence[RLRow]) -> Finding:
    """Every prompt fits ``data.max_prompt_length``."""
    from scout_agent.transformers_policy import prompt_token_ids

    limit, longest, first = int(config.data.max_prompt_length), 0, ""
    for row in rows[:MOST_ROWS]:
        n_tokens = len(prompt_token_ids(tokenizer, row.prompt))
        if n_tokens > limit and not first:
            first = f"prompt of {row.id} has {n_tokens} tokens"
        longest = max(longest, n_tokens)
    looked = f"{min(len(rows), MOST_ROWS):,} of {len(rows):,} rows"
    if first:
        return refuse(
            "prompts",
            f"{first}, the longest of {looked} {longest}",
            f"raise data.max_prompt_length (now {limit})",
        )
    return ok("prompts", f"at most {longest} of {limit} tokens, in {looked}")


def tokens(config: Any, tokenizer: Any, rows: Sequence[RLRow]) -> Finding:
    """What is encoded decodes to the same text: prompts, tags, queries. No tag is a special token."""
    dialect = get_dialect(str(config.scout.episode.dialect))
    special = set(tokenizer.all_special_ids)
    written = [
        f"{dialect.think.open}a{dialect.think.close}\n{dialect.search.open} {_QUERY} {dialect.search.close}",
        f"{dialect.answer.open}{_QUERY}{dialect.answer.close}",
        f"\n\n{dialect.observation.open}Doc 1(Title: a) b{dialect.observation.close}\n\n",
    ]
    for text in written:
        ids = tokenizer.encode(text, add_special_tokens=False)
        if tokenizer.decode(ids) != text:
            return refuse(
                "tokens",
                f"{text!r} becomes {tokenizer.decode(ids)!r}",
                "this tokenizer loses text: use another model",
            )
        if lost := [i for i in ids if i in special]:
            piece = tokenizer.decode(lost[:1])
            remedy = "an engine drops special tokens from text: add tags as ordinary tokens (special=False)"
            return refuse("tokens", f"{piece!r} is a special token of this tokenizer", remedy)
    for stop in dialect.stops:
        for tail in ("", "\n", "\n\n", " "):
            if stop not in tokenizer.decode(tokenizer.encode(f"x{stop}{tail}", add_special_tokens=False)):
                return refuse(
                    "tokens",
                    f"stop string {stop!r} before {tail!r} is lost",
                    "this tokenizer cannot stop there",
                )
    for row in rows[:8]:
        text = tokenizer.apply_chat_template(row.prompt, add_generation_prompt=True, tokenize=False)
        missing = next((m["content"] for m in row.prompt if m["content"].strip() not in text), None)
        if missing is not None:
            return refuse(
                "tokens", f"the chat template leaves out {missing[:60]!r}", "mend chat_template.jinja"
            )
        if text == tokenizer.apply_chat_template(row.prompt, add_generation_prompt=False, tokenize=False):
            return refuse(
                "tokens",
                "the chat template ignores add_generation_prompt",
                "mend chat_template.jinja: the policy must know that it is its turn",
            )
        ids = tokenizer.encode(text, add_special_tokens=False)
        if tokenizer.decode(ids) != text:
            return refuse(
                "tokens",
                f"the prompt of {row.id} does not survive",
                "this tokenizer loses text: use another model",
            )
    return ok("tokens", f"prompts, tags and stop strings of {dialect.name} survive this tokenizer")
