"""The control "random": passages of a pool, the same for the same row, in the server's own form."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from scout_agent.client import ToolReply
from scout_agent.random_control import RandomTools
from scout_protocol.errors import UserError
from scout_protocol.observation import Document

POOL = [Document(str(i), f"Title {i}", f"Text {i}") for i in range(20)]
SEARCH = "<search>q</search>"


class Inner:
    """Real evidence, a hint, or an outage."""

    def __init__(self) -> None:
        self.actions: list[str] = []
        self.down = False

    async def call(self, trajectory_id: str, action: str, is_last_step: bool = False) -> ToolReply:
        self.actions.append(action)
        if self.down:
            return ToolReply("", False, False, 0.5, infra_error=True, error_kind="timeout")
        return ToolReply("\n\n<information>evidence</information>\n\n", action == SEARCH, False, 0.25)


def observe(tools: RandomTools, row: Any, n: int) -> list[list[str]]:
    bound = tools.for_row(row)

    async def play() -> list[ToolReply]:
        return [await bound.call("t", SEARCH) for _ in range(n)]

    return [re.findall(r"Title (\d+)", reply.observation) for reply in asyncio.run(play())]


def test_every_search_draws_topk_passages_and_no_evidence(make_row: Any) -> None:
    inner = Inner()
    found = observe(RandomTools(inner, POOL, 3), make_row(0), 50)
    assert all(len(set(drawn)) == 3 for drawn in found) and inner.actions == [SEARCH] * 50
    assert len({tuple(drawn) for drawn in found}) > 40  # it goes on drawing
    counts = [sum(str(i) in drawn for drawn in found) for i in range(20)]
    assert all(counts) and max(counts) < 25  # from the whole pool, about 7.5 each


def test_the_draw_depends_on_seed_and_row_alone(make_row: Any) -> None:
    one, two = make_row(0), make_row(1)
    first = observe(RandomTools(Inner(), POOL, 2, seed=1), one, 5)
    assert observe(RandomTools(Inner(), POOL, 2, seed=1), one, 5) == first
    assert observe(RandomTools(Inner(), POOL, 2, seed=2), one, 5) != first
    assert observe(RandomTools(Inner(), POOL, 2, seed=1), two, 5) != first


def test_the_reply_keeps_everything_but_its_text() -> None:
    reply = asyncio.run(RandomTools(Inner(), POOL, 1).call("t", SEARCH))
    assert (reply.valid, reply.latency_s) == (True, 0.25) and "evidence" not in reply.observation
    hint = asyncio.run(RandomTools(Inner(), POOL, 1).call("t", "no action"))
    assert "evidence" in hint.observation  # a hint about form is no evidence


def test_an_outage_stays_an_outage() -> None:
    inner = Inner()
    inner.down = True
    reply = asyncio.run(RandomTools(inner, POOL, 1).call("t", SEARCH))
    assert reply.infra_error and reply.error_kind == "timeout" and reply.observation == ""


def test_dialect_and_style_are_the_servers() -> None:
    tools = RandomTools(Inner(), [Document("1", "T", "x", url="http://u")], 1, dialect="react", style="wiki")
    reply = asyncio.run(tools.call("t", "<call:search>q</call:search>"))
    assert reply.observation == "\n\n<observation>**Doc 1 (Title: T)**\nURL: http://u\nx</observation>\n\n"


@pytest.mark.parametrize("topk", [0, 21])
def test_a_pool_that_is_too_small(topk: int) -> None:
    with pytest.raises(UserError, match="control"):
        RandomTools(Inner(), POOL, topk)
