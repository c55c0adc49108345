"""Advantages and losses of the composed recipes, through verl's own functions, against the papers' formulas.

The oracle is written from the equations with plain Python floats; it shares no code with verl.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

Group = tuple[list[float], list[list[int]]]  # rewards; per member, the mask of its response

CASES: dict[str, Group] = {
    "one right of four": ([1.0, 0.1, 0.0, 0.1], [[1, 1, 0, 1], [1] * 5, [1, 0, 0, 1, 1], [1]]),
    "all equal": ([0.1] * 4, [[1] * 3, [1] * 2, [1] * 4, [1]]),
    "lengths 5 and 500": ([1.0, 0.0], [[1] * 5, [1] * 500]),
    "masked observation": ([1.0, 0.0, 1.0], [[1, 1] + [0] * 40 + [1], [1] * 3, [1, 0, 1]]),
    "the tutorial's group": ([0.1, 1.0, 0.0, 0.1], [[1] * 2] * 4),
}


def advantages(config: Any, rewards: list[float], masks: list[list[int]]) -> Any:
    """What verl's trainer computes for one group, (members, longest response)."""
    import numpy as np
    import torch
    from tensordict import TensorDict
    from verl.protocol import DataProto
    from verl.trainer.ppo.v1.utils import compute_advantage_for_multi_trajectories

    width = max(map(len, masks))
    mask = torch.tensor([m + [0] * (width - len(m)) for m in masks])
    token_rewards = torch.zeros(len(masks), width)
    for i, (m, r) in enumerate(zip(masks, rewards, strict=True)):
        token_rewards[i, len(m) - 1] = r
    batch = TensorDict({"token_level_rewards": token_rewards, "response_mask": mask}, batch_size=len(masks))
    data = DataProto(batch=batch, non_tensor_batch={"uid": np.array(["g"] * len(masks), dtype=object)})
    data = compute_advantage_for_multi_trajectories(
        data,
        batch_keys=[f"g_{i}_0" for i in range(len(masks))],
        adv_estimator=config.algorithm.adv_estimator,
        norm_adv_by_std_in_grpo=config.algorithm.norm_adv_by_std_in_grpo,
        config=config.algorithm,
    )
    return data.batch["advantages"]


def paper_advantage(rewards: list[float]) -> list[float]:
    """DeepSeekMath sec. 4.1.2: (R_i - mean R) / std R, with the n-1 standard deviation."""
    mean = sum(rewards) / len(rewards)
    std = math.sqrt(sum((r - mean) ** 2 for r in rewards) / (len(rewards) - 1))
    return [(r - mean) / (std + 1e-6) for r in rewards]


def ratios(masks: list[list[int]]) -> list[list[float]]:
    """New over old probability of each token; some far outside of every clip range."""
    steps = (1.0, 0.5, 1.25, 0.9, 1.29, 2.0, 0.75, 4.0)
    return [[steps[(3 * i + t) % len(steps)] for t in range(len(m))] for i, m in enumerate(masks)]


def verl_loss(config: Any, adv: list[float], masks: list[list[int]], ratio: list[list[float]]) -> float:
    """verl's ppo_loss on one micro-batch, with the actor configuration of the recipe."""
    import torch
    import verl.utils.tensordict_utils as tu
    from tensordict import TensorDict
    from verl.utils.config import omega_conf_to_dataclass
    from verl.workers.utils.losses import ppo_loss

    prompt = 2

    def nested(rows: list[list[Any]], dtype: Any) -> Any:
        return torch.nested.as_nested_tensor(
            [torch.tensor(r, dtype=dtype) for r in rows], layout=torch.jagged
        )

    old = [[-1.0 - 0.1 * t for t in range(len(m))] for m in masks]
    new = [
        [o + math.log(q) for o, q in zip(old_i, r_i, strict=True)]
        for old_i, r_i in zip(old, ratio, strict=True)
    ]
    fields = {
        "input_ids": nested([[7] * (prompt + len(m)) for m in masks], torch.long),
        "prompts": nested([[7] * prompt for _ in masks], torch.long),
        "responses": nested([[7] * len(m) for m in masks], torch.long),
        "response_mask": nested(masks, torch.long),
        "old_log_probs": nested(old, torch.float64),
        "advantages": nested([[a] * len(m) for a, m in zip(adv, masks, strict=True)], torch.float64),
    }
    data = TensorDict(fields, batch_size=[len(masks)])
    tu.assign_non_tensor_data(data, "dp_size", 1)
    tu.assign_non_tensor_data(data, "batch_num_tokens", sum(map(sum, masks)))
    tu.assign_non_tensor_data(data, "global_batch_size", len(masks))
    # verl's models give at position p the log-probability of the token at p + 1
    full = [[9.0] * (prompt - 1) + n + [9.0] for n in new]
    actor = omega_conf_to_dataclass(config.actor_rollout_ref.actor)
    loss, _ = ppo_loss(actor, {"log_probs": nested(full, torch.float64)}, data)
    return float(loss)


