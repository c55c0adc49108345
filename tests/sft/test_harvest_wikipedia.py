"""Harvests through the gateway, under Wikimedia's limits with time scaled by ten; killed and resumed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

TOOLS = Path(__file__).resolve().parents[1] / "tools"
sys.path.insert(0, str(TOOLS))  # the fake belongs to the tool server's tests

from fake_wikipedia import FakeWikipedia, RealPolicy, Reply, running  # noqa: E402
from tool_helpers import start_server, stop_server  # noqa: E402

from scout_data.rows import make_row, write_rows  # noqa: E402
from scout_protocol.records import RLRow  # noqa: E402
from scout_sft.harvest import HarvestSettings, harvest  # noqa: E402
from scout_sft.rows import read_demos  # noqa: E402

N = 60
# Seen from outside: three calls, then 429 with Retry-After 13 s; calls take 0.4 to 1 s; two a second pass.
SCALED = {"burst": 3, "window_s": 0.1, "retry_after_s": 1, "in_flight": 3}
RATE = 20


@pytest.fixture(scope="module")
def wiki() -> Iterator[FakeWikipedia]:
    with running() as fake:
        yield fake


@pytest.fixture
def gateway(
    wiki: FakeWikipedia, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[FakeWikipedia, str]]:
    wiki.reset()
    wiki.policy, wiki.latency_s = RealPolicy(**SCALED), 0.05  # type: ignore[arg-type]
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("SCOUT_WIKI_CONTACT", "tests@example.org")
    wiki.ca.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    server = start_server(
        *("--backend", "wikipedia", "--wiki-url", wiki.url, "--cache-dir", tmp_path / "cache"),
        *("--ca-bundle", tmp_path / "ca.pem", "--workers", 2, "--wiki-rate", RATE, "--timeout-s", 30),
    )
    yield wiki, server.url
    stop_server(server)


def vaults(n: int = N) -> list[RLRow]:
    """Questions about pages of the fake, each with the pages that it needs."""
    rows = []
    for i in range(n):
        titles = [f"Vault {i}", f"Vault {(i + 1) % n}"]
        plan = [{"think": f"I need {title}.", "query": title} for title in titles[:1]]
        more = {"supporting_titles": titles, "oracle": plan}
        rows.append(
            make_row(f"What is the secret of vault{i}?", [f"key{i * 7}"], "brief", "fake", "train", i, more)
        )
    return rows


@pytest.mark.timeout(120)
@pytest.mark.parametrize("strategy", ["golden", "keywords"])
def test_a_kept_demonstration_costs_at_most_one_and_a_half_calls(
    gateway: tuple[FakeWikipedia, str], tmp_path: Path, strategy: str
) -> None:
    wiki, url = gateway
    # what happens on a long evening: an overloaded server, a lagging one, a connection that is cut
    trouble = [Reply(503), None, None, Reply(reset=True), None, Reply(429, headers={"retry-after": "1"})]
    wiki.faults.extend([*[None] * 10, *trouble, *[None] * 10, *trouble])
    out = tmp_path / "d.parquet"
    settings = HarvestSettings(
        server=url, strategies=((strategy, 1.0),), max_revealing_share=1.0, retry_wait_s=0.1
    )
    result = harvest(vaults(), out, settings)
    assert result.kept == N == len(read_demos(out)) and not result.rejected
    assert result.by_strategy == {strategy: {"questions": N, "in context": N, "kept": N}}
    assert len(wiki.calls) <= 1.5 * result.kept
    assert wiki.max_in_flight <= 3
    assert len((tmp_path / "d.parquet.jsonl").read_text().splitlines()) == 1 + N


def options(strategy: str) -> list[str]:
    chosen = ["--strategy", strategy, "--max-revealing-share", "1", "--concurrency", "4"]
    return [*chosen, "--policy", "oracle"] if strategy == "policy" else chosen


@pytest.mark.timeout(120)
@pytest.mark.parametrize("strategy", ["plan", "golden", "keywords", "bridge", "policy"])
def test_killed_and_resumed_it_is_the_same_harvest(
    gateway: tuple[FakeWikipedia, str], tmp_path: Path, strategy: str
) -> None:
    wiki, url = gateway
    rows = tmp_path / "rows.parquet"
    write_rows(rows, vaults())

    def command(out: Path) -> list[str]:
        scout = [sys.executable, "-m", "scout_cli.main", "sft", "harvest", "--server", url]
        return [*scout, "--rows", str(rows), "--out", str(out), *options(strategy)]

    def run(out: Path) -> Any:
        return subprocess.run(command(out), capture_output=True, text=True, timeout=100)

    out, journal = tmp_path / "d.parquet", tmp_path / "d.parquet.jsonl"
    first = subprocess.Popen(command(out), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not (journal.exists() and journal.read_bytes().count(b"\n") > 10):
        assert first.poll() is None, "it ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.005)
    first.send_signal(signal.SIGKILL)
    first.wait(10)
    done = journal.read_bytes().count(b"\n") - 1
    assert 10 <= done < N and not out.exists()

    second = run(out)
    assert second.returncode == 0, second.stderr
    assert f"{done} of them from an earlier run" in second.stdout
    whole = run(tmp_path / "whole.parquet")
    assert whole.returncode == 0, whole.stderr
    assert out.read_bytes() == (tmp_path / "whole.parquet").read_bytes()
    assert {demo.strategy for demo in read_demos(out)} == {strategy}
    # neither the kill nor the repetition asked Wikipedia again, but for the calls in flight
    searches = 2 if strategy == "bridge" else 1
    assert len(wiki.calls) <= searches * N * 1.1 + 4
