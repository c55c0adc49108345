"""Trajectories in the trainer's process: what is over is stored while the model works for the others."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from scout_protocol.errors import UserError


class Generate:
    """As much of the in-process rollout as the worker asks for."""

    working = False

    def on_batch(self) -> None:
        raise AssertionError("replaced by the worker")


def make(run: Any, generate: Any, stored: list[str]) -> Any:
    from scout_train.manager import _Worker

    class Worker(_Worker):  # type: ignore[misc, valid-type]
        async def _agent_loop_postprocess(self, output: Any, validate: bool, **kwargs: Any) -> None:
            stored.append(output)

    worker = object.__new__(Worker)
    worker._loop, worker._playing, worker._go = SimpleNamespace(run=run), 0, asyncio.Event()
    worker.llm_client = SimpleNamespace(generate_method=generate)
    return worker


def play(worker: Any, name: str, loop: str = "scout_search") -> Any:
    return asyncio.ensure_future(worker._run_agent_loop({}, {"validate": False}, agent_name=loop, name=name))


async def turns(n: int = 5) -> None:
    for _ in range(n):
        await asyncio.sleep(0)


def test_what_is_over_waits_for_the_next_batch_or_for_the_last_trajectory() -> None:
    async def go() -> None:
        ends = {name: asyncio.Event() for name in "abc"}
        stored: list[str] = []
        generate = Generate()

        async def run(params: Any, name: str) -> str:
            await ends[name].wait()
            return name

        worker = make(run, generate, stored)
        tasks = [play(worker, name) for name in "abc"]
        await turns()
        ends["a"].set()
        await turns()
        assert stored == []  # b and c may ask for a turn at any moment
        generate.on_batch()
        await turns()
        assert stored == ["a"]
        generate.working = True  # nobody is delayed now
        ends["b"].set()
        await turns()
        assert stored == ["a", "b"]
        generate.working = False
        ends["c"].set()
        await turns()
        assert stored == ["a", "b", "c"]
        await asyncio.gather(*tasks)

    asyncio.run(asyncio.wait_for(go(), 10))


def test_the_end_of_the_last_one_releases_all_even_by_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    from scout_train import manager

    async def go() -> None:
        end = asyncio.Event()
        stored: list[str] = []

        async def run(params: Any, name: str) -> str:
            if name == "bad":
                await end.wait()
                raise RuntimeError("broken")
            return name

        worker = make(run, Generate(), stored)
        tasks = [play(worker, name) for name in ("bad", "a", "b")]
        await turns()
        assert stored == []
        end.set()
        await turns()
        assert stored == ["a", "b"] and isinstance(tasks[0].exception(), RuntimeError)

        # and none waits for ever for one that hangs
        monkeypatch.setattr(manager, "_LONGEST_WAIT_S", 0.01)
        end.clear()
        hanging = play(worker, "bad")
        await turns()
        await play(worker, "c")
        assert stored == ["a", "b", "c"] and not hanging.done()
        hanging.cancel()

    asyncio.run(asyncio.wait_for(go(), 10))


def test_another_agent_loop_is_refused() -> None:
    async def go() -> None:
        await play(make(None, Generate(), []), "a", loop="single_turn_agent")

    with pytest.raises(UserError, match="agent loop is scout_search"):
        asyncio.run(go())
