"""Starts verl-tool's own server with Scout's tool registered in it.

    python -m scout_tools.verl_tool.launch tool_server --tool_type wiki_search --port 5001
    python -m scout_tools.verl_tool.launch serve --tool_type wiki_search --port 5001      (several processes)

Everything after the first word is verl-tool's own. SCOUT_VERL_TOOL names its checkout where it is neither
installed nor the submodule; SCOUT_VERL_TOOL_PLUGINS names other modules with a ``register()``.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

_BACKEND = ["-m", "verl_tool.servers.tool_server"]


def main(argv: list[str]) -> int:
    """Register the plug-ins and hand over to verl-tool's command line."""
    if not argv or argv[0] not in ("tool_server", "serve"):
        print(__doc__, file=sys.stderr)
        return 2
    _find_verl_tool()
    for name in os.environ.get("SCOUT_VERL_TOOL_PLUGINS", "scout_tools.verl_tool.plugin").split(","):
        importlib.import_module(name).register()
    module = importlib.import_module(f"verl_tool.servers.{argv[0]}")
    if argv[0] == "serve":
        # It starts its backends as `python -m verl_tool.servers.tool_server …`: those must register, too.
        vars(module)["subprocess"] = SimpleNamespace(**{**vars(subprocess), "Popen": _popen})
    module.fire.Fire(module.main, command=argv[1:])
    return 0


def _find_verl_tool() -> None:
    checkout = Path(os.environ.get("SCOUT_VERL_TOOL", Path(__file__).resolve().parents[3] / "verl-tool"))
    if (checkout / "verl_tool").is_dir() and str(checkout) not in sys.path:
        sys.path.insert(0, str(checkout))
        inherited = os.environ.get("PYTHONPATH", "")
        os.environ["PYTHONPATH"] = f"{checkout}{os.pathsep}{inherited}" if inherited else str(checkout)


def _popen(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
    if command[1:3] == _BACKEND:
        command = [command[0], "-m", "scout_tools.verl_tool.launch", "tool_server", *command[3:]]
    return subprocess.Popen(command, **options)  # noqa: S603  # verl-tool's own command


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
