"""Tokens, searches and seconds of a step, from peak rates and stated efficiencies: a bound, not a promise.

Generation is bound by reading weights and cache once for every token of a batch; update and log-probabilities
by arithmetic: 2 operations a parameter and token forward, 4 backward, 2 more where activations are computed
again (Kaplan et al., arXiv:2001.08361, sec. 2.1; Korthikanti et al., arXiv:2205.05198). A finished
run's own numbers are better than both: see `measured`.
"""

from __future__ import annotations

import json
import math
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scout_protocol.errors import UserError
from scout_train.plan.device import Device
from scout_train.plan.memory import Layout
from scout_train.plan.shape import ModelShape

MEMORY_EFFICIENCY, MATH_EFFICIENCY = 0.6, 0.35
LOCAL_TOKENS_PER_S = 2000.0  # the tiny model by batched generate, on two cores


@dataclass(frozen=True, slots=True)
class Traffic:
    """Means over trajectories, and how much longer than the mean the slowest trajectory of a step is.

    ``accept_rate``: share of generated groups that dynamic sampling keeps; 1 without it.
    """

    questions: int
    group_size: int
    prompt_tokens: float
    policy_tokens: float
    tool_tokens: float
    searches: float
    accept_rate: float = 1.0
    tail: float = 2.0
    tool_latency_s: float = 0.1

    @property
    def trained(self) -> int:
        return self.questions * self.group_size

    @property
    def generated(self) -> float:
        """Trajectories that are generated for one step."""
        return self.trained / self.accept_rate

    @property
    def sequence_tokens(self) -> float:
        return self.prompt_tokens + self.policy_tokens + self.tool_tokens


@dataclass(frozen=True, slots=True)
class TimePlan:
    """One step. ``in_flight``: trajectories played at once; ``turn_s``: one turn, tool included."""

    generation_s: float
    reference_s: float
    update_s: float
    moving_s: float
    in_flight: int
    turn_s: float
    traffic: Traffic

    @property
    def step_s(self) -> float:
        return self.generation_s + self.reference_s + self.update_s + self.moving_s

    @property
    def tokens_per_step(self) -> float:
        """Tokens that are trained on or read: prompt, policy and tool."""
        return self.traffic.trained * self.traffic.sequence_tokens

    @property
    def searches_per_s(self) -> float:
        """Mean over the generation phase."""
        return self.traffic.generated * self.traffic.searches / self.generation_s

    @property
    def peak_searches_per_s(self) -> float:
        """Every trajectory in flight searches once a turn."""
        return self.in_flight / self.turn_s if self.traffic.searches else 0.0

    def days(self, steps: int) -> float:
        return steps * self.step_s / 86400


@dataclass(frozen=True, slots=True)
class _Generation:
    seconds: float
    turn_s: float
    in_flight: int


def _generate(
    shape: ModelShape, layout: Layout, device: Device, traffic: Traffic, kv_tokens: int
) -> _Generation:
    tools_s = traffic.searches * traffic.tool_latency_s
    turns = traffic.searches + 1
    if not layout.batched_rollout:  # bound by Python, not by the machine's rates
        seconds = traffic.generated * traffic.policy_tokens / LOCAL_TOKENS_PER_S + tools_s
        in_flight = min(math.ceil(traffic.generated), layout.rollout_seqs)
        return _Generation(seconds, seconds / turns, in_flight)
    replicas = max(1, layout.rollout_cards // layout.tensor_parallel)
    room = max(1, int(kv_tokens / max(1.0, traffic.sequence_tokens)))
    rows = min(math.ceil(traffic.generated / replicas), layout.rollout_seqs, room)
    waves = math.ceil(traffic.generated / replicas / rows)
    flops = device.bf16_tflops * 1e12 * MATH_EFFICIENCY
    context = traffic.prompt_tokens + (traffic.policy_tokens + traffic.tool_tokens) / 2
    cache = rows * context * shape.kv_bytes_per_token(layout.element_bytes)
    read_s = (shape.params * layout.element_bytes + cache) / (device.memory_gb_s * 1e9 * MEMORY_EFFICIENCY)
    math_s = 2 * shape.params * rows / flops
    one_s = traffic.policy_tokens * max(read_s, math_s) / layout.tensor_parallel + tools_s
    prefill_tokens = traffic.generated * (traffic.prompt_tokens + traffic.tool_tokens)
    prefill_s = 2 * shape.params * prefill_tokens / (layout.rollout_cards * flops)
    seconds = prefill_s + one_s * (waves - 1 + traffic.tail)  # the last wave waits for its slowest
    return _Generation(seconds, one_s / turns, min(math.ceil(traffic.generated), rows * replicas))


def plan_time(
    shape: ModelShape, layout: Layout, device: Device, traffic: Traffic, kv_tokens: int
) -> TimePlan:
    """Seconds of the phases of a step. ``kv_tokens``: what one replica's cache holds, from `plan_memory`."""
    generation = _generate(shape, layout, device, traffic, kv_tokens)
    flops = layout.cards * device.bf16_tflops * 1e12 * MATH_EFFICIENCY
    tokens = traffic.trained * traffic.sequence_tokens
    models = 2 if layout.critic else 1
    update_s = models * (8 if layout.checkpointing else 6) * shape.params * tokens / flops
    reference_s = 2 * shape.params * tokens / flops if layout.reference else 0.0
    shard, link = models * shape.params / layout.shards, device.host_link_gb_s * 1e9
    moved = (4 * shard if layout.param_offload else 0.0) + (8 * shard if layout.optimizer_offload else 0.0)
    gathered = shape.params * layout.element_bytes / layout.tensor_parallel  # for the rollout engine
    moving_s = (2 * moved + (gathered if layout.batched_rollout else 0.0)) / link
    return TimePlan(
        generation.seconds, reference_s, update_s, moving_s, generation.in_flight, generation.turn_s, traffic
    )


def measured(run: Path) -> dict[str, float]:
    """Medians of a run's ``metrics.jsonl``: step_s, policy_tokens, sequence_tokens, searches, accept_rate.

    Raises:
        UserError: no such file, or no step in it.
    """
    file = run / "metrics.jsonl" if run.is_dir() else run
    try:
        lines: list[dict[str, Any]] = [
            json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()
        ]
    except OSError as error:
        raise UserError("--from", run, "no metrics.jsonl there: name a run's folder") from error
    except ValueError as error:
        raise UserError(str(file), error, "must be JSON lines") from error
    names = {
        "step_s": "timing_s/step",
        "policy_tokens": "scout/policy_tokens",
        "sequence_tokens": "scout/sequence_tokens",
        "searches": "scout/searches",
        "accept_rate": "scout/groups_accept_rate",
    }
    found = {
        ours: statistics.median(values)
        for ours, theirs in names.items()
        if (values := [float(m[theirs]) for m in lines if isinstance(m.get(theirs), int | float)])
    }
    if "step_s" not in found:
        raise UserError(str(file), f"{len(lines)} steps", "holds no timed step yet")
    return found
