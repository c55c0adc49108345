"""Which code, which versions, which weights: the facts without which a number cannot be repeated."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path

PACKAGES = ("scout-rl", "torch", "transformers", "verl", "aiohttp", "msgspec", "numpy", "pyarrow")
_EDGE_BYTES = 1 << 20


def versions() -> dict[str, str]:
    """Python and the packages that can change a result; packages that are not installed are left out."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def commit() -> str | None:
    """The checkout's commit, with "+changes" where files differ from it; None outside a checkout."""

    def git(*words: str) -> str:
        command = ["git", "-C", str(Path(__file__).parent), *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)  # noqa: S603
        return done.stdout.strip()

    try:
        head = git("rev-parse", "HEAD")
        return head + ("+changes" if git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def file_sha256(path: str | os.PathLike[str]) -> str:
    """SHA-256 of a file's bytes."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def model_fingerprint(folder: str | os.PathLike[str]) -> str:
    """A hash that changes with a model folder's weights: name, size, first and last MiB of each file."""
    digest = hashlib.sha256()
    for path in sorted(p for p in Path(folder).iterdir() if p.suffix in (".safetensors", ".bin", ".json")):
        size = path.stat().st_size
        digest.update(f"{path.name}\0{size}\0".encode())
        with path.open("rb") as file:
            digest.update(file.read(_EDGE_BYTES))
            file.seek(max(0, size - _EDGE_BYTES))
            digest.update(file.read(_EDGE_BYTES))
    return digest.hexdigest()
