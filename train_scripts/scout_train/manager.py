"""Agent loops inside the trainer's process (``rollout.agent.agent_loop_manager_class``, verl's hook).

verl starts one Ray actor per agent-loop worker and routes every turn through a load-balancer actor. With one
replica in one training worker neither has anything to balance; each would be one more process that imports
torch and verl (4 CPU-seconds, 400 MB) and one more hop for every turn.
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from typing import Any

from verl.experimental.agent_loop.agent_loop import DictConfigWrap
from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopWorkerTQ
from verl.workers.rollout.llm_server import LLMServerClient

from scout_protocol.errors import UserError
from scout_train.agent_loop import LOOP, VALIDATING, ScoutAgentLoop, surroundings
from scout_train.cpu.patches import plain_class

_LONGEST_WAIT_S = 0.25  # a trajectory that is over waits no longer for the others


class DirectClient(LLMServerClient):  # type: ignore[misc]
    """verl's inference client with the one server there is."""

    def __init__(self, config: Any, server: Any, **kwargs: Any) -> None:
        super().__init__(config, **kwargs)
        self._server = server

    @property
    def generate_method(self) -> Any:
        """See `scout_train.cpu.rollout.InProcessMethod`."""
        return self._server.generate

    async def _acquire_server(self, request_id: str, **_extra: Any) -> tuple[str, Any]:
        return "in-process", self._server

    def _release_server(self, server_id: str, request_id: str | None = None) -> None:
        return None


class _Worker(plain_class(AgentLoopWorkerTQ)):  # type: ignore[misc]
    """verl's worker, telling the loop which rollouts are validation.

    verl makes an agent loop for every trajectory, with Hydra, which merges configurations for 2.5 ms: the
    model waits for it at the start of each step. Ours keeps nothing of a trajectory, so one serves all.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._loop: ScoutAgentLoop | None = None
        self._playing = 0  # trajectories that may still ask for a turn
        self._go = asyncio.Event()  # set, and replaced, when the model gets a batch, or will get none

    async def _run_agent_loop(
        self, sampling_params: Any, trajectory: Any, *, agent_name: str, trace: bool = False, **kwargs: Any
    ) -> Any:
        if agent_name != LOOP:
            raise UserError("agent_name", agent_name, f"this project's agent loop is {LOOP}")
        VALIDATING.set(bool(trajectory["validate"]))  # each trajectory is its own task, hence its own context
        if self._loop is None:
            self._loop = ScoutAgentLoop(
                trainer_config=DictConfigWrap(self.config),
                server_manager=self.llm_client,
                tokenizer=self.tokenizer,
                processor=self.processor,
                hf_model_type=self.hf_model_type,
                dataset_cls=self.dataset_cls,
                data_config=DictConfigWrap(self.config.data),
            )
        self._playing += 1
        try:
            output = await self._loop.run(sampling_params, **kwargs)
        finally:
            self._playing -= 1
            if not self._playing:
                self._release()
        await self._while_the_model_works()
        return await self._agent_loop_postprocess(output, trajectory["validate"], **kwargs)

    async def _while_the_model_works(self) -> None:
        """Wait for the moment in which storing a trajectory delays nobody.

        It takes this thread 4 ms, and most trajectories of a step end together: meanwhile the others could
        not ask for their next turn, and the model would have nothing to do.
        """
        generate = getattr(self.llm_client, "generate_method", None)
        if generate is None:  # a server, which has other requests
            return
        generate.on_batch = self._release
        if self._playing and not generate.working:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._go.wait(), _LONGEST_WAIT_S)

    def _release(self) -> None:
        self._go.set()
        self._go = asyncio.Event()


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
