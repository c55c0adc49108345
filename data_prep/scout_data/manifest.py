"""What a parquet file was made from, in a small JSON file beside it."""

from __future__ import annotations

import contextlib
import os
import platform
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec

from scout_data.files import sha256_of
from scout_protocol.errors import UserError
from scout_protocol.prompt import load_prompt
from scout_protocol.records import RLRow

SCHEMA = 1  # raised when a reader of the manifest would have to change


def manifest_path(parquet: str | os.PathLike[str]) -> Path:
    """``dev.parquet`` -> ``dev.manifest.json``, in the same folder."""
    return Path(parquet).with_suffix(".manifest.json")


def write_manifest(
    parquet: str | os.PathLike[str],
    rows: Sequence[RLRow],
    prompt_name: str,
    sources: Sequence[tuple[str, str | os.PathLike[str]]],
    seed: int | None,
    settings: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Write and return the manifest of a parquet file that already exists.

    Without dates or absolute paths: the same inputs and versions give the same bytes.

    Args:
        sources: ``(format name, file)`` of every file that was read; empty for generated data.
        seed: what the order or the content was drawn with; None where nothing was drawn.
        settings: whatever else decides the content.

    Raises:
        UserError: the file cannot be written.
    """
    target = manifest_path(parquet)
    facts: dict[str, Any] = {
        "schema": SCHEMA,
        "file": Path(parquet).name,
        "sha256": sha256_of(parquet),
        "rows": len(rows),
        "rows_by_data_source": dict(sorted(Counter(row.data_source for row in rows).items())),
        "rows_by_split": dict(sorted(Counter(str(row.extra_info.get("split")) for row in rows).items())),
        "seed": seed,
        "settings": dict(settings or {}),
        "prompt": {"name": prompt_name, "sha256": load_prompt(prompt_name).sha256},
        "sources": [
            {
                "file": Path(path).name,
                "format": name,
                "bytes": Path(path).stat().st_size,
                "sha256": sha256_of(path),
            }
            for name, path in sources
        ],
        "versions": {
            "scout-rl": _version("scout-rl"),
            "pyarrow": _version("pyarrow"),
            "python": platform.python_version(),
        },
    }
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(msgspec.json.format(msgspec.json.encode(facts), indent=2) + b"\n")
        temporary.replace(target)
    except OSError as error:
        remedy = "choose a writable path with free space"
        raise UserError(str(target), error.strerror or error, remedy) from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
    return facts


def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "not installed"
