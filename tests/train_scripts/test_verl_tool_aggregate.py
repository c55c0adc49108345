"""Engine verl_tool's losses do not depend on how a batch is cut into micro-batches."""

from __future__ import annotations

import pytest
import torch

from scout_train.verl_tool.aggregate import MODES, Whole, aggregate
from scout_train.verl_tool.trim import trim_padding

WIDTH = 12


def batch(seed: int, masked_rows: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Losses and mask of nine trajectories between 1 and 12 tokens, with holes where the tool wrote."""
    rng = torch.Generator().manual_seed(seed)
    loss = torch.randn(9, WIDTH, generator=rng, dtype=torch.float64)
    mask = (torch.rand(9, WIDTH, generator=rng) < 0.7).double()
    for i in range(9):
        mask[i, 1 + i :] = 0
        mask[i, 0] = 1
    mask[:masked_rows] = 0
    return loss, mask


def by_hand(loss: torch.Tensor, mask: torch.Tensor, mode: str) -> float:
    """The papers' sums, one token at a time (DAPO eq. 8; GRPO eq. 3; Dr.GRPO eq. 3 with L the width)."""
    rows = [[float(x) for x, m in zip(row, ms, strict=True) if m] for row, ms in zip(loss, mask, strict=True)]
    rows = [r for r in rows if r]
    if mode == "token-mean":
        return sum(map(sum, rows)) / sum(map(len, rows))
    scale = {
        "seq-mean-token-mean": lambda r: sum(r) / len(r),
        "seq-mean-token-sum": sum,
        "seq-mean-token-sum-norm": lambda r: sum(r) / WIDTH,
    }[mode]
    return sum(map(scale, rows)) / len(rows)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("cuts", [[9], [1, 8], [3, 3, 3], [4, 5], [2, 2, 2, 2, 1]])
@pytest.mark.parametrize("masked_rows", [0, 2])
def test_any_cut_gives_the_papers_sum(mode: str, cuts: list[int], masked_rows: int) -> None:
    loss, mask = batch(len(cuts), masked_rows)
    whole, total = Whole.of(mask), 0.0
    for part, part_mask in zip(loss.split(cuts), mask.split(cuts), strict=True):
        # verl 0.7.0.dev: loss_scale_factor = rows of the micro-batch / rows of the mini-batch
        total += float(aggregate(part, part_mask, mode, whole)) * len(part) / len(loss)
    assert total == pytest.approx(by_hand(loss, mask, mode), rel=1e-12)


@pytest.mark.parametrize("mode", MODES)
def test_the_engine_verl_says_the_same(mode: str) -> None:
    from verl.trainer.ppo.core_algos import agg_loss

    loss, mask = batch(1)
    theirs = agg_loss(loss, mask, mode, loss_scale_factor=WIDTH)
    assert float(aggregate(loss, mask, mode, Whole.of(mask))) == pytest.approx(float(theirs), rel=1e-7)


def test_the_means_of_verl_0_7_are_not_these() -> None:
    """Why the patch exists: averaging inside each micro-batch weighs tokens of short ones more."""
    loss, mask = batch(1)
    parts = zip(loss.split(3), mask.split(3), strict=True)
    theirs = sum(float((x * m).sum() / m.sum()) * len(x) / 9 for x, m in parts)
    assert abs(theirs - by_hand(loss, mask, "token-mean")) > 0.01


def test_a_batch_without_trained_tokens_is_zero() -> None:
    loss, mask = batch(0)
    mask = torch.zeros_like(mask)
    assert [float(aggregate(loss, mask, mode, Whole.of(mask))) for mode in MODES] == [0.0] * 4
    with pytest.raises(ValueError, match="loss_agg_mode: mean"):
        aggregate(loss, mask, "mean", Whole.of(mask))


class Batch:
    """As much of verl's DataProto as `trim_padding` touches."""

    def __init__(self, prompts: list[int], responses: list[int]) -> None:
        n = len(prompts)
        attention = torch.zeros(n, 20, dtype=torch.long)
        for i, (p, r) in enumerate(zip(prompts, responses, strict=True)):
            attention[i, 8 - p : 8 + r] = 1
        ids = torch.arange(20).repeat(n, 1) * attention
        self.batch = {
            "prompts": ids[:, :8],
            "responses": ids[:, 8:],
            "response_mask": attention[:, 8:],
            "rm_scores": torch.zeros(n, 12),
            "input_ids": ids,
            "attention_mask": attention,
            "position_ids": (attention.cumsum(-1) - 1).clamp(min=0),
        }


@pytest.mark.parametrize("keep", [False, True])
def test_trimming_drops_shared_padding_only(keep: bool) -> None:
    before = Batch([3, 5, 2], [4, 7, 1])
    after = trim_padding(Batch([3, 5, 2], [4, 7, 1]), keep).batch
    assert after["prompts"].shape == (3, 5) and after["responses"].shape == (3, 12 if keep else 7)
    assert after["input_ids"].shape == after["attention_mask"].shape == (3, 17 if keep else 12)
    for name in ("input_ids", "position_ids"):
        kept = before.batch["attention_mask"].bool()
        assert torch.equal(after[name][after["attention_mask"].bool()], before.batch[name][kept])
    assert torch.equal(torch.cat([after["prompts"], after["responses"]], 1), after["input_ids"])
