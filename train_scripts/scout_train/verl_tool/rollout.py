"""``rollout.name=transformers`` for verl 0.7.0.dev: the engine verl's rollout, and what differs.

verl 0.7.0.dev has no seed among its rollout settings and does not say which step's weights it copies; its
agent loop reads ``text``, ``finish_reason`` and ``stop_reason`` of a turn; weights are copied when the
replica wakes.
"""

from __future__ import annotations

import asyncio
from typing import Any

from verl.workers.rollout.replica import TokenOutput

from scout_agent.generation import Result
from scout_agent.policy import Finish
from scout_train.cpu.rollout import InProcessHandle, InProcessMethod, TransformersReplica, TransformersRollout


class TurnOutput(TokenOutput):  # type: ignore[misc]
    """What verl-tool's agent loop reads of a turn; its own class of this shape needs vLLM."""

    finish_reason: str | None = None
    stop_reason: str | int | None = None
    text: str | None = None
    finished: bool | None = None


class VerlToolRollout(TransformersRollout):
    """The rollout model inside the training worker."""

    def _configured_seed(self) -> int:
        return int(self.config.engine_kwargs.get("transformers", {}).get("seed", 0))

    async def update_weights(
        self,
        weights: Any,
        wire_format: str = "named_tensors",
        global_steps: int | None = None,
        **_kwargs: Any,
    ) -> None:
        """Copy the trainer's weights; ``peft_config`` and ``base_sync_done`` concern other engines."""
        await super().update_weights(weights, wire_format, self.weights_step + 1)


class TurnMethod(InProcessMethod):
    """What verl-tool calls as ``server.generate.remote(…)``."""

    def _output(self, result: Result, step: int, logprobs: bool) -> TurnOutput:
        return TurnOutput(
            token_ids=result.token_ids,
            log_probs=result.logprobs if logprobs else None,
            finish_reason="length" if result.finish is Finish.LENGTH else "stop",
            stop_reason=result.stop_str,
            text="",  # the recorder decodes the ids that it keeps
            finished=True,
        )


class TurnHandle(InProcessHandle):
    """The server handle; it travels to the agent loop's process."""

    method = TurnMethod


class VerlToolReplica(TransformersReplica):
    """One replica is one training worker."""

    handle = TurnHandle

    def get_ray_class_with_init_args(self) -> Any:
        raise NotImplementedError("rollout.name=transformers lives in the training worker: hybrid mode only")

    async def wake_up(self) -> None:
        """Copy the weights into the rollout model: verl's worker does it when it is woken."""
        await asyncio.gather(*(worker.wake_up.remote() for worker in self.workers))

    async def sleep(self) -> None:
        """Back to training."""
        await asyncio.gather(*(worker.sleep.remote() for worker in self.workers))
