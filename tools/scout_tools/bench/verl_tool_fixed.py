"""The least that a tool of verl-tool's server can do: `bench.server` measures that server with it."""

from __future__ import annotations

import sys
from typing import Any

from verl_tool.servers.tools import base

_TEXT = ("0123456789 " * 300)[:3000]


class ScoutFixed(base.BaseTool):  # type: ignore[misc]  # verl-tool has no types
    """One observation of 3 KB for every search."""

    tool_type = "scout_fixed"

    def parse_action(self, action: str) -> tuple[str, bool]:
        """Whether a search was closed."""
        return action, "</search>" in action

    def conduct_action(self, trajectory_id: str, action: str, extra_field: Any) -> tuple[str, bool, bool]:
        """The observation."""
        return f"\n\n<information>{_TEXT}</information>\n\n", False, True


def register() -> None:
    """See `scout_tools.verl_tool.plugin.register`."""
    base.register_tool(ScoutFixed)
    base.ALL_TOOLS.append(ScoutFixed.tool_type)
    sys.modules[f"verl_tool.servers.tools.{ScoutFixed.tool_type}"] = sys.modules[__name__]
