"""Checks of the configuration that a large cluster makes expensive to get wrong: the 64-card list.

The reference points are the tutorial's for 14B (8 cards) and 72B (64 cards), and Search-R1's for 3B and 7B.
"""

from __future__ import annotations

from scout_train.preflight.facts import Facts
from scout_train.preflight.finding import Finding, ok, refuse, warn

LARGE = 30e9  # parameters from which the list is a condition, not advice
# Up to so many parameters: a learning rate that is known to work.
LEARNING_RATES = ((9e9, 1e-6), (30e9, 5e-6), (float("inf"), 1.5e-6))
SMALL = 1e9  # below it a model is made here, and learns at rates of its own


def topology(facts: Facts) -> Finding | None:
    """Tensor parallel inside a node, data parallel and FSDP across nodes."""
    if facts.on_cpu:
        return None
    layout, shape = facts.layout, facts.shape
    tp, per_node = layout.tensor_parallel, layout.rollout_cards_per_node
    spread = f"{layout.shards} of {layout.nodes} x {layout.cards_per_node} cards"
    said = f"tensor parallel {tp}, FSDP over {spread}"
    key = "actor_rollout_ref.rollout.tensor_model_parallel_size"
    if tp > per_node or per_node % tp:
        return refuse(
            "topology", said, f"{key} must divide the {per_node} cards of a node: it never crosses nodes"
        )
    if shape is not None and shape.heads % tp:
        return refuse("topology", f"{said}; {shape.heads} attention heads", f"{key} must divide the heads")
    if facts.params >= LARGE and tp != per_node:
        return refuse(
            "topology", said, f"a model of {facts.params / 1e9:.0f}e9 parameters wants {key}={per_node}"
        )
    if layout.shards < layout.cards and facts.params >= LARGE:
        return warn(
            "topology", said, "weights are copied, not sharded, across nodes: fsdp_size=-1 shards over all"
        )
    return ok("topology", said)


def mask(facts: Facts) -> Finding:
    """Observation tokens carry no loss: in our loop always, in verl-tool's by a switch."""
    from omegaconf import OmegaConf

    if facts.choice.engine == "verl_tool":
        on = OmegaConf.select(facts.config, "actor_rollout_ref.agent.mask_observations")
        if not on:
            return refuse(
                "mask", f"mask_observations is {on}", "set actor_rollout_ref.agent.mask_observations=true"
            )
        return ok("mask", "mask_observations is on")
    loop = str(facts.config.actor_rollout_ref.rollout.agent.default_agent_loop)
    if loop != "scout_search":
        remedy = (
            "only scout_search masks observations: leave actor_rollout_ref.rollout.agent.default_agent_loop"
        )
        return refuse("mask", f"agent loop {loop}", remedy)
    return ok("mask", "observation tokens have mask 0 in agent loop scout_search")


def learning_rate(facts: Facts) -> Finding | None:
    """About 1e-6 (3B, 7B), 5e-6 (14B), 1.5e-6 (72B)."""
    if facts.params < SMALL:
        return None
    lr = float(facts.config.actor_rollout_ref.actor.optim.lr)
    known = next(rate for limit, rate in LEARNING_RATES if facts.params <= limit)
    said = f"{lr:g} for {facts.params / 1e9:.1f}e9 parameters, {known:g} is known to work"
    remedy = f"set actor_rollout_ref.actor.optim.lr={known:g}"
    if lr > 3 * known:
        return refuse("learning-rate", said, remedy)
    return (
        warn("learning-rate", said, remedy)
        if not known / 5 <= lr <= 1.5 * known
        else ok("learning-rate", said)
    )


def epochs(facts: Facts) -> Finding:
    """One pass over what was generated; more passes leave the policy that generated it."""
    n = int(facts.config.actor_rollout_ref.actor.ppo_epochs)
    if n == 1:
        return ok("epochs", "one update epoch")
    make = refuse if facts.params >= LARGE else warn
    return make("epochs", f"{n} update epochs", "set actor_rollout_ref.actor.ppo_epochs=1")


def micro_batch(facts: Facts) -> Finding | None:
    """One trajectory a card at a time, and activations computed again in the backward pass."""
    if facts.params < SMALL:
        return None
    layout, actor = facts.layout, "actor_rollout_ref.actor"
    rows = layout.micro_tokens / layout.sequence_tokens
    switch = "on" if layout.checkpointing else "off"
    said = f"{rows:.1f} of the longest trajectories a micro-batch, activation checkpointing {switch}"
    make = refuse if facts.params >= LARGE else warn
    if not layout.checkpointing:
        return make("micro-batch", said, "set actor_rollout_ref.model.enable_gradient_checkpointing=true")
    if rows >= 2 and facts.params >= LARGE:
        remedy = f"set {actor}.use_dynamic_bsz=false and {actor}.ppo_micro_batch_size_per_gpu=1"
        return make("micro-batch", said, remedy)
    return ok("micro-batch", said)


def weight_sync(facts: Facts) -> Finding | None:
    """InfiniBand or RoCE between nodes, and new weights over NCCL or HCCL."""
    from omegaconf import OmegaConf

    if facts.layout.nodes < 2 and facts.layout.colocated:
        return None
    asked = OmegaConf.select(facts.config, "ray_kwargs.ray_init.runtime_env.env_vars") or {}
    value = str(asked.get("NCCL_IB_DISABLE", facts.env.get("NCCL_IB_DISABLE", "0")))
    if facts.layout.nodes > 1 and value != "0":
        return refuse(
            "weight-sync", f"NCCL_IB_DISABLE={value}", "set it to 0: without InfiniBand a sync takes minutes"
        )
    backend = str(facts.config.actor_rollout_ref.rollout.checkpoint_engine.backend)
    wanted = "hccl" if str(facts.config.trainer.device) == "npu" else "nccl"
    if not facts.layout.colocated and backend != wanted:
        key = "actor_rollout_ref.rollout.checkpoint_engine.backend"
        return refuse("weight-sync", f"weights go over {backend} to other cards", f"set {key}={wanted}")
    over = f"collectives ({wanted}) of FSDP" if facts.layout.colocated else backend
    return ok("weight-sync", f"weights over {over}, NCCL_IB_DISABLE={value}")
