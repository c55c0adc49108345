"""verl's checkpoint to a model folder: shards of one and of two ranks, and a copy that is not the shards'."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from scout_eval.cli import main  # noqa: E402
from scout_eval.export import export, find_actor, load_shards  # noqa: E402
from scout_protocol.errors import UserError  # noqa: E402

# FSDP2 as verl runs it: every rank keeps its part of each tensor as a DTensor, sharded along dimension 0.
SHARD = """
import sys, torch, torch.distributed as dist
from safetensors.torch import load_file
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
weights, out, init, world, rank = sys.argv[1:]
dist.init_process_group("gloo", init_method=init, rank=int(rank), world_size=int(world))
mesh = init_device_mesh("cpu", (int(world),))
shards = {k: distribute_tensor(v, mesh, [Shard(0)]) for k, v in load_file(weights).items()}
torch.save(shards, f"{out}/model_world_size_{world}_rank_{rank}.pt")
dist.barrier()
dist.destroy_process_group()
"""


@pytest.fixture
def checkpoint(model_folder: Path, tmp_path: Path) -> Path:
    """``global_step_5`` as verl writes it with one rank, the Hugging Face copy included."""
    actor = tmp_path / "run" / "ckpt" / "global_step_5" / "actor"
    shutil.copytree(model_folder, actor / "huggingface")
    model = transformers.AutoModelForCausalLM.from_pretrained(model_folder, dtype="auto")
    torch.save(dict(model.state_dict()), actor / "model_world_size_1_rank_0.pt")
    (tmp_path / "run" / "ckpt" / "latest_checkpointed_iteration.txt").write_text("5")
    return tmp_path / "run" / "ckpt" / "global_step_5"


def weights(folder: Path) -> dict[str, Any]:
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype="auto")
    return dict(model.state_dict())


def same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def test_the_export_is_checked_and_equal(checkpoint: Path, model_folder: Path, tmp_path: Path) -> None:
    done = export(checkpoint, tmp_path / "out", max_tokens=12)
    assert (done.n_shards, done.n_prompts, done.dtype, done.max_logprob_gap) == (1, 4, "float32", 0.0)
    assert 4 <= done.n_tokens <= 48
    assert same(weights(tmp_path / "out"), weights(model_folder))
    assert (tmp_path / "out" / "tokenizer.json").is_file()
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []


def test_without_the_copy_it_comes_from_the_shards(
    checkpoint: Path, model_folder: Path, tmp_path: Path
) -> None:
    (checkpoint / "actor" / "huggingface" / "model.safetensors").unlink()
    done = export(checkpoint, tmp_path / "out", max_tokens=8)
    assert done.source == "shards" and same(weights(tmp_path / "out"), weights(model_folder))


def test_a_copy_of_other_weights_is_refused_and_the_old_folder_stays(
    checkpoint: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    export(checkpoint, out, max_tokens=8)
    before = (out / "model.safetensors").read_bytes()
    model = transformers.AutoModelForCausalLM.from_pretrained(checkpoint / "actor" / "huggingface")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    model.save_pretrained(checkpoint / "actor" / "huggingface")
    with pytest.raises(UserError, match="answer differently"):
        export(checkpoint, out, max_tokens=8)
    assert (out / "model.safetensors").read_bytes() == before
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []


@pytest.mark.slow
def test_two_ranks_are_put_together(checkpoint: Path, model_folder: Path, tmp_path: Path) -> None:
    actor = checkpoint / "actor"
    (actor / "model_world_size_1_rank_0.pt").unlink()
    script = tmp_path / "shard.py"
    script.write_text(SHARD)
    words = [model_folder / "model.safetensors", actor, f"file://{tmp_path}/rendezvous", "2"]
    ranks = [subprocess.Popen([sys.executable, script, *words, str(rank)]) for rank in range(2)]
    assert [rank.wait(120) for rank in ranks] == [0, 0]
    model, n = load_shards(actor)
    assert n == 2 and same(dict(model.state_dict()), weights(model_folder))
    (actor / "model_world_size_2_rank_0.pt").unlink()
    with pytest.raises(UserError, match="1 of 2 shards"):
        load_shards(actor)


def test_where_a_checkpoint_is_looked_for(checkpoint: Path, tmp_path: Path) -> None:
    actor = checkpoint / "actor"
    for place in (checkpoint, actor, tmp_path / "run", tmp_path / "run" / "ckpt"):
        assert find_actor(place) == actor
    with pytest.raises(UserError, match="holds no model_world_size"):
        find_actor(tmp_path)


def test_damaged_shards(checkpoint: Path, tmp_path: Path) -> None:
    shard = checkpoint / "actor" / "model_world_size_1_rank_0.pt"
    state = torch.load(shard)
    state.pop("model.norm.weight")
    torch.save(state, shard)
    with pytest.raises(UserError, match=r"does not fit its config.json: .*model.norm.weight"):
        export(checkpoint, tmp_path / "out")
    shard.write_bytes(shard.read_bytes()[:1000])
    with pytest.raises(UserError, match="cannot be read"):
        export(checkpoint, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_command(checkpoint: Path, rows_file: Any, tmp_path: Path, capsys: Any) -> None:
    words = ["--checkpoint", str(checkpoint), "--out", str(tmp_path / "out"), "--rows", str(rows_file(3))]
    assert main(["export", *words, "--max-tokens", "6"]) == 0
    assert "equal to 1 shard(s) in all" in capsys.readouterr().out
