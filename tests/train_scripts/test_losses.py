"""Advantages and losses of the composed recipes, through verl's own functions, against the papers' formulas.

The oracle is written from the equations with plain Python floats; it shares no code with verl.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

Group = tuple[list[float], list[list[int]]]  # rewards; per member, the mask of its response

# What each algorithm is, in its paper's words: divided by std; how sequences and batch are averaged; clip.
METHODS: dict[str, tuple[bool, str, float, float]] = {
    "grpo": (True, "sequence mean of token means", 0.2, 0.2),
    "dr_grpo": (False, "sum over a constant", 0.2, 0.2),
    "dapo": (True, "token mean", 0.2, 0.28),
    "dapo_dr_grpo": (False, "sum over a constant", 0.2, 0.28),
    "gspo": (True, "sequence ratio", 3e-4, 4e-4),
    "ppo": (False, "token mean", 0.2, 0.2),
}
GROUPED = [a for a in METHODS if a != "ppo"]
L = 512  # Dr. GRPO's constant: data.max_response_length of the size "tiny"

CASES: dict[str, Group] = {
    "one right of four": ([1.0, 0.1, 0.0, 0.1], [[1, 1, 0, 1], [1] * 5, [1, 0, 0, 1, 1], [1]]),
    "all equal": ([0.1] * 4, [[1] * 3, [1] * 2, [1] * 4, [1]]),
    "lengths 5 and 500": ([1.0, 0.0], [[1] * 5, [1] * 500]),
    "masked observation": ([1.0, 0.0, 1.0], [[1, 1] + [0] * 40 + [1], [1] * 3, [1, 0, 1]]),
    "the tutorial's group": ([0.1, 1.0, 0.0, 0.1], [[1] * 2] * 4),
}


def advantages(
    config: Any, rewards: list[float], masks: list[list[int]], values: list[list[float]] | None = None
) -> Any:
    """What verl's trainer computes for one group, a batch with advantages (members, longest response)."""
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
    if values is not None:
        batch["values"] = torch.tensor([v + [0.0] * (width - len(v)) for v in values])
    data = DataProto(batch=batch, non_tensor_batch={"uid": np.array(["g"] * len(masks), dtype=object)})
    data = compute_advantage_for_multi_trajectories(
        data,
        batch_keys=[f"g_{i}_0" for i in range(len(masks))],
        adv_estimator=config.algorithm.adv_estimator,
        gamma=config.algorithm.gamma,
        lam=config.algorithm.lam,
        norm_adv_by_std_in_grpo=config.algorithm.norm_adv_by_std_in_grpo,
        config=config.algorithm,
    )
    return data.batch


def paper_advantage(rewards: list[float], by_std: bool = True) -> list[float]:
    """DeepSeekMath sec. 4.1.2: (R_i - mean R) / std R, with n-1. Dr. GRPO: R_i - mean R."""
    mean = sum(rewards) / len(rewards)
    if not by_std:
        return [r - mean for r in rewards]
    std = math.sqrt(sum((r - mean) ** 2 for r in rewards) / (len(rewards) - 1))
    return [(r - mean) / (std + 1e-6) for r in rewards]


def ratios(masks: list[list[int]]) -> list[list[float]]:
    """New over old probability of each token; some far outside of every clip range."""
    steps = (1.0, 0.5, 1.25, 0.9, 1.29, 2.0, 0.75, 4.0)
    return [[steps[(3 * i + t) % len(steps)] for t in range(len(m))] for i, m in enumerate(masks)]


