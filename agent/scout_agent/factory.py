"""Policies by name: ``oracle``, ``hf:PATH``, ``openai:MODEL@URL``. Heavy imports happen on use."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from scout_agent.model_folder import weights_bytes
from scout_agent.policy import Policy
from scout_protocol.errors import UserError

FORMS = "oracle, hf:PATH or openai:MODEL@URL"


@dataclass(frozen=True, slots=True)
class PolicyOptions:
    """How a policy samples and batches; each kind reads what concerns it."""

    temperature: float = 0.0
    batch_size: int = 64  # hf: turns generated together
    max_model_len: int = 4096  # hf: tokens
    threads: int | None = None  # hf: torch threads
    device: str = "cpu"  # hf
    api_key_env: str = "OPENAI_API_KEY"  # openai: name of the environment variable
    style: str = "turns"  # openai: "turns" or "continue"


def check_spec(spec: str) -> tuple[str, str]:
    """Split a policy's name into kind and argument, without loading anything.

    Raises:
        UserError: no such kind, a missing model folder, or a half endpoint.
    """
    kind, _, argument = spec.partition(":")
    if spec == "oracle":
        return kind, ""
    if kind == "hf" and argument:
        if not (Path(argument) / "config.json").is_file():
            raise UserError("policy", spec, "is not a model folder (no config.json): `scout sft` makes one")
        weights_bytes(Path(argument), "policy")
        return kind, argument
    model, at, url = argument.rpartition("@")
    if kind == "openai" and model and at and url:
        return kind, argument
    raise UserError("policy", spec, f"write {FORMS}")


@asynccontextmanager
async def open_policy(
    spec: str, dialect: str, seed: int = 0, options: PolicyOptions | None = None
) -> AsyncIterator[Policy]:
    """The policy of that name, ready to play, and closed afterwards.

    Raises:
        UserError: as `check_spec`, or the policy refuses its options.
    """
    options = options or PolicyOptions()
    kind, argument = check_spec(spec)
    if kind == "oracle":
        from scout_agent.scripted import OraclePolicy

        yield OraclePolicy(dialect)
    elif kind == "hf":
        from scout_agent.transformers_policy import TransformersPolicy

        yield TransformersPolicy.load(
            argument,
            dialect,
            temperature=options.temperature,
            batch_size=options.batch_size,
            max_model_len=options.max_model_len,
            seed=seed,
            threads=options.threads,
            device=options.device,
        )
    else:
        from scout_agent.openai_policy import OpenAIPolicy

        model, _, url = argument.rpartition("@")
        async with OpenAIPolicy(
            model,
            url,
            dialect,
            api_key_env=options.api_key_env,
            style=options.style,
            temperature=options.temperature,
        ) as policy:
            yield policy
