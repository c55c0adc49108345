"""Where verl-tool and its environment are; each absence is one line that says what to do."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any

from scout_protocol.errors import UserError

ROOMS = ("scout_protocol", "scout_data", "scout_reward", "scout_agent", "scout_train")
VERL_VERSION = "0.7.0.dev"  # what verl-tool 980962b has vendored; `patches` is written for it
_MAIN, _VERL, _VERSION = "verl_tool/trainer/main_ppo.py", "verl/verl/__init__.py", "verl/verl/version/version"


def _repository() -> Path | None:
    """The checkout that this package runs from; None in an installed wheel."""
    here = Path(__file__).resolve()
    return next(
        (p for p in here.parents if (p / "pyproject.toml").is_file() and (p / "Makefile").is_file()), None
    )


def checkout() -> Path:
    """A verl-tool with its code: SCOUT_VERL_TOOL, or the submodule ``verl-tool/``.

    Raises:
        UserError: there is none, or its vendored verl is another version.
    """
    repository = _repository()
    named = os.environ.get("SCOUT_VERL_TOOL")
    folder = Path(named) if named else (repository or Path.cwd()) / "verl-tool"
    if not (folder / _MAIN).is_file() or not (folder / _VERL).is_file():
        raise UserError(
            "SCOUT_VERL_TOOL" if named else "verl-tool",
            folder,
            "is empty: git submodule update --init verl-tool, or name a checkout with SCOUT_VERL_TOOL",
        )
    found = (folder / _VERSION).read_text(encoding="utf-8").strip()
    if found != VERL_VERSION:
        raise UserError(f"{folder / _VERSION}", found, f"the engine verl_tool is written for {VERL_VERSION}")
    return folder.resolve()


def python() -> Path:
    """The interpreter of the engine's environment: SCOUT_VERL_TOOL_PYTHON, or ``.venv-verl-tool``'s.

    Raises:
        UserError: there is none.
    """
    named = os.environ.get("SCOUT_VERL_TOOL_PYTHON")
    found = Path(named) if named else (_repository() or Path.cwd()) / ".venv-verl-tool" / "bin" / "python"
    if not found.is_file():
        raise UserError(
            "SCOUT_VERL_TOOL_PYTHON" if named else "engine verl_tool",
            found,
            "is no interpreter: make setup-verl-tool, or name one with SCOUT_VERL_TOOL_PYTHON",
        )
    return found.absolute()  # not resolved: a link into .venv must stay one


def check_packages(config: Any) -> None:
    """What the chosen rollout and loggers import is installed in the engine's environment.

    Raises:
        UserError: it is not.
    """
    rollout, loggers = config.actor_rollout_ref.rollout.name, list(config.trainer.logger)
    library = python().parent.parent / "lib"
    for field, package in (("actor_rollout_ref.rollout.name", rollout), ("trainer.logger", "wandb")):
        if package in (rollout, *loggers) and not any(library.glob(f"python3*/site-packages/{package}")):
            raise UserError(
                field, package, f"the package is not installed: {python()} -m pip install {package}"
            )


def link_rooms(folder: Path) -> str:
    """A folder for PYTHONPATH that holds Scout's packages and nothing else of our environment.

    In an installed wheel they lie beside transformers 5, which must not be seen by the other environment.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name in ROOMS:
        spec = importlib.util.find_spec(name)
        if spec is None or not spec.submodule_search_locations:
            raise UserError(name, "absent", "run `make setup`")
        link = folder / name
        if not link.exists():
            link.symlink_to(
                Path(next(iter(spec.submodule_search_locations))).resolve(), target_is_directory=True
            )
    return str(folder)
