"""LoRA: merging against peft's own, and a whole run through verl's trainer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from scout_protocol.dialect import SEARCH_R1
from scout_protocol.errors import UserError
from scout_sft.dataset import encode_demos
from scout_sft.lora import merge_folder, merged
from scout_sft.rows import write_demos
from scout_sft.train import train
from scout_sft.verl_config import TrainSettings, verl_overrides


def test_merging_equals_pefts_own(model_dir: Path, tmp_path: Path) -> None:
    import torch
    from peft import LoraConfig, TaskType, get_peft_model
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_pretrained(model_dir)
    config = LoraConfig(task_type=TaskType.CAUSAL_LM, r=4, lora_alpha=12, target_modules="all-linear")
    adapted = get_peft_model(model, config)
    for name, weight in adapted.named_parameters():
        if "lora_B" in name:  # zero at the start: nothing to merge
            torch.nn.init.normal_(weight, std=0.1)
    state = {name: weight.detach().clone() for name, weight in adapted.state_dict().items()}
    found = merged(state, rank=4, alpha=12)
    wanted = adapted.merge_and_unload().state_dict()
    assert found.keys() == wanted.keys()
    for name, weight in wanted.items():
        torch.testing.assert_close(found[name], weight, msg=name)

    source = tmp_path / "huggingface"
    source.mkdir()
    save_file({name: weight.contiguous() for name, weight in state.items()}, source / "model.safetensors")
    (source / "config.json").write_text("{}")
    merge_folder(source, tmp_path / "out", 4, 12)
    assert {p.name for p in (tmp_path / "out").iterdir()} == {"model.safetensors", "config.json"}
    with pytest.raises(UserError, match="adapter has rank 4"):
        merged(state, rank=8, alpha=12)
    with pytest.raises(UserError, match="no LoRA weights"):
        merged({"a.weight": torch.zeros(1)}, rank=8, alpha=12)


def test_the_keys_of_verl(tmp_path: Path) -> None:
    def keys(**more: Any) -> dict[str, Any]:
        return verl_overrides(TrainSettings(steps=1, **more), tmp_path, tmp_path, None, tmp_path)

    assert "model.lora_rank" not in keys()
    assert (keys(lora_rank=8)["model.lora_rank"], keys(lora_rank=8)["model.lora_alpha"]) == (8, 16)
    assert keys(lora_rank=8, lora_alpha=4)["model.lora_alpha"] == 4


@pytest.mark.timeout(240)
def test_a_run_trains_adapters_alone_and_exports_a_plain_model(
    tmp_path: Path, model_dir: Path, demos: Any
) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    parquet, out = tmp_path / "demos.parquet", tmp_path / "run"
    write_demos(parquet, demos * 3)
    settings = TrainSettings(
        steps=6,
        batch=4,
        lr=1e-2,
        warmup_steps=1,
        val_share=0.1,
        save_every=6,
        val_every=3,
        max_length=512,
        demos_per_pass=2,
        lora_rank=4,
    )
    result = train(model_dir, parquet, out, settings)
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert lines[-1]["loss"] < lines[0]["loss"] - 0.05, "it learns"

    exported = AutoModelForCausalLM.from_pretrained(out / "hf")
    start = AutoModelForCausalLM.from_pretrained(model_dir)
    before, after = start.state_dict(), exported.state_dict()
    assert before.keys() == after.keys()
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    linear = {f"{n}.weight" for n, m in start.named_modules() if isinstance(m, torch.nn.Linear)}
    assert moved == linear - {"lm_head.weight"}  # all-linear, as peft means it
    for name in moved:  # a change of the adapter's rank
        assert torch.linalg.matrix_rank(after[name] - before[name], rtol=1e-3) <= 4, name

    # the merged model is the one that was trained: its loss on the hold-out is the one that verl measured
    tokenizer = AutoTokenizer.from_pretrained(out / "hf")
    from scout_sft.rows import read_demos

    items, _ = encode_demos(read_demos(out / "data" / "val.parquet"), tokenizer, SEARCH_R1, 512, 512)
    total, count = 0.0, 0
    with torch.no_grad():
        for item in items:
            ids, mask = torch.tensor([item.input_ids]), torch.tensor(item.loss_mask[1:])
            logp = exported(input_ids=ids).logits[0, :-1].log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0]
            total, count = total - float((logp * mask).sum()), count + int(mask.sum())
    assert result["val_loss"] == pytest.approx(total / count, rel=1e-3)
