"""`scout doctor`: what this machine has, what is missing, and what to do about each thing."""

from __future__ import annotations

import argparse
import importlib.metadata
import platform
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from scout_cli.machine import MIN_CORES, MIN_DISK_FREE_GIB, MIN_MEMORY_FREE_GIB, Machine, probe

SUBMODULE = "git submodule update --init verl-tool"
# an extra stands on those before it
EXTRAS = ("base", "data", "eval", "train", "dev")

# "torch>=2.6; extra == 'train'" -> name, exact version where it is pinned, extra
_REQUIREMENT = re.compile(
    r"(?P<name>[\w.-]+)(?:\[[^]]*\])?(?:==(?P<pin>[\w.+!-]+))?[^;]*(?:;.*extra == ['\"](?P<extra>\w+)['\"])?"
)


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the doctor: ``remedy`` is empty where all is well."""

    name: str
    found: str
    ok: bool
    required: bool = True
    remedy: str = ""

    def line(self) -> str:
        """The finding as shown: mark, name, what was found, what to do."""
        mark = "ok" if self.ok else ("MISSING" if self.required else "absent")
        return f"{mark:<8} {self.name:<16} {self.found}" + (f": {self.remedy}" if not self.ok else "")


def check_machine(machine: Machine) -> Iterator[Finding]:
    """Cores, memory and disk against what the quickstart needs."""
    yield Finding(
        "cores", str(machine.cores), machine.cores >= MIN_CORES, remedy=f"a CPU run needs {MIN_CORES} cores"
    )
    yield Finding(
        "memory",
        f"{machine.memory_free_gib:.1f} GiB free of {machine.memory_total_gib:.1f}",
        machine.memory_free_gib >= MIN_MEMORY_FREE_GIB,
        remedy=f"a CPU run needs {MIN_MEMORY_FREE_GIB:g} GiB free: close other programs",
    )
    yield Finding(
        "disk",
        f"{machine.disk_free_gib:.1f} GiB free",
        machine.disk_free_gib >= MIN_DISK_FREE_GIB,
        remedy=f"set-up and runs need {MIN_DISK_FREE_GIB:g} GiB: free some space",
    )


def check_python() -> Finding:
    """The interpreter's version."""
    ok = sys.version_info[:2] in ((3, 11), (3, 12))
    return Finding(
        "python", platform.python_version(), ok, remedy="install Python 3.11 or 3.12, then `make setup`"
    )


def check_packages(need: str) -> Iterator[Finding]:
    """Every package that this distribution names; those of ``need`` and the extras below it are required."""
    try:
        requirements = importlib.metadata.requires("scout-rl") or []
    except importlib.metadata.PackageNotFoundError:
        yield Finding("scout-rl", "not installed", False, remedy="run `make setup`")
        return
    matches = [m for m in map(_REQUIREMENT.match, requirements) if m and m["name"] != "scout-rl"]
    seen: set[str] = set()
    for (
        extra
    ) in EXTRAS:  # an extra repeats those below it: each package is shown once, where it is first needed
        for match in matches:
            if (match["extra"] or "base") == extra and match["name"] not in seen:
                seen.add(match["name"])
                required = EXTRAS.index(extra) <= EXTRAS.index(need)
                yield check_package(match["name"], match["pin"] or "", extra, required)


def check_package(name: str, pin: str, extra: str, required: bool) -> Finding:
    """One package, by its metadata: importing torch and verl would take many seconds."""
    try:
        version = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return Finding(name, "not installed", False, required, f"run `make setup` (extra {extra})")
    wrong = pin not in ("", version)
    return Finding(name, version, not wrong, required, f"Scout is written for {pin}: run `make setup`")


def check_submodule(checkout: Path) -> Finding:
    """The pinned verl-tool, which no target of the CPU pipeline needs."""
    if (checkout / "verl-tool" / "verl_tool").is_dir():
        git = subprocess.run(  # noqa: S603
            ["git", "-C", str(checkout / "verl-tool"), "rev-parse", "--short", "HEAD"],  # noqa: S607
            capture_output=True,
            text=True,
            check=False,
        )
        return Finding("verl-tool", git.stdout.strip() or "present", True, required=False)
    return Finding(
        "verl-tool", "folder is empty", False, required=False, remedy=f"fetch it with `{SUBMODULE}`"
    )


def check_index(path: Path, required: bool) -> Finding:
    """Whether an index stands there; `scout index info` reads what is in it."""
    if path.is_dir() and any(path.iterdir()):
        return Finding("index", str(path), True, required)
    remedy = "`make quickstart` builds it, or `scout index build`"
    return Finding("index", f"none at {path}", False, required, remedy)


def main(argv: list[str]) -> int:
    """Print all findings; exit status 1 where something required is missing."""
    parser = argparse.ArgumentParser(prog="scout doctor", description=__doc__)
    parser.add_argument("--need", choices=EXTRAS, default="train", help="what must be installed (train)")
    parser.add_argument("--index", type=Path, help="an index that must be there")
    args = parser.parse_args(argv)

    checkout = Path(__file__).resolve().parents[2]
    index = args.index or Path("runs/quickstart/index")
    findings = [
        check_python(),
        *check_machine(probe()),
        *check_packages(args.need),
        check_submodule(checkout),
        check_index(index, required=args.index is not None),
    ]
    for finding in findings:
        print(finding.line())
    missing = [f.name for f in findings if f.required and not f.ok]
    print(f"\n{len(missing)} required missing: {', '.join(missing)}" if missing else "\nready")
    return 1 if missing else 0
