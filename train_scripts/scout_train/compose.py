"""Recipes: a run is verl's own defaults plus named overlays, and an overlay names only what it changes.

An overlay is a YAML file of dotted keys. A key is accepted if verl's configuration has it, if it is one of
the few that verl reads without listing them (`ADDED`), or if it is a field of
`scout_train.settings.ScoutSection`. Everything else is refused, so that no line of a recipe is silently
without effect.
"""

from __future__ import annotations

import copy
import importlib.util
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from scout_protocol.errors import UserError
from scout_train.settings import ScoutSection

# Applied in this order, after search_agent and before the words of options.yaml.
KINDS = ("algo", "size", "engine", "cluster", "placement")
OPTIONS = "options"  # the file of words, and the first part of their names in `overlays`
# Prefixes of keys that verl 0.9.1 reads although its YAML files do not list them, and where it reads them.
ADDED = {
    "actor_rollout_ref.actor.fsdp_config.mixed_precision": "verl.workers.config.FSDPEngineConfig",
    "actor_rollout_ref.ref.fsdp_config.mixed_precision": "verl.workers.config.FSDPEngineConfig",
    "actor_rollout_ref.rollout.agent.agent_loop_manager_class": "verl.trainer.main_ppo.TaskRunnerV1",
    "actor_rollout_ref.rollout.enable_sleep_mode": "verl.workers.config.RolloutConfig",
    "actor_rollout_ref.rollout.engine_kwargs.transformers": "scout_train.cpu.rollout.TransformersReplica",
    "actor_rollout_ref.model.override_config": "verl.workers.config.HFModelConfig",
    "critic.ppo_infer_max_token_len_per_gpu": "verl.workers.config.CriticConfig",
    "critic.fsdp.mixed_precision": "verl.workers.config.FSDPEngineConfig",
    "critic.model.override_config": "verl.workers.config.HFModelConfig",
    "ray_kwargs.ray_init": "ray.init",
}


@dataclass(frozen=True)
class Choice:
    """The words that name a run; ``options`` are words of recipes/options.yaml, applied in their order."""

    algo: str = "grpo"
    size: str = "tiny"
    cluster: str = "cpu"
    engine: str = "verl"
    placement: str = "colocated"
    options: tuple[str, ...] = ()


@dataclass(frozen=True)
class Option:
    """A word of recipes/options.yaml: dotted keys, and the reason to set them."""

    why: str
    keys: dict[str, Any]


def recipes_dir() -> Path:
    """The folder of the overlays: beside the package in a checkout, inside it in an installed wheel."""
    here = Path(__file__).resolve().parent
    return next(p for p in (here / "recipes", here.parent / "recipes") if (p / "search_agent.yaml").is_file())


def names(kind: str) -> list[str]:
    """The overlays of one kind, e.g. ``names("algo") == ["dapo", "grpo"]``."""
    return sorted(p.stem for p in (recipes_dir() / kind).glob("*.yaml"))


def read_overlay(path: Path) -> dict[str, Any]:
    """Dotted keys of one overlay file, in its order.

    Raises:
        UserError: not a mapping of dotted keys.
    """
    import yaml

    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise UserError(str(path), error, "must be YAML: one dotted key a line") from error
    if not isinstance(content, dict) or not all(isinstance(k, str) for k in content):
        raise UserError(str(path), content, "must be a mapping of dotted keys")
    return content


def read_options() -> dict[str, Option]:
    """The words that switch something on or over, ``word: {why: …, set: {dotted keys}}``.

    Raises:
        UserError: a word without a reason or without keys.
    """
    path = recipes_dir() / f"{OPTIONS}.yaml"
    found = {}
    for word, said in read_overlay(path).items():
        if not isinstance(said, dict) or set(said) != {"why", "set"} or not said["why"] or not said["set"]:
            raise UserError(f"{path}: {word}", said, "must have why (text) and set (dotted keys)")
        found[word] = Option(" ".join(str(said["why"]).split()), dict(said["set"]))
    return found


