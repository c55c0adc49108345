"""GiGPO's advantages through verl's registry, against the formulas of its paper (sec. 4) as loops."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest

from scout_protocol.records import Author, Span
from scout_train.compose import Choice, compose

Trajectory = tuple[str, float, list[str]]  # group, reward, the state of each turn


def config(*settings: tuple[str, Any]) -> Any:
    return compose(Choice("grpo", options=("gigpo",)), list(settings))


def by_paper(batch: list[Trajectory], gamma: float, weight: float, by_std: bool) -> list[list[float]]:
    """A(a_t) of every turn: brute force over all pairs, no shared code."""

    def normed(value: float, others: list[float]) -> float:
        if len(others) < 2:
            return 0.0
        mean = sum(others) / len(others)
        std = math.sqrt(sum((o - mean) ** 2 for o in others) / (len(others) - 1))
        return (value - mean) / (std + 1e-6 if by_std else 1.0)

    found = []
    for group, reward, states in batch:
        episode = normed(reward, [r for g, r, _ in batch if g == group])
        row = []
        for t, state in enumerate(states):
            rest = [
                gamma ** (len(s) - 1 - k) * r
                for g, r, s in batch
                for k, other in enumerate(s)
                if g == group and other == state
            ]
            row.append(episode + weight * normed(gamma ** (len(states) - 1 - t) * reward, rest))
        found.append(row)
    return found


def by_verl(conf: Any, batch: list[Trajectory], masks: list[list[int]]) -> Any:
    """Through the call that verl's trainer makes."""
    import numpy as np
    import torch
    from tensordict import TensorDict
    from verl.protocol import DataProto
    from verl.trainer.ppo.v1.utils import compute_advantage_for_multi_trajectories

    from scout_train import credit

    width = max(map(len, masks))
    rewards = torch.zeros(len(batch), width)
    for i, (_, reward, _) in enumerate(batch):
        rewards[i, len(masks[i]) - 1] = reward
    mask = torch.tensor([m + [0] * (width - len(m)) for m in masks])
    data = DataProto(
        batch=TensorDict({"token_level_rewards": rewards, "response_mask": mask}, batch_size=len(batch)),
        non_tensor_batch={"uid": np.array([g for g, _, _ in batch], dtype=object)},
    )
    with credit.turns([states for _, _, states in batch], conf.scout.credit.step_weight):
        data = compute_advantage_for_multi_trajectories(
            data,
            batch_keys=[f"{g}_{i}_0" for i, (g, _, _) in enumerate(batch)],
            adv_estimator=conf.algorithm.adv_estimator,
            gamma=conf.algorithm.gamma,
            norm_adv_by_std_in_grpo=conf.algorithm.norm_adv_by_std_in_grpo,
            config=conf.algorithm,
        )
    return data.batch["advantages"]


def mask_of(lengths: list[int]) -> list[int]:
    """Turns of these lengths with observations of two tokens in between."""
    mask: list[int] = []
    for n in lengths:
        mask += ([0, 0] if mask else []) + [1] * n
    return mask


def check(conf: Any, batch: list[Trajectory], lengths: list[list[int]]) -> None:
    masks = [mask_of(ns) for ns in lengths]
    found = by_verl(conf, batch, masks)
    wanted = by_paper(
        batch,
        float(conf.algorithm.gamma),
        float(conf.scout.credit.step_weight),
        bool(conf.algorithm.norm_adv_by_std_in_grpo),
    )
    for i, mask in enumerate(masks):
        turn = -1
        for t, own in enumerate(mask):
            turn += own and (t == 0 or not mask[t - 1])
            expected = wanted[i][turn] if own else 0.0
            assert float(found[i, t]) == pytest.approx(expected, abs=1e-4), (i, t)
        assert not found[i, len(mask) :].any()


