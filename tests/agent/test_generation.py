"""The local engine against transformers' own `generate` and hand-computed probabilities."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from scout_agent.generation import Engine, Request  # noqa: E402
from scout_agent.policy import Finish  # noqa: E402
from scout_agent.transformers_policy import TransformersPolicy  # noqa: E402
from scout_protocol.errors import UserError  # noqa: E402
from scout_protocol.observation import TRUNCATED  # noqa: E402
from scout_protocol.records import RLRow  # noqa: E402

CHAT = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def _tokenizer() -> Any:
    """Byte-level, with no token for any marker: every stop string spans several tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: i for i, token in enumerate(["<|endoftext|>", "<|im_start|>", "<|im_end|>", *alphabet])}
    bpe = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    bpe.decoder = decoders.ByteLevel()
    bpe.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=bpe, pad_token="<|endoftext|>", eos_token="<|im_end|>"
    )
    tokenizer.chat_template = CHAT
    return tokenizer


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return _tokenizer()


@pytest.fixture(scope="module")
def model(tokenizer: Any) -> Any:
    torch.manual_seed(0)
    config = transformers.Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        max_position_embeddings=512,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )
    return transformers.Qwen3ForCausalLM(config).eval()


@pytest.fixture
def engine(model: Any, tokenizer: Any) -> Engine:
    return Engine(model, tokenizer, [tokenizer.eos_token_id], 24, 256, seed=7)


def _prompts(tokenizer: Any) -> list[list[int]]:
    texts = ["a", "Who wrote The Hollow Mirror?", "日本の首都は?", "x" * 60, "The end."]
    return [tokenizer.encode(text) for text in texts]


def test_greedy_equals_transformers_generate_in_any_batch(engine: Engine, model: Any, tokenizer: Any) -> None:
    prompts = _prompts(tokenizer)
    want = [
        model.generate(torch.tensor([p]), max_new_tokens=24, do_sample=False)[0, len(p) :].tolist()
        for p in prompts
    ]
    greedy = {"temperature": 0, "max_tokens": 24}
    together = engine.generate([Request(p, greedy) for p in prompts])
    alone = [engine.generate([Request(p, greedy)])[0] for p in prompts]
    assert [r.token_ids for r in together] == want
    assert [r.token_ids for r in alone] == want


def test_logprobs_are_those_of_a_full_forward_pass(engine: Engine, model: Any, tokenizer: Any) -> None:
    temperature = 0.7
    results = engine.generate([Request(p, {"temperature": temperature}) for p in _prompts(tokenizer)])
    for prompt, result in zip(_prompts(tokenizer), results, strict=True):
        ids = torch.tensor([prompt + result.token_ids])
        with torch.no_grad():
            logp = (model(ids).logits[0, len(prompt) - 1 : -1] / temperature).log_softmax(-1)
        want = logp.gather(1, ids[0, len(prompt) :, None])[:, 0]
        assert torch.allclose(torch.tensor(result.logprobs), want, atol=1e-4)


def test_rows_that_finish_leave_and_the_others_are_undisturbed(engine: Engine, tokenizer: Any) -> None:
    prompts = _prompts(tokenizer)
    limits = [1, 24, 3, 9, 2]
    mixed = engine.generate(
        [Request(p, {"temperature": 0, "max_tokens": n}) for p, n in zip(prompts, limits, strict=True)]
    )
    full = engine.generate([Request(p, {"temperature": 0, "max_tokens": 24}) for p in prompts])
    for short, long, limit in zip(mixed, full, limits, strict=True):
        assert short.token_ids == long.token_ids[:limit]
        assert short.finish is (Finish.LENGTH if len(long.token_ids) > limit else long.finish)


