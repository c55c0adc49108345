"""One line per event on stderr: for people, or as JSON (``--log-format json``) for what collects logs.

Nothing secret is ever handed to `say`: no header, no token, no text of the policy.
"""

from __future__ import annotations

import json
import os
import sys
from datetime import UTC, datetime
from typing import Any

_as_json = False


def set_format(name: str) -> None:
    """``text`` or ``json``; before the workers are forked."""
    global _as_json
    _as_json = name == "json"


def say(level: str, event: str, text: str, **facts: Any) -> None:
    """Write one event.

    Args:
        level: ``info``, ``warning`` or ``error``.
        event: a short word that does not change, to filter and count by.
        text: the same for a reader.
        facts: numbers and names, only in the JSON form.
    """
    if _as_json:
        time = datetime.now(UTC).isoformat(timespec="milliseconds")
        line = {"time": time, "level": level, "event": event, "pid": os.getpid(), "text": text, **facts}
        print(json.dumps(line, ensure_ascii=False, default=str), file=sys.stderr, flush=True)
    else:
        print(f"scout serve: {' '.join(text.split())}", file=sys.stderr, flush=True)