def verl_loss(
    config: Any,
    adv: list[float] | list[list[float]],
    masks: list[list[int]],
    ratio: list[list[float]],
    ref: list[list[float]] | None = None,
) -> float:
    """verl's ppo_loss on one micro-batch, with the actor configuration of the recipe.

    Args:
        adv: one number a trajectory, or one a token.
        ref: log(reference / new) of each token, for runs with a KL term.
    """
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
        "advantages": nested(
            [a if isinstance(a, list) else [a] * len(m) for a, m in zip(adv, masks, strict=True)],
            torch.float64,
        ),
    }
    if ref is not None:
        shifted = [[n + d for n, d in zip(n_i, d_i, strict=True)] for n_i, d_i in zip(new, ref, strict=True)]
        fields["ref_log_prob"] = nested(shifted, torch.float64)
    data = TensorDict(fields, batch_size=[len(masks)])
    tu.assign_non_tensor_data(data, "dp_size", 1)
    tu.assign_non_tensor_data(data, "batch_num_tokens", sum(map(sum, masks)))
    tu.assign_non_tensor_data(data, "global_batch_size", len(masks))
    # verl's models give at position p the log-probability of the token at p + 1
    full = [[9.0] * (prompt - 1) + n + [9.0] for n in new]
    actor = omega_conf_to_dataclass(config.actor_rollout_ref.actor)
    loss, _ = ppo_loss(actor, {"log_probs": nested(full, torch.float64)}, data)
    return float(loss)


def paper_loss(algo: str, adv: list[float], masks: list[list[int]], ratio: list[list[float]]) -> float:
    """-J without a KL term, over the policy's own tokens.

    GRPO: DeepSeekMath eq. 3. Dr. GRPO: its sec. 3.2. DAPO: eq. 8. GSPO: eq. 5-7. PPO: eq. 7.
    """
    _, average, low, high = METHODS[algo]

    def term(r: float, a: float) -> float:
        return min(r * a, min(max(r, 1 - low), 1 + high) * a)

    own = [[r for r, m in zip(r_i, m_i, strict=True) if m] for r_i, m_i in zip(ratio, masks, strict=True)]
    if average == "sequence ratio":
        s = [math.prod(r_i) ** (1 / len(r_i)) for r_i in own]
        return -sum(term(s_i, a) for s_i, a in zip(s, adv, strict=True)) / len(s)
    sums = [[term(r, a) for r in r_i] for r_i, a in zip(own, adv, strict=True)]
    if average == "token mean":
        return -sum(map(sum, sums)) / sum(map(len, sums))
    if average == "sum over a constant":
        return -sum(sum(s_i) / L for s_i in sums) / len(sums)
    return -sum(sum(s_i) / len(s_i) for s_i in sums) / len(sums)


def test_every_recipe_has_an_oracle_here() -> None:
    from scout_train.compose import names

    assert sorted(METHODS) == names("algo")


@pytest.mark.parametrize("algo", GROUPED)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_advantage_is_the_papers(algo: str, case: str, compose: Callable[..., Any]) -> None:
    rewards, masks = CASES[case]
    found = advantages(compose(algo), rewards, masks)["advantages"]
    by_std = METHODS[algo][0]
    for i, (expected, mask) in enumerate(zip(paper_advantage(rewards, by_std), masks, strict=True)):
        for t, own in enumerate(mask):
            # broadcast to every token of the policy, zero on every observation token
            assert float(found[i, t]) == pytest.approx(expected if own else 0.0, abs=1e-5)
        assert not found[i, len(mask) :].any()


@pytest.mark.parametrize("algo", METHODS)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_loss_is_the_papers(algo: str, case: str, compose: Callable[..., Any]) -> None:
    rewards, masks = CASES[case]
    adv = paper_advantage(rewards, METHODS[algo][0])
    ratio = ratios(masks)
    if algo == "gspo":  # a whole sequence hardly moves: ratios around its narrow clip range
        ratio = [[1 + (r - 1) * 1e-3 for r in row] for row in ratio]
    found = verl_loss(compose(algo), adv, masks, ratio)
    assert found == pytest.approx(paper_loss(algo, adv, masks, ratio), abs=1e-9)


