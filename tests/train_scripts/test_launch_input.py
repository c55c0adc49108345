"""Wrong input of `scout train`: one line that says what and what to do, and nothing left behind."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scout_protocol.errors import UserError
from scout_train import checks, environment, launch, rundir

Train = Callable[..., int]


@pytest.fixture
def train(model_dir: Path, rows_file: Path, tool_server: Any, tmp_path: Path) -> Train:
    """``train(option=value, …)``: a correct dry run, changed where told. Values of lists repeat an option."""

    def run(*flags: str, **changes: Any) -> int:
        options: dict[str, Any] = {
            "model": model_dir,
            "train": rows_file,
            "tools": tool_server.url,
            "out": tmp_path / "run",
            "steps": 2,
        } | {k.replace("_", "-"): v for k, v in changes.items()}
        argv = list(flags)
        for key, value in options.items():
            for item in value if isinstance(value, list) else [value]:
                argv += [f"--{key}", str(item)]
        return launch.main(argv)

    return run


def one_line(error: pytest.ExceptionInfo[UserError]) -> str:
    text = str(error.value)
    assert "\n" not in text and len(text) < 500
    return text


def test_the_reward_gate_is_asked_before_anything_starts(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from scout_data.rows import make_row, write_rows
    from scout_reward import shaping

    monkeypatch.setattr(shaping, "_announced", set())
    assert train("--dry-run", set="scout.reward.step_penalty=0.02") == 0
    assert capsys.readouterr().err.count("hack risk of step_penalty=0.02") == 1
    for setting, told in (
        ("scout.reward.step_penalty=2", "lower the penalties"),
        ("scout.reward.format_score=1.5", "format_score"),
        ("scout.reward.answer_tags=halve", "divide, search_r1"),
    ):
        with pytest.raises(UserError) as error:
            train(set=setting)
        assert told in one_line(error)
    unwinnable = tmp_path / "rows.parquet"
    rows = [make_row("q?", ["the"], "search_r1", "t", "train", i) for i in range(8)]
    write_rows(unwinnable, rows)
    with pytest.raises(UserError) as error:
        train(train=unwinnable)
    assert "8 of 8 questions cannot be won" in one_line(error)
    assert not (tmp_path / "run" / "config.yaml").exists()


def test_a_dry_run_prints_the_recipe_and_starts_nothing(
    train: Train, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert (
        train(
            "--dry-run",
            algo="dapo",
            set=["data.train_batch_size=4", "actor_rollout_ref.actor.ppo_mini_batch_size=4"],
        )
        == 0
    )
    out = capsys.readouterr().out
    assert "algorithm.filter_groups.metric: acc" in out and "data.train_batch_size=4" in out
    assert not (tmp_path / "run").exists()


def model_without(name: str, source: Path, target: Path) -> Path:
    shutil.copytree(source, target)
    (target / name).unlink()
    return target


@pytest.mark.parametrize(
    "name", ["config.json", "model.safetensors", "tokenizer_config.json", "chat_template.jinja"]
)
def test_an_incomplete_model_folder(train: Train, model_dir: Path, tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError) as error:
        train("--dry-run", model=model_without(name, model_dir, tmp_path / "model"))
    assert "--model" in one_line(error)


def test_a_corrupt_model_description(train: Train, model_dir: Path, tmp_path: Path) -> None:
    shutil.copytree(model_dir, tmp_path / "model")
    (tmp_path / "model" / "config.json").write_text("{")
    with pytest.raises(UserError, match="must be JSON"):
        train("--dry-run", model=tmp_path / "model")


def test_a_model_too_short_for_the_lengths(train: Train) -> None:
    with pytest.raises(UserError, match="holds 1024 positions"):
        train("--dry-run", set=["data.max_prompt_length=2048"])


def test_rows_that_are_missing_corrupt_or_too_few(train: Train, rows_file: Path, tmp_path: Path) -> None:
    corrupt = tmp_path / "corrupt.parquet"
    corrupt.write_bytes(rows_file.read_bytes()[:100])
    for path in (tmp_path / "none.parquet", corrupt):
        with pytest.raises(UserError) as error:
            train("--dry-run", train=path)
        assert path.name in one_line(error)
    with pytest.raises(UserError, match=r"40 rows.*needs 64"):
        train("--dry-run", set=["data.train_batch_size=64"])


def test_a_wrong_column_is_named(train: Train, tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"id": ["a"], "quesiton": ["b"]}), tmp_path / "wrong.parquet")
    with pytest.raises(UserError, match="missing"):
        train("--dry-run", train=tmp_path / "wrong.parquet")


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("actor_rollout_ref.actor.ppo_mini_batch_size=3", "must divide"),
        ("actor_rollout_ref.rollout.n=1", "at least 2"),
        ("data.train_batch_size=0", "at least 1"),
        ("actor_rollout_ref.actor.ppo_max_token_len_per_gpu=100", "must hold one trajectory"),
        ("scout.episode.max_turns=0", "greater than 0"),
        ("scout.episode.dialect=klingon", "choose one of"),
        ("scout.sampler.max_infra_error_share=2", "max_infra_error_share"),
        ("algorithm.filter_groups={enable: true, max_num_gen_batches: 0}", "a bound"),
        ("algorithm.filter_groups={enable: true, metric: reward, max_num_gen_batches: 2}", "an outcome"),
        ("data.no_such_key=1", "no reader knows this key"),
    ],
)
def test_numbers_that_do_not_fit(train: Train, setting: str, says: str) -> None:
    with pytest.raises(UserError) as error:
        train("--dry-run", set=[setting])
    assert says in one_line(error)


def test_no_steps_is_refused(train: Train) -> None:
    with pytest.raises(UserError, match="total_training_steps: 0"):
        train("--dry-run", steps=0)


def test_validation_needs_questions(train: Train) -> None:
    with pytest.raises(UserError, match="--eval-every: 2: needs --val"):
        train("--dry-run", eval_every=2)


def test_no_tool_server(train: Train, tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
        with pytest.raises(UserError, match="serve-tools"):
            train(tools=url)
    with pytest.raises(UserError, match="must be a URL"):
        train(tools="localhost:5000")
    assert not (tmp_path / "run" / "config.yaml").exists()


def test_the_output_folder_must_be_usable(train: Train, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(UserError, match="choose a writable folder"):
        train(out=tmp_path / "file" / "run")


def test_two_runs_do_not_share_a_folder(train: Train, tmp_path: Path) -> None:
    with rundir.locked(tmp_path / "run"), pytest.raises(UserError, match="another run is writing there"):
        train()


def test_a_folder_of_another_run_is_not_mixed(train: Train, tmp_path: Path) -> None:
    import yaml

    out = tmp_path / "run"
    checkpoint = out / "ckpt" / "global_step_1"
    checkpoint.mkdir(parents=True)
    (checkpoint / "data.pt").write_text("x")
    (out / "config.yaml").write_text(yaml.safe_dump({"algorithm": {"adv_estimator": "gae"}}))
    # said before anything that takes time: not even the tool server is asked
    with pytest.raises(UserError, match="was made with other settings"):
        train(tools="http://127.0.0.1:9")
    assert not (out / "preflight.json").exists()


def test_a_finished_run_is_left_alone(
    train: Train, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    (out / "hf").mkdir(parents=True)
    (out / "hf" / "config.json").write_text("{}")
    (out / "finished").write_text("2\n")
    assert train(tools="http://127.0.0.1:9") == 0  # not even the tool server is asked
    assert "already finished" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "value", "says"), [("MIN_CORES", 10**6, "cores"), ("MIN_FREE_GIB", 10.0**6, "free memory")]
)
def test_a_machine_that_is_too_small(
    train: Train, monkeypatch: pytest.MonkeyPatch, name: str, value: float, says: str
) -> None:
    monkeypatch.setattr(checks, name, value)
    with pytest.raises(UserError, match=says):
        train()


def test_a_full_disk(train: Train) -> None:
    with pytest.raises(UserError, match="needed for checkpoints"):
        train(set="scout.run.keep_checkpoints=100000000000")


def test_another_verl_is_refused(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "version", lambda _name: "0.8.0")
    with pytest.raises(UserError, match=r"verl: 0\.8\.0: install verl==0\.9\.1"):
        train("--dry-run")


def test_help_is_fast_and_imports_nothing_heavy() -> None:
    code = (
        "import sys; from scout_train.launch import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "print(sorted({'torch', 'ray', 'verl', 'transformers', 'hydra', 'pyarrow'} & sys.modules.keys()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=20, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"


def test_a_run_never_joins_a_foreign_ray(
    compose: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from omegaconf import open_dict

    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    config = compose("grpo")
    with open_dict(config):
        config.scout.run.dir = str(tmp_path)
    env = environment.environment(config, "/tmp/sc-x")
    assert "RAY_ADDRESS" not in env
    assert env["OMP_NUM_THREADS"] == str(config.scout.cluster.torch_threads)
    json.dumps(env)