def source_file(name: str) -> str:
    """Where an overlay of `overlays` is written, as a person would look for it."""
    kind, _, word = name.partition("/")
    return f"recipes/{OPTIONS}.yaml ({word})" if kind == OPTIONS else f"recipes/{name}.yaml"


def overlays(choice: Choice) -> list[tuple[str, dict[str, Any]]]:
    """``(name, keys)`` of every overlay of a choice, in the order in which they apply.

    A word of recipes/options.yaml is ``("options/WORD", keys)``.

    Raises:
        UserError: no overlay or word of that name, or two words that set one key differently.
    """
    found = [("search_agent", read_overlay(recipes_dir() / "search_agent.yaml"))]
    for kind in KINDS:
        name = getattr(choice, kind)
        if name not in names(kind):
            raise UserError(kind, name, f"choose one of {', '.join(names(kind))}")
        found.append((f"{kind}/{name}", read_overlay(recipes_dir() / kind / f"{name}.yaml")))
        if found[-1][1].get("algorithm.adv_estimator") == "gae":
            found.append(("critic", read_overlay(recipes_dir() / "critic.yaml")))
    known = read_options() if choice.options else {}
    said: dict[str, tuple[str, Any]] = {}
    for word in choice.options:
        if word not in known:
            raise UserError("--with", word, f"choose among {', '.join(sorted(known))}")
        for key, value in known[word].keys.items():
            other, before = said.setdefault(key, (word, value))
            if before != value:
                raise UserError("--with", f"{other} {word}", f"choose one: both set {key}")
        found.append((f"{OPTIONS}/{word}", known[word].keys))
    return found


def parse_setting(text: str) -> tuple[str, Any]:
    """``key=value`` as typed on the command line; the value is read as YAML.

    Raises:
        UserError: there is no ``=``, or the value is not YAML.
    """
    import yaml

    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise UserError("--set", text, "must be key=value")
    try:
        return key.strip(), _number(yaml.safe_load(value))
    except yaml.YAMLError as error:
        raise UserError("--set", text, "the value is not YAML") from error


def _number(value: Any) -> Any:
    """YAML 1.1 reads ``1e-4`` as text; every reader of this configuration means a number."""
    if isinstance(value, str):
        try:
            return float(value) if "e" in value.lower() else value
        except ValueError:
            return value
    return value


def base_config() -> Any:
    """verl's own defaults plus an empty ``scout`` section; nothing of verl is imported for this.

    Raises:
        UserError: verl is not installed.
    """
    return copy.deepcopy(_base_config())


@cache
def _base_config() -> Any:
    from hydra import compose, initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra
    from omegaconf import OmegaConf, open_dict

    spec = importlib.util.find_spec("verl")
    if spec is None or not spec.submodule_search_locations:
        raise UserError("verl", "not installed", "run `make setup`, or pip install 'scout-rl[train]'")
    folder = Path(next(iter(spec.submodule_search_locations))) / "trainer" / "config"
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(folder), version_base=None):
        config = compose(config_name="ppo_trainer")
    with open_dict(config):
        config.scout = OmegaConf.structured(ScoutSection)
    return config


def apply(config: Any, key: str, value: Any, source: str) -> None:
    """Set one dotted key.

    Raises:
        UserError: the key has no reader, or the value does not have its type.
    """
    from omegaconf import OmegaConf, errors

    if isinstance(value, dict) and not any(key == a or key.startswith(a + ".") for a in ADDED):
        for part, item in value.items():  # so that every leaf is checked by itself
            apply(config, f"{key}.{part}", item, source)
        return
    added = any(key == a or key.startswith(a + ".") for a in ADDED)
    if not added and not _has(config, key):
        raise UserError(f"{source}: {key}", value, "no reader knows this key" + _nearest(config, key))
    try:
        OmegaConf.update(config, key, value, merge=True, force_add=added)
    except (errors.ValidationError, errors.ConfigTypeError, errors.ConfigKeyError) as error:
        raise UserError(f"{source}: {key}", value, str(error).splitlines()[0]) from error