def gae(rewards: list[float], values: list[float], gamma: float, lam: float) -> list[float]:
    """PPO's eq. 11: the sum of (γλ)^l δ_{t+l}, written out, over the policy's own tokens."""
    n = len(values)
    delta = [r + gamma * (values[t + 1] if t + 1 < n else 0.0) - values[t] for t, r in enumerate(rewards)]
    return [sum((gamma * lam) ** k * delta[t + k] for k in range(n - t)) for t in range(n)]


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("lam", [1.0, 0.9])
def test_ppo_advantage_is_gae_over_the_policys_own_tokens(
    case: str, lam: float, compose: Callable[..., Any]
) -> None:
    rewards, masks = CASES[case]
    config = compose("ppo", f"algorithm.lam={lam}", f"algorithm.gamma={lam}")
    values = [[0.1 * ((5 * i + 3 * t) % 7) for t in range(len(m))] for i, m in enumerate(masks)]
    batch = advantages(config, rewards, masks, values)
    raw, places = [], []
    for i, (mask, r) in enumerate(zip(masks, rewards, strict=True)):
        own = [t for t, m in enumerate(mask) if m]
        seen = [values[i][t] for t in own]
        found = gae([0.0] * (len(own) - 1) + [r], seen, lam, lam)
        raw += found
        places += [(i, t) for t in own]
        for t, a, v in zip(own, found, seen, strict=True):
            assert float(batch["returns"][i, t]) == pytest.approx(a + v, abs=1e-4)  # what the critic learns
    mean = sum(raw) / len(raw)
    std = math.sqrt(sum((a - mean) ** 2 for a in raw) / (len(raw) - 1))
    for (i, t), a in zip(places, raw, strict=True):  # verl whitens over the batch
        assert float(batch["advantages"][i, t]) == pytest.approx((a - mean) / std, abs=1e-3)


def test_value_loss_is_the_clipped_square(compose: Callable[..., Any]) -> None:
    """The critic's own settings, resolved from the recipe: token mean of max((v-R)^2, (clip(v)-R)^2) / 2."""
    import torch
    from verl.trainer.ppo.core_algos import compute_value_loss

    critic = compose("ppo").critic
    old, new, returns = [0.0, 0.2, 0.9, 5.0], [0.7, 0.1, 0.2, 5.0], [1.0, 1.0, 0.0, 5.0]
    mask = [1, 1, 1, 0]
    loss, _ = compute_value_loss(
        vpreds=torch.tensor([new]),
        returns=torch.tensor([returns]),
        values=torch.tensor([old]),
        response_mask=torch.tensor([mask]),
        cliprange_value=critic.cliprange_value,
        loss_agg_mode=critic.loss_agg_mode,
    )
    clipped = [min(max(v, o - 0.5), o + 0.5) for v, o in zip(new, old, strict=True)]
    terms = [max((v - r) ** 2, (c - r) ** 2) for v, c, r in zip(new, clipped, returns, strict=True)]
    assert float(loss) == pytest.approx(sum(terms[:3]) / 3 / 2, abs=1e-6)


def test_the_word_kl_adds_the_k3_estimate(compose: Callable[..., Any]) -> None:
    """DeepSeekMath eq. 4: π_ref/π - log(π_ref/π) - 1, averaged as GRPO averages, times β."""
    from scout_train.compose import Choice
    from scout_train.compose import compose as compose_choice

    masks, ratio = [[1, 1, 0], [1, 0, 1, 1]], [[1.0, 1.1, 1.0], [0.9, 1.0, 1.0, 1.05]]
    adv = [0.7, -0.7]
    ref = [[0.3, -0.4, 9.0], [0.1, 9.0, 0.0, -1.0]]
    with_kl = verl_loss(compose_choice(Choice(options=("kl",))), adv, masks, ratio, ref)
    k3 = [
        [math.exp(d) - d - 1 for d, m in zip(d_i, m_i, strict=True) if m]
        for d_i, m_i in zip(ref, masks, strict=True)
    ]
    expected = 0.001 * sum(sum(k) / len(k) for k in k3) / 2
    assert with_kl - verl_loss(compose("grpo"), adv, masks, ratio) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("algo", METHODS)
