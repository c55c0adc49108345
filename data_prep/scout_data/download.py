"""Published data sets by name: from the Hugging Face hub or its mirrors, or from their own site.

A download goes on where it was cut off (``NAME.part``), is checked against what the server says of it, and
becomes visible under its name only when it is whole. The hub's own client starts over after a kill, so it
is asked for the address, size and hash alone.
"""

from __future__ import annotations

import hashlib
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from scout_data.manifest import write_json
from scout_protocol.errors import UserError

_CHUNK_BYTES = 1 << 18
_AGENT = "scout-rl"


class Source(msgspec.Struct, frozen=True):
    """A published file: on the hub (``repo`` and ``file``), or at ``url``."""

    about: str
    file: str
    repo: str = ""
    url: str = ""


_HOTPOT = "http://curtis.ml.cmu.edu/datasets/hotpot"
SOURCES: dict[str, Source] = {
    "nq_hotpotqa_train": Source(
        "Search-R1's training questions, 79,168 NQ then 90,447 HotpotQA",
        "train.parquet",
        "PeterJinGo/nq_hotpotqa_train",
    ),
    "nq_hotpotqa_test": Source(
        "Search-R1's evaluation questions", "test.parquet", "PeterJinGo/nq_hotpotqa_train"
    ),
    "hotpotqa_train": Source(
        "HotpotQA, 90,447 questions", "hotpot_train_v1.1.json", url=f"{_HOTPOT}/hotpot_train_v1.1.json"
    ),
    "hotpotqa_dev_distractor": Source(
        "HotpotQA, 7,405 questions with ten paragraphs each",
        "hotpot_dev_distractor_v1.json",
        url=f"{_HOTPOT}/hotpot_dev_distractor_v1.json",
    ),
    "hotpotqa_dev_fullwiki": Source(
        "HotpotQA, 7,405 questions over all of Wikipedia",
        "hotpot_dev_fullwiki_v1.json",
        url=f"{_HOTPOT}/hotpot_dev_fullwiki_v1.json",
    ),
}


class Remote(msgspec.Struct, frozen=True):
    """Where a file's bytes are, and what they must be; empty where nobody says."""

    url: str
    size: int | None = None
    sha256: str = ""
    revision: str = ""
    token: str = ""


def locate(source: Source, revision: str = "main") -> Remote:
    """Ask the hub (``HF_ENDPOINT`` names a mirror) where a file is; some have an address of their own.

    Raises:
        UserError: the hub does not answer, or has no such file.
    """
    if source.url:
        return Remote(source.url)
    from huggingface_hub import get_hf_file_metadata, get_token, hf_hub_url
    from huggingface_hub.errors import HfHubHTTPError

    # read here, too: the client reads it once, when it is imported
    endpoint = os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
    address = hf_hub_url(source.repo, source.file, repo_type="dataset", revision=revision, endpoint=endpoint)
    try:
        found = get_hf_file_metadata(address, endpoint=endpoint, timeout=30)
    except HfHubHTTPError as error:
        raise UserError(
            address, str(error).splitlines()[0], "is the name right, and the hub's terms accepted?"
        ) from error
    except Exception as error:  # its HTTP client's errors changed with its versions
        told = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(
            endpoint, told, "the hub cannot be reached: set HF_ENDPOINT to a mirror, or give a local file"
        ) from error
    etag = found.etag or ""
    same_host = urlsplit(found.location).netloc == urlsplit(endpoint).netloc
    return Remote(
        url=found.location,
        size=found.size,
        sha256=etag if len(etag) == 64 else "",  # large files: the hub's etag is their SHA-256
        revision=found.commit_hash or revision,
        token=(get_token() or "") if same_host else "",  # never to a host that the hub sends us on to
    )


