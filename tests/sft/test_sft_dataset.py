"""Token ids and loss mask against an independent tokenisation of the whole conversation."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest

from scout_protocol.dialect import SEARCH_R1
from scout_protocol.errors import UserError
from scout_protocol.records import SFTTurn
from scout_sft.dataset import DemoDataset, draw_order, encode_demo, encode_demos
from scout_sft.rows import write_demos

TOOL_BLOCK = re.compile(r"\n\n<information>.*?</information>\n\n", re.DOTALL)


def oracle(tokenizer: Any, demo: Any) -> tuple[list[int], list[int]]:
    """The conversation as one string, tokenised at once; loss by character offsets."""
    prompt = "".join(f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in demo.messages[:-1])
    prompt += "<|im_start|>assistant\n"
    text = prompt + demo.messages[-1]["content"]
    by_policy = [i >= len(prompt) for i in range(len(text))]
    for block in TOOL_BLOCK.finditer(text, len(prompt)):
        by_policy[block.start() : block.end()] = [False] * (block.end() - block.start())
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    mask = []
    for start, end in encoded["offset_mapping"]:
        assert len(set(by_policy[start:end])) == 1, "a token has two authors"
        mask.append(int(by_policy[start]))
    return encoded["input_ids"], mask


def test_ids_and_mask_equal_an_independent_tokenisation(tokenizer: Any, demos: Any) -> None:
    assert any("é" in d.chosen for d in demos) and any("李" in d.chosen for d in demos)
    for demo in demos:
        ids, mask = oracle(tokenizer, demo)
        encoded = encode_demo(demo, tokenizer, SEARCH_R1, max_obs_tokens=512)
        assert encoded.input_ids == ids
        assert encoded.loss_mask == mask


def test_the_loss_is_on_what_the_policy_wrote_and_nothing_else(tokenizer: Any, demos: Any) -> None:
    for demo in demos:
        encoded = encode_demo(demo, tokenizer, SEARCH_R1, max_obs_tokens=512)
        pairs = list(zip(encoded.input_ids, encoded.loss_mask, strict=True))
        trained = tokenizer.decode([i for i, loss in pairs if loss])
        assert trained == "".join(t.text for t in demo.turns if t.role == "policy")
        assert "information>" not in trained and "Title" not in trained
        first = encoded.loss_mask.index(1)
        assert tokenizer.decode([encoded.input_ids[first]]) == "<think>"
        # no end-of-turn token: a rollout stops at the closing answer marker
        assert tokenizer.decode(encoded.input_ids[-1:]) == "</answer>"


def test_observations_are_cut_as_rollouts_cut_them(tokenizer: Any, demos: Any) -> None:
    demo = next(d for d in demos if d.n_searches == 2)
    encoded = encode_demo(demo, tokenizer, SEARCH_R1, max_obs_tokens=30)
    text = tokenizer.decode(encoded.input_ids)
    assert text.count("…(truncated)</information>") == 2
    tool, run = [], 0
    for loss in [*encoded.loss_mask[encoded.loss_mask.index(1) :], 1]:
        run = run + 1 if loss == 0 else (tool.append(run) or 0 if run else 0)
    assert len(tool) == 2 and max(tool) <= 30


def test_long_demonstrations_are_refused_dropped_or_cut_after_a_turn(tokenizer: Any, demos: Any) -> None:
    long = next(d for d in demos if d.n_searches == 2)
    whole = encode_demo(long, tokenizer, SEARCH_R1, 512)
    limit = len(whole.input_ids) - 1
    with pytest.raises(UserError, match=f"{limit + 1} tokens: is longer than {limit}"):
        encode_demos([long], tokenizer, SEARCH_R1, 512, limit)
    with pytest.raises(UserError, match="none fits"):
        encode_demos([long], tokenizer, SEARCH_R1, 512, limit, "drop")
    (cut,), facts = encode_demos([long], tokenizer, SEARCH_R1, 512, limit, "cut")
    assert facts.cut == 1 and whole.input_ids[: len(cut.input_ids)] == cut.input_ids
    assert tokenizer.decode(cut.input_ids).endswith(long.turns[2].text)
    assert cut.loss_mask[-1] == 1 and sum(cut.loss_mask) < sum(whole.loss_mask)
    with pytest.raises(UserError, match="none fits"):
        encode_demos([long], tokenizer, SEARCH_R1, 512, 20, "cut")
    with pytest.raises(UserError, match="overlong"):
        encode_demos([long], tokenizer, SEARCH_R1, 512, 20, "perhaps")


def test_a_cut_is_never_inside_a_turn(tokenizer: Any, demos: Any) -> None:
    long = next(d for d in demos if d.n_searches == 2)
    whole = encode_demo(long, tokenizer, SEARCH_R1, 512)
    ends = {0}
    for limit in range(1, len(whole.input_ids) + 1):
        cut = encode_demo(long, tokenizer, SEARCH_R1, 512, limit)
        assert len(cut.input_ids) <= limit
        ends.add(len(cut.input_ids))
    assert len(ends) == 1 + sum(t.role == "policy" for t in long.turns)


def test_tool_text_with_loss_is_refused(tokenizer: Any, demos: Any) -> None:
    for turn in (SFTTurn("tool", "x", True), SFTTurn("user", "x", False)):
        bad = msgspec.structs.replace(demos[0], turns=[turn])
        with pytest.raises(UserError, match="only policy turns may have loss"):
            encode_demo(bad, tokenizer, SEARCH_R1, 512)
    with pytest.raises(UserError, match="no turns"):
        encode_demo(msgspec.structs.replace(demos[0], turns=[]), tokenizer, SEARCH_R1, 512)
    with pytest.raises(UserError, match="no prompt"):
        encode_demo(msgspec.structs.replace(demos[0], messages=[]), tokenizer, SEARCH_R1, 512)


def test_a_tokenizer_without_chat_template_is_refused(tokenizer: Any, demos: Any) -> None:
    import copy

    bare = copy.deepcopy(tokenizer)
    bare.chat_template = None
    with pytest.raises(UserError, match="chat template"):
        encode_demo(demos[0], bare, SEARCH_R1, 512)


def _config(draws: int, seed: int, batch: int = 4) -> dict[str, Any]:
    own = {"dialect": "search-r1", "max_obs_tokens": 512, "overlong": "error", "seed": seed, "draws": draws}
    return {
        "pad_mode": "no_padding",
        "max_length": 512,
        "train_batch_size": batch,
        "val_files": None,
        "scout": own,
    }


def test_verls_sampler_draws_our_seeded_order(tmp_path: Path, tokenizer: Any, demos: Any) -> None:
    from torch.utils.data import DistributedSampler

    path = tmp_path / "d.parquet"
    write_demos(path, demos)
    data = DemoDataset(str(path), tokenizer, _config(draws=40, seed=5))
    sampler = DistributedSampler(data, shuffle=True, num_replicas=1, rank=0, drop_last=True)  # type: ignore[arg-type]
    sampler.set_epoch(0)
    drawn = [data.order[i] for i in sampler]
    lengths = [len(item.input_ids) for item in data.items]
    wanted = draw_order(len(demos), 40, 5)
    assert set(Counter(wanted).values()) == {2, 3}  # 40 draws of 16
    for start in range(0, 40, 4):
        batch = drawn[start : start + 4]
        assert Counter(batch) == Counter(wanted[start : start + 4])
        assert [lengths[i] for i in batch] == sorted(lengths[i] for i in batch)
    assert drawn != [data.order[i] for i in range(40)], "the sampler's own shuffle was there to be undone"


def test_seeds_change_the_order_and_validation_keeps_it(tmp_path: Path, tokenizer: Any, demos: Any) -> None:
    path = tmp_path / "d.parquet"
    write_demos(path, demos)
    one, two = (DemoDataset(str(path), tokenizer, _config(16, seed)) for seed in (1, 2))
    assert one.order != two.order and sorted(one.order) == list(range(16))
    validation = DemoDataset([str(path)], tokenizer, {**_config(40, 1), "val_files": [str(path)]})
    assert validation.order == list(range(16))
    item = validation[0]
    assert item["position_ids"].tolist() == list(range(len(item["input_ids"])))
    assert item["loss_mask"].shape == item["input_ids"].shape
