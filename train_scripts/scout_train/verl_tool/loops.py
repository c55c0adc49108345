"""Agent loops inside the trainer's process where one worker is asked for.

verl-tool starts a Ray actor per agent-loop worker, and each starts another for rewards. With one worker there
is
nothing to distribute, and rewards are made where trajectories are: two processes less that import torch and
verl. More workers (``rollout.agent.num_workers``) are verl-tool's own.
"""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import verl_tool.agent_loop.agent_loop as upstream
from verl.protocol import DataProto


class _NoRewardWorker:
    """In the place of verl-tool's reward actor: every trajectory comes with its reward."""

    @classmethod
    def options(cls, **_options: Any) -> type[_NoRewardWorker]:
        return cls

    @classmethod
    def remote(cls, *_args: Any) -> _NoRewardWorker:
        return cls()


class Loops(upstream.AgentLoopManager):  # type: ignore[misc]
    """verl-tool's manager; with one worker that worker is an object here, on an event loop in a thread."""

    agent_loop_workers: list[Any]

    def _init_agent_loop_workers(self) -> None:
        self._worker = None
        if max(self.config.trainer.nnodes, self.config.actor_rollout_ref.rollout.agent.num_workers) > 1:
            super()._init_agent_loop_workers()
            return
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="agent-loops", daemon=True).start()
        worker_class = upstream.AgentLoopWorker.__ray_metadata__.modified_class
        original, upstream.RewardManagerWorker = upstream.RewardManagerWorker, _NoRewardWorker
        try:
            self._worker = worker_class(self.config, self.server_handles)
        finally:
            upstream.RewardManagerWorker = original
        self.agent_loop_workers = [self._worker]

    def generate_sequences(self, prompts: DataProto) -> DataProto:
        """Play a batch."""
        if self._worker is None:
            return super().generate_sequences(prompts)
        self.wake_up()
        coroutine = self._worker.generate_sequences(prompts)
        output = asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()
        self.sleep()
        timing = self._performance_metrics([output.meta_info.pop("metrics")], output)
        output.meta_info = {"timing": timing, **output.meta_info}
        return output
