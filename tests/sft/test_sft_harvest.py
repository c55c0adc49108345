"""Demonstrations from a tool server: what is kept, what is tried again, what survives a kill."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web

from scout_protocol.dialect import SEARCH_R1
from scout_protocol.errors import UserError
from scout_protocol.observation import render
from scout_protocol.turn import Action, parse
from scout_protocol.wire import ObservationResponse, decode_observation_request, encode
from scout_sft.harvest import HarvestSettings, harvest
from scout_sft.plan import choose_stops
from scout_sft.rows import read_demos

FAST = {"retry_wait_s": 0.01, "concurrency": 3}


@contextmanager
def flaky_server(mini: Any, ok: Callable[[int], bool]) -> Iterator[str]:
    """A tool server that answers request number n (from 0) only where ``ok(n)``; 503 elsewhere."""
    count = 0

    async def handle(request: web.Request) -> web.Response:
        nonlocal count
        count += 1
        if not ok(count - 1):
            return web.Response(status=503)
        body = decode_observation_request(await request.read())
        query = parse(body.actions[0]).text
        pages = [mini.documents[query]] if query in mini.documents else []
        answer = ObservationResponse([render(pages, SEARCH_R1)], [False], [True], 0.1)
        return web.Response(body=encode(answer), content_type="application/json")

    loop, ready, url = asyncio.new_event_loop(), threading.Event(), []

    async def start() -> web.AppRunner:
        app = web.Application()
        app.router.add_post("/get_observation", handle)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        url.append(f"http://127.0.0.1:{runner.addresses[0][1]}")
        ready.set()
        return runner

    def serve() -> None:
        asyncio.set_event_loop(loop)
        runner = loop.run_until_complete(start())
        loop.run_forever()
        loop.run_until_complete(runner.cleanup())

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    assert ready.wait(10)
    try:
        yield url[0]
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)


def test_real_server_gives_demonstrations_that_parse_back(server_url: str, mini: Any, tmp_path: Path) -> None:
    out = tmp_path / "demos.parquet"
    result = harvest(mini.rows, out, HarvestSettings(server=server_url, early_stop_share=0.5))
    demos = read_demos(out)
    assert result.kept == len(demos) == 16 and result.early == 4 and result.rejected == {}
    assert [d.id for d in demos] == [row.id for row in mini.rows]
    stops = choose_stops(mini.rows, 0.5, 0)
    for demo, row in zip(demos, mini.rows, strict=True):
        steps = row.extra_info["oracle"][: stops.get(row.id)]
        policy = [parse(t.text) for t in demo.turns if t.role == "policy"]
        assert [t.text for t in policy[:-1]] == [s["query"] for s in steps]
        assert policy[-1].action is Action.ANSWER and policy[-1].text == steps[-1]["result"]
        assert demo.complete == (demo.id not in stops) == (policy[-1].text == row.golden_answers[0])
        assert demo.found_answer_context and demo.n_searches == len(steps)
        tool = [t for t in demo.turns if t.role == "tool"]
        assert all(f"(Title: {s['query']})" in t.text for s, t in zip(steps, tool, strict=True))
        assert not any(t.loss for t in tool)
        assert demo.messages[-1]["content"] == demo.chosen == "".join(t.text for t in demo.turns)
        assert demo.messages[:-1] == row.prompt


def test_outages_are_tried_again_and_leave_no_trace(mini: Any, tmp_path: Path) -> None:
    with flaky_server(mini, lambda n: True) as url:
        harvest(mini.rows, tmp_path / "calm.parquet", HarvestSettings(server=url, **FAST))
    with flaky_server(mini, lambda n: n % 3 != 1) as url:
        result = harvest(mini.rows, tmp_path / "stormy.parquet", HarvestSettings(server=url, **FAST))
    assert result.kept == 16
    assert (tmp_path / "calm.parquet").read_bytes() == (tmp_path / "stormy.parquet").read_bytes()
    assert "unavailable" not in (tmp_path / "stormy.parquet.jsonl").read_text()


def test_a_server_that_stays_away_loses_nothing_that_was_harvested(mini: Any, tmp_path: Path) -> None:
    out = tmp_path / "demos.parquet"
    with (
        flaky_server(mini, lambda n: n < 9) as url,
        pytest.raises(UserError, match=r"http_503.*questions are finished and kept.*scout serve") as caught,
    ):
        harvest(mini.rows, out, HarvestSettings(server=url, retries=1, **FAST))
    assert "\n" not in str(caught.value)
    assert not out.exists()
    journal = (tmp_path / "demos.parquet.jsonl").read_text().splitlines()
    assert 1 < len(journal) - 1 < 16
    with flaky_server(mini, lambda n: True) as url:
        result = harvest(mini.rows, out, HarvestSettings(server=url, **FAST))
        harvest(mini.rows, tmp_path / "whole.parquet", HarvestSettings(server=url, **FAST))
    assert result.resumed == len(journal) - 1 and result.played == 16 - result.resumed
    assert out.read_bytes() == (tmp_path / "whole.parquet").read_bytes()


def test_a_torn_last_line_is_played_again(server_url: str, mini: Any, tmp_path: Path) -> None:
    out = tmp_path / "demos.parquet"
    settings = HarvestSettings(server=server_url)
    harvest(mini.rows, out, settings)
    whole, journal = out.read_bytes(), tmp_path / "demos.parquet.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    out.unlink()
    journal.write_bytes(b"".join(lines[:5]) + lines[5][: len(lines[5]) // 2])
    result = harvest(mini.rows, out, settings)
    assert (result.resumed, result.played) == (4, 12)
    assert out.read_bytes() == whole
    assert sorted(journal.read_bytes().splitlines()) == sorted(line.rstrip() for line in lines)


def test_a_finished_harvest_asks_nothing(mini: Any, server_url: str, tmp_path: Path) -> None:
    harvest(mini.rows, tmp_path / "d.parquet", HarvestSettings(server=server_url))
    nowhere = HarvestSettings(server="http://127.0.0.1:9", retries=0)
    assert harvest(mini.rows, tmp_path / "d.parquet", nowhere).played == 0


def test_what_the_retriever_misses_is_rejected_with_its_reason(mini: Any, tmp_path: Path) -> None:
    lost = msgspec.structs.replace(mini.rows[0], extra_info={**mini.rows[0].extra_info})
    lost.extra_info["oracle"] = [{**mini.rows[0].extra_info["oracle"][0], "query": "nobody at all"}]
    rows = [lost, *mini.rows[1:]]
    with flaky_server(mini, lambda n: True) as url:
        result = harvest(rows, tmp_path / "d.parquet", HarvestSettings(server=url, **FAST))
        assert result.rejected == {"answer not in the results": 1} and result.kept == 15
        kept = HarvestSettings(server=url, keep_unfound=True, **FAST)
        assert harvest(rows, tmp_path / "e.parquet", kept).kept == 16
        with pytest.raises(UserError, match=r"none kept.*answer not in the results: 1"):
            harvest([lost], tmp_path / "f.parquet", HarvestSettings(server=url, **FAST))
    unfound = [d.id for d in read_demos(tmp_path / "e.parquet") if not d.found_answer_context]
    assert unfound == [lost.id]


def test_another_harvest_in_the_same_file_is_refused(mini: Any, server_url: str, tmp_path: Path) -> None:
    out = tmp_path / "d.parquet"
    harvest(mini.rows, out, HarvestSettings(server=server_url))
    with pytest.raises(UserError, match="other seed"):
        harvest(mini.rows, out, HarvestSettings(server=server_url, seed=1))
    with pytest.raises(UserError, match="other rows"):
        harvest(mini.rows[1:], out, HarvestSettings(server=server_url))
    journal = tmp_path / "d.parquet.jsonl"
    lines = journal.read_text().splitlines()
    lines[2] = "{" + lines[2]
    journal.write_text("\n".join(lines) + "\n")
    with pytest.raises(UserError, match=r"jsonl:3: is damaged"):
        harvest(mini.rows, out, HarvestSettings(server=server_url))


def test_wrong_rows_and_settings(mini: Any, tmp_path: Path) -> None:
    without = [msgspec.structs.replace(row, extra_info={"index": 0, "split": "x"}) for row in mini.rows]
    with pytest.raises(UserError, match=r"none has extra_info\.oracle"):
        harvest(without, tmp_path / "d.parquet", HarvestSettings())
    with pytest.raises(UserError, match="id mini-0: occurs more than once"):
        harvest([*mini.rows, mini.rows[0]], tmp_path / "d.parquet", HarvestSettings())
    for wrong in ({"early_stop_share": 1.2}, {"concurrency": 0}, {"retries": -1}, {"dialect": "x"}):
        with pytest.raises(UserError):
            HarvestSettings(**wrong)
    assert list(tmp_path.iterdir()) == []


def test_journal_lines_are_json_with_an_id(mini: Any, server_url: str, tmp_path: Path) -> None:
    harvest(mini.rows, tmp_path / "d.parquet", HarvestSettings(server=server_url))
    lines = [json.loads(line) for line in (tmp_path / "d.parquet.jsonl").read_text().splitlines()]
    assert {line["id"] for line in lines[1:]} == {row.id for row in mini.rows}
