"""Agent loops inside the trainer's process (``rollout.agent.agent_loop_manager_class``, verl's hook).

verl starts one Ray actor per agent-loop worker and routes every turn through a load-balancer actor. With one
replica in one training worker neither has anything to balance; each would be one more process that imports
torch and verl (4 CPU-seconds, 400 MB) and one more hop for every turn.
"""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopWorkerTQ
from verl.workers.rollout.llm_server import LLMServerClient

from scout_train.agent_loop import VALIDATING, surroundings
from scout_train.cpu.patches import plain_class


class DirectClient(LLMServerClient):  # type: ignore[misc]
    """verl's inference client with the one server there is."""

    def __init__(self, config: Any, server: Any, **kwargs: Any) -> None:
        super().__init__(config, **kwargs)
        self._server = server

    async def _acquire_server(self, request_id: str, **_extra: Any) -> tuple[str, Any]:
        return "in-process", self._server

    def _release_server(self, server_id: str, request_id: str | None = None) -> None:
        return None


class _Worker(plain_class(AgentLoopWorkerTQ)):  # type: ignore[misc]
    """verl's worker, telling the loop which rollouts are validation."""

    async def _run_agent_loop(self, sampling_params: Any, trajectory: Any, **kwargs: Any) -> Any:
        VALIDATING.set(bool(trajectory["validate"]))  # each trajectory is its own task, hence its own context
        return await super()._run_agent_loop(sampling_params, trajectory, **kwargs)


class InProcessAgentLoops:
    """Runs verl's agent-loop worker on an event loop in a thread of this process."""

    def __init__(self, config: Any, llm_client: Any, teacher_client: Any, reward_handles: Any) -> None:
        self.config = config
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="agent-loops", daemon=True)
        self._thread.start()
        self._worker = self._call(self._make(config, llm_client, teacher_client, reward_handles))

    @staticmethod
    async def _make(*args: Any) -> _Worker:
        return _Worker(*args)

    def _call(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    @classmethod
    def create(
        cls, config: Any, llm_client: Any, teacher_client: Any = None, reward_loop_worker_handles: Any = None
    ) -> InProcessAgentLoops:
        """The constructor that verl calls."""
        return cls(config, llm_client, teacher_client, reward_loop_worker_handles)

    def generate_sequences(self, prompts: Any) -> None:
        """Start the rollouts of a batch of prompts; finished ones arrive in TransferQueue."""
        # verl's worker takes keys out of what it is given; its Ray actor gets a copy, so must this one.
        self._call(self._worker.generate_sequences(prompts.copy()))

    def close(self) -> None:
        """Stop the loop; trajectories still running are dropped."""
        self._call(surroundings(self.config).close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=10)
