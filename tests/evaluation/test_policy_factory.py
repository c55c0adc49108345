"""Policies by name, each really opened: a model folder made here, an endpoint served here."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from scout_eval.policy_factory import fingerprint, open_policy
from scout_eval.run import EvalConfig, default_settings, run_eval


def test_a_model_folder_plays_and_its_tokens_are_counted(
    server: Any, rows_file: Any, model_folder: Path, tmp_path: Path
) -> None:
    from dataclasses import replace

    settings = replace(default_settings(), max_turn_tokens=8, max_response_tokens=16)
    config = EvalConfig(rows_file(6), f"hf:{model_folder}", server.url, tmp_path / "out", settings=settings)
    summary = run_eval(config)
    overall = summary.metrics.overall
    assert overall.n == 6 and overall.em.mean == 0.0  # it was never trained
    assert overall.policy_tokens is not None and 1 <= overall.policy_tokens <= 16
    assert summary.model == str(model_folder)


def test_new_weights_under_the_same_path_are_another_policy(model_folder: Path) -> None:
    before = fingerprint(f"hf:{model_folder}")
    assert fingerprint(f"hf:{model_folder}") == before
    weights = model_folder / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    assert fingerprint(f"hf:{model_folder}") != before


def test_an_endpoint_by_name(server: Any, rows_file: Any, tmp_path: Path) -> None:
    asked: list[dict[str, Any]] = []

    async def complete(request: web.Request) -> web.Response:
        asked.append(await request.json())
        choice = {"message": {"content": "<answer>City 1"}, "finish_reason": "stop"}
        return web.json_response({"choices": [choice]})

    async def main() -> str:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", complete)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        try:
            url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
            config = EvalConfig(rows_file(5), f"openai:org/model@{url}", server.url, tmp_path / "out")
            summary = await asyncio.to_thread(run_eval, config)
        finally:
            await runner.cleanup()
        assert summary.metrics.overall.em.mean == pytest.approx(1 / 5)
        return summary.model

    assert asyncio.run(main()) == "openai:org/model"
    assert asked[0]["model"] == "org/model" and asked[0]["temperature"] == 0.0


def test_the_oracle_by_name() -> None:
    async def name() -> str:
        async with open_policy("oracle", "react") as policy:
            return policy.name

    assert asyncio.run(name()) == "oracle"