def paper_loss(
    algo: str, adv: list[float], masks: list[list[int]], ratio: list[list[float]], low: float, high: float
) -> float:
    """-J of DeepSeekMath eq. 3 without its KL term ("grpo") or of DAPO eq. 8 ("dapo")."""
    sums = []
    for a, mask, ratios_i in zip(adv, masks, ratio, strict=True):
        own = [r for r, m in zip(ratios_i, mask, strict=True) if m]
        sums.append([min(r * a, min(max(r, 1 - low), 1 + high) * a) for r in own])
    if algo == "grpo":
        return -sum(sum(s) / len(s) for s in sums) / len(sums)
    return -sum(map(sum, sums)) / sum(map(len, sums))


@pytest.mark.parametrize("algo", ["grpo", "dapo"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_advantage_is_the_papers(algo: str, case: str, compose: Callable[..., Any]) -> None:
    rewards, masks = CASES[case]
    found = advantages(compose(algo), rewards, masks)
    for i, (expected, mask) in enumerate(zip(paper_advantage(rewards), masks, strict=True)):
        for t, own in enumerate(mask):
            # broadcast to every token of the policy, zero on every observation token
            assert float(found[i, t]) == pytest.approx(expected if own else 0.0, abs=1e-5)
        assert not found[i, len(mask) :].any()


@pytest.mark.parametrize(("algo", "low", "high"), [("grpo", 0.2, 0.2), ("dapo", 0.2, 0.28)])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_loss_is_the_papers(
    algo: str, low: float, high: float, case: str, compose: Callable[..., Any]
) -> None:
    rewards, masks = CASES[case]
    adv = paper_advantage(rewards)
    ratio = ratios(masks)
    found = verl_loss(compose(algo), adv, masks, ratio)
    assert found == pytest.approx(paper_loss(algo, adv, masks, ratio, low, high), abs=1e-9)


def test_exact_values_of_the_tutorials_group() -> None:
    # mean 0.3, squared deviations 0.04 + 0.49 + 0.09 + 0.04 = 0.66, std (n-1) = sqrt(0.22)
    assert paper_advantage([0.1, 1.0, 0.0, 0.1])[1] == pytest.approx(0.7 / math.sqrt(0.22), abs=1e-4)


def test_a_group_without_variance_has_no_gradient_and_no_nan(compose: Callable[..., Any]) -> None:
    found = advantages(compose("grpo"), [1.0] * 8, [[1] * 3] * 8)
    assert found.abs().max() == 0.0


def test_length_decides_the_weight_of_a_token(compose: Callable[..., Any]) -> None:
    """GRPO: both members weigh the same whatever their length. DAPO: both tokens do."""
    masks, adv = [[1] * 5, [1] * 500], [1.0, -1.0]
    ones = [[1.0] * 5, [1.0] * 500]
    assert verl_loss(compose("grpo"), adv, masks, ones) == pytest.approx(0.0, abs=1e-9)
    assert verl_loss(compose("dapo"), adv, masks, ones) == pytest.approx(495 / 505, abs=1e-9)


def test_clip_higher_lets_a_good_token_grow_further(compose: Callable[..., Any]) -> None:
    masks, adv, ratio = [[1]], [1.0], [[1.26]]
    assert verl_loss(compose("grpo"), adv, masks, ratio) == pytest.approx(-1.2, abs=1e-9)
    assert verl_loss(compose("dapo"), adv, masks, ratio) == pytest.approx(-1.26, abs=1e-9)


def test_a_bad_token_is_never_clipped_upwards(compose: Callable[..., Any]) -> None:
    """min(rA, clip(r)A) for A < 0 and r = 4 is -4; verl's default dual clip would make it -3."""
    assert verl_loss(compose("grpo"), [-1.0], [[1]], [[4.0]]) == pytest.approx(4.0, abs=1e-9)
