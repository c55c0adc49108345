"""Shared pieces: verl on the CPU platform, a tiny model made here, rows, and a small tool server."""

from __future__ import annotations

import json
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
sys.path.insert(0, str(Path(__file__).parent))  # helpers beside the tests

CAPITALS = {"France": "Paris", "Italy": "Rome", "Spain": "Madrid", "Peru": "Lima", "Cuba": "Havana"}


def observation(country: str) -> str:
    """What the tool server finds."""
    text = f"Doc 1(Title: {country}) The capital of {country} is {CAPITALS[country]}."
    return f"\n\n<information>{text}</information>\n\n"


@pytest.fixture
def compose() -> Callable[..., Any]:
    """``compose("dapo", "key=value", …)`` → a complete configuration, paths aside."""
    from scout_train.compose import Choice, parse_setting
    from scout_train.compose import compose as compose_recipe

    return lambda algo, *settings: compose_recipe(Choice(algo), [parse_setting(s) for s in settings])


@pytest.fixture(scope="session")
def rows_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """40 questions about five capitals."""
    from scout_data.rows import make_row, write_rows

    path = tmp_path_factory.mktemp("rows") / "train.parquet"
    rows = [
        make_row(f"What is the capital of {c}?", [CAPITALS[c]], "search_r1", "toy", "train", i)
        for i, c in enumerate(list(CAPITALS) * 8)
    ]
    write_rows(path, rows)
    return path


def teach_model(path: Path, make_model: Callable[..., Any]) -> Path:
    """A model taught for a moment to write a search, read and answer, so that rewards differ.

    ``make_model(**sizes)`` builds it for a vocabulary and its special tokens. Tags are ordinary text, of
    several tokens.
    """
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    from scout_protocol.prompt import load_prompt

    prompts = {
        c: load_prompt("search_r1").build(f"What is the capital of {c}?")[0]["content"] for c in CAPITALS
    }
    search = {c: f"<think>search</think><search>{c}</search>" for c in CAPITALS}
    texts = [prompts[c] + search[c] + observation(c) + f"<answer>{a}</answer>" for c, a in CAPITALS.items()]
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    bpe.train_from_iterator(
        texts * 4,
        trainers.BpeTrainer(
            vocab_size=600,
            special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        chat_template=(
            "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
            "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
        ),
    )
    torch.manual_seed(0)
    model = make_model(
        vocab_size=len(tokenizer),
        num_hidden_layers=2,
        max_position_embeddings=1024,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    guesses = random.Random(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(80):  # enough to write the tags in order; which answer comes stays a guess
        rows = [
            tokenizer.apply_chat_template(
                [{"role": "user", "content": prompts[c]}], add_generation_prompt=True, tokenize=False
            )
            + search[c]
            + observation(c)
            + f"<answer>{guesses.choice(list(CAPITALS.values()))}</answer>"
            for c in CAPITALS
        ]
        ids = tokenizer(rows, padding=True, return_tensors="pt", add_special_tokens=False)
        labels = ids["input_ids"].masked_fill(ids["attention_mask"] == 0, -100)
        model(input_ids=ids["input_ids"], attention_mask=ids["attention_mask"], labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


@pytest.fixture(scope="session")
def teach() -> Callable[..., Path]:
    """`teach_model`, for tests that need another architecture than `model_dir`."""
    return teach_model


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A two-layer Qwen2."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    return teach_model(
        tmp_path_factory.mktemp("model"),
        lambda **sizes: Qwen2ForCausalLM(Qwen2Config(hidden_size=32, intermediate_size=64, **heads, **sizes)),
    )


class ToolServer:
    """Answers /get_observation and /ready.

    ``broken`` makes it answer 503 to every action, ``broken_calls`` to the next few; ``hang_s`` delays it.
    With a ``token`` it answers 401 where that is not sent.
    """

    def __init__(self) -> None:
        self.broken, self.calls, self.broken_calls, self.hang_s = False, 0, 0, 0.0
        self.token = ""
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _reply(self, code: int, body: dict[str, Any]) -> None:
                raw = json.dumps(body).encode()
                self.send_response(code)
                self.send_header("Content-Length", str(len(raw)))
                self.end_headers()
                self.wfile.write(raw)

            def do_GET(self) -> None:
                self._reply(200, {"ready": True})

            def do_POST(self) -> None:
                server.calls += 1
                request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                time.sleep(server.hang_s)
                if server.token and self.headers["Authorization"] != f"Bearer {server.token}":
                    self._reply(401, {"error": "no token"})
                    return
                server.broken_calls -= 1
                if server.broken or server.broken_calls >= 0:
                    self._reply(503, {"error": "down"})
                    return
                found = []
                for action in request["actions"]:
                    text = observation(next((c for c in CAPITALS if c in action), "France"))
                    if "everything" in action:  # a long observation
                        text = text.replace("</information>", " and more" * 100 + "</information>")
                    found.append(text)
                n = len(found)
                self._reply(
                    200,
                    {
                        "observations": found,
                        "dones": [False] * n,
                        "valids": [True] * n,
                        "processing_time_ms": 0.1,
                    },
                )

            def log_message(self, *_args: Any) -> None:
                return None

        self._httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._httpd.server_port}"
        self._thread = threading.Thread(target=self._httpd.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._httpd.shutdown()
        self._httpd.server_close()


@pytest.fixture
def tool_server() -> Iterator[ToolServer]:
    server = ToolServer()
    yield server
    server.close()
