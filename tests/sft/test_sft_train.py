"""The warm-up by verl's own trainer, against a plain torch loop; killed, resumed, exported."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from sft_processes import kill_when

from scout_protocol.dialect import SEARCH_R1
from scout_protocol.errors import UserError
from scout_sft.checkpoints import latest_step, prune, steps_on_disk
from scout_sft.dataset import draw_order, encode_demos
from scout_sft.history import History
from scout_sft.rows import read_demos, write_demos
from scout_sft.train import split, train
from scout_sft.verl_config import TrainSettings, verl_overrides
from scout_sft.worker import compose

STEPS, BATCH, LR, WARMUP = 8, 4, 3e-3, 2
SETTINGS: dict[str, Any] = {
    "steps": STEPS,
    "batch": BATCH,
    "lr": LR,
    "warmup_steps": WARMUP,
    "val_share": 0.1,
    "save_every": 2,
    "val_every": 2,
    "max_length": 512,
    "demos_per_pass": 2,
}


def plain_loop(model_dir: Path, demos: Path) -> tuple[list[float], list[float], Any]:
    """The same training written out in torch: losses, gradient norms, and the trained model."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model_dir)
    model = AutoModelForCausalLM.from_pretrained(model_dir, attn_implementation="eager").train()
    items, _ = encode_demos(read_demos(demos), tokenizer, SEARCH_R1, 512, 512)
    order = draw_order(len(items), STEPS * BATCH, 0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, betas=(0.9, 0.98), weight_decay=0.0)
    losses, norms = [], []
    for step in range(STEPS):
        if step < WARMUP:  # from 0, so the first step changes nothing
            factor = step / WARMUP
        else:
            factor = 0.5 * (1 + math.cos(math.pi * (step - WARMUP) / (STEPS - WARMUP)))
        for group in optimizer.param_groups:
            group["lr"] = LR * factor
        optimizer.zero_grad()
        total, count = torch.zeros(()), 0
        for i in order[step * BATCH : (step + 1) * BATCH]:
            ids = torch.tensor([items[i].input_ids])
            logp = model(input_ids=ids).logits[0, :-1].log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0]
            mask = torch.tensor(items[i].loss_mask[1:])
            total = total - (logp * mask).sum()
            count += int(mask.sum())
        (total / count).backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)))
        optimizer.step()
        losses.append(total.item() / count)
    return losses, norms, model


def command(model_dir: Path, demos: Path, out: Path) -> list[str]:
    flags = [f"--{key.replace('_', '-')}={value}" for key, value in SETTINGS.items()]
    where = [f"--model={model_dir}", f"--demos={demos}", f"--out={out}"]
    return [sys.executable, "-m", "scout_cli.main", "sft", "train", *where, *flags]


@pytest.mark.timeout(240)
def test_killed_and_resumed_it_equals_a_plain_loop(tmp_path: Path, model_dir: Path, demos: Any) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    parquet, out = tmp_path / "demos.parquet", tmp_path / "run"
    write_demos(parquet, demos * 3)
    tracker = out / "checkpoints"
    kill_when(command(model_dir, parquet, out), lambda: latest_step(tracker) >= 2)

    reached = latest_step(tracker)
    second = subprocess.run(command(model_dir, parquet, out), capture_output=True, text=True, timeout=120)
    assert second.returncode == 0, second.stderr
    result = json.loads((out / "result.json").read_text())
    assert result["resumed_from"] == reached and 2 <= reached < STEPS
    assert (result["train_demos"], result["val_demos"]) == (42, 4)  # 48, less two copies of one in validation

    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(1, STEPS + 1))
    losses, norms, model = plain_loop(model_dir, out / "data" / "train.parquet")
    assert [line["loss"] for line in lines] == pytest.approx(losses, rel=1e-4)
    assert [line["grad_norm"] for line in lines] == pytest.approx(norms, rel=1e-3)
    assert [line["step"] for line in lines if "val_loss" in line] == [2, 4, 6, 8]

    exported = AutoModelForCausalLM.from_pretrained(out / "hf")
    assert exported.dtype == torch.float32  # verl's own configuration says bfloat16
    # Adam turns rounding of gradients near zero into steps of full size, so single weights may differ
    ids = torch.tensor(
        [encode_demos(demos, AutoTokenizer.from_pretrained(out / "hf"), SEARCH_R1, 512, 512)[0][0].input_ids]
    )
    with torch.no_grad():
        torch.testing.assert_close(exported(ids).logits, model(ids).logits, rtol=0, atol=5e-3)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        assert (out / "hf" / name).read_bytes() == (model_dir / name).read_bytes()
    assert AutoTokenizer.from_pretrained(out / "hf").eos_token == "<|im_end|>"
    assert steps_on_disk(tracker)[-1] == STEPS and len(steps_on_disk(tracker)) <= 3

    # done is done: the same call returns at once, another one is refused
    start = time.monotonic()
    assert train(model_dir, parquet, out, TrainSettings(**SETTINGS)) == result
    assert time.monotonic() - start < 5
    with pytest.raises(UserError, match="holds a run with other lr"):
        train(model_dir, parquet, out, TrainSettings(**{**SETTINGS, "lr": 1e-3}))


