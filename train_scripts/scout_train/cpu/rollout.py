"""``rollout.name=transformers``: generation inside the training worker, without an inference server.

The rollout model lives in the training process, so new weights are copied tensor by tensor. The agent loop
lives in another process; its concurrent requests are gathered into one batch and run there by one Ray call.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Generator, Sequence
from typing import Any

import torch
from transformers import AutoModelForCausalLM
from verl.workers.rollout.base import BaseRollout
from verl.workers.rollout.replica import RolloutReplica, TokenOutput

from scout_agent.generation import Engine, Request, Result

_MAX_GATHER_S = 0.25  # a request never waits longer than this for company


class _Served:
    """The rollout of this process; set when verl builds it, read by `_generate`."""

    rollout: TransformersRollout | None = None


def _generate(worker: Any, requests: Sequence[Request]) -> tuple[list[Result], int, float]:
    """Run inside the training worker: results, the step of the weights used, seconds of the model."""
    rollout = _Served.rollout
    if rollout is None:
        raise RuntimeError("rollout.name=transformers: the training worker has no rollout")
    start = time.perf_counter()
    return rollout.engine.generate(requests), rollout.weights_step, time.perf_counter() - start


class TransformersRollout(BaseRollout):  # type: ignore[misc]
    """verl's handle on the rollout weights: a second copy of the model, in eval mode."""

    def __init__(self, config: Any, model_config: Any, device_mesh: Any) -> None:
        super().__init__(config, model_config, device_mesh)
        hf_config, tokenizer = self.model_config.hf_config, self.model_config.tokenizer
        self.model = AutoModelForCausalLM.from_config(
            hf_config, attn_implementation="sdpa", dtype=torch.float32
        )
        self.model.eval().requires_grad_(False)
        declared = getattr(self.model_config.generation_config, "eos_token_id", None)
        eos = {tokenizer.eos_token_id, *(declared if isinstance(declared, list) else [declared])} - {None}
        room = self.config.max_model_len or self.config.prompt_length + self.config.response_length
        # Ranks must not sample the same continuations of the same prompts.
        self.seed = self._configured_seed() + torch.distributed.get_rank()
        self.engine = Engine(self.model, tokenizer, sorted(eos), self.config.response_length, room, self.seed)
        self.weights_step = 0
        _Served.rollout = self

    def _configured_seed(self) -> int:
        return int(self.config.seed)

    async def resume(self, tags: list[str]) -> None:
        """Nothing to resume: weights and cache are ordinary memory."""

    async def release(self) -> None:
        """Nothing to release, see `resume`."""

    async def update_weights(
        self,
        weights: Generator[tuple[str, torch.Tensor], None, None],
        wire_format: str = "named_tensors",
        global_steps: int | None = None,
        **_kwargs: Any,
    ) -> None:
        """Copy the trainer's weights. Every tensor must come, or the policy would be a mixture."""
        if wire_format != "named_tensors":
            raise ValueError(f"rollout.name=transformers: wire format {wire_format!r} is not implemented")
        start, own, seen = time.perf_counter(), self.model.state_dict(), set()
        with torch.no_grad():
            for name, tensor in weights:
                own[name].copy_(tensor.detach())
                seen.add(name)
        missing = own.keys() - seen - ({"lm_head.weight"} if self.model.config.tie_word_embeddings else set())
        if missing:
            raise RuntimeError(f"weights not synchronised: {sorted(missing)[:5]}")
        self.weights_step = int(global_steps or 0)
        # A resumed run draws what the unbroken one would have drawn.
        self.engine.rng.manual_seed(self.seed + 1_000_003 * self.weights_step)
        took_ms = 1000 * (time.perf_counter() - start)
        print(
            f"[scout] weights of step {self.weights_step}: {len(seen)} tensors in {took_ms:.1f} ms",
            flush=True,
        )


