"""Locks that all processes of a machine share, one per byte of a file; the kernel frees a dead holder's."""

from __future__ import annotations

import fcntl
import os
import struct
from pathlib import Path


class ByteLocks:
    """Exclusive locks numbered 0 to 2**62, without waiting.

    Locks belong to the open file description (Linux), so two instances exclude each other even inside one
    process; elsewhere they belong to the process. Either way kill -9 leaves nothing behind.

    Args:
        path: the file; made where absent, never grows.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._held: set[int] = set()

    def try_lock(self, number: int) -> bool:
        """Take the lock; False if anyone holds it, this instance included."""
        if number in self._held:
            return False
        try:
            self._set(fcntl.F_WRLCK, number)
        except (BlockingIOError, PermissionError):  # EAGAIN or EACCES, as POSIX leaves it to the system
            return False
        self._held.add(number)
        return True

    def unlock(self, number: int) -> None:
        """Give it back."""
        self._set(fcntl.F_UNLCK, number)
        self._held.discard(number)

    def close(self) -> None:
        """Give all of them back."""
        os.close(self._fd)
        self._held.clear()

    def _set(self, kind: int, number: int) -> None:
        if hasattr(fcntl, "F_OFD_SETLK"):
            # struct flock: l_type, l_whence, l_start, l_len, l_pid (must be 0)
            fcntl.fcntl(self._fd, fcntl.F_OFD_SETLK, struct.pack("@hhqqi4x", kind, 0, number, 1, 0))
        else:
            flag = fcntl.LOCK_UN if kind == fcntl.F_UNLCK else fcntl.LOCK_EX | fcntl.LOCK_NB
            fcntl.lockf(self._fd, flag, 1, number)
