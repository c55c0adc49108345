"""`scout plan`: against model cards, transformers' own models, ZeRO's count, and the tutorial's table."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scout_protocol.errors import UserError
from scout_train.compose import Choice, names, parse_setting
from scout_train.compose import compose as compose_recipe
from scout_train.plan.cli import main
from scout_train.plan.device import A100
from scout_train.plan.memory import GIB, MemoryPlan, activations, layout_of, plan_memory
from scout_train.plan.shape import PUBLISHED, ModelShape, read_shape
from scout_train.plan.throughput import Traffic, plan_time

TINY = {
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 300,
}


def planned(
    size: str, cluster: str, *settings: str, algo: str = "dapo", placement: str = "colocated"
) -> MemoryPlan:
    choice = Choice(algo, size, cluster, "verl", placement)
    config = compose_recipe(choice, [parse_setting(s) for s in settings])
    return plan_memory(PUBLISHED[size], layout_of(config), A100)


# bytes of the bf16 weights in model.safetensors.index.json, and the card's "non-embedding" parameters
CARDS = {
    "3b": (6_171_877_376, 2.77e9),
    "7b": (15_231_233_024, 6.53e9),
    "14b": (29_540_067_328, 13.1e9),
    "72b": (145_412_407_296, 70.0e9),
}


@pytest.mark.parametrize("size", CARDS)
def test_parameters_are_those_of_the_model_cards(size: str) -> None:
    shape, (weights_bytes, non_embedding) = PUBLISHED[size], CARDS[size]
    assert 2 * shape.params == weights_bytes
    assert shape.params - shape.embedding_params == pytest.approx(non_embedding, rel=0.01)


@pytest.mark.parametrize("kind", ["qwen2", "qwen3", "llama", "mistral"])
@pytest.mark.parametrize("tied", [True, False])
def test_parameters_are_those_that_transformers_makes(kind: str, tied: bool, tmp_path: Path) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(kind, **TINY, tie_word_embeddings=tied, head_dim=24)
    model = AutoModelForCausalLM.from_config(config)
    config.save_pretrained(tmp_path)
    described = json.loads((tmp_path / "config.json").read_text())
    if kind == "qwen2":  # its models take hidden / heads whatever is said
        described.pop("head_dim", None)
        (tmp_path / "config.json").write_text(json.dumps(described))
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **TINY, tie_word_embeddings=tied))
    assert read_shape(tmp_path).params == sum(p.numel() for p in model.parameters())


def test_the_cache_of_a_token_is_what_transformers_keeps(tmp_path: Path) -> None:
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(**TINY, head_dim=16)
    config.save_pretrained(tmp_path)
    cache = Qwen3ForCausalLM(config)(torch.zeros((1, 7), dtype=torch.long), use_cache=True).past_key_values
    kept = sum(t.numel() * t.element_size() for layer in cache.layers for t in (layer.keys, layer.values))
    assert kept == 7 * read_shape(tmp_path).kv_bytes_per_token(element_bytes=4)


def test_the_cache_of_72b_is_320_kib_a_token() -> None:
    assert (
        PUBLISHED["72b"].kv_bytes_per_token() == 320 * 1024
    )  # 80 layers, 8 heads of 128, keys and values, bf16


def test_sharded_state_is_16_bytes_a_parameter() -> None:
    """ZeRO, arXiv:1910.02054, sec. 3.1: 16 bytes a parameter with Adam in mixed precision."""
    plan = planned("7b", "8xa100")
    update = next(p for p in plan.phases if p.name == "update").parts
    state = update["weights"] + update["gradients"] + update["optimiser"]
    assert state * plan.layout.cards == pytest.approx(16 * PUBLISHED["7b"].params)


def test_the_tutorials_table_for_14b_on_eight_cards() -> None:
    """16 GB rollout, 14 GB actor, no optimiser while it is offloaded, 44 of 80 GB in all."""
    plan = planned("14b", "8xa100", "actor_rollout_ref.rollout.gpu_memory_utilization=0.55")
    rollout, update = plan.phases
    assert rollout.parts["KV cache"] / GIB == pytest.approx(16, abs=1)
    assert (update.parts["weights"] + update.parts["gradients"]) / GIB == pytest.approx(14, abs=0.5)
    assert "optimiser" not in rollout.parts
    assert plan.peak.total / GIB == pytest.approx(44, abs=2)
    assert plan.fits


def test_the_tutorials_reference_model() -> None:
    """Its 14 GB are no resident weights, which are 6.9: with the logits of one micro-batch they are."""
    plan = planned("14b", "8xa100", "actor_rollout_ref.actor.use_kl_loss=true")
    reference = next(p for p in plan.phases if p.name == "reference").parts
    assert reference["reference"] / GIB == pytest.approx(4 * PUBLISHED["14b"].params / 8 / GIB)
    assert (reference["reference"] + reference["logits"]) / GIB == pytest.approx(14, abs=1)


def test_a_layers_activations_are_what_autograd_saves(tmp_path: Path) -> None:
    """Bytes that autograd keeps for one more layer of a Qwen2, attention kernel without scores, in fp32."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    def saved(n_layers: int) -> int:
        sizes = {**TINY, "hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": n_layers}
        config = Qwen2Config(**sizes, attn_implementation="sdpa")
        config.save_pretrained(tmp_path)
        model = Qwen2ForCausalLM(config)
        own = {p.untyped_storage().data_ptr() for p in model.parameters()}
        kept: dict[int, int] = {}

        def keep(tensor: torch.Tensor) -> torch.Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in own:
                kept[storage.data_ptr()] = storage.nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
            out = model(torch.zeros((1, 128), dtype=torch.long), use_cache=False)
        assert out.logits.requires_grad
        return sum(kept.values())

    measured = (saved(4) - saved(2)) / 2 / 128
    assert read_shape(tmp_path).layer_activation_bytes_per_token(4) == pytest.approx(measured, rel=0.35)