class _Spelling:
    """A model whose next token is the next byte of a fixed text, whatever it is given. Counts its batches."""

    def __init__(self, tokenizer: Any, text: str) -> None:
        self.ids = tokenizer.encode(text)
        self.vocab = len(tokenizer)
        self.rows: list[int] = []

    def parameters(self) -> Any:
        return iter([torch.zeros(1)])

    def __call__(self, input_ids: Any, past_key_values: Any, **_rest: Any) -> Any:
        self.rows.append(len(input_ids))
        step = 0 if past_key_values is None else past_key_values.step
        logits = torch.full((len(input_ids), 1, self.vocab), -30.0)
        logits[:, 0, self.ids[min(step, len(self.ids) - 1)]] = 30.0

        class Cache:
            def __init__(self, step: int) -> None:
                self.step = step

            def batch_select_indices(self, index: Any) -> None:
                pass

        return transformers.modeling_outputs.CausalLMOutputWithPast(
            logits=logits, past_key_values=Cache(step + 1)
        )


@pytest.mark.parametrize(
    ("text", "stop", "want"),
    [
        ("look <search> a </search> tail", ["</search>", "</answer>"], "look <search> a </search>"),
        ("<answer>x</answer></search>", ["</search>", "</answer>"], "<answer>x</answer>"),
        ("日本。終", ["本。"], "日本。"),
        ("abcabc", "bc", "abc"),
    ],
)
def test_nothing_is_kept_after_the_stop_string(tokenizer: Any, text: str, stop: Any, want: str) -> None:
    engine = Engine(_Spelling(tokenizer, text), tokenizer, [tokenizer.eos_token_id], 200, 512)
    result = engine.generate([Request([5], {"temperature": 0, "stop": stop})])[0]
    assert tokenizer.decode(result.token_ids) == want
    assert result.finish is Finish.STOP
    assert result.stop_str is not None and want.endswith(result.stop_str)


def test_end_of_message_stops_and_can_be_ignored(tokenizer: Any) -> None:
    engine = Engine(_Spelling(tokenizer, "ab<|im_end|>cd"), tokenizer, [tokenizer.eos_token_id], 5, 512)
    ends, goes_on = engine.generate([Request([5], {}), Request([5], {"ignore_eos": True})])
    assert (tokenizer.decode(ends.token_ids), ends.finish) == ("ab<|im_end|>", Finish.EOS)
    assert (tokenizer.decode(goes_on.token_ids), goes_on.finish) == ("ab<|im_end|>cd", Finish.LENGTH)


def test_a_finished_row_is_not_computed_further(tokenizer: Any) -> None:
    spelling = _Spelling(tokenizer, "abcdef")
    engine = Engine(spelling, tokenizer, [tokenizer.eos_token_id], 24, 512)
    engine.generate([Request([5], {"max_tokens": n}) for n in (1, 2, 6)])
    assert spelling.rows == [3, 2, 1, 1, 1, 1]


def test_filters_keep_what_they_say(engine: Engine, model: Any, tokenizer: Any) -> None:
    prompt = _prompts(tokenizer)[1]
    with torch.no_grad():
        probs = model(torch.tensor([prompt])).logits[0, -1].softmax(-1)
    order = probs.argsort(descending=True).tolist()
    cumulative = probs[order].cumsum(0)
    nucleus = set(order[: int((cumulative < 0.3).sum()) + 1])
    floor = {i for i in order if probs[i] >= 0.9 * probs.max()}
    for params, allowed in (
        ({"top_k": 3}, set(order[:3])),
        ({"top_p": 0.3}, nucleus),
        ({"min_p": 0.9}, floor),
    ):
        requests = [Request(prompt, {**params, "max_tokens": 1})] * 300
        drawn = {r.token_ids[0] for r in engine.generate(requests)}
        assert drawn <= allowed
        assert len(drawn) > 1 or len(allowed) == 1


