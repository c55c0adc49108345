"""Warm-ups that are killed where a plain one is not: while rollouts are probed, and with adapters."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from sft_processes import SMALL, kill_when

from scout_data.rows import write_rows
from scout_sft.checkpoints import latest_step
from scout_sft.rows import write_demos

SETTINGS = {**SMALL, "lr": 3e-3}


def command(model: Path, demos: Path, out: Path, **more: Any) -> list[str]:
    flags = [f"--{key.replace('_', '-')}={value}" for key, value in {**SETTINGS, **more}.items()]
    where = [f"--model={model}", f"--demos={demos}", f"--out={out}"]
    return [sys.executable, "-m", "scout_cli.main", "sft", "train", *where, *flags]


def run(arguments: list[str], out: Path) -> dict[str, Any]:
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads((out / "result.json").read_text())
    return result


@pytest.mark.timeout(300)
def test_killed_during_a_probe_the_checkpoint_is_probed_again(
    tmp_path: Path, model_dir: Path, demos: Any, mini: Any, server_url: str
) -> None:
    parquet, out, rows = tmp_path / "demos.parquet", tmp_path / "run", tmp_path / "rows.parquet"
    write_demos(parquet, demos[:10] * 4)
    write_rows(rows, mini.rows[10:])
    arguments = command(
        model_dir,
        parquet,
        out,
        steps=4,
        keep="best",
        probe_rows=rows,
        server=server_url,
        probe_samples=2,
        probe_limit=3,
        probe_max_turn_tokens=8,
        probe_max_response_tokens=32,
    )
    # the job is told to the probe, and nothing has come back
    kill_when(arguments, lambda: (out / "probe" / "log").is_file())
    assert not (out / "probe" / "result.json").is_file() and not (out / "probes.jsonl").is_file()
    reached = latest_step(out / "checkpoints")
    assert reached >= 2
    result = run(arguments, out)
    assert (result["steps"], result["resumed_from"], result["stopped_by"]) == (4, reached, "steps")
    probed = [json.loads(line)["step"] for line in (out / "probes.jsonl").read_text().splitlines()]
    assert probed == sorted(set(probed)) and {reached, 4} <= set(probed)
    lines = [json.loads(line)["step"] for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert lines == [1, 2, 3, 4]


@pytest.mark.timeout(300)
def test_adapters_that_were_killed_end_as_those_that_were_not(
    tmp_path: Path, model_dir: Path, demos: Any
) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    parquet = tmp_path / "demos.parquet"
    write_demos(parquet, demos * 3)
    broken, whole = tmp_path / "broken", tmp_path / "whole"
    more = {"steps": 8, "lora_rank": 4, "lr": 1e-2}
    kill_when(command(model_dir, parquet, broken, **more), lambda: latest_step(broken / "checkpoints") >= 2)
    assert not (broken / "result.json").is_file()
    first = run(command(model_dir, parquet, broken, **more), broken)
    second = run(command(model_dir, parquet, whole, **more), whole)
    assert 2 <= first["resumed_from"] < 8 and second["resumed_from"] == 0
    losses = [
        [json.loads(line)["loss"] for line in (out / "metrics.jsonl").read_text().splitlines()]
        for out in (broken, whole)
    ]
    assert len(losses[0]) == 8 and losses[0] == pytest.approx(losses[1], rel=1e-4)
    merged = [AutoModelForCausalLM.from_pretrained(out / "hf") for out in (broken, whole)]
    ids = torch.tensor([list(range(5, 60))])
    with torch.no_grad():
        torch.testing.assert_close(merged[0](ids).logits, merged[1](ids).logits, rtol=0, atol=5e-3)
