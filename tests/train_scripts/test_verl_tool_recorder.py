"""What verl-tool's loop is told of a turn, and the spans that the record gives."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from scout_agent.policy import Finish
from scout_protocol.records import Author
from scout_train.trajectory import drift
from scout_train.verl_tool.recorder import Recorder, TurnTimeoutError


class Letters:
    """A tokenizer with one token a character; 0 ends a message."""

    eos_token_id = 0

    def decode(self, ids: list[int]) -> str:
        return "".join("$" if i == 0 else chr(i) for i in ids)


def ids(text: str) -> list[int]:
    return [0 if c == "$" else ord(c) for c in text]


class Client:
    """Answers with the texts it was given, one after the other."""

    def __init__(self, *texts: str, delay_s: float = 0.0) -> None:
        self.texts, self.delay_s, self.read = list(texts), delay_s, []

    async def generate(
        self, request_id: str, *, prompt_ids: list[int], sampling_params: Any, **_: Any
    ) -> Any:
        await asyncio.sleep(self.delay_s)
        self.read.append(prompt_ids)
        new = ids(self.texts.pop(0))
        return SimpleNamespace(
            token_ids=new, log_probs=[-0.5] * len(new), text="?", finish_reason="?", stop_reason=7
        )


def recorder(client: Client, timeout_s: float = 5.0) -> Recorder:
    return Recorder(client, Letters(), ["</s>", "</a>"], timeout_s)


def ask(r: Recorder, context: str) -> Any:
    return asyncio.run(r.generate("id", prompt_ids=ids(context), sampling_params={}, image_data=None))


@pytest.mark.parametrize(
    ("sampled", "kept", "finish", "finish_reason", "stop_reason"),
    [
        ("<s>x</s>", "<s>x</s>", Finish.STOP, "stop", "</s>"),
        ("<s>x</s>\n\nmore", "<s>x</s>", Finish.STOP, "stop", "</s>"),
        ("<a>y</a>$", "<a>y</a>", Finish.STOP, "stop", "</a>"),
        ("I give up$", "I give up$", Finish.EOS, "stop", None),
        ("and so on", "and so on", Finish.LENGTH, "length", None),
    ],
)
def test_a_turn_ends_where_its_tokens_say(
    sampled: str, kept: str, finish: Finish, finish_reason: str, stop_reason: str | None
) -> None:
    r = recorder(Client(sampled))
    out = ask(r, "question")
    assert (out.token_ids, out.text) == (ids(kept), kept) and len(out.log_probs) == len(kept)
    assert (out.finish_reason, out.stop_reason) == (finish_reason, stop_reason)
    assert r.turns[0].finish is finish and r.n_after_stop == len(sampled) - len(kept)


def test_spans_and_drift_of_two_turns() -> None:
    r = recorder(Client("<s>x</s>", "<a>y</a>"))
    ask(r, "question")
    ask(r, "question<s>x</s>[found]")
    sequence = ids("question<s>x</s>[found]<a>y</a>[late]")
    spans = r.spans(sequence)
    assert [(s.author, s.text) for s in spans] == [
        (Author.PROMPT, "question"),
        (Author.POLICY, "<s>x</s>"),
        (Author.TOOL, "[found]"),
        (Author.POLICY, "<a>y</a>"),
        (Author.TOOL, "[late]"),
    ]
    assert [i for s in spans for i in s.token_ids or ()] == sequence
    mask = [0] * 8 + [1] * 8 + [0] * 7 + [1] * 8 + [0] * 6
    assert drift(sequence, mask, r.sampled) == 0
    mask[20] = 1  # an observation token that would be trained
    assert drift(sequence, mask, r.sampled) == 1


def test_a_turn_that_takes_too_long() -> None:
    with pytest.raises(TurnTimeoutError):
        ask(recorder(Client("x", delay_s=5.0), timeout_s=0.05), "question")