def test_checkpointing_keeps_one_input_a_layer() -> None:
    on = planned("7b", "8xa100")
    off = planned("7b", "8xa100", "actor_rollout_ref.model.enable_gradient_checkpointing=false")
    shape, layout = PUBLISHED["7b"], on.layout
    kept = activations(shape, layout, update=True)["activations"]
    assert kept == pytest.approx(shape.layers * layout.micro_tokens * shape.hidden * 2, rel=0.05)  # 2 s b h L
    assert off.phases[-1].total > 2 * on.phases[-1].total


def test_cards_that_only_generate_hold_no_training_state() -> None:
    rollout, update = planned("7b", "8xa100", placement="disaggregated").phases
    assert not {"weights", "optimiser", "reference"} & set(rollout.parts)
    assert not {"rollout weights", "KV cache"} & set(update.parts)


@pytest.mark.parametrize("algo", names("algo"))
def test_who_needs_a_reference_or_a_critic_is_verls_own_answer(
    algo: str, compose: Callable[..., Any]
) -> None:
    from verl.trainer.ppo.utils import need_critic, need_reference_policy

    for settings in ((), ("actor_rollout_ref.actor.use_kl_loss=true",), ("algorithm.adv_estimator=gae",)):
        config = compose(algo, *settings)
        layout = layout_of(config)
        assert layout.reference == need_reference_policy(config)
        assert layout.critic == need_critic(config)


def traffic(**changes: Any) -> Traffic:
    facts = {
        "questions": 8,
        "group_size": 4,
        "prompt_tokens": 500,
        "policy_tokens": 500,
        "tool_tokens": 1000,
        "searches": 2,
    }
    return Traffic(**{**facts, **changes})


def time_of(size: str, cluster: str, t: Traffic, *settings: str) -> Any:
    plan = planned(size, cluster, *settings)
    return plan_time(PUBLISHED[size], plan.layout, A100, t, plan.kv_tokens)


