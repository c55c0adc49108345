"""Memory that this process may still take: the host's, and every limit that a container puts on it."""

from __future__ import annotations

from pathlib import Path

_CGROUP, _OWN = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def cgroup_room_bytes(root: Path, own: Path) -> int | None:
    """What the tightest memory limit above this process leaves, cache counted as free; None: no limit.

    Every group on the way up can hold a limit. A container often sees its own group as the root of the mount,
    so a path that is not there falls back to it. Versions 1 and 2 name their files differently.
    """
    rooms = []
    for line in own.read_text(encoding="utf-8").splitlines() if own.is_file() else ["0::/"]:
        _, controllers, path = line.split(":", 2)
        if controllers not in ("", "memory") and "memory" not in controllers.split(","):
            continue
        version_1 = bool(controllers)
        base = root / "memory" if version_1 else root
        names = (
            ("memory.limit_in_bytes", "memory.usage_in_bytes")
            if version_1
            else ("memory.max", "memory.current")
        )
        folder = base / path.lstrip("/")
        while True:
            rooms += _room(folder, *names)
            if folder == base or base not in folder.parents:
                break
            folder = folder.parent
    return min(rooms, default=None)


def _room(folder: Path, limit_name: str, used_name: str) -> list[int]:
    try:
        limit, used = (folder / limit_name).read_text().strip(), (folder / used_name).read_text().strip()
        stat = dict(
            line.split() for line in (folder / "memory.stat").read_text().splitlines() if line.count(" ") == 1
        )
    except OSError:
        return []
    if not limit.isdigit() or int(limit) >= 1 << 60:  # "max"; version 1 writes a huge number
        return []
    prefix = "total_" if "total_inactive_file" in stat else ""
    cache = int(stat.get(f"{prefix}inactive_file", 0)) + int(stat.get(f"{prefix}active_file", 0))
    return [max(0, int(limit) - int(used) + cache)]


def free_memory_bytes() -> int:
    """What this process may still take: the host's available memory or the tightest cgroup's room."""
    import psutil

    room = cgroup_room_bytes(_CGROUP, _OWN)
    available = int(psutil.virtual_memory().available)
    return available if room is None else min(available, room)
