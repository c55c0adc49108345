"""Tools that wait for a server to come back, for a while, before they call it an outage."""

from __future__ import annotations

import asyncio
import time

from scout_agent.client import ToolReply, Tools

_GONE = ("connection:", "http_502", "http_503")  # a restart looks like this; a time-out has waited already


class PatientTools:
    """Asks ``tools`` again while the server is gone, for at most ``patience_s`` a call (0: not at all).

    The trajectory's own deadline goes on running; searches are read-only, so asking twice changes nothing.
    """

    def __init__(self, tools: Tools, patience_s: float, first_wait_s: float = 0.1) -> None:
        self.tools, self.patience_s, self.first_wait_s = tools, patience_s, first_wait_s

    async def call(self, trajectory_id: str, action: str, is_last_step: bool = False) -> ToolReply:
        """One call, and more where the server is gone."""
        deadline, wait_s = time.monotonic() + self.patience_s, self.first_wait_s
        while True:
            reply = await self.tools.call(trajectory_id, action, is_last_step)
            gone = reply.infra_error and reply.error_kind.startswith(_GONE)
            left_s = deadline - time.monotonic()
            if not gone or left_s <= 0:
                return reply
            await asyncio.sleep(min(wait_s, left_s))
            wait_s = min(2 * wait_s, 2.0)
