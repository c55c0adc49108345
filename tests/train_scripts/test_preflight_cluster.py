"""The 64-card list, and the memory limits of containers, on facts made for the purpose."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from scout_train import host_memory
from scout_train.compose import Choice, compose, parse_setting
from scout_train.plan.shape import PUBLISHED
from scout_train.preflight import cluster, model_side
from scout_train.preflight.facts import Facts
from scout_train.preflight.finding import Verdict
from scout_train.preflight.run import CHECKS


def facts(tmp_path: Path, size: str, cards: str, *settings: str, env: dict[str, str] | None = None) -> Facts:
    shape = PUBLISHED[size]
    described = {
        "model_type": "qwen2",
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "vocab_size": shape.vocab,
        "tie_word_embeddings": shape.tied,
    }
    (tmp_path / "config.json").write_text(json.dumps(described))
    choice = Choice("dapo", size, cards)
    config = compose(choice, [parse_setting(s) for s in settings])
    return Facts(
        config,
        choice,
        tmp_path,
        2 * shape.params,
        tmp_path,
        [],
        "http://10.0.0.1:5000",
        tmp_path,
        1,
        None,
        env or {},
    )


LIST = ("topology", "mask", "learning-rate", "epochs", "micro-batch", "weight-sync")


@pytest.mark.parametrize(
    ("size", "cards"), [("72b", "64x910b"), ("14b", "8xa100"), ("7b", "8xa100"), ("3b", "1gpu")]
)
def test_the_recipes_pass_their_own_list(tmp_path: Path, size: str, cards: str) -> None:
    found = [CHECKS[name](facts(tmp_path, size, cards)) for name in LIST]
    assert [f for f in found if f is not None and f.verdict is not Verdict.OK] == []


A = "actor_rollout_ref.actor"


@pytest.mark.parametrize(
    ("name", "setting", "says"),
    [
        ("topology", "actor_rollout_ref.rollout.tensor_model_parallel_size=16", "never crosses nodes"),
        ("topology", "actor_rollout_ref.rollout.tensor_model_parallel_size=3", "must divide the 8 cards"),
        (
            "topology",
            "actor_rollout_ref.rollout.tensor_model_parallel_size=4",
            "tensor_model_parallel_size=8",
        ),
        ("mask", "actor_rollout_ref.rollout.agent.default_agent_loop=tool_agent", "only scout_search masks"),
        ("learning-rate", f"{A}.optim.lr=5e-6", "set actor_rollout_ref.actor.optim.lr=1.5e-06"),
        ("epochs", f"{A}.ppo_epochs=2", "ppo_epochs=1"),
        ("micro-batch", f"{A}.ppo_micro_batch_size_per_gpu=2", "ppo_micro_batch_size_per_gpu=1"),
        (
            "micro-batch",
            "actor_rollout_ref.model.enable_gradient_checkpointing=false",
            "gradient_checkpointing=true",
        ),
        ("weight-sync", "ray_kwargs.ray_init.runtime_env.env_vars.NCCL_IB_DISABLE='1'", "set it to 0"),
        ("weight-sync", "actor_rollout_ref.hybrid_engine=false", "checkpoint_engine.backend=hccl"),
        ("card-memory", "data.max_response_length=65536", "GiB at the peak"),
        ("card-memory", "actor_rollout_ref.rollout.gpu_memory_utilization=0.2", "KV cache for 0 tokens"),
    ],
)
def test_each_item_of_the_64_card_list_is_refused_by_name(
    tmp_path: Path, name: str, setting: str, says: str
) -> None:
    found = CHECKS[name](facts(tmp_path, "72b", "64x910b", setting))
    assert found is not None and (found.name, found.verdict) == (name, Verdict.REFUSE)
    assert says in found.line


def test_a_variable_of_the_shell_counts_where_the_recipe_is_silent(tmp_path: Path) -> None:
    off = {"NCCL_IB_DISABLE": "1"}
    one_node = facts(tmp_path, "14b", "8xa100", env=off)
    assert cluster.weight_sync(one_node) is None
    two = cluster.weight_sync(facts(tmp_path, "14b", "8xa100", "trainer.nnodes=2", env=off))
    assert two is not None and two.verdict is Verdict.REFUSE


def test_small_models_are_advised_not_refused(tmp_path: Path) -> None:
    for name, setting in (("epochs", f"{A}.ppo_epochs=2"), ("learning-rate", f"{A}.optim.lr=2e-6")):
        found = CHECKS[name](facts(tmp_path, "7b", "8xa100", setting))
        assert found is not None and found.verdict is Verdict.WARN


def group(folder: Path, version: int, limit: str, used: int, cache: int) -> None:
    names = (
        ("memory.max", "memory.current")
        if version == 2
        else ("memory.limit_in_bytes", "memory.usage_in_bytes")
    )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / names[0]).write_text(f"{limit}\n")
    (folder / names[1]).write_text(f"{used}\n")
    prefix = "" if version == 2 else "total_"
    (folder / "memory.stat").write_text(f"anon 5\n{prefix}inactive_file {cache}\n{prefix}active_file 1\n")


@pytest.mark.parametrize("version", [1, 2])
def test_the_tightest_limit_on_the_way_up_counts(tmp_path: Path, version: int) -> None:
    base = tmp_path / "memory" if version == 1 else tmp_path
    own = tmp_path / "self"
    own.write_text("3:cpu:/\n4:memory:/a/b\n" if version == 1 else "0::/a/b\n")
    assert host_memory.cgroup_room_bytes(tmp_path, own) is None
    unlimited = "max" if version == 2 else str(2**63 - 4096)
    group(base / "a" / "b", version, unlimited, 100, 0)
    assert host_memory.cgroup_room_bytes(tmp_path, own) is None
    group(base / "a", version, "1000", 700, 99)
    group(base, version, "100000", 700, 0)
    assert host_memory.cgroup_room_bytes(tmp_path, own) == 1000 - 700 + 100  # page cache can be given back
    own.write_text("4:memory:/not/seen/here\n" if version == 1 else "0::/not/seen/here\n")
    assert host_memory.cgroup_room_bytes(tmp_path, own) == 100000 - 700 + 1  # the mount shows only its root


def test_without_any_group_the_host_counts(tmp_path: Path) -> None:
    assert host_memory.cgroup_room_bytes(tmp_path, tmp_path / "none") is None
    assert host_memory.free_memory_bytes() > 0


def test_a_check_that_breaks_says_so(tmp_path: Path) -> None:
    """The process of the model side is ended: the run is refused, not waved through."""
    import subprocess
    import sys

    process = subprocess.Popen(
        [sys.executable, "-c", "import sys; sys.exit('boom')"], stderr=subprocess.PIPE, text=True
    )
    found = model_side.Running(process, tmp_path).findings(30)
    assert [f.verdict for f in found] == [Verdict.REFUSE] and "boom" in found[0].line


def test_every_check_answers_to_its_own_name(tmp_path: Path) -> None:
    made: dict[str, Any] = {
        name: CHECKS[name](facts(tmp_path, "14b", "8xa100")) for name in (*LIST, "shm", "files")
    }
    assert all(found is None or found.name == name for name, found in made.items())
