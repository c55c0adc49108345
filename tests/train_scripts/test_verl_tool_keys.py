"""Recipes in the words of verl 0.7.0.dev: what is renamed, left out, refused; and whole compositions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from verl_tool_place import needs_code

from scout_protocol.errors import UserError
from scout_train.compose import Choice, compose, names, parse_setting
from scout_train.verl_tool import keys, paths, start

OVERLAY = "recipes/x.yaml"


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("algorithm.adv_estimator", "grpo", [("algorithm.adv_estimator", "grpo")]),
        ("reward.reward_manager.name", "x", [("reward_model.reward_manager", "x")]),
        ("reward.custom_reward_function.path", "f.py", [("custom_reward_function.path", "f.py")]),
        (
            "critic.optim.clip_grad",
            "${actor_rollout_ref.actor.optim.clip_grad}",
            [("critic.grad_clip", "${actor_rollout_ref.actor.grad_clip}")],
        ),
        ("critic.fsdp.param_offload", True, [("critic.model.fsdp_config.param_offload", True)]),
        ("trainer.v1.trainer_mode", "sync", []),
        ("trainer.v1", {"trainer_mode": "sync"}, []),
        ("actor_rollout_ref.actor.loss_scale_factor", "${data.max_response_length}", []),
        ("actor_rollout_ref.rollout.free_cache_engine", False, []),
        (
            "actor_rollout_ref.model.external_lib",
            "scout_train.cpu.plugin",
            [("actor_rollout_ref.model.external_lib", "scout_train.verl_tool.worker")],
        ),
    ],
)
def test_words(key: str, value: Any, expected: list[tuple[str, Any]]) -> None:
    assert keys.translated(key, value, OVERLAY) == expected


@pytest.mark.parametrize(
    ("key", "value", "source", "says"),
    [
        ("trainer.v1.trainer_mode", "separate_async", OVERLAY, "placement colocated"),
        ("actor_rollout_ref.actor.loss_scale_factor", 512, OVERLAY, "padded length"),
        ("algorithm.rollout_correction.bypass_mode", False, "--set", "computed anew"),
        ("scout.credit.step_weight", 1.0, OVERLAY, "use engine verl"),
        ("actor_rollout_ref.rollout.free_cache_engine", False, "--set", "always true"),
        ("transfer_queue.enable", True, "--set", "no TransferQueue"),
    ],
)
def test_refusals(key: str, value: Any, source: str, says: str) -> None:
    with pytest.raises(UserError, match=says) as caught:
        keys.translated(key, value, source)
    assert key in str(caught.value) and "verl_tool" in str(caught.value)


def test_no_word_is_in_two_lists() -> None:
    lists = [set(keys.RENAMED), set(keys.CONSTANT), set(keys.NO_SUBJECT)]
    assert sum(map(len, lists)) == len(set.union(*lists))


@needs_code
@pytest.mark.parametrize("size", names("size"))
@pytest.mark.parametrize("algo", [a for a in names("algo") if a != "ppo"])
def test_every_recipe_composes(algo: str, size: str) -> None:
    config = compose(Choice(algo, size=size, engine="verl_tool"))
    ours = compose(Choice(algo, size=size))
    for key in (
        "algorithm.adv_estimator",
        "algorithm.norm_adv_by_std_in_grpo",
        "algorithm.filter_groups.enable",
        "actor_rollout_ref.actor.loss_agg_mode",
        "actor_rollout_ref.actor.clip_ratio_low",
        "actor_rollout_ref.actor.clip_ratio_high",
        "actor_rollout_ref.actor.clip_ratio_c",
        "actor_rollout_ref.actor.use_kl_loss",
        "actor_rollout_ref.actor.optim.lr",
        "actor_rollout_ref.rollout.n",
        "actor_rollout_ref.rollout.temperature",
        "data.train_batch_size",
        "data.max_response_length",
        "scout.reward",
        "scout.episode",
    ):
        assert select(config, key) == select(ours, key), key


def select(config: Any, key: str) -> Any:
    from omegaconf import OmegaConf

    return OmegaConf.select(config, key)


def settled(*settings: str) -> Any:
    config = compose(Choice("dapo", engine="verl_tool"), [parse_setting(s) for s in settings])
    config.scout.tools.url = "http://127.0.0.1:1"
    keys.settle(config)
    return config


@needs_code
def test_what_follows_from_the_rest() -> None:
    config = settled("scout.episode.max_turns=5", "scout.reward.format_score=0.2")
    agent, rollout = config.actor_rollout_ref.agent, config.actor_rollout_ref.rollout
    assert (agent.max_turns, agent.max_action_length) == (4, config.scout.episode.max_turn_tokens)
    assert agent.mask_observations and agent.logprobs and not agent.mask_overlong_loss
    assert agent.tool_server_url == "http://127.0.0.1:1/get_observation"
    assert config.reward_model.reward_manager == "scout_search"
    assert config.reward_model.reward_kwargs.format_score == 0.2
    assert rollout.free_cache_engine and rollout.engine_kwargs.transformers.seed == 0
    assert config.actor_rollout_ref.actor.use_rollout_log_probs


@needs_code
@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("actor_rollout_ref.agent.mask_overlong_loss=true", "use scout.reward.overlong_mask"),
        ("scout.episode.max_turns=1", "at least 2"),
        ("algorithm.adv_estimator=rloo", "use engine verl"),
    ],
)
def test_settings_that_it_cannot_follow(setting: str, says: str) -> None:
    with pytest.raises(UserError, match=says):
        settled(setting)


@needs_code
def test_an_unknown_key_is_refused() -> None:
    with pytest.raises(UserError, match="no reader knows this key"):
        settled("actor_rollout_ref.agent.max_turn=3")


def test_absent_code_and_environment_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCOUT_VERL_TOOL", str(tmp_path))
    with pytest.raises(UserError, match="git submodule update --init verl-tool"):
        paths.checkout()
    for name, text in (("verl_tool/trainer/main_ppo.py", ""), ("verl/verl/__init__.py", "")):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "verl/verl/version").mkdir()
    (tmp_path / "verl/verl/version/version").write_text("0.8.0\n")
    with pytest.raises(UserError, match=r"0\.7\.0\.dev"):
        paths.checkout()
    monkeypatch.setenv("SCOUT_VERL_TOOL_PYTHON", str(tmp_path / "python"))
    with pytest.raises(UserError, match="make setup-verl-tool"):
        paths.python()


def folder(tmp_path: Path, config: dict[str, Any], tokenizer: dict[str, Any]) -> Path:
    source = tmp_path / "source"
    source.mkdir()
    for name, content in (("config.json", config), ("tokenizer_config.json", tokenizer)):
        (source / name).write_text(json.dumps(content))
    (source / "model.safetensors").write_bytes(b"weights")
    return source


def test_a_model_folder_in_older_words(tmp_path: Path) -> None:
    source = folder(
        tmp_path,
        {
            "dtype": "float32",
            "rope_parameters": {"rope_type": "default", "rope_theta": 5e5},
            "hidden_size": 8,
        },
        {"tokenizer_class": "TokenizersBackend", "extra_special_tokens": ["<x>"]},
    )
    start.model_for_transformers_4(source, tmp_path / "out")
    assert json.loads((tmp_path / "out/config.json").read_text()) == {
        "torch_dtype": "float32",
        "rope_theta": 5e5,
        "rope_scaling": None,
        "hidden_size": 8,
    }
    assert json.loads((tmp_path / "out/tokenizer_config.json").read_text()) == {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "additional_special_tokens": ["<x>"],
    }
    assert (tmp_path / "out/model.safetensors").read_bytes() == b"weights"
    assert "rope_parameters" in (source / "config.json").read_text()  # the start model is as it was


def test_rotary_parameters_that_have_no_older_words(tmp_path: Path) -> None:
    per_layer = {"rope_parameters": {"full": {"rope_theta": 1e6}, "sliding": {"rope_theta": 1e4}}}
    with pytest.raises(UserError, match="use engine verl"):
        start.model_for_transformers_4(folder(tmp_path, per_layer, {}), tmp_path / "out")