class _Batcher:
    """Gathers concurrent requests of one event loop and runs them in one training worker, batch by batch."""

    def __init__(self, worker: Any, max_rows: int, gather_s: float, on_batch: Callable[[], None]) -> None:
        self.worker, self.max_rows, self.gather_s = worker, max_rows, gather_s
        self.on_batch, self.working = on_batch, False
        self.queue: list[tuple[Request, asyncio.Future[tuple[Result, int]]]] = []
        self.pump: asyncio.Task[None] | None = None
        self.busy_s = 0.0  # of the model, since `InProcessMethod.take_busy_s` was last called

    async def submit(self, request: Request) -> tuple[Result, int]:
        future: asyncio.Future[tuple[Result, int]] = asyncio.get_running_loop().create_future()
        self.queue.append((request, future))
        if self.pump is None or self.pump.done():
            self.pump = asyncio.create_task(self._run())
        return await future

    async def _run(self) -> None:
        while self.queue:
            seen, start = -1, time.perf_counter()
            while seen != len(self.queue) < self.max_rows and time.perf_counter() - start < _MAX_GATHER_S:
                seen = len(self.queue)
                await asyncio.sleep(self.gather_s)  # until arrivals stop
            batch, self.queue = self.queue[: self.max_rows], self.queue[self.max_rows :]
            batch = [(r, f) for r, f in batch if not f.done()]  # a timeout may have given up on some
            if not batch:
                continue
            self.working = True
            self.on_batch()
            try:
                results, step, took_s = await self.worker.__ray_call__.remote(
                    _generate, [r for r, _ in batch]
                )
            except Exception as error:  # handed to every waiter, never dropped
                for _, future in batch:
                    if not future.done():
                        future.set_exception(error)
                continue
            finally:
                self.working = False
            self.busy_s += took_s
            for (_, future), result in zip(batch, results, strict=True):
                if not future.done():
                    future.set_result((result, step))


class InProcessMethod:
    """What verl calls as ``server.generate.remote(…)``; here a coroutine, not a Ray actor's method.

    Attributes:
        on_batch: called whenever the model gets a batch.
    """

    def __init__(self, worker: Any, max_rows: int, gather_s: float) -> None:
        self.worker, self.max_rows, self.gather_s = worker, max_rows, gather_s
        self.on_batch: Callable[[], None] = lambda: None
        self._batchers: dict[int, _Batcher] = {}

    @property
    def working(self) -> bool:
        """Whether the model generates now."""
        return any(batcher.working for batcher in self._batchers.values())

    def take_busy_s(self) -> float:
        """Seconds that the model generated since the last call, waiting and transport not counted."""
        total = sum(batcher.busy_s for batcher in self._batchers.values())
        for batcher in self._batchers.values():
            batcher.busy_s = 0.0
        return total

    async def remote(
        self, prompt_ids: Sequence[int], sampling_params: dict[str, Any], **_kwargs: Any
    ) -> TokenOutput:
        loop = id(asyncio.get_running_loop())
        if loop not in self._batchers:
            self._batchers[loop] = _Batcher(
                self.worker, self.max_rows, self.gather_s, lambda: self.on_batch()
            )
        result, step = await self._batchers[loop].submit(Request(list(prompt_ids), dict(sampling_params)))
        return self._output(result, step, bool(sampling_params.get("logprobs")))

    def _output(self, result: Result, step: int, logprobs: bool) -> TokenOutput:
        return TokenOutput(
            token_ids=result.token_ids,
            log_probs=result.logprobs if logprobs else None,
            stop_reason="completed",
            num_preempted=0,
            extra_fields={
                "global_steps": step,
                "finish": result.finish.value,
                "stop_str": result.stop_str,
            },
        )


class InProcessHandle:
    """verl's server handle; in sync mode only ``generate`` is used."""

    method = InProcessMethod

    def __init__(self, worker: Any, max_rows: int, gather_s: float) -> None:
        self.generate = self.method(worker, max_rows, gather_s)


class TransformersReplica(RolloutReplica):  # type: ignore[misc]
    """One replica is one training worker; there is no server to launch, sleep or wake."""

    handle = InProcessHandle

    async def launch_servers(self) -> None:
        if len(self.workers) != 1:
            raise ValueError("rollout.name=transformers: tensor, data and pipeline parallel sizes must be 1")
        gather_s = float(self.config.engine_kwargs.get("transformers", {}).get("gather_s", 0.005))
        self.servers: list[Any] = []
        self._server_address = f"in-process-{self.replica_rank}"
        self._server_handle = self.handle(self.workers[0], int(self.config.max_num_seqs), gather_s)
