"""A small corpus, its index, and tool servers started as real processes."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # importmode=importlib leaves it out

from tool_helpers import PASSAGES, REPO, Server, scout, start_server, stop_server, write_jsonl


@pytest.fixture(scope="session")
def index_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index of `PASSAGES`."""
    folder = tmp_path_factory.mktemp("tools")
    corpus = write_jsonl(folder / "corpus.jsonl", PASSAGES)
    done = scout("index", "build", corpus, "--index", folder / "index")
    assert done.returncode == 0, done.stderr
    return folder / "index"


@pytest.fixture(scope="session")
def server(index_dir: Path) -> Iterator[Server]:
    """One server for the tests that only talk to it."""
    running = start_server("--index", index_dir, "--workers", 2, "--topk", 3)
    yield running
    assert stop_server(running) == 0


@pytest.fixture
def serve() -> Iterator[Callable[..., Server]]:
    """Start servers that the test may treat badly; whatever is left is stopped."""
    running: list[Server] = []

    def start(*args: object) -> Server:
        running.append(start_server(*args))
        return running[-1]

    yield start
    for one in running:
        stop_server(one)


@pytest.fixture(scope="session")
def hotpot_dev() -> Path:
    """500 real HotpotQA questions with their paragraphs."""
    shared = Path(os.environ.get("SCOUT_SHARED_DATA", REPO.parent / "shared" / "data"))
    path = shared / "hotpotqa" / "hotpot_dev_500.jsonl"
    if not path.exists():
        pytest.skip(f"{path} is not here")
    return path
