"""What this machine can lend: cores, memory, disk. Standard library only: `make setup` runs it first.

``python -m scout_cli.machine`` prints nothing and exits 0 where the machine is big enough, else prints one
line and exits 2.
"""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from scout_protocol.errors import UserError

GIB = 1024**3
MIN_CORES = 2
# A CPU run of the quickstart peaks below 4 GiB; a machine of 8 GiB has some 6 to 7 of them free.
MIN_MEMORY_FREE_GIB = 5.0
MIN_DISK_FREE_GIB = 5.0  # the set-up takes up to 4 GB

_CGROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class Machine:
    """Sizes in GiB; inside a container its limits count, not the host's."""

    cores: int
    memory_total_gib: float
    memory_free_gib: float
    disk_free_gib: float


def probe(folder: Path = Path()) -> Machine:
    """Measure the machine; ``folder`` (or its nearest parent that exists) says which disk."""
    total, free = _memory_bytes()
    place = folder.absolute()
    while not place.exists():
        place = place.parent
    return Machine(_cores(), total / GIB, free / GIB, shutil.disk_usage(place).free / GIB)


def require(
    machine: Machine,
    min_cores: int = MIN_CORES,
    min_memory_free_gib: float = MIN_MEMORY_FREE_GIB,
    min_disk_free_gib: float = MIN_DISK_FREE_GIB,
) -> None:
    """Refuse a machine that is too small. ``SCOUT_SMALL_MACHINE=1`` overrides, at the caller's risk.

    Raises:
        UserError: naming what is too small and what to do.
    """
    if os.environ.get("SCOUT_SMALL_MACHINE") == "1":
        return
    anyway = "or set SCOUT_SMALL_MACHINE=1 to try anyway"
    if machine.cores < min_cores:
        raise UserError("cores", machine.cores, f"needs {min_cores}: give this machine more, {anyway}")
    if machine.memory_free_gib < min_memory_free_gib:
        shown = f"{machine.memory_free_gib:.1f} GiB free of {machine.memory_total_gib:.1f}"
        raise UserError(
            "memory", shown, f"needs {min_memory_free_gib:g} free: close other programs, {anyway}"
        )
    if machine.disk_free_gib < min_disk_free_gib:
        shown = f"{machine.disk_free_gib:.1f} GiB free"
        raise UserError("disk", shown, f"needs {min_disk_free_gib:g}: free some space, {anyway}")


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def _cores() -> int:
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota, _, period = _read(_CGROUP / "cpu.max").partition(" ")
    if quota.isdigit() and period.isdigit():
        usable = min(usable, max(1, round(int(quota) / int(period))))
    return usable


def _memory_bytes() -> tuple[int, int]:
    """Total and free memory; free counts what the kernel can give back (caches)."""
    lines = (line.split() for line in _read(Path("/proc/meminfo")).splitlines())
    kib = {f[0].rstrip(":"): int(f[1]) for f in lines if len(f) > 1 and f[1].isdigit()}
    if "MemTotal" not in kib:  # not Linux: only the total is to be had portably
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return total, total
    total = kib["MemTotal"] * 1024
    free = kib.get("MemAvailable", kib.get("MemFree", 0)) * 1024
    limit, used = _read(_CGROUP / "memory.max"), _read(_CGROUP / "memory.current")
    if limit.isdigit() and used.isdigit():
        stat = dict(line.split() for line in _read(_CGROUP / "memory.stat").splitlines())
        reclaimable = int(stat.get("inactive_file", 0)) + int(stat.get("active_file", 0))
        total = min(total, int(limit))
        free = min(free, int(limit) - int(used) + reclaimable)
    return total, max(0, free)


def main() -> int:
    """Refuse with one line where the machine is too small."""
    try:
        require(probe())
    except UserError as error:
        print(f"scout: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
