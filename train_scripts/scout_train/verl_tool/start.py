"""Starting a run in the other environment, and what goes in and comes out of it.

The environments hold different versions of transformers, and each writes files that the other does not read:
the model goes in with a tokenizer and a configuration that transformers 4 understands, and its weights come
out under the configuration that they went in with.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

from scout_protocol.errors import UserError
from scout_train.verl_tool import paths

MODEL = "model"  # in the run's folder: the start model as the other environment reads it


def environment(env: dict[str, str], temp_dir: str) -> dict[str, str]:
    """The variables of a run of the engine verl, changed to what this one reads.

    Raises:
        UserError: verl-tool has no code here.
    """
    code = paths.checkout()
    dropped = ("VERL_PLATFORM", "VERL_USE_EXTERNAL_PLUGINS", "TRANSFER_QUEUE_ENABLE", "TQ_")
    kept = {
        k: v for k, v in env.items() if not k.startswith(dropped) and k not in ("VIRTUAL_ENV", "PYTHONHOME")
    }
    rooms = paths.link_rooms(Path(temp_dir) / "rooms")
    return kept | {
        "PYTHONPATH": os.pathsep.join((rooms, str(code), str(code / "verl"))),
        "VERL_USE_EXTERNAL_MODULES": "scout_train.verl_tool.patches,scout_train.verl_tool.plugin",
        "HYDRA_FULL_ERROR": "1",
    }


def command(config: Any, out: Path, temp_dir: str) -> list[str]:
    """The training process; makes the model's folder for it.

    Raises:
        UserError: no environment, or a model that transformers 4 cannot read.
    """
    model_for_transformers_4(Path(config.actor_rollout_ref.model.path), out / MODEL)
    module = "scout_train.verl_tool.runner"
    return [str(paths.python()), "-m", module, str(out / "config.yaml"), temp_dir]


def model_for_transformers_4(source: Path, out: Path) -> None:
    """A folder beside the run with the weights linked, and configuration and tokenizer said in older words.

    transformers 5 names the generic fast tokenizer ``TokenizersBackend`` and keeps the rotary base in
    ``rope_parameters``; transformers 4 knows neither, and would silently turn positions by its default base.

    Raises:
        UserError: rotary parameters that the older words cannot say.
    """
    partial = out.with_name(f".{out.name}.{os.getpid()}.tmp")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    for file in source.resolve().iterdir():
        if file.is_file() and not file.name.startswith("."):
            (partial / file.name).symlink_to(file)
    for name, change in (("config.json", _older_config), ("tokenizer_config.json", _older_tokenizer)):
        content = change(json.loads((source / name).read_text(encoding="utf-8")), str(source / name))
        (partial / name).unlink()
        (partial / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    shutil.rmtree(out, ignore_errors=True)
    partial.replace(out)


def _older_config(content: dict[str, Any], where: str) -> dict[str, Any]:
    rope = content.pop("rope_parameters", None)
    if rope:
        rope = dict(rope)
        kind = rope.pop("rope_type", "default")
        base = rope.pop("rope_theta", None)
        if base is None or any(isinstance(value, dict) for value in rope.values()):
            raise UserError(
                f"{where}: rope_parameters", rope, "transformers 4 cannot say this: use engine verl"
            )
        content["rope_theta"] = base
        content["rope_scaling"] = None if kind == "default" else {"rope_type": kind, **rope}
    if "dtype" in content:
        content["torch_dtype"] = content.pop("dtype")
    return content


def _older_tokenizer(content: dict[str, Any], where: str) -> dict[str, Any]:
    if content.get("tokenizer_class") in ("TokenizersBackend", "PreTrainedTokenizer"):
        content["tokenizer_class"] = "PreTrainedTokenizerFast"
    extra = content.pop("extra_special_tokens", None)
    if isinstance(extra, list) and extra:
        content["additional_special_tokens"] = extra
    elif isinstance(extra, dict) and extra:
        content["extra_special_tokens"] = extra
    return content


def export(config: Any) -> None:
    """``hf/``: the trained weights with the start model's own files, checked by loading it.

    Raises:
        UserError: the last checkpoint holds no weights, or they do not reload.
    """
    from scout_agent.model_folder import export_model
    from scout_train.resume import checkpoints

    last = checkpoints(Path(config.trainer.default_local_dir))[-1] / "actor" / "huggingface"
    start, run_dir = Path(config.actor_rollout_ref.model.path), Path(config.scout.run.dir)
    staged = run_dir / ".export"
    shutil.rmtree(staged, ignore_errors=True)
    staged.mkdir()
    for file in last.iterdir():
        if file.name.startswith("model"):
            (staged / file.name).symlink_to(file.resolve())
    shutil.copy2(start / "config.json", staged / "config.json")
    try:
        export_model(staged, start, run_dir / "hf")
    finally:
        shutil.rmtree(staged, ignore_errors=True)