def test_no_nan_whatever_comes(algo: str, compose: Callable[..., Any]) -> None:
    """A member whose tokens are all masked, ratios of 1e±30, a group without variance."""
    masks = [[1, 1], [0, 0, 0], [1]]
    wild = [[1e30, 1e-30], [1.0, 1.0, 1.0], [1e30]]
    config = compose(algo)
    for adv in ([0.5, -1.0, 0.5], [0.0, 0.0, 0.0]):
        assert math.isfinite(verl_loss(config, adv, masks, wild))
    assert verl_loss(config, [0.0] * 3, masks, [[1.0] * len(m) for m in masks]) == 0.0
    if algo in GROUPED:
        found = advantages(config, [0.1, 0.1, 0.1], masks)["advantages"]
        assert not found.isnan().any() and found.abs().max() == 0.0


@pytest.mark.parametrize("algo", GROUPED)
def test_a_group_of_one_must_never_reach_verl(algo: str, compose: Callable[..., Any]) -> None:
    """No paper has an advantage for it; verl takes the raw reward. The sampler replaces such groups."""
    found = advantages(compose(algo), [1.0], [[1, 1]])["advantages"]
    assert float(found[0, 0]) == pytest.approx(1.0, abs=1e-5)


def test_exact_values_of_the_tutorials_group() -> None:
    # mean 0.3, squared deviations 0.04 + 0.49 + 0.09 + 0.04 = 0.66, std (n-1) = sqrt(0.22)
    assert paper_advantage([0.1, 1.0, 0.0, 0.1])[1] == pytest.approx(0.7 / math.sqrt(0.22), abs=1e-4)


def test_a_group_without_variance_has_no_gradient_and_no_nan(compose: Callable[..., Any]) -> None:
    found = advantages(compose("grpo"), [1.0] * 8, [[1] * 3] * 8)["advantages"]
    assert found.abs().max() == 0.0


def test_length_decides_the_weight_of_a_token(compose: Callable[..., Any]) -> None:
    """GRPO: both members weigh the same whatever their length. DAPO: both tokens do."""
    masks, adv = [[1] * 5, [1] * 500], [1.0, -1.0]
    ones = [[1.0] * 5, [1.0] * 500]
    assert verl_loss(compose("grpo"), adv, masks, ones) == pytest.approx(0.0, abs=1e-9)
    assert verl_loss(compose("dapo"), adv, masks, ones) == pytest.approx(495 / 505, abs=1e-9)
    # Dr. GRPO: both tokens weigh the same, too, and the weight does not depend on the rest of the batch
    for algo in ("dr_grpo", "dapo_dr_grpo"):
        assert verl_loss(compose(algo), adv, masks, ones) == pytest.approx(495 / 512 / 2, abs=1e-9)
        alone = verl_loss(compose(algo), adv[:1], masks[:1], ones[:1])
        assert alone == pytest.approx(-5 / 512, abs=1e-9)


def test_clip_higher_lets_a_good_token_grow_further(compose: Callable[..., Any]) -> None:
    masks, adv, ratio = [[1]], [1.0], [[1.26]]
    assert verl_loss(compose("grpo"), adv, masks, ratio) == pytest.approx(-1.2, abs=1e-9)
    assert verl_loss(compose("dapo"), adv, masks, ratio) == pytest.approx(-1.26, abs=1e-9)


def test_a_bad_token_is_never_clipped_upwards(compose: Callable[..., Any]) -> None:
    """min(rA, clip(r)A) for A < 0 and r = 4 is -4; verl's default dual clip would make it -3."""
    assert verl_loss(compose("grpo"), [-1.0], [[1]], [[4.0]]) == pytest.approx(4.0, abs=1e-9)
