"""Every line of a recipe is short, known to a reader, and does what its file says."""

from __future__ import annotations

import ast
import dataclasses
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scout_protocol.errors import UserError
from scout_train import compose as recipes
from scout_train import settings
from scout_train.compose import Choice, parse_setting

OVERLAYS = sorted(p for p in recipes.recipes_dir().rglob("*.yaml") if p.name != "options.yaml")


@pytest.mark.parametrize("path", OVERLAYS, ids=lambda p: p.stem)
def test_an_overlay_is_short_and_says_what_it_is(path: Path) -> None:
    lines = path.read_text().splitlines()
    assert 7 <= len(lines) <= 20
    assert lines[0].startswith("# ")


@pytest.mark.parametrize("algo", recipes.names("algo"))
def test_algorithms_name_their_paper_and_state_the_method(algo: str) -> None:
    text = (recipes.recipes_dir() / "algo" / f"{algo}.yaml").read_text()
    assert "arXiv:" in text and "eq." in text
    for key in (
        "loss_agg_mode",
        "clip_ratio_low",
        "clip_ratio_high",
        "norm_adv_by_std_in_grpo",
        "use_kl_loss",
    ):
        assert f".{key}:" in text, f"{key} would be inherited in silence"


@pytest.mark.parametrize("algo", recipes.names("algo"))
def test_every_overlay_value_arrives(algo: str, compose: Callable[..., Any]) -> None:
    from omegaconf import OmegaConf

    config = compose(algo)
    for _, keys in recipes.overlays(Choice(algo)):
        for key, value in keys.items():
            found = OmegaConf.select(config, key)
            plain = OmegaConf.to_container(found) if OmegaConf.is_config(found) else found
            if isinstance(value, dict):
                assert {k: plain[k] for k in value} == value, key
            else:
                assert plain == value, key


def test_verl_accepts_what_is_composed(compose: Callable[..., Any]) -> None:
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import validate_config

    for algo in recipes.names("algo"):
        config = compose(algo)
        assert not need_critic(config) and not need_reference_policy(config)
        validate_config(config, use_reference_policy=False, use_critic=False)


def test_kl_route_needs_a_reference_model(compose: Callable[..., Any]) -> None:
    from verl.trainer.ppo.utils import need_reference_policy

    assert need_reference_policy(compose("grpo", "actor_rollout_ref.actor.use_kl_loss=true"))


def test_keys_outside_verls_yaml_have_the_reader_that_is_claimed() -> None:
    import inspect

    for key, reader in recipes.ADDED.items():
        module, _, name = reader.rpartition(".")
        owner = getattr(importlib.import_module(module), name)
        last = key.rpartition(".")[2]
        if dataclasses.is_dataclass(owner):
            assert last in {f.name for f in dataclasses.fields(owner)}, key
        elif module.startswith("scout_train") or name == "TaskRunnerV1":
            assert last in inspect.getsource(importlib.import_module(module)), key
        else:  # ray.init takes named options
            assert callable(owner), key


def test_every_scout_key_is_read_somewhere() -> None:
    package = Path(settings.__file__).parent
    read = {
        node.attr
        for file in package.rglob("*.py")
        if file.name != "settings.py"
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Attribute)
    }
    from scout_agent.episode import EpisodeSettings
    from scout_reward.settings import RewardSettings
    from scout_train.sampler import SamplerOptions

    passed_on = {
        f.name for c in (EpisodeSettings, RewardSettings, SamplerOptions) for f in dataclasses.fields(c)
    }
    for section in dataclasses.fields(settings.ScoutSection):
        assert section.name in read
        for key in dataclasses.fields(section.default_factory):  # type: ignore[arg-type]
            assert key.name in read | passed_on, f"scout.{section.name}.{key.name} has no reader"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("data.train_bach_size=3", "train_batch_size"),
        ("foo=1", "no reader knows this key"),
        ("scout.episode.max_turnz=2", "max_turns"),
        ("scout.episode.max_turns=abc", "abc"),
        ("actor_rollout_ref.actor.fsdp_config.precision=fp32", "no reader"),
        ("algorithm.filter_groups={enable: true, metrics: acc}", "metrics"),
        ("no_equals_sign", "key=value"),
        ("=3", "key=value"),
        ("data.seed=[1", "not YAML"),
    ],
)
def test_a_wrong_setting_is_one_line(text: str, says: str, compose: Callable[..., Any]) -> None:
    with pytest.raises(UserError) as error:
        compose("grpo", text)
    assert says in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("kind", recipes.KINDS)
def test_an_unknown_overlay_is_refused_with_the_choices(kind: str) -> None:
    with pytest.raises(UserError, match=f"{kind}: nope: choose one of"):
        recipes.compose(Choice(**{kind: "nope"}))


def test_a_broken_overlay_file_names_itself(tmp_path: Path) -> None:
    for content in ("a: [1", "just text", "- a\n- b", "1: 2"):
        path = tmp_path / "broken.yaml"
        path.write_text(content)
        with pytest.raises(UserError, match=r"broken\.yaml"):
            recipes.read_overlay(path)


def test_settings_win_over_overlays_and_numbers_are_numbers(compose: Callable[..., Any]) -> None:
    config = compose(
        "dapo", "actor_rollout_ref.actor.optim.lr=1e-4", "actor_rollout_ref.actor.clip_ratio_high=0.3"
    )
    assert config.actor_rollout_ref.actor.optim.lr == 1e-4
    assert config.actor_rollout_ref.actor.clip_ratio_high == 0.3
    assert parse_setting("a.b=fire") == ("a.b", "fire")


def test_sampler_is_told_what_the_recipe_says(compose: Callable[..., Any]) -> None:
    from omegaconf import OmegaConf

    from scout_train.sampler import SamplerOptions

    kwargs = OmegaConf.to_container(compose("dapo").trainer.v1.sampler.sampler_kwargs, resolve=True)
    options = SamplerOptions(**kwargs)
    assert options.filter_groups and options.metric == "acc"
    assert (options.max_num_gen_batches, options.group_size, options.train_batch_size) == (8, 8, 8)
