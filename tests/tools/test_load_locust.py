"""`scout tools load-test` against real servers: its counts are the server's own, and it tells of trouble."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from tool_helpers import scout

from scout_tools.load.mix import Mix, plan
from scout_tools.load.questions import made_up

pytest.importorskip("prometheus_client")
FIXED = ("--backend", "scout_tools.backends.fixed:make")


def load_test(server, out, *options, **more):
    return scout("tools", "load-test", "--url", server.url, "--out", out, *options, **more)


def samples(out):
    return [json.loads(line) for line in (out / "samples.jsonl").read_text().splitlines()]


def scrape(server, token="") -> Counter[str]:
    """{series: value} as prometheus-client's own parser reads it; a series that is not there counts 0."""
    from prometheus_client.parser import text_string_to_metric_families

    found: Counter[str] = Counter()
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    text = server.request("GET", "/metrics", None, headers)[2].decode()
    for family in text_string_to_metric_families(text):
        for one in family.samples:
            labels = ",".join(f"{key}={value}" for key, value in sorted(one.labels.items()))
            found[f"{one.name}{{{labels}}}"] = one.value
    return found


def test_every_request_is_one_that_the_server_counted(index_dir, serve, tmp_path, monkeypatch):
    token, dead = "a-token-of-32-characters-or-more", "http://127.0.0.1:9"
    # neither a proxy nor Locust's own variables may take part
    for name, value in {
        "T": token,
        "HTTP_PROXY": dead,
        "http_proxy": dead,
        "LOCUST_SKIP_MONKEY_PATCH": "1",
    }.items():
        monkeypatch.setenv(name, value)
    server = serve("--index", index_dir, "--workers", 2, "--token-env", "T")
    done = load_test(server, tmp_path, "--rollouts", 24, "--think-s", 0.02, "--seed", 5, "--token-env", "T")
    assert done.returncode == 0, done.stderr
    rows = samples(tmp_path)
    turns = [t for rollout in plan(made_up(200), 24, Mix(think_s=0.02), seed=5) for t in rollout]
    assert len(rows) == len(turns) and {row["outcome"] for row in rows} == {"ok"}
    assert f"requests   {len(rows)} in" in done.stdout and f"outcomes   ok {len(rows)}\n" in done.stdout
    assert (tmp_path / "report.html").read_text().count("<svg") == 3

    now = scrape(server, token)
    assert now["scout_requests_total{route=get_observation,status=2xx}"] == len(turns)
    assert now["scout_actions_total{action=search}"] == sum("<search>" in turn.action for turn in turns)
    assert now["scout_actions_total{action=answer}"] == 24
    caches = Counter(row["cache"] for row in rows)
    assert caches["rendered"] == now["scout_cache_hits_total{level=rendered}"] > 0
    assert f"rendered {caches['rendered']}" in done.stdout

    refused = load_test(server, tmp_path, "--rollouts", 1, "--think-s", 0)
    assert refused.returncode == 1 and re.search(r"outcomes   http_401 [345]\n", refused.stdout)


def test_a_server_that_is_full_is_told_as_such(serve, tmp_path, monkeypatch):
    monkeypatch.setenv("SCOUT_FIXED_MS", "300")
    server = serve(*FIXED, "--workers", 1, "--max-actions", 2, "--max-queue", 2)
    done = load_test(server, tmp_path, "--rollouts", 12, "--think-s", 0)
    assert done.returncode == 1
    outcomes, now = Counter(row["outcome"] for row in samples(tmp_path)), scrape(server)
    assert set(outcomes) == {"ok", "http_503"}
    assert outcomes["http_503"] == now["scout_requests_total{route=get_observation,status=5xx}"] > 0
    assert outcomes["ok"] == now["scout_requests_total{route=get_observation,status=2xx}"] > 0
    assert f"http_503 {outcomes['http_503']}" in done.stdout


def test_a_server_that_dies_is_told_as_such(serve, tmp_path):
    server = serve(*FIXED, "--workers", 1)
    command = ["tools", "load-test", "--url", server.url, "--out", tmp_path, "--rollouts", 8, "--think-s", 1]
    run = subprocess.Popen(
        [sys.executable, "-m", "scout_cli.main", *map(str, command)], stdout=subprocess.PIPE, text=True
    )
    while scrape(server)["scout_requests_total{route=get_observation,status=2xx}"] < 4:
        assert run.poll() is None
    workers = [int(pid) for pid in children(server.process.pid)]
    for pid in (server.process.pid, *workers):
        os.kill(pid, signal.SIGKILL)
    printed = run.communicate(timeout=60)[0]
    assert run.returncode == 1
    outcomes = Counter(row["outcome"] for row in samples(tmp_path))
    assert outcomes["ok"] >= 4 and outcomes["lost:ConnectionRefusedError"] > 0
    assert {name for name in outcomes if name != "ok"} <= {
        "lost:ConnectionRefusedError",
        "lost:ConnectionResetError",
        "lost:HTTPConnectionClosed",
    }
    assert f"lost:ConnectionRefusedError {outcomes['lost:ConnectionRefusedError']}" in printed


def children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def test_wrong_options_and_no_locust_are_one_line(tmp_path):
    bad = scout("tools", "load-test", "--turns", "4-2")
    assert bad.returncode == 2 and "--turns" in bad.stderr
    # an interpreter that does not find it, as after a base install
    hide = "import sys, importlib.util as u; f = u.find_spec; "
    hide += "u.find_spec = lambda name, *more: None if name == 'locust' else f(name, *more); "
    hide += "from scout_cli.main import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", hide, "tools", "load-test", "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert "locust: not installed: run `make setup`, or pip install 'scout-rl[load]'" in done.stderr


def test_a_generator_that_breaks_is_one_line(tmp_path, monkeypatch):
    (tmp_path / "locust.py").write_text("raise RuntimeError('broken install')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    done = scout("tools", "load-test", "--out", tmp_path / "out", "--rollouts", 1)
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert "load generator: RuntimeError: broken install: Locust ended early with status 1" in done.stderr
    assert not (tmp_path / "out").exists()


def test_locust_never_enters_our_own_process(server, tmp_path):
    code = "import sys; from scout_cli.main import main; status = main(sys.argv[1:]); "
    code += "assert not {'locust', 'gevent'} & set(sys.modules); sys.exit(status)"
    options = ["--rollouts", "1", "--think-s", "0", "--url", server.url, "--out", str(tmp_path)]
    command = [sys.executable, "-c", code, "tools", "load-test", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