@pytest.mark.timeout(120)
def test_a_demonstration_that_is_too_long_is_one_line(tmp_path: Path, model_dir: Path, demos: Any) -> None:
    parquet = tmp_path / "demos.parquet"
    write_demos(parquet, demos)
    settings = TrainSettings(**{**SETTINGS, "max_length": 64})
    with pytest.raises(UserError, match="is longer than 64: raise --max-length") as caught:
        train(model_dir, parquet, tmp_path / "run", settings)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run" / "hf").exists()


def test_our_keys_exist_in_verls_configuration(tmp_path: Path) -> None:
    from omegaconf import OmegaConf

    stock = compose({}, [])
    keys = verl_overrides(TrainSettings(**SETTINGS), tmp_path, tmp_path, tmp_path, tmp_path)
    ours = {"data.scout", "engine.mixed_precision", "model.override_config"}
    absent = [k for k in keys if k not in ours and OmegaConf.select(stock, k, default="?") == "?"]
    assert absent == []
    config = compose(keys, ["trainer.seed=7", "+data.note=x"])
    assert config.trainer.seed == 7 and config.data.note == "x"
    assert config.optim.lr == LR and config.data.scout.draws == STEPS * BATCH


def test_unknown_overrides_are_one_line() -> None:
    for wrong in ("optim.learning_rate=1", "no equals sign", "data.max_length="):
        with pytest.raises(UserError, match="--set") as caught:
            compose({"data.max_length": 5}, [wrong] if wrong[-1] != "=" else ["a.b.c=[1"])
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "wrong",
    [
        {"steps": -1},
        {"lr": 0},
        {"batch": 3, "nproc": 2},
        {"val_share": 1.0},
        {"keep": "best", "val_share": 0.0},
        {"keep": "best", "save_every": 100, "val_every": 30},
        {"schedule": "step"},
        {"overlong": "x"},
        {"device": "tpu"},
        {"dialect": "x"},
        {"max_tokens_per_pass": 10},
        {"warmup_steps": -1},
    ],
    ids=str,
)
def test_wrong_settings(wrong: dict[str, Any]) -> None:
    with pytest.raises(UserError):
        TrainSettings(**{"steps": 10, **wrong})


def test_wrong_paths_leave_nothing(tmp_path: Path, model_dir: Path, demos: Any) -> None:
    parquet = tmp_path / "d.parquet"
    write_demos(parquet, demos)
    settings = TrainSettings(**SETTINGS)
    with pytest.raises(UserError, match="is not a model folder"):
        train(tmp_path, parquet, tmp_path / "run", settings)
    with pytest.raises(UserError, match="no such file"):
        train(model_dir, tmp_path / "absent", tmp_path / "run", settings)
    absent = TrainSettings(**{**SETTINGS, "platform_module": "no_such_plugin.cpu"})
    with pytest.raises(UserError, match="--platform-module"):
        train(model_dir, parquet, tmp_path / "run", absent)
    assert [p.name for p in tmp_path.iterdir()] == ["d.parquet"]


def test_the_hold_out_shares_no_question_with_training(demos: Any) -> None:
    rows = demos * 4
    train_rows, val_rows = split(rows, 0.1, 4, seed=0)
    assert len(val_rows) == 8
    assert not {r.question for r in train_rows} & {r.question for r in val_rows}
    assert split(list(rows), 0.1, 4, seed=0)[1] == val_rows
    assert split(rows, 0.1, 4, seed=1)[1] != val_rows
    assert split(rows, 0.0, 4, seed=0) == (rows, [])
    assert split(demos, 0.1, 16, seed=0) == (demos, [])


def test_checkpoints_are_pruned_to_the_latest_two_and_the_best(tmp_path: Path) -> None:
    for step in (10, 20, 30, 40, 50):
        (tmp_path / f"global_step_{step}").mkdir()
    assert steps_on_disk(tmp_path) == []
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("40")
    history = History(val={10: 2.0, 20: 1.0, 30: 1.5, 40: 1.0, 50: 0.1})
    assert history.best(steps_on_disk(tmp_path)) == 20
    prune(tmp_path, 20)
    assert steps_on_disk(tmp_path) == [20, 30, 40]
    assert (tmp_path / "global_step_50").exists(), "not complete yet: somebody is writing it"


def test_later_attempts_replace_steps_done_twice(tmp_path: Path) -> None:
    history = History()
    line = {"train/grad_norm": 1.0, "train/lr": 0.1, "train/global_tokens": 5}
    history.add(1, {"train/loss": 3.0, **line})
    history.add(2, {"train/loss": 9.0, **line})
    history.add(2, {"train/loss": 2.0, **line})
    history.add(2, {"val/loss": 2.5})
    history.write(tmp_path / "m.jsonl")
    lines = [json.loads(text) for text in (tmp_path / "m.jsonl").read_text().splitlines()]
    assert [(x["step"], x["loss"], x.get("val_loss")) for x in lines] == [(1, 3.0, None), (2, 2.0, 2.5)]
