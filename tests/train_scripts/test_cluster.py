"""The cluster that a machine has, told from its device files; and what a run's processes are told on each."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from scout_protocol.errors import UserError
from scout_train import checks, cluster, compose, environment, launch, words

SCRIPTS = sorted(Path(__file__).parents[2].glob("train_scripts/*.sh"))


@pytest.mark.parametrize(
    ("devices", "visible", "found"),
    [
        ([], None, "cpu"),
        (["nvidiactl", "nvidia-uvm"], None, "cpu"),
        (["nvidia0", "nvidiactl"], None, "1gpu"),
        ([f"nvidia{i}" for i in range(4)], None, "1gpu"),
        ([f"nvidia{i}" for i in range(8)], None, "8xa100"),
        ([f"nvidia{i}" for i in range(8)], "3", "1gpu"),
        (["nvidia0"], "", "cpu"),
        (["nvidia0"], "-1", "cpu"),
        ([f"davinci{i}" for i in range(8)] + ["davinci_manager"], None, "64x910b"),
        (["davinci_manager"], None, "cpu"),
    ],
)
def test_detect(
    devices: list[str], visible: str | None, found: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in devices:
        (tmp_path / name).touch()
    for mask in ("CUDA_VISIBLE_DEVICES", "ASCEND_RT_VISIBLE_DEVICES"):
        monkeypatch.delenv(mask, raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    name, why = cluster.detect(tmp_path)
    assert name == found and why
    assert name in compose.names("cluster") and cluster.engine_for(name) in compose.names("engine")


def variables(choice: compose.Choice, monkeypatch: pytest.MonkeyPatch, **outside: str) -> dict[str, str]:
    for name in ("WANDB_API_KEY", "WANDB_MODE", "VERL_PLATFORM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in outside.items():
        monkeypatch.setenv(name, value)
    return environment.environment(compose.compose(choice, [("scout.run.dir", "/x/run")]), "/tmp/sc-x")


def test_only_the_cpu_gets_our_platform(monkeypatch: pytest.MonkeyPatch) -> None:
    assert variables(compose.Choice(), monkeypatch)["VERL_PLATFORM"] == "cpu"
    on_cards = variables(compose.Choice(size="7b", cluster="8xa100"), monkeypatch)
    assert "VERL_PLATFORM" not in on_cards and on_cards["OMP_NUM_THREADS"] == "8"


def test_wandb_is_offline_unless_the_user_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = variables(compose.Choice(), monkeypatch)
    assert (plain["WANDB_MODE"], plain["WANDB_DIR"]) == ("offline", "/x/run")
    keyed = variables(compose.Choice(), monkeypatch, WANDB_API_KEY="k" * 40)
    assert "WANDB_MODE" not in keyed
    assert variables(compose.Choice(), monkeypatch, WANDB_MODE="disabled")["WANDB_MODE"] == "disabled"


def test_a_rollout_that_is_not_installed_is_one_line() -> None:
    config = compose.compose(compose.Choice(size="7b", cluster="8xa100"))
    config.actor_rollout_ref.rollout.name = "no_such_engine"
    with pytest.raises(UserError, match="pip install no_such_engine, or train without an accelerator"):
        checks.check_packages(config)


def test_variables_of_a_cluster_reach_its_workers() -> None:
    """The overlay's; what verl itself needs on an accelerator is added in `runner.start_ray`."""
    config = compose.compose(compose.Choice(size="72b", cluster="64x910b"))
    variables = config.ray_kwargs.ray_init.runtime_env.env_vars
    assert variables.NCCL_IB_DISABLE == "0" and int(variables.HCCL_CONNECT_TIMEOUT) > 120
    assert config.scout.cluster.ray_address == "auto"


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda p: p.stem)
def test_a_script_is_three_lines_and_its_dry_run_passes(
    script: Path, model_dir: Path, rows_file: Path, tmp_path: Path, many_rows: Path
) -> None:
    lines = script.read_text().splitlines()
    assert len(lines) == 3 and os.access(script, os.X_OK)
    recorded = tmp_path / "argv"
    recorder = tmp_path / "scout"
    recorder.write_text(f'#!/bin/bash\nprintf "%s\\n" "$@" > {recorded}\n')
    recorder.chmod(0o755)
    extra = [
        "--model",
        model_dir,
        "--train",
        many_rows,
        "--tools",
        "http://127.0.0.1:1",
        "--out",
        tmp_path / "run",
    ]
    argv = [str(script), *map(str, extra), "--steps", "2", "--dry-run"]
    subprocess.run(argv, check=True, timeout=20, env=os.environ | {"SCOUT": str(recorder)})
    command, *options = recorded.read_text().splitlines()
    assert command == "train"
    # the model of the tests holds 1,024 positions; the lengths of a real size are checked in test_recipes
    shorter = ["--set", "data.max_prompt_length=512", "--set", "data.max_response_length=512"]
    assert launch.main([*options, *shorter]) == 0
    assert not (tmp_path / "run").exists()


@pytest.fixture(scope="session")
def many_rows(rows_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As many questions as the largest batch."""
    from scout_data.rows import read_rows, write_rows

    path = tmp_path_factory.mktemp("many") / "train.parquet"
    write_rows(path, read_rows(rows_file) * 13)
    return path


def test_the_cluster_is_printed_where_none_is_named(
    model_dir: Path, rows_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    monkeypatch.setattr(words, "detect", lambda: ("cpu", "no accelerator in this machine"))
    options = [
        "--model",
        model_dir,
        "--train",
        rows_file,
        "--tools",
        "http://127.0.0.1:1",
        "--out",
        tmp_path / "r",
    ]
    argv = [*map(str, options), "--steps", "1", "--dry-run", "--with", "kl", "clip_03"]
    assert launch.main(argv) == 0
    told = capsys.readouterr().out
    assert (
        told.startswith("cluster cpu (no accelerator in this machine)\n") and told.count("cluster cpu") == 1
    )
    assert "recipes/options.yaml (clip_03)\n  actor_rollout_ref.actor.clip_ratio_high: 0.3" in told


def test_words_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        launch.main(["--list-words"])
    assert end.value.code == 0
    told = capsys.readouterr().out
    assert all(f"{word}: {option.why}" in told for word, option in compose.read_options().items())
