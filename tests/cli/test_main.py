"""`scout`: every command answers --help at once; wrong input is one line and exit status 2."""

from __future__ import annotations

import errno
import importlib
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from scout_cli import main as cli
from scout_protocol.errors import UserError

HELP_LIMIT_S = 1.0


def _scout(*args: str, **more: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # type: ignore[call-overload, no-any-return]
        [sys.executable, "-m", "scout_cli.main", *args], capture_output=True, text=True, timeout=60, **more
    )


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_help_of_every_command_is_quick(command: str) -> None:
    best_s = float("inf")
    for _ in range(5):  # the fastest of a few: the machine may be busy
        start = time.perf_counter()
        done = _scout(command, "--help")
        best_s = min(best_s, time.perf_counter() - start)
        assert done.returncode == 0, done.stderr
        assert done.stdout.lower().startswith("usage: scout " + command)
        if best_s < HELP_LIMIT_S:
            return
    pytest.fail(f"scout {command} --help took {best_s:.2f} s")


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_an_unknown_option_is_refused(command: str) -> None:
    done = _scout(command, "--no-such-option")
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"scout {command}: arguments: ") and line.endswith(" --help` lists them")


@pytest.mark.parametrize("args", [(), ("-h",), ("--help",), ("help",)])
def test_help_lists_every_command_with_one_line(args: tuple[str, ...]) -> None:
    done = _scout(*args)
    assert done.returncode == 0
    listed = [line.split()[0] for line in done.stdout.splitlines() if line.startswith("  ")]
    assert listed == list(cli.COMMANDS)


def test_an_unknown_command_names_the_known_ones() -> None:
    done = _scout("sevre")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"scout: command: 'sevre': choose one of {', '.join(cli.COMMANDS)}\n"


def _command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> list[str]:
    """A command of our own, so that what `main` does with its errors can be seen."""
    name = f"probe_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(f"def main(argv):\n    {body}\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    monkeypatch.setitem(cli.COMMANDS, "probe", (name, "a test's"))
    return ["probe", "x"]


def test_a_user_error_is_one_line_and_status_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    raising = "from scout_protocol.errors import UserError; raise UserError('file', 'a\\nb', 'give another')"
    assert cli.main(_command(tmp_path, monkeypatch, raising)) == 2
    assert capsys.readouterr().err == "scout probe: file: a\\nb: give another\n"


def test_the_status_of_a_command_is_handed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cli.main(_command(tmp_path, monkeypatch, "return 3 if argv == ['x'] else 4")) == 3


def test_a_missing_package_names_the_way_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(_command(tmp_path, monkeypatch, "import no_such_package_anywhere")) == 2
    assert capsys.readouterr().err == (
        "scout probe: missing module no_such_package_anywhere: run `make setup` in the checkout\n"
    )


@pytest.mark.parametrize(("code", "says"), [("ENOSPC", "free some disk space"), ("EACCES", "permissions")])
def test_errors_of_the_machine_are_one_line(
    code: str,
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    number = getattr(errno, code)
    body = f"raise OSError({number}, {os.strerror(number)!r}, '/data/index')"
    assert cli.main(_command(tmp_path, monkeypatch, body)) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith(f"scout probe: /data/index: {os.strerror(number)}: ") and says in lines[0]


def test_defects_keep_their_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ZeroDivisionError):
        cli.main(_command(tmp_path, monkeypatch, "return 1 // 0"))


def test_an_interrupt_is_status_130(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cli.main(_command(tmp_path, monkeypatch, "raise KeyboardInterrupt")) == 130


def test_a_reader_that_goes_away_is_no_error() -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "scout_cli.main"],
            stdout=write,
            stderr=subprocess.PIPE,
            timeout=60,
            check=False,
        )
    finally:
        os.close(write)
    assert done.stderr == b""
    assert done.returncode == 141


def test_user_error_parts() -> None:
    error = UserError("port", 80, "choose another")
    assert (error.field, error.value, error.remedy) == ("port", 80, "choose another")
    assert str(error) == "port: 80: choose another"
