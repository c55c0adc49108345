"""`scout doctor`: what this machine has, what is missing, and what to do about each thing."""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import platform
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from scout_cli.machine import MIN_CORES, MIN_DISK_FREE_GIB, MIN_MEMORY_FREE_GIB, Machine, probe

VERL_VERSION = "0.9.1"
SUBMODULE = "git submodule update --init verl-tool"

# extra -> (import name, distribution name); an extra stands on those before it
PACKAGES: dict[str, list[tuple[str, str]]] = {
    "base": [
        ("msgspec", "msgspec"),
        ("starlette", "starlette"),
        ("uvicorn", "uvicorn"),
        ("tantivy", "tantivy"),
        ("rich", "rich"),
    ],
    "data": [("pyarrow", "pyarrow")],
    "eval": [("aiohttp", "aiohttp"), ("numpy", "numpy")],
    "train": [
        ("torch", "torch"),
        ("transformers", "transformers"),
        ("verl", "verl"),
        ("ray", "ray"),
        ("transfer_queue", "TransferQueue"),
        ("tensorboard", "tensorboard"),
    ],
    "dev": [("pytest", "pytest"), ("hypothesis", "hypothesis"), ("ruff", "ruff"), ("mypy", "mypy")],
}


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
        return f"{mark:<8} {self.name:<15} {self.found}" + (f": {self.remedy}" if not self.ok else "")


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
    """Every package of every extra; those of ``need`` and the extras below it are required."""
    extras = list(PACKAGES)
    for rank, (extra, packages) in enumerate(PACKAGES.items()):
        required = rank <= extras.index(need)
        for module, distribution in packages:
            yield _check_package(module, distribution, extra, required)


def _check_package(module: str, distribution: str, extra: str, required: bool) -> Finding:
    # found by its spec, not imported: importing torch and verl takes many seconds
    try:
        present = importlib.util.find_spec(module) is not None
        version = importlib.metadata.version(distribution)
    except (importlib.metadata.PackageNotFoundError, ValueError):
        present, version = False, "not installed"
    name = f"{distribution} [{extra}]" if extra == "dev" else distribution
    if not present:
        return Finding(name, "not installed", False, required, f"run `make setup` (extra {extra})")
    if distribution == "verl" and version != VERL_VERSION:
        remedy = f"Scout is written for {VERL_VERSION}: run `make setup`"
        return Finding(name, version, False, required, remedy)
    return Finding(name, version, True, required)


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
    parser.add_argument(
        "--need", choices=list(PACKAGES), default="train", help="what must be installed (train)"
    )
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
