"""What must be there before a server starts: file descriptors, and a token where one is asked for."""

from __future__ import annotations

import os
import resource

from scout_protocol.errors import UserError

SPARE = 128  # descriptors for everything that is not a client: index files, pipes, sockets, logs
_WANTED = 4096


def default_connections() -> int:
    """4096, or fewer where the process may not open so many descriptors."""
    hard = _hard_limit()
    return max(1, min(_WANTED, hard - SPARE))


def open_files(max_connections: int) -> None:
    """Raise the soft limit of descriptors to what ``max_connections`` need.

    Raises:
        UserError: the hard limit is below that.
    """
    needed, hard = max_connections + SPARE, _hard_limit()
    if needed > hard:
        remedy = f"needs {needed} open files and this process may have {hard}: raise the limit (ulimit -n)"
        if hard > SPARE:
            remedy += f" or choose at most {hard - SPARE}"
        raise UserError("--max-connections", max_connections, remedy)
    soft, hard_raw = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard_raw))


def token(name: str) -> None:
    """Check that the variable named by ``--token-env`` holds a token; its value is never shown.

    Raises:
        UserError: it is not set, or holds what no header can carry.
    """
    if not name:
        return
    value = os.environ.get(name, "")
    if len(value) < 8 or not value.isascii() or not value.isprintable() or " " in value:
        raise UserError(
            "--token-env", name, "set it to a token of at least 8 printable characters without spaces"
        )


def _hard_limit() -> int:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return 1 << 30 if hard == resource.RLIM_INFINITY else hard
