"""The pipeline of quickstart and real: stamps, resumption, refusals, and children that never outlive it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from scout_cli.pipeline import CpuMeter, Pipeline, Stage, StageFailedError, tool_server
from scout_cli.quickstart import _parser, learning_stages, main
from scout_cli.stages import prepare_stages
from scout_protocol.errors import UserError

SMALL = ("--sft", "8,8,8", "--train", "8,8,8", "--held-out", "4,4,4")


def _world(run: Path) -> Stage:
    return Stage("world", "world", [("world", "make", "--out", run / "world", *SMALL)], 1)


def _index(run: Path) -> Stage:
    return Stage(
        "index", "index", [("index", "build", run / "world/corpus.jsonl", "--index", run / "index")], 1
    )


def _wait(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def test_what_has_a_stamp_is_not_done_again(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path, {"seed": 0})
    with pipeline.opened():
        pipeline.run([_world(tmp_path), _index(tmp_path)])
    first = json.loads((tmp_path / "stages.json").read_text())
    assert list(first) == ["world", "index"]
    assert all(stamp["done_at"] and stamp["wall_s"] > 0 and stamp["cpu_s"] > 0 for stamp in first.values())
    before = (tmp_path / "index/meta.json").stat().st_mtime_ns
    with pipeline.opened():
        pipeline.run([_world(tmp_path), _index(tmp_path)])
    assert json.loads((tmp_path / "stages.json").read_text()) == first
    assert (tmp_path / "index/meta.json").stat().st_mtime_ns == before


def test_a_failed_stage_keeps_the_earlier_ones_and_can_be_mended(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    pipeline = Pipeline(tmp_path, {})
    broken = Stage(
        "index", "index", [("index", "build", tmp_path / "none.jsonl", "--index", tmp_path / "i")], 1
    )
    with pytest.raises(StageFailedError) as failed, pipeline.opened():
        pipeline.run([_world(tmp_path), broken, Stage("never", "never", [("world", "--help")], 1)])
    assert (failed.value.stage, failed.value.code) == ("index", 2)
    assert "none.jsonl" in capfd.readouterr().err
    assert list(pipeline.stamps()) == ["world"]
    with pipeline.opened():
        pipeline.run([_world(tmp_path), _index(tmp_path)])
    assert list(pipeline.stamps()) == ["world", "index"]
    # The time of the failed attempt is part of what the stage took.
    assert json.loads((tmp_path / "stages.json").read_text())["index"]["wall_s"] > 0


def test_a_folder_belongs_to_one_run_and_one_process(tmp_path: Path) -> None:
    first = Pipeline(tmp_path, {"seed": 0})
    with first.opened():
        first.run([_world(tmp_path)])
    with (
        first.opened(),
        pytest.raises(UserError, match="in use by another process"),
        Pipeline(tmp_path, {}).opened(),
    ):
        pass
    with pytest.raises(UserError, match="other settings"), Pipeline(tmp_path, {"seed": 1}).opened():
        pass
    with first.opened():
        pass


def test_a_first_stage_that_fails_leaves_the_folder_to_any_run(tmp_path: Path) -> None:
    broken = Stage(
        "index", "index", [("index", "build", tmp_path / "none.jsonl", "--index", tmp_path / "i")], 1
    )
    wrong = Pipeline(tmp_path, {"hotpot": "none.jsonl"})
    with pytest.raises(StageFailedError), wrong.opened():
        wrong.run([broken])
    assert [path.name for path in tmp_path.iterdir()] == [".pipeline.lock"]
    # The same after kill -9, which leaves the settings there.
    (tmp_path / "settings.json").write_text('{"hotpot": "none.jsonl"}')
    right = Pipeline(tmp_path, {"hotpot": "some.jsonl"})
    with right.opened():
        right.run([_world(tmp_path)])
    assert json.loads((tmp_path / "settings.json").read_text()) == {"hotpot": "some.jsonl"}


@pytest.mark.parametrize("name", ["settings.json", "stages.json"])
def test_a_damaged_file_of_a_run_is_said(tmp_path: Path, name: str) -> None:
    pipeline = Pipeline(tmp_path, {})
    with pipeline.opened():
        pipeline.run([_world(tmp_path)])
    (tmp_path / name).write_text("{")
    with pytest.raises(UserError, match=f"{name}: .*damaged: delete the run's folder"), pipeline.opened():
        pipeline.run([_index(tmp_path)])


@pytest.mark.skipif(sys.platform != "linux", reason="needs affinity masks")
@pytest.mark.parametrize("command", [("quickstart",), ("real", "--hotpot", __file__)])
def test_one_core_is_refused_before_anything_is_written(tmp_path: Path, command: tuple[str, ...]) -> None:
    def one_core() -> None:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})

    done = subprocess.run(
        [sys.executable, "-m", "scout_cli.main", *command, "--run", str(tmp_path / "run")],
        capture_output=True,
        text=True,
        timeout=60,
        env={k: v for k, v in os.environ.items() if k != "SCOUT_SMALL_MACHINE"},
        preexec_fn=one_core,
    )
    assert done.returncode == 2
    assert done.stderr.startswith(f"scout {command[0]}: cores: 1: needs 2") and done.stderr.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_an_unusable_folder_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(UserError, match="choose a writable folder"),
        Pipeline(tmp_path / "file/run", {}).opened(),
    ):
        pass


def test_a_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    with (
        pytest.raises(UserError, match=r"tool server: did not start: .*scout index build"),
        tool_server(tmp_path / "no-index", 1, tmp_path / "tools.log"),
    ):
        pass


def test_the_server_answers_inside_the_block_and_is_gone_after(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path, {})
    with pipeline.opened():
        pipeline.run([_world(tmp_path), _index(tmp_path)])
    with (
        tool_server(tmp_path / "index", 1, tmp_path / "tools.log") as url,
        urllib.request.urlopen(f"{url}/ready", timeout=10) as response,
    ):
        assert response.status == 200
    with pytest.raises(OSError):
        urllib.request.urlopen(f"{url}/ready", timeout=5)


BURN = """
import subprocess, sys, time
def burn(seconds):
    while time.process_time() < seconds:
        pass