def test_sampling_follows_the_model(engine: Engine, model: Any, tokenizer: Any) -> None:
    """4,000 draws of one token: every common token's count within five standard errors."""
    prompt, n = _prompts(tokenizer)[0], 4000
    with torch.no_grad():
        probs = model(torch.tensor([prompt])).logits[0, -1].softmax(-1)
    drawn = engine.generate([Request(prompt, {"max_tokens": 1})] * n)
    counts = torch.bincount(torch.tensor([r.token_ids[0] for r in drawn]), minlength=len(probs))
    assert bool(((counts - n * probs).abs() <= 5 * (n * probs * (1 - probs)).sqrt() + 1).all())


def test_same_seed_same_tokens(model: Any, tokenizer: Any) -> None:
    def run(seed: int) -> list[list[int]]:
        engine = Engine(model, tokenizer, [tokenizer.eos_token_id], 24, 256, seed)
        return [r.token_ids for r in engine.generate([Request(p, {}) for p in _prompts(tokenizer)])]

    assert run(1) == run(1)
    assert run(1) != run(2)


@pytest.mark.parametrize(
    ("prompt", "params", "message"),
    [
        ([1], {"presence_penalty": 0.5}, "sampling parameter presence_penalty: 0.5"),
        ([1], {"repetition_penalty": 1.2}, "sampling parameter repetition_penalty: 1.2"),
        ([1], {"n": 4}, "sampling parameter n: 4"),
        ([], {}, "prompt: 0 tokens"),
        ([1] * 256, {}, "prompt: 256 tokens"),
    ],
)
def test_what_is_not_implemented_is_refused(
    engine: Engine, prompt: list[int], params: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        engine.generate([Request(prompt, params)])


def _row(question: str) -> RLRow:
    return RLRow("d", [{"role": "user", "content": question}], "qa", {}, {}, "0", question, ["x"])


def test_a_session_holds_the_tokens_the_model_saw(model: Any, tokenizer: Any, tmp_path: Path) -> None:
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)

    async def play(policy: TransformersPolicy, question: str) -> tuple[list[int], list[list[int]]]:
        session = await policy.start(_row(question))
        first = await session.act(8)
        seen = session.observe("\n\n<information>Doc 1(Title: t) " + "long " * 50 + "</information>\n\n", 70)
        second = await session.act(8)
        assert seen.text.startswith("\n\n<information>Doc 1") and seen.text.endswith(
            f"{TRUNCATED}</information>\n\n"
        )
        assert seen.token_ids is not None and len(seen.token_ids) <= 70
        return session.ids, [
            session.prompt.token_ids or [],
            first.token_ids or [],
            seen.token_ids,
            second.token_ids or [],
        ]

    async def both() -> list[tuple[list[int], list[list[int]]]]:
        policy = TransformersPolicy.load(tmp_path, batch_size=2, threads=1)
        return list(await asyncio.gather(play(policy, "one?"), play(policy, "a longer question, two?")))

    for ids, parts in asyncio.run(both()):
        assert ids == [i for part in parts for i in part]
        prompt, first, seen, second = parts
        # Every sampled token is the greedy choice after exactly these ids: nothing was tokenised again.
        with torch.no_grad():
            best = model(torch.tensor([ids])).logits[0].argmax(-1).tolist()
        assert best[len(prompt) - 1 : len(prompt) - 1 + len(first)] == first
        start = len(prompt) + len(first) + len(seen)
        assert best[start - 1 : start - 1 + len(second)] == second


def test_a_full_context_ends_the_turn(model: Any, tokenizer: Any, tmp_path: Path) -> None:
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)

    async def play() -> Any:
        policy = TransformersPolicy.load(tmp_path, max_model_len=60, threads=1)
        session = await policy.start(_row("q"))
        await session.act(1000)
        return len(session.ids), await session.act(1000)

    length, turn = asyncio.run(play())
    assert length == 60
    assert (turn.finish, turn.token_ids) == (Finish.LENGTH, [])


def test_what_is_no_model_folder_is_said(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not a model folder"):
        TransformersPolicy.load(tmp_path / "nowhere")