def _has(config: Any, key: str) -> bool:
    from omegaconf import DictConfig, OmegaConf

    parent, _, last = key.rpartition(".")
    node = OmegaConf.select(config, parent, throw_on_missing=False) if parent else config
    return isinstance(node, DictConfig) and last in node.keys()  # noqa: SIM118 (`in node` is False for ???)


def _nearest(config: Any, key: str) -> str:
    import difflib

    from omegaconf import DictConfig, OmegaConf

    parts = key.split(".")
    while parts:
        parts.pop()
        node = OmegaConf.select(config, ".".join(parts)) if parts else config
        if isinstance(node, DictConfig):
            rest = key.split(".")[len(parts)]
            close = difflib.get_close_matches(rest, [str(k) for k in node], n=3)
            at = ".".join(parts) or "the top level"
            return f"; {at} has {', '.join(close)}" if close else f"; nothing like it in {at}"
    return ""


def leaves(prefix: str, value: Any) -> dict[str, Any]:
    """A setting key by key: ``leaves("a", {"b": {"c": 1}})`` is ``{"a.b.c": 1}``."""
    if isinstance(value, dict) and value:
        found: dict[str, Any] = {}
        for name, item in value.items():
            found |= leaves(f"{prefix}.{name}", item)
        return found
    return {prefix: value}


def compose(choice: Choice, settings: list[tuple[str, Any]] | None = None) -> Any:
    """verl's configuration for one run, before paths are filled in: defaults, overlays, ``--set``.

    Raises:
        UserError: unknown overlay or key, or a value of the wrong type.
    """
    from scout_train.readers import unread

    if choice.engine == "verl_tool":
        from scout_train.verl_tool import keys as verl_tool

        config, translated = verl_tool.base_config(), verl_tool.translated
    else:
        config, translated = base_config(), _as_it_is
    named = [
        (source_file(source), k, _number(v)) for source, keys in overlays(choice) for k, v in keys.items()
    ]
    for source, key, value in [*named, *(("--set", k, v) for k, v in settings or [])]:
        for its_key, its_value in translated(key, value, source):
            for leaf, leaf_value in leaves(its_key, its_value).items():
                if remedy := unread(choice.engine, leaf):
                    told = f"{choice.engine} accepts this key and never reads it: {remedy}"
                    raise UserError(f"{source}: {leaf}", leaf_value, told)
            apply(config, its_key, its_value, source)
    if choice.engine != "verl_tool":
        _tell_sampler(config)
    return config


def _as_it_is(key: str, value: Any, source: str) -> list[tuple[str, Any]]:
    return [(key, value)]


def _tell_sampler(config: Any) -> None:
    """Hand our sampler what it needs; verl 0.9.1 passes a custom sampler nothing but ``sampler_kwargs``."""
    from omegaconf import open_dict

    groups = "algorithm.filter_groups"
    with open_dict(config):
        config.trainer.v1.sampler.sampler_kwargs = {
            "poll_interval_s": "${scout.sampler.poll_interval_s}",
            "max_infra_error_share": "${scout.sampler.max_infra_error_share}",
            "carry_max_steps": "${scout.sampler.carry_max_steps}",
            "train_batch_size": "${data.train_batch_size}",
            "group_size": "${actor_rollout_ref.rollout.n}",
            "filter_groups": f"${{{groups}.enable}}",
            "metric": f"${{{groups}.metric}}",
            "max_num_gen_batches": f"${{{groups}.max_num_gen_batches}}",
            "max_inflight_gen_batches": f"${{{groups}.max_inflight_gen_batches}}",
        }