def download(
    remote: Remote,
    target: Path,
    sha256: str = "",
    told: Callable[[int, int | None], None] = lambda done, size: None,
    retries: int = 5,
    wait_s: float = 1.0,
) -> str:
    """Bring a file here, going on from ``target.part`` if there is one; returns its SHA-256.

    Args:
        sha256: what it must be, if the user knows; else what the server says, if it does.
        told: called with bytes so far and bytes in all.

    Raises:
        UserError: the server stays away (what came is kept), or the bytes are not the promised ones.
    """
    expected = sha256.lower() or remote.sha256
    part = target.with_name(target.name + ".part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        for attempt in range(retries + 1):
            before = part.stat().st_size if part.exists() else 0
            reason: object
            try:
                size = _fetch(remote, part, told)
            except urllib.error.HTTPError as error:
                if error.code in (401, 403, 404):
                    told_by = f"HTTP {error.code}"
                    raise UserError(remote.url, told_by, "is the name right, and are you allowed?") from error
                size, reason = None, error
            except (urllib.error.URLError, HTTPException, ConnectionError, TimeoutError) as error:
                size, reason = None, getattr(error, "reason", error) or error
            else:
                reason = "the connection was cut"  # said only if the file is not whole
                if size is not None and part.stat().st_size >= size:
                    break
            if part.exists() and part.stat().st_size > before:
                continue  # it came further: that is not a failed attempt
            if attempt < retries:
                time.sleep(wait_s * 2**attempt)
        else:
            have = part.stat().st_size if part.exists() else 0
            raise UserError(
                remote.url, reason, f"{have:,} bytes are kept in {part.name}: run the same command to go on"
            )
        found = _sha256(part)
        if expected and found != expected:
            part.unlink()
            raise UserError(
                str(target), f"sha256 {found}", f"should be {expected}: it was removed, fetch it again"
            )
        part.replace(target)
    except OSError as error:
        raise UserError(
            str(target), error.strerror or error, "choose a writable path with free space"
        ) from error
    return found


def _fetch(remote: Remote, part: Path, told: Callable[[int, int | None], None]) -> int | None:
    """Append what is missing to the part; returns the whole size, in bytes, as far as it is known."""
    have = part.stat().st_size if part.exists() else 0
    if remote.size is not None and have >= remote.size:
        if have > remote.size:
            part.unlink()  # not ours
            have = 0
        else:
            return remote.size
    headers = {"User-Agent": _AGENT, "Accept-Encoding": "identity"}
    if remote.token:
        headers["Authorization"] = f"Bearer {remote.token}"
    if have:
        headers["Range"] = f"bytes={have}-"
    request = urllib.request.Request(remote.url, headers=headers)  # noqa: S310
    try:
        response = urllib.request.urlopen(request, timeout=60)  # noqa: S310
    except urllib.error.HTTPError as error:
        if error.code == 416 and have:  # nothing is left, or the file has changed
            whole = error.headers.get("Content-Range", "").rpartition("/")[2]
            if whole.isdigit() and int(whole) == have:
                return have
            part.unlink()
        raise
    with response:
        resumed = response.status == 206
        length = response.headers.get("Content-Length")
        size = remote.size or (int(length) + (have if resumed else 0) if length else None)
        with part.open("ab" if resumed else "wb") as file:
            done = file.tell()
            while chunk := response.read(_CHUNK_BYTES):
                file.write(chunk)
                done += len(chunk)
                told(done, size)
    return size if size is not None else done


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fetch(
    name: str,
    out: Path,
    revision: str = "main",
    sha256: str = "",
    told: Callable[[int, int | None], None] = lambda done, size: None,
) -> tuple[Path, dict[str, Any]]:
    """A named source as ``out/NAME.parquet`` or ``.json``, with ``.source.json`` beside it.

    A file that is there already is kept if it still has the recorded hash.

    Raises:
        UserError: unknown name; as `locate` and `download`.
    """
    if name not in SOURCES:
        raise UserError("source", name, f"choose one of {', '.join(SOURCES)}, or give a file")
    source = SOURCES[name]
    target = out / f"{name}{Path(source.file).suffix}"
    note = target.with_name(target.name + ".source.json")
    if target.is_file() and note.is_file():
        facts = msgspec.json.decode(note.read_bytes())
        found = _sha256(target)
        if found == facts.get("sha256") and found == (sha256.lower() or found):
            return target, facts
    remote = locate(source, revision)
    found = download(remote, target, sha256, told)
    facts = {
        "source": name,
        "repo": source.repo,
        "file": source.file,
        "revision": remote.revision,
        "sha256": found,
        "bytes": target.stat().st_size,
        "checked_against": "your --sha256"
        if sha256
        else "the server's SHA-256"
        if remote.sha256
        else "its length",
    }
    write_json(note, facts)
    return target, facts
