"""Tokens in, tokens out with vocabularies that merge across the seams, as those of Qwen2.5 and Qwen3 do.

Both are built here: Qwen's own split pattern keeps punctuation and the newlines after it together, so ``>``
and two newlines become one token; Qwen3 adds ``<think>`` and ``</think>`` as tokens of their own.
"""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from scout_agent.client import ToolReply
from scout_agent.episode import EpisodeSettings, TraceLabels, run_episode
from scout_agent.transformers_policy import observation_token_ids
from scout_data.rows import make_row
from scout_protocol.dialect import DIALECTS, Dialect
from scout_protocol.errors import UserError
from scout_protocol.observation import TRUNCATED, Document, render
from scout_protocol.records import Author, StopReason, Trace
from scout_protocol.turn import Action, parse

QWEN_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CHAT = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def build(style: str) -> Any:
    from tokenizers import (
        AddedToken,
        Regex,
        Tokenizer,
        decoders,
        models,
        normalizers,
        pre_tokenizers,
        trainers,
    )
    from transformers import PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE())
    bpe.normalizer = normalizers.NFC()
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(QWEN_SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    bpe.decoder = decoders.ByteLevel()
    texts = []
    for d in DIALECTS.values():
        o = d.observation
        texts += [
            f"{d.think.open} a {d.think.close}\n\n{d.search.open}q{d.search.close}\n\n"
            f"{o.open}Doc 1(Title: x) y{o.close}\n\n{d.answer.open}z{d.answer.close}\n",
            f"{d.search.open}{d.search.close}{d.answer.open}{d.answer.close}</{d.think.open}>{TRUNCATED}",
        ]
    bpe.train_from_iterator(
        texts * 20,
        trainers.BpeTrainer(
            vocab_size=700,
            special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    if style == "qwen3":
        names = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"]
        bpe.add_tokens([AddedToken(n, special=False, normalized=False) for n in names])
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe, eos_token="<|im_end|>", pad_token="<|endoftext|>", chat_template=CHAT
    )


@pytest.fixture(scope="module", params=["qwen2.5", "qwen3"])
def tokenizer(request: pytest.FixtureRequest) -> Any:
    return build(request.param)


@pytest.fixture(params=list(DIALECTS.values()), ids=lambda d: d.name)
def dialect(request: pytest.FixtureRequest) -> Dialect:
    found: Dialect = request.param
    return found


def ids_of(tokenizer: Any, text: str) -> list[int]:
    return list(tokenizer.encode(text, add_special_tokens=False))


class Script:
    """verl's inference client with turns given as ids."""

    def __init__(self, turns: list[list[int]]) -> None:
        self.turns, self.read = turns, []  # type: ignore[var-annotated]

    async def generate(self, request_id: str, *, prompt_ids: list[int], sampling_params: Any) -> Any:
        self.read.append(list(prompt_ids))
        ids = self.turns.pop(0)
        return SimpleNamespace(token_ids=ids, log_probs=[-1.0] * len(ids), extra_fields={})


class Found:
    """A tool that finds one document and remembers what it was asked."""

    def __init__(self, dialect: Dialect) -> None:
        self.text = render([Document("1", "France", "Paris is the capital.")], dialect)
        self.actions: list[str] = []

    async def call(self, trajectory_id: str, action: str, is_last_step: bool = False) -> ToolReply:
        self.actions.append(action)
        return ToolReply(self.text, True, False, 0.0)


def play(tokenizer: Any, dialect: Dialect, turns: list[list[int]]) -> tuple[Trace, Any, Script, Found]:
    from scout_train.agent_loop import ServerPolicy, to_output

    settings = EpisodeSettings(dialect=dialect.name)
    server, tools = Script(turns), Found(dialect)
    policy = ServerPolicy(server, tokenizer, dialect, {}, settings)
    row = make_row("What is the capital of France?", ["Paris"], "search_r1", "toy", "train", 0)
    trace = asyncio.run(run_episode(row, policy, tools, settings, TraceLabels("m", "s")))
    return trace, to_output(trace, 1.0, {}, policy), server, tools


def test_the_vocabulary_really_merges_across_the_seam(tokenizer: Any, dialect: Dialect) -> None:
    close = dialect.search.close
    apart = ids_of(tokenizer, close) + ids_of(tokenizer, f"\n\n{dialect.observation.open}")
    joined = ids_of(tokenizer, f"{close}\n\n{dialect.observation.open}")
    assert joined != apart
    assert tokenizer.decode(ids_of(tokenizer, f"{close}\n\n")[-1:]) == ">\n\n"


def test_the_joined_text_is_never_encoded_again(tokenizer: Any, dialect: Dialect) -> None:
    """Every id is where it was sampled or appended; encoding the joined text would move the seams."""
    search = f"{dialect.think.open} a {dialect.think.close}{dialect.search.open}q{dialect.search.close}"
    answer = f"{dialect.answer.open}Paris{dialect.answer.close}"
    first, second = ids_of(tokenizer, search), ids_of(tokenizer, answer)
    trace, out, server, tools = play(tokenizer, dialect, [first, second])
    seen = ids_of(tokenizer, tools.text)
    assert out.response_ids == first + seen + second
    assert out.response_mask == [1] * len(first) + [0] * len(seen) + [1] * len(second)
    assert server.read[1] == out.prompt_ids + first + seen
    assert trace.stop_reason is StopReason.ANSWER
    assert ids_of(tokenizer, "".join(s.text for s in trace.spans[1:])) != out.response_ids


@pytest.mark.parametrize("tail", ["\n\n", "\n", "</", "><"])
def test_a_token_that_reaches_past_the_stop_string_is_kept_whole_and_last(
    tokenizer: Any, dialect: Dialect, tail: str
) -> None:
    """The engine stops at the token that completes the tag, whatever else that token holds."""
    search = f"{dialect.search.open}q{dialect.search.close}"
    ids = ids_of(tokenizer, search + tail)
    while len(tokenizer.decode(ids[:-1])) >= len(search):  # up to the completing token, as engines stop
        ids = ids[:-1]
    late = ids_of(tokenizer, f"{dialect.answer.open}no{dialect.answer.close}")
    answer = ids_of(tokenizer, f"{dialect.answer.open}Paris{dialect.answer.close}")
    trace, out, server, tools = play(tokenizer, dialect, [ids + late, answer])
    own = [s for s in trace.spans if s.author is Author.POLICY]
    assert own[0].token_ids == ids and own[0].text == tokenizer.decode(ids)
    assert own[0].text.startswith(search) and tools.actions == [search]
    assert out.response_ids[: len(ids)] == ids and sum(out.response_mask) == len(ids) + len(answer)
    assert server.read[1][: -len(ids_of(tokenizer, tools.text))][-len(ids) :] == ids


def test_a_stop_string_in_single_characters_is_seen(tokenizer: Any, dialect: Dialect) -> None:
    from scout_train.agent_loop import keep_to_stop

    text = f"{dialect.think.open}é</ {dialect.search.open}q{dialect.search.close}"
    spelled = [i for c in text for i in ids_of(tokenizer, c)]
    more = ids_of(tokenizer, "\n\nand more")
    assert tokenizer.decode(spelled) == text
    assert keep_to_stop(spelled + more, dialect.stops, tokenizer) == len(spelled)
    assert keep_to_stop(spelled[:-1], dialect.stops, tokenizer) == len(spelled) - 1
    assert keep_to_stop([], dialect.stops, tokenizer) == 0


def test_observations_are_cut_by_tokens_with_both_tags(tokenizer: Any, dialect: Dialect) -> None:
    documents = [Document(str(i), "Zoë 東京", "naïve café 日本 <b>\n\nx</b> " * 3) for i in range(3)]
    text, tag = render(documents, dialect), dialect.observation
    whole, cut = len(ids_of(tokenizer, text)), 0
    for limit in range(1, whole + 2):
        try:
            ids = observation_token_ids(tokenizer, text, dialect, limit)
        except UserError:
            assert cut == 0  # only budgets that cannot hold the frame, which come first
            continue
        cut += 1
        shown = tokenizer.decode(ids)
        assert len(ids) <= limit and shown.count(tag.open) == shown.count(tag.close) == 1
        assert shown.startswith(f"\n\n{tag.open}") and shown.endswith(f"{tag.close}\n\n")
        assert (TRUNCATED in shown) == (limit < whole)
    assert cut > whole / 2


def test_think_tokens_of_qwen3_are_text_to_the_parser() -> None:
    tokenizer, dialect = build("qwen3"), DIALECTS["search-r1"]
    text = "<think>a</think><search>q</search>"
    ids = ids_of(tokenizer, text)
    assert ids[0] == tokenizer.convert_tokens_to_ids("<think>") and tokenizer.decode(ids) == text
    turn = parse(tokenizer.decode(ids), dialect)
    assert turn.action is Action.SEARCH and turn.think == "a"