def test_a_step_by_hand() -> None:
    found = time_of("14b", "8xa100", traffic())
    assert found.tokens_per_step == 32 * 2000
    flops = 8 * PUBLISHED["14b"].params * 32 * 2000  # 2 forward, 4 backward, 2 computed again
    assert found.update_s == pytest.approx(flops / (8 * 312e12 * 0.35))
    assert found.searches_per_s == pytest.approx(32 * 2 / found.generation_s)
    assert found.days(382) == pytest.approx(382 * found.step_s / 86400)


def test_the_bound_is_below_what_the_tutorial_measured_and_not_far() -> None:
    """About 95 s a step for 32 rollouts of 14B on 8 A100, without dynamic sampling."""
    assert 95 / 4 < time_of("14b", "8xa100", traffic()).step_s < 95


def test_time_moves_the_right_way() -> None:
    base = time_of("14b", "8xa100", traffic())
    assert time_of("14b", "8xa100", traffic(questions=16)).step_s > base.step_s
    assert time_of("14b", "8xa100", traffic(accept_rate=0.25)).generation_s > base.generation_s
    assert time_of("14b", "8xa100", traffic(tail=4.0)).generation_s > base.generation_s
    assert time_of("7b", "8xa100", traffic()).step_s < base.step_s
    with_kl = time_of("14b", "8xa100", traffic(), "actor_rollout_ref.actor.use_kl_loss=true")
    assert base.reference_s == 0 < with_kl.reference_s


def test_the_command_says_whether_it_fits(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--size", "14b", "--cluster", "8xa100", "--algo", "dapo"]
    assert main(["memory", *words]) == 0
    told = capsys.readouterr().out
    assert "fits:" in told and "KV cache" in told
    assert main(["memory", *words, "--device-gib", "24"]) == 1
    assert "DOES NOT FIT" in capsys.readouterr().out
    assert main(["memory", *words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["parameters"] == PUBLISHED["14b"].params


def test_time_from_a_run_that_was_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [
        {"timing_s/step": s, "scout/policy_tokens": 60, "scout/sequence_tokens": 110, "scout/searches": 1.5}
        for s in (3.0, 4.0, 20.0)
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    words = ["time", "--size", "14b", "--cluster", "8xa100", "--from", str(tmp_path), "--json"]
    assert main([*words, "--steps", "21600"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["measured_step_s"] == 4.0
    assert found["traffic"]["tool_tokens"] == 50 and found["traffic"]["searches"] == 1.5


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["memory", "--size", "tiny", "--cluster", "cpu"], "--model"),
        (["memory", "--size", "9b"], "size: 9b"),
        (["memory", "--size", "14b", "--device-gib", "0"], "--device-gib"),
        (["memory", "--model", "/nowhere"], "no config.json"),
        (["time", "--size", "14b", "--steps", "0"], "--steps"),
        (["time", "--size", "14b", "--accept-rate", "2"], "--accept-rate"),
        (["time", "--size", "14b", "--policy-tokens", "-1"], "--policy-tokens"),
        (["time", "--size", "14b", "--from", "/nowhere"], "--from"),
    ],
)
def test_a_wrong_plan_is_one_line(argv: list[str], says: str) -> None:
    with pytest.raises(UserError) as error:
        main([*argv, "--cluster", "8xa100"] if "--cluster" not in argv else argv)
    assert says in str(error.value) and "\n" not in str(error.value)


def test_a_model_that_is_not_counted_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "mamba"}')
    with pytest.raises(UserError, match="mamba: only qwen2"):
        read_shape(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "qwen2", "hidden_size": 8}')
    with pytest.raises(UserError, match="not a whole description"):
        read_shape(tmp_path)


def test_shapes_are_plain_values() -> None:
    assert isinstance(PUBLISHED["7b"], ModelShape) and PUBLISHED["7b"].head_dim == 128
