"""What the tests of the gateway share: backends inside this process, and servers beside it."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from fake_wikipedia import FakeWikipedia

from scout_protocol.observation import Document
from scout_tools.backends.base import BackendError
from scout_tools.backends.wiki_options import WikiSettings
from scout_tools.backends.wikipedia import WikipediaBackend

CONTACT = "tests@example.org"
T = TypeVar("T")


def settings_for(fake: FakeWikipedia, folder: Path, **more: Any) -> WikiSettings:
    """Settings for a fake on this machine, quick unless told otherwise."""
    folder.mkdir(parents=True, exist_ok=True)
    ca = folder / "ca.pem"
    fake.ca.cert_pem.write_to_path(str(ca))
    options = {"contact": CONTACT, "url": fake.url, "ca_bundle": ca, "per_second": 500.0, "folder": folder}
    return WikiSettings(**{**options, **more})


def with_gateway(
    fake: FakeWikipedia,
    folder: Path,
    use: Callable[[WikipediaBackend], Awaitable[T]],
    timeout_s: float = 10.0,
    **more: Any,
) -> T:
    """Run ``use`` on a fresh backend and close it."""

    async def run() -> T:
        backend = WikipediaBackend(settings_for(fake, folder, **more), timeout_s)
        try:
            return await use(backend)
        finally:
            await backend.close()

    return asyncio.run(run())


async def ask(backend: WikipediaBackend, query: str, topk: int = 3) -> list[Document]:
    (documents,) = await backend.search([query], topk)
    return documents


async def kind_of(backend: WikipediaBackend, query: str, topk: int = 3) -> str:
    """The kind of the outage, or "" where there is an answer."""
    try:
        await backend.search([query], topk)
    except BackendError as error:
        return error.kind
    return ""


@dataclass
class Proxy:
    """A running forward proxy."""

    url: str
    log: Path

    def connected(self) -> int:
        """How many tunnels it has closed so far."""
        return self.log.read_text().count("CONNECT")


@contextmanager
def forward_proxy(folder: Path) -> Iterator[Proxy]:
    """proxy.py as a process of its own."""
    port_file, log = folder / "port", folder / "proxy.log"
    log.touch()
    options = ("--hostname", "127.0.0.1", "--port", "0", "--port-file", port_file, "--log-file", log)
    few = ("--num-workers", "1", "--num-acceptors", "1", "--plugins", "named_proxy.TestNames")
    process = subprocess.Popen(
        [sys.executable, "-m", "proxy", *map(str, options), *few],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        port = ""
        for _ in wait_steps(20.0):
            if port_file.exists() and (port := port_file.read_text().strip()):
                break
        assert port, "the proxy did not start"
        yield Proxy(f"http://127.0.0.1:{port}", log)
    finally:
        process.terminate()
        process.wait(timeout=10)


def wait_steps(seconds: float) -> Iterator[None]:
    """Look again and again, for at most so long."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        yield
        time.sleep(0.02)
