"""The same transcript, token by token, in a demonstration and in verl's agent loop.

Vocabularies that merge across the seams and templates in the manner of Qwen2.5 (a default system message) and
Qwen3 (think markers as tokens, thoughts of earlier messages cut out of the history).
"""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from scout_agent.client import ToolReply
from scout_agent.episode import EpisodeSettings, TraceLabels, run_episode
from scout_protocol.dialect import DIALECTS, Dialect
from scout_protocol.records import RLRow, SFTRow
from scout_sft.dataset import encode_demo

_HERE = Path(__file__).resolve().parent


def _load(name: str, path: Path) -> Any:
    """A test module of another folder, which importmode=importlib does not put on the path."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


tokenizers = _load("scout_parity_tokenizers", _HERE.parent / "train_scripts" / "test_tokenizers.py")
_mini = _load("scout_parity_mini", _HERE / "conftest.py")

DEFAULT_SYSTEM = "You are a helpful assistant."
QWEN25 = (
    "{% if messages[0]['role'] != 'system' %}<|im_start|>system\n"
    + DEFAULT_SYSTEM
    + "<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
QWEN3 = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n"
    "{{ m['content'].split('</think>')[-1].lstrip('\n') if m['role'] == 'assistant' else m['content'] }}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}"
    "{% endif %}"
)


@pytest.fixture(scope="module", params=["qwen2.5", "qwen3"])
def tokenizer(request: pytest.FixtureRequest) -> Any:
    built = tokenizers.build(request.param)
    built.chat_template = QWEN3 if request.param == "qwen3" else QWEN25
    return built


@pytest.fixture(params=list(DIALECTS.values()), ids=lambda d: d.name)
def dialect(request: pytest.FixtureRequest) -> Dialect:
    found: Dialect = request.param
    return found


class Pages:
    """A tool that gives the demonstration's own observations back, in order."""

    def __init__(self, texts: list[str]) -> None:
        self.texts = texts

    async def call(self, trajectory_id: str, action: str, is_last_step: bool = False) -> ToolReply:
        return ToolReply(self.texts.pop(0), True, False, 0.0)


def rollout(tokenizer: Any, dialect: Dialect, row: RLRow, demo: SFTRow, max_obs_tokens: int) -> Any:
    """The demonstration's turns as if they had been sampled, through the trainer's own agent loop."""
    from scout_train.agent_loop import ServerPolicy, to_output

    settings = EpisodeSettings(dialect=dialect.name, max_turns=9, max_obs_tokens=max_obs_tokens)
    turns = [tokenizers.ids_of(tokenizer, t.text) for t in demo.turns if t.role == "policy"]
    policy = ServerPolicy(tokenizers.Script(turns), tokenizer, dialect, {}, settings)
    pages = Pages([turn.text for turn in demo.turns if turn.role == "tool"])
    trace = asyncio.run(run_episode(row, policy, pages, settings, TraceLabels("m", "s")))
    assert not pages.texts and trace.stop_reason.value == "answer"
    return to_output(trace, 1.0, {}, policy)


@pytest.mark.parametrize("max_obs_tokens", [512, 60])
@pytest.mark.parametrize("with_system", [False, True])
def test_ids_and_mask_are_those_of_the_agent_loop(
    tokenizer: Any, dialect: Dialect, with_system: bool, max_obs_tokens: int
) -> None:
    mini = _mini.make_mini()
    for row, demo in zip(mini.rows, _mini.make_demos(mini, dialect), strict=True):
        if with_system:
            system = {"role": "system", "content": "Search before you answer."}
            row = msgspec.structs.replace(row, prompt=[system, *row.prompt])
            demo = msgspec.structs.replace(demo, messages=[system, *demo.messages])
        out = rollout(tokenizer, dialect, row, demo, max_obs_tokens)
        encoded = encode_demo(demo, tokenizer, dialect, max_obs_tokens)
        assert encoded.input_ids == out.prompt_ids + out.response_ids
        assert encoded.loss_mask == [0] * len(out.prompt_ids) + out.response_mask
        assert encoded.loss_mask[len(out.prompt_ids)] == 1, "the first token of the response is trained"


def test_the_prompt_is_the_template_written_out(tokenizer: Any, dialect: Dialect) -> None:
    """An oracle of its own: the string by hand, encoded in one go (its markers are special tokens)."""
    mini = _mini.make_mini()
    demo = _mini.make_demos(mini, dialect)[0]
    (user,) = demo.messages[:-1]
    default = f"<|im_start|>system\n{DEFAULT_SYSTEM}<|im_end|>\n" if tokenizer.chat_template == QWEN25 else ""
    text = f"{default}<|im_start|>user\n{user['content']}<|im_end|>\n<|im_start|>assistant\n"
    ids = tokenizers.ids_of(tokenizer, text)
    assert encode_demo(demo, tokenizer, dialect, 512).input_ids[: len(ids)] == ids


def test_one_message_through_the_template_would_be_another_stream(tokenizer: Any) -> None:
    """Why the template never sees the answer: Qwen3's cuts the thoughts out, both append an end of turn."""
    dialect = DIALECTS["search-r1"]
    mini = _mini.make_mini()
    demo = _mini.make_demos(mini, dialect)[1]
    whole = list(tokenizer.apply_chat_template(demo.messages, tokenize=True, return_dict=True)["input_ids"])
    encoded = encode_demo(demo, tokenizer, dialect, 512)
    assert whole != encoded.input_ids
    assert ("First look up" in tokenizer.decode(whole)) == (tokenizer.chat_template == QWEN25)
