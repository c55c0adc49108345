"""What a tree of processes used: CPU time, memory, open files (Linux)."""

from __future__ import annotations

import os
import time
from pathlib import Path

_TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")


def tree(root: int) -> list[int]:
    """The process and all of its descendants that are alive."""
    found, new = [root], [root]
    while new:
        new = [child for pid in new for child in _children(pid)]
        found += new
    return found


def cpu_s(root: int) -> float:
    """CPU seconds of the tree, of descendants that have ended and been waited for as well."""
    total = 0
    for pid in tree(root):
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        total += sum(map(int, fields[11:15]))  # utime, stime, and both of children waited for
    return total * _TICK_S


def private_mb(pid: int) -> float:
    """Memory of one process that it shares with nobody and that no file backs."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return (
        sum(int(line.split()[1]) for line in lines if line.startswith(("Private_Dirty", "Private_Hugetlb")))
        / 1e3
    )


def open_files(root: int) -> int:
    """Descriptors that the tree has open."""
    return sum(len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in tree(root))


def settled_files(root: int, patience_s: float = 5.0) -> int:
    """Descriptors once nothing opens or closes any more: who hangs up is noticed a moment later."""
    deadline, last = time.monotonic() + patience_s, -1
    while (now := open_files(root)) != last and time.monotonic() < deadline:
        last = now
        time.sleep(0.3)
    return now


def _children(pid: int) -> list[int]:
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        return [int(child) for task in tasks for child in (task / "children").read_text().split()]
    except OSError:  # it ended meanwhile
        return []
