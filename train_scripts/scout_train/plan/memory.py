"""Memory of one accelerator by part, in the phases that follow each other in a step.

Rollout, reference and update take turns on the same cards (colocated), so what counts is the largest phase,
not the sum of all parts; apart (disaggregated), each kind of card has its own phases.

Sharded state costs 16 bytes a parameter over all cards: fp32 weights and gradients, Adam's two fp32 moments
(ZeRO, arXiv:1910.02054, sec. 3.1, counts 2 + 2 + 12; verl keeps fp32 weights and casts per layer: 4 + 4 + 8).
verl's offloading empties the card between phases, not during one: the update has weights, gradients and
moments on the card (verl/workers/engine/base.py, `_context_switch`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from scout_train.plan.device import Device
from scout_train.plan.shape import ModelShape

GIB = 2**30
RUNTIME_GIB = 1.5  # context of the driver, communication buffers and the allocator's slack, per card
# Without an accelerator the processes count: launcher, guard, Ray's three, trainer and worker, each with
# its imports. Measured for the tiny model; see the room's README.
PROCESSES_GIB = 2.4
# bf16 copies of the logits that live at once in verl's log-probability: raw, by temperature, of the
# entropy's softmax, and their gradient.
LOGITS_COPIES_UPDATE, LOGITS_COPIES_FORWARD = 4, 3


@dataclass(frozen=True, slots=True)
class Layout:
    """What of a composed configuration decides memory. Token counts are per card and micro-batch."""

    nodes: int
    cards_per_node: int
    tensor_parallel: int
    shards: int
    rollout_share: float
    rollout_freed: bool
    rollout_seqs: int
    rollout_batched_tokens: int
    param_offload: bool
    optimizer_offload: bool
    reference: bool
    reference_offload: bool
    critic: bool
    checkpointing: bool
    micro_tokens: int
    sequence_tokens: int
    fused_kernels: bool
    element_bytes: int
    batched_rollout: bool  # an engine with its own memory (vLLM, sglang), unlike transformers
    colocated: bool  # rollout and training take turns on the same cards
    rollout_cards: int
    rollout_cards_per_node: int

    @property
    def cards(self) -> int:
        return self.nodes * self.cards_per_node


def layout_of(config: Any) -> Layout:
    """Read a composed configuration (`scout_train.compose`)."""
    from omegaconf import OmegaConf

    from scout_train.plan.reading import uses_critic, uses_reference

    def get(key: str, default: Any = None) -> Any:
        found = OmegaConf.select(config, key)
        return default if found is None else found

    actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    cards = int(config.trainer.nnodes) * int(config.trainer.n_gpus_per_node)
    sequence = int(config.data.max_prompt_length) + int(config.data.max_response_length)
    rows = get("actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu", 1)
    colocated = bool(get("actor_rollout_ref.hybrid_engine", True))
    fsdp_size = int(get("actor_rollout_ref.actor.fsdp_config.fsdp_size", -1))
    precision = get("actor_rollout_ref.actor.fsdp_config.mixed_precision", {})
    micro = int(actor.ppo_max_token_len_per_gpu) if actor.use_dynamic_bsz else int(rows) * sequence
    # Ulysses splits a sequence over cards; with dynamic batches verl multiplies the token limit by it again.
    parallel = int(get("actor_rollout_ref.actor.fsdp_config.ulysses_sequence_parallel_size", 1))
    return Layout(
        nodes=int(config.trainer.nnodes),
        cards_per_node=int(config.trainer.n_gpus_per_node),
        tensor_parallel=int(rollout.tensor_model_parallel_size),
        shards=cards if fsdp_size < 1 else min(fsdp_size, cards),
        rollout_share=float(rollout.gpu_memory_utilization),
        rollout_freed=bool(rollout.free_cache_engine),
        rollout_seqs=int(rollout.max_num_seqs),
        rollout_batched_tokens=int(rollout.max_num_batched_tokens),
        param_offload=bool(actor.fsdp_config.param_offload),
        optimizer_offload=bool(actor.fsdp_config.optimizer_offload),
        reference=uses_reference(config),
        reference_offload=bool(config.actor_rollout_ref.ref.fsdp_config.param_offload),
        critic=uses_critic(config),
        checkpointing=bool(config.actor_rollout_ref.model.enable_gradient_checkpointing),
        micro_tokens=micro if actor.use_dynamic_bsz else micro // parallel,
        sequence_tokens=sequence,
        fused_kernels=bool(get("actor_rollout_ref.model.use_fused_kernels", False)),
        element_bytes=4 if dict(precision).get("param_dtype") == "fp32" else 2,
        batched_rollout=str(rollout.name) != "transformers",
        colocated=colocated,
        rollout_cards=cards if colocated else int(rollout.nnodes) * int(rollout.n_gpus_per_node),
        rollout_cards_per_node=int(config.trainer.n_gpus_per_node if colocated else rollout.n_gpus_per_node),
    )


@dataclass(frozen=True, slots=True)
class Phase:
    """Bytes on one card by part while a phase runs."""

    name: str
    parts: dict[str, float]

    @property
    def total(self) -> float:
        return sum(self.parts.values())


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """The phases of a step, and host memory of one node for what waits there."""

    shape: ModelShape
    layout: Layout
    device: Device
    phases: list[Phase]
    host: dict[str, float] = field(default_factory=dict)

    @property
    def peak(self) -> Phase:
        return max(self.phases, key=lambda p: p.total)

    @property
    def fits(self) -> bool:
        return (
            self.peak.total <= self.device.memory_gib * GIB and self.kv_tokens >= self.layout.sequence_tokens
        )

    @property
    def kv_tokens(self) -> int:
        """Tokens whose keys and values one replica of the rollout engine can hold."""
        bytes_replica = self.phases[0].parts.get("KV cache", 0.0) * self.layout.tensor_parallel
        return int(bytes_replica / self.shape.kv_bytes_per_token(self.layout.element_bytes))


def activations(shape: ModelShape, layout: Layout, update: bool) -> dict[str, float]:
    """Bytes of activations and of logits for one micro-batch, at their peak.

    The logits live where the forward pass ends; a layer computed again lives later, when they are gone.
    """
    one_layer = layout.micro_tokens * shape.layer_activation_bytes_per_token(layout.element_bytes)
    copies = LOGITS_COPIES_UPDATE if update else LOGITS_COPIES_FORWARD
    logits = 0 if layout.fused_kernels else layout.micro_tokens * shape.vocab * layout.element_bytes * copies
    if not update:
        return {"activations": float(max(one_layer - logits, 0)), "logits": float(logits)}
    if not layout.checkpointing:
        return {"activations": float(shape.layers * one_layer), "logits": float(logits)}
    inputs = shape.layers * layout.micro_tokens * shape.hidden * layout.element_bytes  # of every layer
    return {"activations": float(inputs + max(one_layer - logits, 0)), "logits": float(logits)}


def _rollout(shape: ModelShape, layout: Layout, device: Device) -> dict[str, float]:
    weights = shape.params * layout.element_bytes / layout.tensor_parallel
    kv_token = shape.kv_bytes_per_token(layout.element_bytes)
    if not layout.batched_rollout:  # transformers: its cache grows to what a batch needs
        kv = layout.rollout_seqs * layout.sequence_tokens * kv_token
        return {"rollout weights": weights, "KV cache": float(kv)}
    # the widest tensors of a prefill chunk, and the logits of one sampling step in fp32
    chunk = (
        layout.rollout_batched_tokens * 2 * (shape.hidden + 2 * shape.intermediate / layout.tensor_parallel)
    )
    workspace = chunk * layout.element_bytes / 2 + layout.rollout_seqs * shape.vocab * 4 * 2
    budget = layout.rollout_share * device.memory_gib * GIB
    return {
        "rollout weights": weights,
        "KV cache": max(0.0, budget - weights - workspace),
        "rollout workspace": workspace,
    }


def plan_memory(shape: ModelShape, layout: Layout, device: Device) -> MemoryPlan:
    """Bytes by part and phase on the fullest card."""
    shard = shape.params / layout.shards
    models = 2 if layout.critic else 1  # a critic of the actor's size has all of it once more
    weights, grads, moments = 4.0 * shard * models, 4.0 * shard * models, 8.0 * shard * models
    reference = 4.0 * shard if layout.reference else 0.0
    on_cpu = device.name == "CPU"
    runtime = {"processes": PROCESSES_GIB * GIB} if on_cpu else {"runtime": RUNTIME_GIB * GIB}
    rollout = _rollout(shape, layout, device)
    gathered = 0.0
    if layout.shards > 1:  # FSDP: the layer at work and the next one, or the embeddings, whole
        whole = max(2 * shape.layer_params, shape.vocab * shape.hidden)
        gathered = float(whole * layout.element_bytes)

    resident = {
        "weights": 0.0 if layout.param_offload else weights,
        "gradients": 0.0,  # set to none after every update
        "optimiser": 0.0 if layout.optimizer_offload else moments,
        "reference": 0.0 if layout.reference_offload else reference,
    }
    if not layout.colocated:  # cards that only generate hold nothing else, and those that train no rollout
        asleep, beside = {}, {}
    else:
        asleep, beside = ({} if layout.rollout_freed else rollout), resident
    update = asleep | resident | {"weights": weights, "gradients": grads, "optimiser": moments}
    phases = [
        Phase("rollout", _seen(rollout | beside | runtime)),
        Phase(
            "update",
            _seen(update | {"gathered layers": gathered} | activations(shape, layout, True) | runtime),
        ),
    ]
    if reference:
        scoring = asleep | resident | {"reference": reference, "gathered layers": gathered}
        phases.insert(1, Phase("reference", _seen(scoring | activations(shape, layout, False) | runtime)))
    cards = layout.cards_per_node
    host = {
        "weights": weights * cards if layout.param_offload else 0.0,
        "optimiser": moments * cards if layout.optimizer_offload else 0.0,
        "reference": reference * cards if layout.reference_offload else 0.0,
    }
    return MemoryPlan(shape, layout, device, phases, _seen(host))


def _seen(parts: dict[str, float]) -> dict[str, float]:
    return {name: size for name, size in parts.items() if size}
