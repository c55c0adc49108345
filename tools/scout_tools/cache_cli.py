"""`scout cache`: what the shared cache holds, and how to take it elsewhere."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from collections import Counter
from pathlib import Path

from scout_protocol.errors import UserError


def main(argv: list[str]) -> int:
    """Run one of the subcommands; 0 if it did its work.

    Raises:
        UserError: no cache there, or a file that is not an export.
    """
    args = _parser().parse_args(argv)
    commands = {"stats": _stats, "export": _export, "import": _import}
    if args.command == "bench":
        from scout_tools.cache_bench import bench

        return bench(args.seconds)
    from scout_tools.cache_store import StoreError

    try:
        return asyncio.run(commands[args.command](args))
    except StoreError as error:
        where = args.cache_url or args.cache_dir
        raise UserError("cache", where, f"cannot be used: {error}") from error


def _parser() -> argparse.ArgumentParser:
    from scout_tools.backends.wiki_options import default_folder

    parser = argparse.ArgumentParser(prog="scout cache", description=__doc__)
    subs = parser.add_subparsers(dest="command", required=True)
    for name, text in (
        ("stats", "entries, ages and sizes"),
        ("export", "write all lasting entries as JSON lines"),
        ("import", "add the entries of an export; what is there already stays"),
    ):
        sub = subs.add_parser(name, help=text, description=text)
        if name != "stats":
            sub.add_argument("file", type=Path, help="JSON lines")
        sub.add_argument("--cache-dir", type=Path, default=default_folder(), help="default %(default)s")
        sub.add_argument("--cache-url", help="redis://host:port/db")
        sub.add_argument("--cache-gb", type=float, default=8.0, help="largest store (default %(default)s)")
    sub = subs.add_parser("bench", help="LMDB and SQLite (WAL) side by side, on this disk")
    sub.add_argument("--seconds", type=float, default=2.0, help="per figure (default %(default)s)")
    return parser


async def _stats(args: argparse.Namespace) -> int:
    from scout_tools.cache import decode_entry
    from scout_tools.cache_store import open_store

    _must_exist(args)
    store = open_store(args.cache_dir, args.cache_url, args.cache_gb, read_only=args.cache_url is None)
    entries, empty, expired, total = 0, 0, 0, 0
    by_version: Counter[str] = Counter()
    oldest, newest, now = float("inf"), 0.0, time.time()
    try:
        async for _, raw in store.items():
            entry = decode_entry(raw)
            entries, total = entries + 1, total + len(raw)
            empty += not entry.documents
            expired += 0.0 < entry.expires_at < now
            by_version[entry.version] += 1
            oldest, newest = min(oldest, entry.stored_at), max(newest, entry.stored_at)
        size = await store.size_bytes()
    finally:
        await store.close()
    print(f"cache       {args.cache_url or args.cache_dir}")
    print(f"entries     {entries}  (no results: {empty}, of these expired: {expired})")
    print(f"size        {size / 1e6:.1f} MB  ({total / max(1, entries) / 1e3:.1f} kB per entry)")
    if entries:
        print(f"stored      {_when(oldest)} to {_when(newest)}")
    for version, n in by_version.most_common():
        print(f"  {n:>8}  {version}")
    return 0


async def _export(args: argparse.Namespace) -> int:
    import msgspec

    from scout_tools.cache import decode_entry
    from scout_tools.cache_store import open_store

    _must_exist(args)
    store = open_store(args.cache_dir, args.cache_url, args.cache_gb, read_only=args.cache_url is None)
    temporary = args.file.with_name(f".{args.file.name}.{os.getpid()}")
    n = 0
    try:
        with temporary.open("wb") as out:
            async for _, raw in store.items():
                entry = decode_entry(raw)
                if entry.expires_at == 0.0:  # "no results" is true for minutes, not for ever
                    out.write(msgspec.json.encode(entry) + b"\n")
                    n += 1
        temporary.replace(args.file)
    except OSError as error:
        raise UserError("file", args.file, f"cannot be written ({error.strerror})") from error
    finally:
        temporary.unlink(missing_ok=True)
        await store.close()
    print(f"{args.file}: {n} entries")
    return 0


async def _import(args: argparse.Namespace) -> int:
    import msgspec

    from scout_tools.cache import Entry, Key, encode_entry
    from scout_tools.cache_store import open_store
    from scout_tools.progress import bar

    try:
        size, file = args.file.stat().st_size, args.file.open("rb")
    except OSError as error:
        raise UserError("file", args.file, f"cannot be read ({error.strerror})") from error
    # The whole file is checked first, so that a damaged one adds nothing.
    decoder = msgspec.json.Decoder(Entry)
    with file:
        for number, line in enumerate(file, start=1):
            try:
                decoder.decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise UserError("file", f"{args.file}:{number}", f"is no cache entry ({error})") from error
    store = open_store(args.cache_dir, args.cache_url, args.cache_gb)
    n = added = 0
    try:
        with args.file.open("rb") as file, bar("import", size, unit_is_bytes=True) as advance:
            for line in file:
                entry = decoder.decode(line)
                key = Key(entry.query, entry.language, entry.topk, entry.version).digest()
                new = await store.get(key) is None
                if new:
                    await store.put(key, encode_entry(entry), once=True)
                n, added = n + 1, added + new
                advance(len(line))
    finally:
        await store.close()
    print(f"{args.cache_url or args.cache_dir}: {added} entries added, {n - added} were there")
    return 0


def _must_exist(args: argparse.Namespace) -> None:
    if args.cache_url is None and not (args.cache_dir / "store" / "data.mdb").exists():
        raise UserError(
            "--cache-dir", args.cache_dir, "holds no cache: `scout serve --backend wikipedia` makes one"
        )


def _when(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
