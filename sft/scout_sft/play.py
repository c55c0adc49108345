"""Playing until every question is finished, over outages, or until the server stays away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import cast

from scout_agent.client import HttpTools
from scout_agent.episode import TraceLabels, run_episodes
from scout_agent.tool_access import check_token, token_from_env
from scout_protocol.errors import UserError
from scout_protocol.records import StopReason, Trace
from scout_sft.harvest_settings import HarvestSettings
from scout_sft.journal import Journal
from scout_sft.players import Player
from scout_sft.progress import Progress

# Nothing that the plan did: the tool was away, or too slow.
AGAIN = frozenset({StopReason.INFRA_ERROR, StopReason.TURN_TIMEOUT, StopReason.TRAJECTORY_TIMEOUT})


async def play(player: Player, journal: Journal, settings: HarvestSettings) -> None:
    """Play what is not finished, round after round, until all is or the server stays away."""
    rows, token = player.rows, token_from_env(settings.tools_token_env)
    check_token(settings.server, token)
    failures_in_a_row, wait_s = 0, settings.retry_wait_s
    with Progress("demonstrations", len(rows), len(journal.finished)) as progress:
        async with (
            HttpTools(settings.server, settings.call_timeout_s, settings.concurrency, token) as tools,
            player.open() as policy,
        ):
            labels = TraceLabels(model=policy.name, stage="harvest")
            while pending := [row for row in rows if row.id not in journal.finished]:
                before, lost, kind = len(journal.finished), 0, ""
                # run_episodes is an async generator: closing it cancels the episodes in flight
                episodes = cast(
                    "AsyncGenerator[tuple[int, Trace], None]",
                    run_episodes(pending, policy, tools, player.budget, labels, settings.concurrency),
                )
                async for index, trace in episodes:
                    row = pending[index]
                    if trace.stop_reason in AGAIN:
                        lost += 1
                        kind = (
                            trace.tool_calls[-1].error_kind if trace.tool_calls else trace.stop_reason.value
                        )
                        if lost > settings.concurrency and lost > len(journal.finished) - before:
                            break  # the server is gone; asking it all the other questions helps nobody
                        continue
                    item = player.finish(row, trace)
                    if item is None:
                        continue
                    journal.add(item)
                    progress.update(len(journal.finished), f"{lost} to try again" if lost else "")
                await episodes.aclose()
                if not lost:
                    continue
                failures_in_a_row = 0 if len(journal.finished) > before else failures_in_a_row + 1
                if failures_in_a_row > settings.retries:
                    done, left = len(journal.finished), len(rows) - len(journal.finished)
                    raise UserError(
                        "--server",
                        f"{settings.server} ({kind})",
                        f"does not answer: {done} questions are finished and kept, {left} are not; "
                        "start it with `scout serve` and run the same command to go on",
                    )
                await asyncio.sleep(wait_s * 2**failures_in_a_row if failures_in_a_row else wait_s)
