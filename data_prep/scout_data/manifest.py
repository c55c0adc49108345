"""What a parquet file was made from, in a small JSON file beside it."""

from __future__ import annotations

import contextlib
import os
import platform
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from scout_data.files import sha256_of
from scout_protocol.errors import UserError
from scout_protocol.prompt import load_prompt, recognise
from scout_protocol.records import RLRow

if TYPE_CHECKING:
    import pyarrow as pa

SCHEMA = 2  # raised when a reader of the manifest would have to change
_PROMPT_SAMPLE = 64  # rows whose prompt is looked at where no earlier manifest tells it


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
    """Write and return the manifest of a parquet file that was made row by row.

    Without dates or absolute paths: the same inputs and versions give the same bytes.

    Args:
        sources: ``(format name, file)`` of every file that was read; empty for generated data.
        seed: what the order or the content was drawn with; None where nothing was drawn.
        settings: whatever else decides the content.

    Raises:
        UserError: the file cannot be written.
    """
    by_source = Counter(row.data_source for row in rows)
    by_split = Counter(str(row.extra_info.get("split")) for row in rows)
    prompt = {"name": prompt_name, "sha256": load_prompt(prompt_name).sha256}
    return _write(parquet, by_source, by_split, prompt, sources, seed, settings)


def write_table_manifest(
    parquet: str | os.PathLike[str],
    table: pa.Table,
    sources: Sequence[tuple[str, str | os.PathLike[str]]],
    seed: int | None,
    settings: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """`write_manifest` for a file that was made of other parquet files: their prompts are carried over."""
    from scout_data.columns import groups

    splits = table.column("extra_info").combine_chunks().field("split").to_pylist()
    by_source = Counter(groups(table, "data_source"))
    return _write(
        parquet, by_source, Counter(map(str, splits)), _prompts(table, sources), sources, seed, settings
    )


def read_manifest(parquet: str | os.PathLike[str], sha256: str | None = None) -> dict[str, Any] | None:
    """The manifest beside a parquet file; None where there is none, or it is of another file.

    Args:
        sha256: the parquet's, where it is known already.
    """
    try:
        facts = msgspec.json.decode(manifest_path(parquet).read_bytes())
    except (OSError, msgspec.DecodeError):
        return None
    if not isinstance(facts, dict) or facts.get("sha256") != (sha256 or sha256_of(parquet)):
        return None
    return facts


def write_json(target: Path, facts: Any) -> None:
    """A JSON file, all or nothing.

    Raises:
        UserError: it cannot be written.
    """
    write_bytes(target, msgspec.json.format(msgspec.json.encode(facts), indent=2) + b"\n")


def write_bytes(target: Path, content: bytes) -> None:
    """A file, all or nothing.

    Raises:
        UserError: it cannot be written.
    """
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(content)
        temporary.replace(target)
    except OSError as error:
        remedy = "choose a writable path with free space"
        raise UserError(str(target), error.strerror or error, remedy) from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def _write(
    parquet: str | os.PathLike[str],
    by_source: Counter[str],
    by_split: Counter[str],
    prompt: dict[str, Any],
    sources: Sequence[tuple[str, str | os.PathLike[str]]],
    seed: int | None,
    settings: Mapping[str, Any] | None,
) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "schema": SCHEMA,
        "file": Path(parquet).name,
        "sha256": sha256_of(parquet),
        "rows": by_source.total(),
        "rows_by_data_source": dict(sorted(by_source.items())),
        "rows_by_split": dict(sorted(by_split.items())),
        "seed": seed,
        "settings": dict(settings or {}),
        "prompt": prompt,
        "sources": [_source(name, path) for name, path in sources],
        "versions": {
            "scout-rl": _version("scout-rl"),
            "pyarrow": _version("pyarrow"),
            "python": platform.python_version(),
        },
        "commit": commit(),
    }
    write_json(manifest_path(parquet), facts)
    return facts


def _source(name: str, path: str | os.PathLike[str]) -> dict[str, Any]:
    """A file that was read; with what it was made from, where a manifest beside it says so."""
    facts: dict[str, Any] = {
        "file": Path(path).name,
        "format": name,
        "bytes": Path(path).stat().st_size,
        "sha256": sha256_of(path),
    }
    earlier = read_manifest(path, facts["sha256"]) if Path(path).suffix == ".parquet" else None
    if earlier:
        facts["made_from"] = {key: earlier.get(key) for key in ("sources", "seed", "settings")}
    return facts


def _prompts(table: pa.Table, sources: Sequence[tuple[str, str | os.PathLike[str]]]) -> dict[str, Any]:
    found: dict[str, dict[str, Any]] = {}
    for _, path in sources:
        earlier = read_manifest(path)
        if earlier is None:
            found = {}
            break
        prompt = earlier.get("prompt") or {}
        for one in prompt.get("each", [prompt]):
            found[str(one.get("sha256"))] = one
    if not found:
        step = max(1, table.num_rows // _PROMPT_SAMPLE)
        for row in (
            table.select(["prompt", "question"]).take(list(range(0, table.num_rows, step))).to_pylist()
        ):
            known = recognise(row["prompt"], row["question"])
            one = {"name": known.name, "sha256": known.sha256} if known else {"name": "not one of Scout's"}
            found[str(one.get("sha256"))] = one
    each = sorted(found.values(), key=lambda one: str(one["name"]))
    return each[0] if len(each) == 1 else {"name": "several", "each": each}


@cache
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


def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "not installed"
