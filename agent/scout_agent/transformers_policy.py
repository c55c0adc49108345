"""A local transformers model as a policy. Concurrent turns are gathered into one batch.

Tokens in, tokens out: a session holds the ids that the model really read and wrote; observations are
encoded once, by themselves, as the trainer's rollouts encode them.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from scout_agent.generation import Engine, Request, Result
from scout_agent.policy import Finish, PolicyTurn
from scout_protocol.dialect import Dialect, get_dialect
from scout_protocol.errors import UserError
from scout_protocol.observation import truncate_tokens
from scout_protocol.records import Author, RLRow, Span


def prompt_token_ids(tokenizer: Any, messages: list[dict[str, str]]) -> list[int]:
    """Ids of a chat prompt, ready for the assistant to write.

    Raises:
        UserError: the tokenizer has no chat template.
    """
    if not tokenizer.chat_template:
        raise UserError("tokenizer", tokenizer.name_or_path, "has no chat template: add one to its folder")
    ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=True, return_dict=True)
    return list(ids["input_ids"])


def observation_token_ids(tokenizer: Any, observation: str, dialect: Dialect, max_tokens: int) -> list[int]:
    """Ids of an observation, cut to ``max_tokens`` with both markers kept."""
    encode = partial(tokenizer.encode, add_special_tokens=False)
    return list(encode(truncate_tokens(observation, dialect, max_tokens, encode, tokenizer.decode)))


class TransformersPolicy:
    """Policy over one model in this process.

    Args:
        batch_size: most turns generated together. With temperature 0 and a fixed batch size a run repeats.
        gather_s: how long to wait for more turns once one has arrived; bounded by `batch_size`.
    """

    def __init__(
        self,
        engine: Engine,
        tokenizer: Any,
        dialect: Dialect,
        name: str,
        sampling: dict[str, Any],
        batch_size: int = 64,
        gather_s: float = 0.01,
    ) -> None:
        self.engine, self.tokenizer, self.dialect, self.name = engine, tokenizer, dialect, name
        self.sampling = {**sampling, "stop": list(dialect.stops)}
        self.batch_size, self.gather_s = batch_size, gather_s
        self._queue: list[tuple[Request, asyncio.Future[Result]]] = []
        self._pump_task: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="generate")

    @classmethod
    def load(
        cls,
        path: str | Path,
        dialect: str = "search-r1",
        temperature: float = 0.0,
        batch_size: int = 64,
        max_model_len: int = 4096,
        seed: int = 0,
        threads: int | None = None,
        device: str = "cpu",
    ) -> TransformersPolicy:
        """Load a Hugging Face model folder.

        Raises:
            UserError: the folder is missing or is not a model.
        """
        if not (Path(path) / "config.json").is_file():
            raise UserError("model", path, "is not a model folder (no config.json)")
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer
        from transformers.utils import logging

        logging.disable_progress_bar()  # the callers show their own
        if threads is not None:
            torch.set_num_threads(threads)
        tokenizer = AutoTokenizer.from_pretrained(str(path))
        model = AutoModelForCausalLM.from_pretrained(str(path), attn_implementation="sdpa", dtype="auto")
        model = model.to(device).eval().requires_grad_(False)
        declared = model.generation_config.eos_token_id
        eos = {tokenizer.eos_token_id, *(declared if isinstance(declared, list) else [declared])} - {None}
        limit = min(max_model_len, model.config.max_position_embeddings)
        engine = Engine(model, tokenizer, sorted(eos), limit, limit, seed)
        return cls(
            engine,
            tokenizer,
            get_dialect(dialect),
            str(path),
            {"temperature": temperature},
            batch_size=batch_size,
        )

    async def start(self, row: RLRow) -> TransformersSession:
        return TransformersSession(self, row)

    async def submit(self, request: Request) -> Result:
        """One request; it is generated together with whatever else arrives meanwhile."""
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._queue.append((request, future))
        if self._pump_task is None or self._pump_task.done():
            self._pump_task = asyncio.create_task(self._pump())
        return await future

    async def _pump(self) -> None:
        loop = asyncio.get_running_loop()
        while self._queue:
            seen = -1
            while seen != len(self._queue) and len(self._queue) < self.batch_size:
                seen = len(self._queue)
                await asyncio.sleep(self.gather_s)  # until arrivals stop
            batch, self._queue = self._queue[: self.batch_size], self._queue[self.batch_size :]
            batch = [(r, f) for r, f in batch if not f.done()]  # a timeout may have given up on some
            if not batch:
                continue
            try:
                results = await loop.run_in_executor(
                    self._thread, self.engine.generate, [r for r, _ in batch]
                )
            except Exception as error:  # handed to every waiter, never dropped
                for _, future in batch:
                    if not future.done():
                        future.set_exception(error)
                continue
            for (_, future), result in zip(batch, results, strict=True):
                if not future.done():
                    future.set_result(result)


class TransformersSession:
    """One trajectory's ids: the prompt, the sampled turns, the encoded observations."""

    def __init__(self, policy: TransformersPolicy, row: RLRow) -> None:
        self.policy = policy
        self.ids = prompt_token_ids(policy.tokenizer, row.prompt)
        self.prompt = Span(Author.PROMPT, policy.tokenizer.decode(self.ids), list(self.ids))

    async def act(self, max_tokens: int) -> PolicyTurn:
        room = self.policy.engine.max_model_len - len(self.ids)
        if room < 1:  # the context is full; there is nothing left to sample
            return PolicyTurn("", Finish.LENGTH, [], [])
        params = {**self.policy.sampling, "max_tokens": min(max_tokens, room)}
        result = await self.policy.submit(Request(list(self.ids), params))
        self.ids += result.token_ids
        text = self.policy.tokenizer.decode(result.token_ids)
        return PolicyTurn(text, result.finish, result.token_ids, result.logprobs)

    def observe(self, observation: str, max_tokens: int) -> Span:
        ids = observation_token_ids(self.policy.tokenizer, observation, self.policy.dialect, max_tokens)
        self.ids += ids
        return Span(Author.TOOL, self.policy.tokenizer.decode(ids), ids)
