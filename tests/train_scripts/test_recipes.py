"""Every line of a recipe is short, known to a reader, and does what its file says."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import itertools
import re
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
    keys = ["adv_estimator", "loss_agg_mode", "clip_ratio_low", "clip_ratio_high", "use_kl_loss", "enable"]
    for key in [*keys, "lam" if algo == "ppo" else "norm_adv_by_std_in_grpo"]:
        assert f".{key}:" in text, f"{key} would be inherited in silence"


@pytest.mark.parametrize("algo", recipes.names("algo"))
def test_every_overlay_value_arrives(algo: str, compose: Callable[..., Any]) -> None:
    from omegaconf import OmegaConf

    config = compose(algo)
    for _, keys in recipes.overlays(Choice(algo)):
        for key, value in keys.items():
            found = OmegaConf.select(config, key)
            plain = OmegaConf.to_container(found) if OmegaConf.is_config(found) else found
            if isinstance(value, str) and value.startswith("${"):
                assert plain == OmegaConf.select(config, value[2:-1]) or "oc.select" in value, key
            elif isinstance(value, dict):
                assert {k: plain[k] for k in value} == value, key
            else:
                assert plain == value, key


@pytest.mark.parametrize("algo", recipes.names("algo"))
def test_every_size_and_cluster_composes(algo: str) -> None:
    from omegaconf import OmegaConf

    for size, cluster in itertools.product(recipes.names("size"), recipes.names("cluster")):
        config = recipes.compose(Choice(algo, size, cluster))
        for section in ("actor_rollout_ref", "critic", "algorithm", "trainer"):
            OmegaConf.to_container(config[section], resolve=True)  # no reference leads nowhere


# What the sizes were made for.
PLACES = [
    ("tiny", "cpu", "colocated"),
    ("3b", "1gpu", "colocated"),
    ("7b", "8xa100", "colocated"),
    ("7b", "8xa100", "disaggregated"),
    ("14b", "8xa100", "colocated"),
    ("14b", "8xa100", "disaggregated"),
    ("72b", "64x910b", "colocated"),
    ("72b", "64x910b", "disaggregated_nodes"),
]


@pytest.mark.parametrize("algo", recipes.names("algo"))
@pytest.mark.parametrize("place", PLACES, ids="-".join)
def test_both_check_lists_accept_what_is_composed(
    algo: str, place: tuple[str, str, str], model_dir: Path
) -> None:
    """Ours and verl's own."""
    from omegaconf import open_dict
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import validate_config

    from scout_train import checks

    size, cluster, placement = place
    config = recipes.compose(Choice(algo, size, cluster, placement=placement))
    with open_dict(config):
        config.trainer.total_training_steps = 10
        config.actor_rollout_ref.model.path = config.critic.model.path = str(model_dir)
    checks.check_config(config)
    settings.check_settings(config)
    assert need_critic(config) == (algo == "ppo") and not need_reference_policy(config)
    validate_config(config, use_reference_policy=False, use_critic=need_critic(config))


@pytest.mark.parametrize(
    ("choice", "says"),
    [
        (Choice(placement="disaggregated"), "cannot be split"),
        (Choice(options=("vllm",)), "on cpu choose transformers"),
        (Choice(size="7b", cluster="8xa100", options=("transformers",)), "on cuda choose vllm or sglang"),
        (Choice(size="72b", cluster="64x910b", placement="disaggregated"), "must divide the 2 cards"),
    ],
)
def test_places_that_do_not_exist_are_refused(choice: Choice, says: str) -> None:
    from scout_train import checks

    config = recipes.compose(choice, [("trainer.total_training_steps", 1)])
    with pytest.raises(UserError, match=says):
        checks.check_config(config)


def test_verls_own_trainer_accepts_the_disaggregated_recipe(model_dir: Path) -> None:
    """Constructed, not run: it needs cards. It asserts what it demands of batch, cards and transfer."""
    from omegaconf import OmegaConf, open_dict
    from verl.trainer.ppo.v1.replay_buffer import ReplayBufferAsync

    from scout_train.trainer_disaggregated import ScoutTrainerDisaggregated

    config = recipes.compose(Choice("dapo", "7b", "8xa100", placement="disaggregated"))
    with open_dict(config):
        config.actor_rollout_ref.model.path = config.critic.model.path = str(model_dir)
        config.scout.run.dir = config.scout.run.stage = config.scout.run.model = config.scout.tools.url = "x"
    OmegaConf.resolve(config)
    trainer = ScoutTrainerDisaggregated(config)
    assert type(trainer.replay_buffer) is ReplayBufferAsync
    assert trainer.replay_buffer.filter_groups_metric == "acc"
    cards = config.trainer.n_gpus_per_node + config.actor_rollout_ref.rollout.n_gpus_per_node
    assert cards == 8 and trainer.parameter_sync_step == 1


def test_every_word_has_a_reason_and_arrives() -> None:
    from omegaconf import OmegaConf

    for word, option in recipes.read_options().items():
        assert len(option.why) > 40 and option.why.endswith("."), word
        config = recipes.compose(Choice("ppo" if word == "kl_in_reward" else "dapo", options=(word,)))
        for key, value in option.keys.items():
            found = OmegaConf.select(config, key)
            assert (list(found) if OmegaConf.is_list(found) else found) == value, key


def test_words_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(UserError, match="kl no_kl: choose one: both set"):
        recipes.compose(Choice(options=("kl", "no_kl")))
    with pytest.raises(UserError, match="--with: klip: choose among"):
        recipes.compose(Choice(options=("klip",)))
    recipes.compose(Choice(options=("no_kl", "gigpo", "no_kl")))


def test_the_setting_wins_over_the_word() -> None:
    key = "actor_rollout_ref.actor.clip_ratio_high"
    assert (
        recipes.compose(Choice(options=("clip_03",)), [(key, 0.4)]).actor_rollout_ref.actor.clip_ratio_high
        == 0.4
    )


def leaves(key: str, value: Any) -> list[str]:
    if isinstance(value, dict):
        return [leaf for part, item in value.items() for leaf in leaves(f"{key}.{part}", item)]
    return [key]


def test_every_key_is_read_by_verls_code() -> None:
    """Not only listed in its YAML: the last word of the key stands in its Python, TransferQueue's or ours."""
    import transfer_queue
    import verl

    code = set()
    packages = [
        Path(p) for p in (*verl.__path__, *transfer_queue.__path__, str(Path(settings.__file__).parent))
    ]
    for package in packages:
        for file in package.rglob("*.py"):
            code |= set(re.findall(r"[A-Za-z_][A-Za-z_0-9]*", file.read_text(encoding="utf-8")))
    overlaid = [recipes.read_overlay(p) for p in OVERLAYS] + [o.keys for o in recipes.read_options().values()]
    passed_whole = ("actor_rollout_ref.model.override_config", "ray_kwargs.ray_init", "scout.")
    for keys in overlaid:
        for key in (leaf for k, v in keys.items() for leaf in leaves(k, v)):
            if not key.startswith(passed_whole):
                assert key.rpartition(".")[2] in code, key


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
