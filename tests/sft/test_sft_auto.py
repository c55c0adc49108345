"""A warm-up that stops by itself, through verl's own trainer: by its loss, and by probed rollouts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from sft_processes import SMALL

from scout_data.rows import write_rows
from scout_protocol.errors import UserError
from scout_sft.checkpoints import steps_on_disk
from scout_sft.rows import write_demos
from scout_sft.train import train
from scout_sft.verl_config import TrainSettings


@pytest.mark.timeout(240)
def test_a_loss_that_stands_still_ends_the_run(tmp_path: Path, model_dir: Path, demos: Any) -> None:
    parquet, out = tmp_path / "demos.parquet", tmp_path / "run"
    write_demos(parquet, demos * 3)
    settings = TrainSettings(**SMALL, lr=1e-9, stop_patience=2)  # too little to learn anything
    result = train(model_dir, parquet, out, settings)
    assert result["stopped_by"] == "loss" and result["most_steps"] == 32  # 3 epochs of 42 rows
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    val = [line["step"] for line in lines if "val_loss" in line]
    assert val[:3] == [2, 4, 6] and result["steps"] < 32  # best at 2, two more bring nothing
    assert result["exported_step"] in steps_on_disk(out / "checkpoints")
    assert result["kept_by"] == "validation loss"
    assert (out / "hf" / "config.json").is_file()

    # killed between the end of training and the export: nothing is trained again
    (out / "result.json").unlink()
    again = train(model_dir, parquet, out, settings)
    assert {k: v for k, v in again.items() if k != "seconds"} == {
        **{k: v for k, v in result.items() if k != "seconds"},
        "resumed_from": again["resumed_from"],
    }
    assert len(list((out / "logs").glob("attempt-*.jsonl"))) == 1


@pytest.mark.timeout(240)
def test_rollouts_that_keep_the_format_end_the_run(
    tmp_path: Path, model_dir: Path, demos: Any, mini: Any, server_url: str
) -> None:
    parquet, out, rows = tmp_path / "demos.parquet", tmp_path / "run", tmp_path / "rows.parquet"
    write_demos(parquet, demos[:10] * 4)
    write_rows(rows, mini.rows[10:])
    settings = TrainSettings(
        **SMALL,
        stop="format",
        stop_format=0.0,  # whatever it writes: what is tested is who stops, and when
        probe_rows=str(rows),
        server=server_url,
        probe_samples=2,
        probe_limit=3,
        probe_max_turn_tokens=16,
        probe_max_response_tokens=64,
    )
    result = train(model_dir, parquet, out, settings)
    assert result["stopped_by"] == "format"
    assert result["probe"]["rollouts"] == 6 and result["kept_by"].startswith("pass@1")
    probes = [json.loads(line) for line in (out / "probes.jsonl").read_text().splitlines()]
    assert probes[0]["step"] == result["exported_step"] and 0 <= probes[0]["format_adherence"] <= 1
    assert result["steps"] < result["most_steps"]

    write_rows(rows, mini.rows[8:])
    with pytest.raises(UserError, match="2 of 3 questions are demonstrated"):
        train(model_dir, parquet, tmp_path / "other", settings)


@pytest.mark.timeout(240)
def test_fixed_steps_are_kept_and_probed(
    tmp_path: Path, model_dir: Path, demos: Any, mini: Any, server_url: str
) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    parquet, out, rows = tmp_path / "demos.parquet", tmp_path / "run", tmp_path / "rows.parquet"
    write_demos(parquet, demos[:10] * 4)
    write_rows(rows, mini.rows[10:])
    settings = TrainSettings(
        **SMALL,
        steps=4,
        keep="best",
        probe_rows=str(rows),
        server=server_url,
        probe_samples=1,
        probe_limit=2,
        probe_max_turn_tokens=8,
        probe_max_response_tokens=32,
    )
    result = train(model_dir, parquet, out, settings)
    assert (result["steps"], result["stopped_by"]) == (4, "steps")
    probes = [json.loads(line)["step"] for line in (out / "probes.jsonl").read_text().splitlines()]
    assert probes[-1] == 4 and result["exported_step"] in probes

    # the export answers what the checkpoint answers, token by token
    checkpoint = out / "checkpoints" / f"global_step_{result['exported_step']}" / "huggingface"
    tokenizer = AutoTokenizer.from_pretrained(out / "hf")
    ids = torch.tensor([tokenizer.encode("Where was Mara Velton born?")])
    texts = [
        AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        .generate(ids, max_new_tokens=24, do_sample=False)
        .tolist()
        for folder in (checkpoint, out / "hf")
    ]
    assert texts[0] == texts[1]
