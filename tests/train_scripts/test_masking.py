"""Tokens that the policy did not write: through verl's own loss, with the recipes' own configuration."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


@pytest.mark.parametrize("algo", ["grpo", "dapo"])
def test_observations_touch_neither_loss_nor_kl_nor_entropy(compose: Callable[..., Any], algo: str) -> None:
    """Whatever the model thinks of the tool's tokens: same numbers, and no gradient reaches them."""
    import torch
    import verl.utils.tensordict_utils as tu
    from tensordict import TensorDict
    from verl.utils.config import omega_conf_to_dataclass
    from verl.workers.utils.losses import ppo_loss

    actor_config = compose(
        algo,
        "actor_rollout_ref.actor.use_kl_loss=true",
        "actor_rollout_ref.actor.kl_loss_coef=0.1",
        "actor_rollout_ref.actor.entropy_coeff=0.01",
    ).actor_rollout_ref.actor
    masks, prompt = [[1, 1, 0, 0, 0, 1], [1, 0, 0, 1]], 2

    def nested(rows: list[Any], dtype: Any = torch.float64) -> Any:
        return torch.nested.as_nested_tensor(
            [torch.as_tensor(r, dtype=dtype) for r in rows], layout=torch.jagged
        )

    def measure(noise: float) -> tuple[list[float], Any]:
        """Loss and metrics with ``noise`` at every masked position, and the gradients by position."""

        def rows(at: float) -> list[list[float]]:
            return [[at - 0.1 * t if m else noise for t, m in enumerate(mask)] for mask in masks]

        fields = {
            "input_ids": nested([[7] * (prompt + len(m)) for m in masks], torch.long),
            "prompts": nested([[7] * prompt] * 2, torch.long),
            "responses": nested([[7] * len(m) for m in masks], torch.long),
            "response_mask": nested(masks, torch.long),
            "old_log_probs": nested(rows(-1.0)),
            "ref_log_prob": nested(rows(-1.5)),
            "advantages": nested([[a] * len(m) for a, m in zip((0.7, -0.7), masks, strict=True)]),
        }
        data = TensorDict(fields, batch_size=[2])
        tu.assign_non_tensor_data(data, "dp_size", 1)
        tu.assign_non_tensor_data(data, "batch_num_tokens", sum(map(sum, masks)))
        tu.assign_non_tensor_data(data, "global_batch_size", 2)
        flat = [
            torch.tensor([9.0] * (prompt - 1) + row + [9.0], dtype=torch.float64, requires_grad=True)
            for row in rows(-1.2)
        ]
        entropy = [[3.0] * (prompt - 1) + row + [3.0] for row in rows(2.0)]
        out = {
            "log_probs": torch.nested.nested_tensor_from_jagged(
                torch.cat(flat), torch.tensor([0, len(flat[0]), len(flat[0]) + len(flat[1])])
            ),
            "entropy": nested(entropy),
        }
        loss, metrics = ppo_loss(omega_conf_to_dataclass(actor_config), out, data)
        loss.backward()
        kept = [float(metrics[k].aggregate()) for k in ("actor/entropy_loss", "kl_loss", "actor/ppo_kl")]
        return [float(loss.detach()), *kept], [f.grad[prompt - 1 : -1] for f in flat]

    calm, gradients = measure(-2.0)
    wild, _ = measure(-40.0)
    assert wild == pytest.approx(calm, rel=1e-12)
    for gradient, mask in zip(gradients, masks, strict=True):
        assert [bool(g) for g in gradient] == [bool(m) for m in mask]