def test_by_hand() -> None:
    """Two members, one right after a search, one wrong at once; they share the first state only."""
    conf = config(("algorithm.norm_adv_by_std_in_grpo", False), ("algorithm.gamma", 0.5))
    batch = [("g", 1.0, ["start", "doc"]), ("g", 0.0, ["start"])]
    found = by_verl(conf, batch, [[1, 1, 0, 0, 0, 1], [1]])
    # A_E = ±0.5. First turns: R_0 = 0.5 * 1 against 0, so A_S = ±0.25. The lone second turn: A_S = 0.
    assert found[0].tolist() == [0.75, 0.75, 0.0, 0.0, 0.0, 0.5]
    assert found[1].tolist() == [-0.75, 0.0, 0.0, 0.0, 0.0, 0.0]


@pytest.mark.parametrize("by_std", [True, False])
def test_against_brute_force_on_random_batches(by_std: bool) -> None:
    rng = random.Random(3)
    conf = config(("algorithm.norm_adv_by_std_in_grpo", by_std), ("scout.credit.step_weight", 0.7))
    for _ in range(30):
        batch, lengths = [], []
        for i in range(rng.randint(1, 12)):
            n = rng.randint(1, 4)
            states = ["start", *(rng.choice("abc") for _ in range(n - 1))]
            batch.append((f"g{i % 3}", rng.choice([0.0, 0.1, 1.0]), states))
            lengths.append([rng.randint(1, 5) for _ in range(n)])
        check(conf, batch, lengths)


def test_worked_groups() -> None:
    conf = config()
    assert (conf.algorithm.gamma, conf.scout.credit.step_weight) == (0.95, 1.0)
    check(conf, [("g", r, ["start"]) for r in (1.0, 0.0, 0.0, 0.0)], [[3], [1], [2], [5]])
    check(conf, [("g", 1.0, ["start"])] * 4, [[3], [1], [2], [5]])  # all equal: zero everywhere
    check(conf, [("g", 1.0, ["start", "a"]), ("g", 0.0, ["start", "a"])], [[2, 3], [200, 300]])
    check(conf, [("g", 1.0, ["start", "a"])], [[2, 3]])  # a lone member: zero
    # all right, but one needed a turn more: its first turn is worth less
    check(conf, [("g", 1.0, ["start"]), ("g", 1.0, ["start", "a"])], [[2], [2, 3]])


def test_a_masked_trajectory_counts_in_the_group_and_learns_nothing() -> None:
    batch = [("g", 1.0, ["start", "a"]), ("g", 0.0, ["start"])]
    found = by_verl(config(), batch, [[0] * 6, [1]])
    assert not found[0].any()
    assert float(found[1, 0]) == pytest.approx(by_paper(batch, 0.95, 1.0, True)[1][0], abs=1e-4)


def test_turns_and_anchors_must_agree() -> None:
    with pytest.raises(ValueError, match="2 turns in the mask, 1 anchors"):
        by_verl(config(), [("g", 1.0, ["start"]), ("g", 0.0, ["start"])], [[1, 0, 1], [1]])


def test_without_turns_the_estimator_refuses() -> None:
    from scout_train import credit

    with pytest.raises(LookupError):
        credit.gigpo(None, None, [])  # type: ignore[arg-type]


def test_an_anchor_is_what_the_tool_said_last() -> None:
    from scout_train.credit import anchors

    def span(author: Author, text: str, *ids: int) -> Span:
        return Span(author, text, list(ids))

    policy, tool = Author.POLICY, Author.TOOL
    one = anchors([span(policy, "q", 1), span(tool, "doc", 2), span(policy, "x", 3), span(tool, "end", 4)])
    two = anchors([span(policy, "other", 1, 2), span(tool, "doc", 2), span(policy, "y", 3)])
    assert one == two and one[0] == "start" and len(set(one)) == 2
    # a turn of no tokens is no turn; what was said around it is one observation
    assert len(anchors([span(policy, "q", 1), span(tool, "a", 2), span(policy, ""), span(tool, "b", 3)])) == 1
