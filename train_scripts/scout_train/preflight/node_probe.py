"""What one node says of itself. Imported there by Ray, so that only the standard library is needed."""

from __future__ import annotations

import http.client
import resource
import shutil
import time
from pathlib import Path
from urllib.parse import urlsplit

CALL_TIMEOUT_S = 5.0


def probe(tools: str, model: str) -> dict[str, object]:
    """Facts about this node.

    Returns:
        ``tools`` ("ready", or why not) and ``took_ms`` of a direct call, past any proxy, as the agent loop
        makes it; ``files`` (limit of open descriptors, None without one), ``shm`` (bytes free in /dev/shm,
        None without it), ``model`` (whether its folder is here).
    """
    start = time.perf_counter()
    found = _ready(tools)
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    shm = Path("/dev/shm")  # noqa: S108  the kernel's shared memory, not a temporary file of ours
    return {
        "tools": found,
        "took_ms": 1000 * (time.perf_counter() - start),
        "files": None if limit == resource.RLIM_INFINITY else limit,
        "shm": shutil.disk_usage(shm).free if shm.is_dir() else None,
        "model": Path(model).is_dir(),
    }


def _ready(tools: str) -> str:
    """Gives "ready", or why not; /ready asks for no token, and a run calls from its head alone."""
    parts = urlsplit(tools)
    connect = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = connect(parts.hostname or "", parts.port, timeout=CALL_TIMEOUT_S)
    try:
        connection.request("GET", f"{parts.path}/ready")
        status = connection.getresponse().status
    except (OSError, http.client.HTTPException) as error:
        return f"{type(error).__name__}: {error}"
    finally:
        connection.close()
    return "ready" if status == 200 else f"/ready says {status}"
