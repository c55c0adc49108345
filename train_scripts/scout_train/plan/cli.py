"""`scout plan memory` and `scout plan time`: will it fit, and how long will it take?"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

from scout_protocol.errors import UserError
from scout_train.host_memory import free_memory_bytes
from scout_train.plan.device import CPU, Device, device_of
from scout_train.plan.memory import GIB, MemoryPlan, layout_of, plan_memory
from scout_train.plan.shape import ModelShape, shape_of
from scout_train.plan.throughput import TimePlan, Traffic, measured, plan_time
from scout_train.words import add_words, choice_of

_TIMES = {
    "policy_tokens": "tokens that the policy writes in a trajectory",
    "tool_tokens": "tokens of observations in a trajectory (default: max_obs_tokens a search)",
    "searches": "searches of a trajectory",
    "accept_rate": "share of generated groups that dynamic sampling keeps (default .5, 1 where it is off)",
    "tail": "slowest trajectory of a step, as a multiple of the mean",
    "tool_latency_s": "one tool call",
}
_DEFAULTS = {"policy_tokens": 500.0, "searches": 2.0, "tail": 2.0, "tool_latency_s": 0.1}


def parser() -> argparse.ArgumentParser:
    """The command line."""
    p = argparse.ArgumentParser(prog="scout plan", description=__doc__)
    sub = p.add_subparsers(dest="what", required=True)
    for name, told in (
        ("memory", "GiB of one card, by part and phase"),
        ("time", "tokens, searches, seconds, days"),
    ):
        one = sub.add_parser(name, help=told, description=told)
        add_words(one)
        one.add_argument(
            "--model", type=Path, help="model folder or config.json (default: the size's Qwen2.5)"
        )
        one.add_argument("--device-gib", type=float, help="memory of one card (default: the cluster's card)")
        one.add_argument("--json", action="store_true", help="print JSON")
        if name == "time":
            one.add_argument("--steps", type=int, default=200, help="updates (default 200)")
            one.add_argument("--from", dest="run", type=Path, help="a run whose measured means to use")
            for option, help_ in _TIMES.items():
                shown = f" (default {_DEFAULTS[option]:g})" if option in _DEFAULTS else ""
                one.add_argument(f"--{option.replace('_', '-')}", type=float, help=help_ + shown)
    return p


def compose_from(args: argparse.Namespace) -> Any:
    """The composed configuration of the words on a command line."""
    from scout_train.compose import compose, parse_setting

    return compose(choice_of(args, sys.stderr), [parse_setting(text) for text in args.set])


def facts_from(args: argparse.Namespace, config: Any) -> tuple[ModelShape, Device]:
    """The model's shape and the cluster's card.

    Raises:
        UserError: neither can be told from the words.
    """
    device = device_of(args.cluster, str(config.trainer.device))
    if device is CPU:  # a card's size is known, a machine's is what it has left
        device = dataclasses.replace(device, memory_gib=round(free_memory_bytes() / GIB, 1))
    if args.device_gib is not None:
        if args.device_gib <= 0:
            raise UserError("--device-gib", args.device_gib, "must be greater than 0")
        device = dataclasses.replace(device, memory_gib=args.device_gib)
    return shape_of(args.size, args.model), device


def traffic_from(args: argparse.Namespace, config: Any) -> Traffic:
    """Assumptions about trajectories: options first, then a measured run, then the defaults.

    Raises:
        UserError: a number out of range.
    """
    found = measured(args.run) if args.run else {}
    if "sequence_tokens" in found and "policy_tokens" in found:
        found["tool_tokens"] = max(0.0, found["sequence_tokens"] - found["policy_tokens"])
    values = _DEFAULTS | {k: v for k, v in found.items() if k in _TIMES}
    values |= {k: getattr(args, k) for k in _TIMES if getattr(args, k) is not None}
    filtered = bool(config.algorithm.filter_groups.enable)
    values.setdefault("accept_rate", 0.5 if filtered else 1.0)
    values.setdefault("tool_tokens", values["searches"] * float(config.scout.episode.max_obs_tokens))
    for name in _TIMES:
        if values[name] < 0 or (name in ("policy_tokens", "accept_rate") and values[name] == 0):
            raise UserError(f"--{name.replace('_', '-')}", values[name], "must be greater than 0")
    if values["accept_rate"] > 1 or values["tail"] < 1:
        name = "accept_rate" if values["accept_rate"] > 1 else "tail"
        raise UserError(
            f"--{name.replace('_', '-')}", values[name], "accept rate is at most 1, tail at least 1"
        )
    room = float(config.data.max_response_length)
    if values["policy_tokens"] + values["tool_tokens"] > room:  # a trajectory ends where its room does
        scale = room / (values["policy_tokens"] + values["tool_tokens"])
        values["policy_tokens"] *= scale
        values["tool_tokens"] *= scale
    return Traffic(
        questions=int(config.data.train_batch_size),
        group_size=int(config.actor_rollout_ref.rollout.n),
        prompt_tokens=float(config.data.max_prompt_length) / 2,
        **values,
    )


def memory_table(plan: MemoryPlan) -> str:
    """Parts down, phases across, in GiB of one card; below, what waits in host memory."""
    names_ = list(dict.fromkeys(name for phase in plan.phases for name in phase.parts))
    layout, shape, device = plan.layout, plan.shape, plan.device
    cards = f"{layout.nodes} x {layout.cards_per_node} {device.name} of {device.memory_gib:g} GiB"
    split = f"tensor parallel {layout.tensor_parallel}, {layout.shards} shards"
    lines = [f"{shape.name}: {_count(shape.params)} parameters, {cards}, {split}"]
    lines.append(f"{'GiB of one card':<20}" + "".join(f"{p.name:>11}" for p in plan.phases))
    for name in names_:
        cells = (p.parts.get(name) for p in plan.phases)
        lines.append(f"{name:<20}" + "".join(f"{'-' if c is None else _gib(c):>11}" for c in cells))
    lines.append(f"{'total':<20}" + "".join(f"{_gib(p.total):>11}" for p in plan.phases))
    each = shape.kv_bytes_per_token(layout.element_bytes)
    at_once = plan.kv_tokens // layout.sequence_tokens
    lines.append(
        f"KV cache: {plan.kv_tokens:,} tokens of {each:,} bytes a replica, {at_once} full trajectories"
    )
    if plan.host:
        parts = ", ".join(f"{name} {_gib(size)}" for name, size in plan.host.items())
        lines.append(f"host memory of a node: {_gib(sum(plan.host.values()))} GiB ({parts})")
    verdict = "fits" if plan.fits else "DOES NOT FIT"
    lines.append(
        f"{verdict}: {_gib(plan.peak.total)} of {device.memory_gib:g} GiB at the peak, {plan.peak.name}"
    )
    return "\n".join(lines)


def _count(n: int) -> str:
    return f"{n / 1e9:.2f}e9" if n >= 1e8 else f"{n / 1e6:.2f}e6"


def _gib(size: float) -> str:
    return f"{size / GIB:.1f}" if size >= 0.05 * GIB else f"{size / GIB:.4f}"


def time_table(plan: TimePlan, steps: int, step_s: float | None) -> str:
    """One step by phase, then the whole run. ``step_s``: measured, where known."""
    t = plan.traffic
    lines = [
        f"assumed: {t.questions} questions x {t.group_size}, accept rate {t.accept_rate:g}; a trajectory has "
        f"{t.prompt_tokens:.0f} prompt, {t.policy_tokens:.0f} policy and {t.tool_tokens:.0f} tool tokens, "
        f"{t.searches:g} searches; the slowest takes {t.tail:g} x the mean, a call {t.tool_latency_s:g} s",
        f"a step: generation {plan.generation_s:.1f} s, reference {plan.reference_s:.1f} s, "
        f"update {plan.update_s:.1f} s, moving weights {plan.moving_s:.1f} s = {plan.step_s:.1f} s at least",
        f"tokens a step: {plan.tokens_per_step:,.0f} in {t.trained:,} trajectories",
        f"searches: {plan.searches_per_s:,.1f} a second on average, "
        f"{plan.peak_searches_per_s:,.0f} at the peak ({plan.in_flight} trajectories in flight)",
        f"{steps} steps: {plan.days(steps):.2f} days at least",
    ]
    if step_s is not None:
        lines.append(f"measured: {step_s:.1f} s a step, {steps * step_s / 86400:.2f} days for {steps} steps")
    return "\n".join(lines)


def main(argv: list[str]) -> int:
    """Print a plan; exit status 1 where memory does not fit.

    Raises:
        UserError: unknown word, unknown model, a number out of range.
    """
    args = parser().parse_args(argv)
    config = compose_from(args)
    shape, device = facts_from(args, config)
    layout = layout_of(config)
    memory = plan_memory(shape, layout, device)
    if args.what == "memory":
        if args.json:
            phases = {p.name: p.parts | {"total": p.total} for p in memory.phases}
            print(
                json.dumps(
                    {
                        "model": shape.name,
                        "parameters": shape.params,
                        "bytes": phases,
                        "host": memory.host,
                        "fits": memory.fits,
                    }
                )
            )
        else:
            print(memory_table(memory))
        return 0 if memory.fits else 1
    if args.steps < 1:
        raise UserError("--steps", args.steps, "must be at least 1")
    plan = plan_time(shape, layout, device, traffic_from(args, config), memory.kv_tokens)
    step_s = measured(args.run)["step_s"] if args.run else None
    if args.json:
        facts = dataclasses.asdict(plan) | {
            "step_s": plan.step_s,
            "measured_step_s": step_s,
            "days": plan.days(args.steps),
        }
        facts |= {"searches_per_s": plan.searches_per_s, "tokens_per_step": plan.tokens_per_step}
        print(json.dumps(facts | {"peak_searches_per_s": plan.peak_searches_per_s}))
    else:
        print(time_table(plan, args.steps, step_s))
    return 0