child = subprocess.Popen([sys.executable, "-c", "import time\\nwhile time.process_time() < 1.0: pass"])
burn(0.5)
child.wait()
"""


def test_cpu_seconds_are_those_of_the_whole_tree() -> None:
    root = psutil.Popen([sys.executable, "-c", BURN])
    meter = CpuMeter()
    while root.poll() is None:
        meter.look([root, *root.children(recursive=True)])
        time.sleep(0.01)
    # 0.5 s of its own and 1.0 s of its child, and a little to start two interpreters
    assert 1.4 <= meter.total_s() <= 2.5


HOLD = """
import sys, time
from pathlib import Path
from scout_cli.pipeline import spawn, tool_server
run = Path(sys.argv[1])
with tool_server(run / "index", 1, run / "tools.log") as url:
    child = spawn(("serve", "--port", 0, "--index", run / "index", "--ready-file", run / "child.json"))
    (run / "holder.json").write_text(url)
    time.sleep(600)
"""


def _listening(url: str) -> bool:
    try:
        urllib.request.urlopen(f"{url}/health", timeout=5).close()
    except OSError:
        return False
    return True


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_children_do_not_outlive_the_pipeline(tmp_path: Path, how: signal.Signals) -> None:
    pipeline = Pipeline(tmp_path, {})
    with pipeline.opened():
        pipeline.run([_world(tmp_path), _index(tmp_path)])
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)])
    try:
        _wait(lambda: (tmp_path / "holder.json").is_file() and (tmp_path / "child.json").is_file())
        urls = [
            (tmp_path / "holder.json").read_text(),
            json.loads((tmp_path / "child.json").read_text())["url"],
        ]
        assert all(_listening(url) for url in urls)
        os.kill(holder.pid, how)
        holder.wait(30)
        _wait(lambda: not any(_listening(url) for url in urls))
    finally:
        holder.kill()


def test_quickstart_stages_are_the_whole_job_in_order(tmp_path: Path) -> None:
    args = _parser().parse_args([])
    names = [s.name for s in (*prepare_stages(tmp_path, 0), *learning_stages(tmp_path, "http://x", args))]
    assert names == [
        *("world", "index", "init", "eval_base", "demos", "sft", "eval_sft"),
        *("grpo", "eval_grpo", "dapo", "eval_dapo", "report"),
    ]


def test_quickstart_refuses_a_folder_of_other_settings(tmp_path: Path) -> None:
    (tmp_path / "settings.json").write_text(json.dumps({"seed": 9}))
    (tmp_path / "stages.json").write_text(json.dumps({"world": {"done_at": "2026-01-01T00:00:00+00:00"}}))
    with pytest.raises(UserError, match="other settings"):
        main(["--run", str(tmp_path)])
