"""Whole evaluations through a real tool server: results, controls, resume after a kill, bad input."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console

from scout_eval.cli import main
from scout_eval.policy_factory import check_spec
from scout_eval.run import EvalConfig, default_settings, run_eval
from scout_eval.show import show
from scout_eval.summary import Summary, read_summary
from scout_eval.trace_log import TraceLog, read_traces
from scout_protocol.errors import UserError
from scout_protocol.records import StopReason, Trace


def evaluate(server: Any, rows: Path, out: Path, **changes: Any) -> Summary:
    config = EvalConfig(**{"rows": rows, "policy": "oracle", "tools": server.url, "out": out, **changes})
    return run_eval(config, Console(file=io.StringIO()))


def query_of(trace: Trace) -> str:
    """What the oracle searches for the question of a trace."""
    return f"Capital of {trace.question.removeprefix('What is the capital of ').rstrip('?')}"


def finished_queries(out: Path) -> set[str]:
    """Searches of the questions that a run has finished."""
    traces = read_traces(out / "traces.jsonl")
    return {query_of(trace) for trace in traces if trace.stop_reason is not StopReason.INFRA_ERROR}


EVERY_QUERY = {f"Capital of {i}" for i in range(60)}


def ids(out: Path) -> list[str]:
    return [trace.question_id for trace in read_traces(out / "traces.jsonl")]


def test_the_oracle_is_right_on_what_the_pages_hold(server: Any, rows_file: Any, tmp_path: Path) -> None:
    out = tmp_path / "eval" / "base"
    summary = evaluate(server, rows_file(50), out, stage="base")
    overall = summary.metrics.overall
    assert overall.em.mean == pytest.approx(40 / 50)  # every fifth gold is on no page
    assert (overall.answerable, overall.em_answerable) == (0.8, 1.0)
    assert (overall.turns, overall.searches, overall.policy_tokens) == (2.0, 1.0, None)
    assert summary.metrics.by["hops"]["1"].n == 25
    assert sorted(server.queries) == sorted(f"Capital of {i}" for i in range(50))
    assert read_summary(out) == summary
    first = next(read_traces(out / "traces.jsonl"))
    assert first.stage == "base" and first.score["em"] in (0.0, 1.0) and first.extra["row"]["hops"] in (1, 2)
    assert len(first.prompt_sha256) == 64 and summary.versions["python"].count(".") == 2


def test_controls_take_the_evidence_away(server: Any, rows_file: Any, tmp_path: Path) -> None:
    rows = rows_file(40)
    blank = evaluate(server, rows, tmp_path / "a", control="blank")
    server.queries.clear()
    shuffled = evaluate(server, rows, tmp_path / "b", control="shuffled")
    assert blank.metrics.overall.em.mean == 0.0 and shuffled.metrics.overall.em.mean == 0.0
    assert blank.metrics.overall.searches == shuffled.metrics.overall.searches == 1.0
    assert all(query.startswith("What is the capital of ") for query in server.queries)


def test_a_finished_evaluation_asks_nobody_again(server: Any, rows_file: Any, tmp_path: Path) -> None:
    rows = rows_file(12)
    first = evaluate(server, rows, tmp_path / "out")
    server.queries.clear()
    again = evaluate(server, rows, tmp_path / "out")
    assert server.queries == [] and again.metrics == first.metrics and again.n_resumed == 12


def test_more_rows_later_play_only_the_new_ones(server: Any, rows_file: Any, tmp_path: Path) -> None:
    rows = rows_file(12)
    evaluate(server, rows, tmp_path / "out", limit=5)
    server.queries.clear()
    assert evaluate(server, rows, tmp_path / "out").metrics.n_trajectories == 12
    assert len(server.queries) == 7
    assert evaluate(server, rows, tmp_path / "out", limit=5).metrics.n_trajectories == 5


def test_killed_in_the_middle_it_goes_on_where_it_stopped(
    server: Any, rows_file: Any, tmp_path: Path
) -> None:
    rows, out = rows_file(60), tmp_path / "out"
    enough = threading.Event()

    def hold(query: str) -> bool:
        if len(server.queries) > 30:
            enough.set()
            server.pause_s = 3600.0  # from here on nobody gets an answer until the process is dead
        return False

    server.fail = hold
    command = [
        "run",
        "--rows",
        rows,
        "--policy",
        "oracle",
        "--tools",
        server.url,
        "--out",
        out,
        "--concurrency",
        "4",
    ]
    process = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys; from scout_eval.cli import main; main(sys.argv[1:])",
            *map(str, command),
        ],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert enough.wait(60)
    process.send_signal(signal.SIGKILL)
    process.wait(20)
    assert not (out / "summary.json").exists()
    before, missing = (out / "traces.jsonl").read_bytes(), EVERY_QUERY - finished_queries(out)
    n_before = before.count(b"\n")
    assert 20 <= n_before < 60
    (out / "traces.jsonl").write_bytes(
        before + before.splitlines()[0][:200]
    )  # a torn last line, as a kill leaves it
    server.fail, server.pause_s = lambda query: False, 0.0
    server.queries.clear()
    summary = evaluate(server, rows, out)
    assert summary.n_resumed == n_before and set(server.queries) == missing
    assert (out / "traces.jsonl").read_bytes().startswith(before)
    assert len(ids(out)) == len(set(ids(out))) == 60
    assert summary.metrics.overall.em.mean == pytest.approx(48 / 60)


def test_an_outage_fails_the_report_and_only_its_questions_are_repeated(
    server: Any, rows_file: Any, tmp_path: Path
) -> None:
    rows, out = rows_file(60), tmp_path / "out"
    server.fail = lambda query: query in ("Capital of 7", "Capital of 9")
    with pytest.raises(UserError, match="infra errors: 2 of 60"):
        evaluate(server, rows, out, concurrency=60)
    assert not (out / "summary.json").exists()
    missing = EVERY_QUERY - finished_queries(out)
    server.fail = lambda query: False
    server.queries.clear()
    summary = evaluate(server, rows, out)
    # a set: a request of the aborted run may arrive late, but only for a question that was not finished
    assert set(server.queries) == missing and {"Capital of 7", "Capital of 9"} <= missing
    assert summary.metrics.n_infra_errors == 0 and len(set(ids(out))) == len(ids(out)) == 60


def test_one_outage_in_sixty_is_reported_not_scored(server: Any, rows_file: Any, tmp_path: Path) -> None:
    server.fail = lambda query: query == "Capital of 7"
    summary = evaluate(server, rows_file(60), tmp_path / "out")
    assert summary.metrics.n_infra_errors == 1 and summary.metrics.overall.n == 59
    assert summary.metrics.overall.em.mean == pytest.approx(47 / 59)


def test_a_dead_server_stops_the_run_early(server: Any, rows_file: Any, tmp_path: Path) -> None:
    server.fail = lambda query: True
    with pytest.raises(UserError, match="infra errors"):
        evaluate(server, rows_file(500), tmp_path / "out", concurrency=8)
    assert len(server.queries) < 60  # 11 outages are above 2 % of 500


@pytest.mark.parametrize("changes", [{"seed": 1}, {"control": "blank"}, {"stage": "grpo"}, {"max_turns": 2}])
def test_a_folder_belongs_to_one_evaluation(
    server: Any, rows_file: Any, tmp_path: Path, changes: dict[str, Any]
) -> None:
    rows = rows_file(4)
    evaluate(server, rows, tmp_path / "out")
    name = next(iter(changes))
    if name == "max_turns":
        changes = {"settings": replace(default_settings(), **changes)}
    with pytest.raises(UserError, match=f"another {name} "):
        evaluate(server, rows, tmp_path / "out", **changes)
    assert read_summary(tmp_path / "out").metrics.n_trajectories == 4  # nothing was harmed


def test_two_writers_at_once_are_refused(server: Any, rows_file: Any, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    with TraceLog(out / "traces.jsonl"), pytest.raises(UserError, match="another evaluation"):
        evaluate(server, rows_file(4), out)


def test_a_damaged_line_in_the_middle_is_named(server: Any, rows_file: Any, tmp_path: Path) -> None:
    rows, out = rows_file(4), tmp_path / "out"
    evaluate(server, rows, out)
    lines = (out / "traces.jsonl").read_bytes().splitlines(keepends=True)
    (out / "traces.jsonl").write_bytes(lines[0] + b'{"trace_id": 3}\n' + lines[1])
    with pytest.raises(UserError, match="line 2"):
        evaluate(server, rows, out)


def test_nobody_listens(rows_file: Any, tmp_path: Path) -> None:
    config = EvalConfig(rows_file(4), "oracle", "http://127.0.0.1:1", tmp_path / "out")
    with pytest.raises(UserError, match="make serve-tools"):
        run_eval(config)
    assert not (tmp_path / "out").exists()


def test_the_rows_prompt_and_the_dialect_must_agree(server: Any, rows_file: Any, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="teaches react"):
        evaluate(server, rows_file(4, prompt="react"), tmp_path / "out")


def test_two_rows_with_one_id(server: Any, rows_file: Any, tmp_path: Path) -> None:
    from scout_data.rows import read_rows, write_rows

    path = rows_file(3)
    rows = read_rows(path)
    rows[2].id = rows[0].id
    write_rows(path, rows)
    with pytest.raises(UserError, match="twice"):
        evaluate(server, path, tmp_path / "out")


@pytest.mark.parametrize(
    "spec", ["", "oracles", "hf:", "hf:/no/such/folder", "openai:m", "openai:@http://x", "vllm:x"]
)
def test_policies_that_do_not_exist(spec: str) -> None:
    with pytest.raises(UserError, match="policy"):
        check_spec(spec)


def test_the_command_line(
    server: Any, rows_file: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for control in ("none", "blank"):
        out = tmp_path / "eval" / control
        words = ["run", "--rows", rows_file(10), "--policy", "oracle", "--tools", server.url, "--out", out]
        assert main([*map(str, words), "--control", control, "--stage", "base"]) == 0
    capsys.readouterr()
    assert main(["show", str(tmp_path / "eval")]) == 0
    shown = capsys.readouterr().out
    assert (
        ".800 [" in shown and "control: blank" in shown and "hops 2" in shown and ".000 [.000, .000]" in shown
    )


def test_a_full_disk_is_one_line_and_the_next_run_goes_on(
    server: Any, rows_file: Any, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    words = ["run", "--rows", rows_file(60), "--policy", "oracle", "--tools", server.url, "--out", out]
    code = (  # no file may grow beyond 30 kB: the kernel refuses a write as a full disk does
        "import resource, sys; from scout_cli.main import main;"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, 30_000)); sys.exit(main(['eval', *sys.argv[1:]]))"
    )
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", code, *map(str, words)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert last.startswith("scout eval: traces: ") and last.endswith("it goes on from here")
    assert (out / "traces.jsonl").stat().st_size <= 30_000 and not (out / "summary.json").exists()
    n_whole = len(finished_queries(out))
    assert 0 < n_whole < 60
    summary = evaluate(server, rows_file(60), out)
    assert summary.n_resumed == n_whole and len(ids(out)) == len(set(ids(out))) == 60


def test_show_of_an_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="scout eval run"):
        show(tmp_path)


def test_show_warns_of_time_limits(server: Any, rows_file: Any, tmp_path: Path) -> None:
    summary = evaluate(server, rows_file(4), tmp_path / "out")
    summary.metrics.stop_reasons = {"answer": 2, "turn_timeout": 2}
    (tmp_path / "out" / "summary.json").write_bytes(msgspec.json.encode(summary))
    text = io.StringIO()
    show(tmp_path / "out", Console(file=text, width=120))
    assert "2 trajectories ran into a time limit" in text.getvalue()


def test_a_trace_line_reads_back_as_it_was_written(make_trace: Any, tmp_path: Path) -> None:
    odd: Trace = make_trace(1, observation="\n\n<information>\u2028 “é” \\n 北京\x00</information>\n\n")
    with TraceLog(tmp_path / "traces.jsonl") as log:
        log.append(odd)
    assert list(read_traces(tmp_path / "traces.jsonl")) == [odd]
