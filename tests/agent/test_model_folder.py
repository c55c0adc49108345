"""Exported model folders: what was stored is what everybody loads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from scout_agent.model_folder import export_model, weights_bytes  # noqa: E402
from scout_protocol.errors import UserError  # noqa: E402


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path, Any]:
    """A checkpoint's Hugging Face part as verl 0.9.1 writes it, the start model's folder, and the weights."""
    from tokenizers import Tokenizer, models

    torch.manual_seed(1)
    config = transformers.Qwen3Config(
        vocab_size=16,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=16,
    )
    model = transformers.Qwen3ForCausalLM(config)
    start, source = tmp_path / "start", tmp_path / "ckpt"
    vocab = {chr(97 + i): i for i in range(16)}
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(vocab, unk_token="a")), eos_token="b", pad_token="c"
    )
    for folder in (start, source):
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    (start / "tokenizer_config.json").write_text((start / "tokenizer_config.json").read_text() + "\n")
    described = json.loads((source / "config.json").read_text())
    described["dtype"] = "bfloat16"  # whatever the weights are
    (source / "config.json").write_text(json.dumps(described))
    return source, start, model


def test_fp32_weights_stay_fp32_for_whoever_loads_them(folders: Any, tmp_path: Path) -> None:
    source, start, model = folders
    export_model(source, start, tmp_path / "out")
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype="auto")
    for (name, want), (_, got) in zip(model.named_parameters(), loaded.named_parameters(), strict=True):
        assert got.dtype is torch.float32 and torch.equal(want, got), name


def test_the_tokenizer_is_the_start_models_file_by_file(folders: Any, tmp_path: Path) -> None:
    source, start, _ = folders
    export_model(source, start, tmp_path / "out")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (tmp_path / "out" / name).read_bytes() == (start / name).read_bytes()


def test_a_broken_checkpoint_leaves_the_earlier_export(folders: Any, tmp_path: Path) -> None:
    source, start, _ = folders
    export_model(source, start, tmp_path / "out")
    before = {p.name: p.read_bytes() for p in (tmp_path / "out").iterdir()}
    with torch.no_grad():
        broken = transformers.Qwen3ForCausalLM.from_pretrained(source)
        broken.model.norm.weight.fill_(float("nan"))
        broken.save_pretrained(source)
    with pytest.raises(UserError, match="is not finite"):
        export_model(source, start, tmp_path / "out")
    (source / "model.safetensors").unlink()
    with pytest.raises(UserError, match="holds no weights"):
        export_model(source, start, tmp_path / "out")
    assert {p.name: p.read_bytes() for p in (tmp_path / "out").iterdir()} == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["ckpt", "out", "start"]


def test_weights_are_measured_and_cut_off_ones_are_refused(folders: Any) -> None:
    _, start, _ = folders
    weights = start / "model.safetensors"
    size = weights.stat().st_size
    assert weights_bytes(start) == size
    whole = weights.read_bytes()
    for damaged in (
        whole[:-1],
        whole[:1000],
        whole[:4],
        b"",
        whole + b"x",
        b"\xff" * size,
        b"version https://git",
    ):
        weights.write_bytes(damaged)
        with pytest.raises(UserError, match=r"model\.safetensors: is damaged or cut off"):
            weights_bytes(start)
    weights.unlink()
    with pytest.raises(UserError, match="has no weights"):
        weights_bytes(start)
