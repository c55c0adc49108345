"""A real tool server in a thread of its own, rows on disk, and traces made by hand."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web

from scout_data.rows import make_row, write_rows
from scout_eval.metrics import summarise
from scout_eval.outcomes import outcome
from scout_eval.summary import Identity, Summary, write_json
from scout_protocol.observation import Document, render
from scout_protocol.records import Author, RLRow, Span, StopReason, ToolCall, Trace
from scout_protocol.turn import parse


class ToolServer:
    """Answers a query with the page "Capital of X": the capital is "City X". Fails as it is told."""

    def __init__(self) -> None:
        self.queries: list[str] = []
        self.retrieved: list[str] = []
        self.facts: dict[str, Any] = {"backend": "made", "fingerprint": "made:1", "topk": 1, "pid": 7}
        self.fail: Callable[[str], bool] = lambda query: False
        self.pause_s = 0.0
        self.token = ""  # where it is set, all but /health asks for it
        self._loop = asyncio.new_event_loop()
        ready = threading.Event()
        self._thread = threading.Thread(target=self._serve, args=(ready,), daemon=True)
        self._thread.start()
        assert ready.wait(10)

    def _serve(self, ready: threading.Event) -> None:
        asyncio.set_event_loop(self._loop)

        async def start() -> None:
            app = web.Application(middlewares=[self._guard])
            app.router.add_post("/get_observation", self._handle)
            app.router.add_post("/retrieve", self._retrieve)
            app.router.add_get("/health", self._health)
            app.router.add_get("/metrics", self._health)
            self._runner = web.AppRunner(app, shutdown_timeout=0.1)
            await self._runner.setup()
            await web.TCPSite(self._runner, "127.0.0.1", 0).start()
            self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
            ready.set()

        self._loop.run_until_complete(start())
        self._loop.run_forever()

    @web.middleware
    async def _guard(self, request: web.Request, handler: Any) -> web.StreamResponse:
        sent = request.headers.get("Authorization")
        if self.token and request.path != "/health" and sent != f"Bearer {self.token}":
            return web.json_response({"error": "needs the bearer token"}, status=401)
        answer: web.StreamResponse = await handler(request)
        return answer

    async def _handle(self, request: web.Request) -> web.Response:
        query = parse((await request.json())["actions"][0]).text
        self.queries.append(query)
        await asyncio.sleep(self.pause_s)
        if self.fail(query):
            return web.json_response({"error": "backend down"}, status=503)
        name = query.removeprefix("Capital of ")
        page = render([Document(query, query, f"The capital is City {name}.")])
        return web.json_response(
            {"observations": [page], "dones": [False], "valids": [True], "processing_time_ms": 1.0}
        )

    async def _health(self, request: web.Request) -> web.Response:
        return web.json_response(self.facts)

    async def _retrieve(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.retrieved += body["queries"]
        if self.fail("retrieve"):
            return web.json_response({"error": "backend down"}, status=503)
        return web.json_response({"result": [self._found(q, body["topk"]) for q in body["queries"]]})

    def _found(self, query: str, topk: int) -> list[dict[str, Any]]:
        """The page of a title; for anything else pages of places that no row asks for."""
        if query.startswith("Capital of "):
            text = f"The capital is City {query.removeprefix('Capital of ')}."
            found = [(query, text)]
        else:
            found = [(f"Place {i}", f"Place {i} has no capital.") for i in range(topk)]
        return [{"document": {"id": t, "contents": f'"{t}"\n{text}'}} for t, text in found[:topk]]

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._runner.cleanup(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)


@pytest.fixture
def server() -> Iterator[ToolServer]:
    running = ToolServer()
    yield running
    running.close()


@pytest.fixture
def rows_file(tmp_path: Path) -> Callable[..., Path]:
    """Rows whose gold stands on the page of their title, but for every fifth row."""

    def make(n: int, prompt: str = "search_r1") -> Path:
        rows: list[RLRow] = []
        for i in range(n):
            extra: dict[str, Any] = {"supporting_titles": [f"Capital of {i}"], "hops": 1 + i % 2}
            gold = f"City {i}" if i % 5 else "Somewhere else"
            rows.append(make_row(f"What is the capital of {i}?", [gold], prompt, "made", "test", i, extra))
        path = tmp_path / "rows.parquet"
        write_rows(path, rows)
        return path

    return make


def trace(
    index: int = 0,
    em: float = 1.0,
    stop: StopReason = StopReason.ANSWER,
    turns: tuple[str, ...] = ("<think>t</think><search>q</search>", "<answer>City</answer>"),
    observation: str = "\n\n<information>Doc 1(Title: T) text</information>\n\n",
    tokens: int | None = 10,
    **changes: Any,
) -> Trace:
    spans = [Span(Author.PROMPT, f"Question: {index}?")]
    for number, text in enumerate(turns):
        if number:
            spans.append(Span(Author.TOOL, observation))
        spans.append(Span(Author.POLICY, text))
    score: dict[str, Any] = {
        "total": em or 0.1, "em": em, "f1": em, "format": 1.0, "n_answers": 1, "answer": "City", "why": "w",
    }  # fmt: skip
    made = Trace(
        trace_id=f"t{index}",
        question_id=f"q{index}",
        data_source="made",
        question=f"{index}?",
        golden_answers=["City"],
        spans=spans,
        tool_calls=[ToolCall("q", 0.01, True) for _ in turns[1:]],
        stop_reason=stop,
        n_turns=len(turns),
        n_searches=len(turns) - 1,
        n_policy_tokens=tokens,
        n_tool_tokens=tokens,
        score={} if stop is StopReason.INFRA_ERROR else score,
        model="m",
        stage="s",
        step=0,
        prompt_sha256="",
        dialect="search-r1",
        wall_s=1.0,
        extra={"row": {"hops": 1 + index % 2}},
    )
    return msgspec.structs.replace(made, **changes)


@pytest.fixture
def make_trace() -> Callable[..., Trace]:
    return trace


@pytest.fixture
def write_eval(make_trace: Callable[..., Trace]) -> Callable[..., list[Trace]]:
    """Write one evaluation folder with these exact matches, one per question."""

    def write(run: Path, name: str, ems: list[float], n_searches: int = 1, **changes: Any) -> list[Trace]:
        folder = run / "eval" / name
        folder.mkdir(parents=True)
        stage, _, control = name.partition(".")
        searches = tuple(f"<search>{k}</search>" for k in range(n_searches))
        traces = [
            make_trace(i, em, turns=(*searches, f"<answer>{name}</answer>"), stage=stage, **changes)
            for i, em in enumerate(ems)
        ]
        (folder / "traces.jsonl").write_bytes(b"".join(msgspec.json.encode(t) + b"\n" for t in traces))
        identity = Identity(
            stage, control or "none", "hf:x#1", "ab" * 32, 5, 0.0, {"max_turns": 4}, "cd" * 32
        )
        metrics = summarise([outcome(t) for t in traces])
        summary = Summary(
            identity=identity,
            metrics=metrics,
            rows="rows.parquet",
            n_rows=len(ems),
            tools="http://t",
            model=f"models/{stage}",
            finished_at="2026-01-01",
            wall_s=1.0,
            cpu_s=1.0,
            n_resumed=0,
            commit="f" * 40,
            versions={"python": "3.11.7"},
        )
        write_json(folder / "summary.json", summary)
        return traces

    return write


@pytest.fixture
def model_folder(tmp_path: Path) -> Path:
    """An untrained Qwen3 of a few thousand parameters that reads bytes."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: i for i, token in enumerate(["<eos>", *alphabet])}
    core = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, []))
    core.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = tokenizers.decoders.ByteLevel()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=core, eos_token="<eos>", pad_token="<eos>"
    )
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }}\n{% endfor %}"
    torch.manual_seed(0)
    config = transformers.Qwen3Config(
        vocab_size=len(vocabulary),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        max_position_embeddings=4096,
        eos_token_id=0,
        pad_token_id=0,
    )
    folder = tmp_path / "model"
    transformers.Qwen3ForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
