"""`scout doctor` and the machine's checks: what is missing is named, with a remedy."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from scout_cli import doctor
from scout_cli.machine import Machine, probe, require
from scout_protocol.errors import UserError

BIG = Machine(cores=8, memory_total_gib=32.0, memory_free_gib=16.0, disk_free_gib=100.0)
REPO = Path(__file__).resolve().parents[2]


def test_probe_agrees_with_the_system() -> None:
    machine = probe()
    assert 1 <= machine.cores <= (os.cpu_count() or 1)
    assert 0 < machine.memory_free_gib <= machine.memory_total_gib
    pages_gib = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1024**3
    assert machine.memory_total_gib <= pages_gib * 1.001
    stat = os.statvfs(".")
    assert machine.disk_free_gib == pytest.approx(stat.f_bavail * stat.f_frsize / 1024**3, rel=0.1)


def test_probe_of_a_folder_that_is_not_there_yet(tmp_path: Path) -> None:
    assert probe(tmp_path / "a" / "b").disk_free_gib > 0


def test_a_big_machine_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SCOUT_SMALL_MACHINE", raising=False)
    require(BIG)
    require(Machine(2, 7.7, 6.4, 20.0))  # a laptop of 8 GiB


@pytest.mark.parametrize(
    ("small", "message"),
    [
        (replace(BIG, cores=1), "cores: 1: needs 2: give this machine more"),
        (
            replace(BIG, memory_free_gib=1.24),
            r"memory: 1\.2 GiB free of 32\.0: needs 5 free: close other programs",
        ),
        (replace(BIG, disk_free_gib=0.3), r"disk: 0\.3 GiB free: needs 5: free some space"),
    ],
)
def test_a_small_machine_is_refused_unless_the_user_insists(
    small: Machine, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SCOUT_SMALL_MACHINE", raising=False)
    with pytest.raises(UserError, match=f"{message}, or set SCOUT_SMALL_MACHINE=1 to try anyway"):
        require(small)
    monkeypatch.setenv("SCOUT_SMALL_MACHINE", "1")
    require(small)
    assert [f.ok for f in doctor.check_machine(small)].count(False) == 1


def test_one_core_is_refused_before_anything_is_installed() -> None:
    # a process that may use one core only, and the plain interpreter: as `make setup` runs it
    if not hasattr(os, "sched_setaffinity"):
        pytest.skip("this system has no CPU affinity")
    env = {"PYTHONPATH": f"{REPO}/protocol:{REPO}/cli", "PATH": os.environ["PATH"]}
    core = min(os.sched_getaffinity(0))
    done = subprocess.run(
        [sys.executable, "-S", "-m", "scout_cli.machine"],
        env=env,
        capture_output=True,
        text=True,
        preexec_fn=lambda: os.sched_setaffinity(0, {core}),
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("scout: cores: 1: needs 2: ")
    assert done.stderr.count("\n") == 1


def test_packages_below_the_needed_extra_are_required() -> None:
    found = {f.name: f for f in doctor.check_packages("data")}
    required = {name for name, f in found.items() if f.required}
    assert {"msgspec", "starlette", "pyarrow"} <= required
    assert {"torch", "verl", "pytest"} <= set(found) - required


def test_every_requirement_of_the_project_is_looked_at() -> None:
    project = tomllib.loads((REPO / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [*project["dependencies"], *(r for e in project["optional-dependencies"].values() for r in e)]
    names = {canonicalize_name(Requirement(r).name) for r in wanted} - {"scout-rl"}
    assert {canonicalize_name(f.name) for f in doctor.check_packages("dev")} == names
    pins = dict(r.split("==") for r in wanted if "==" in r)
    assert pins["verl"] == "0.9.1"


def test_a_missing_package_and_a_wrong_version_are_named() -> None:
    missing = doctor.check_package("no-such-package", "", "eval", required=True)
    assert missing.line() == "MISSING  no-such-package  not installed: run `make setup` (extra eval)"
    wrong = doctor.check_package("pytest", "0.0.1", "dev", required=False)
    assert (
        wrong.line()
        == f"absent   pytest           {pytest.__version__}: Scout is written for 0.0.1: run `make setup`"
    )
    assert doctor.check_package("pytest", pytest.__version__, "dev", required=True).ok


def test_before_set_up_the_doctor_says_so(tmp_path: Path) -> None:
    env = {"PYTHONPATH": f"{REPO}/protocol:{REPO}/cli", "PATH": os.environ["PATH"]}
    code = "import sys; from scout_cli.main import main; sys.exit(main(['doctor', '--need', 'base']))"
    done = subprocess.run(
        [sys.executable, "-S", "-c", code], env=env, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "MISSING  scout-rl         not installed: run `make setup`\n" in done.stdout
    assert done.stderr == ""


def test_an_empty_submodule_names_the_command_and_is_not_required(tmp_path: Path) -> None:
    (tmp_path / "verl-tool").mkdir()
    finding = doctor.check_submodule(tmp_path)
    assert (finding.ok, finding.required) == (False, False)
    assert "git submodule update --init verl-tool" in finding.line()
    (tmp_path / "verl-tool" / "verl_tool").mkdir()
    assert doctor.check_submodule(tmp_path).ok


def test_an_index_that_was_asked_for_must_be_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert doctor.main(["--need", "base", "--index", str(tmp_path / "none")]) == 1
    out = capsys.readouterr().out
    assert f"MISSING  index            none at {tmp_path / 'none'}: " in out
    assert "required missing: " in out.splitlines()[-1] and "index" in out.splitlines()[-1]
    (tmp_path / "some").mkdir()
    (tmp_path / "some" / "meta.json").write_text("{}")
    assert doctor.check_index(tmp_path / "some", required=True).ok
