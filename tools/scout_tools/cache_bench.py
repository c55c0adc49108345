"""`scout cache bench`: the two stores that need no server, side by side on this disk.

Two processes work on one file with entries of 3 kB; SQLite is set up as one would (WAL, synchronous NORMAL
as well as FULL). The figures behind docs/adr.
"""

from __future__ import annotations

import os
import sqlite3
import tempfile
import time
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path

VALUE = os.urandom(3000)
KEYS = 5000

Op = Callable[[int], object]


def bench(seconds: float) -> int:
    """Print microseconds per get and per durable set, alone and with a second process writing."""
    print(
        f"{'store':<28}{'get µs':>9}{'set µs':>9}{'get µs, 2 procs':>17}{'set µs, 2 procs':>17}{'file MB':>9}"
    )
    for name in ("lmdb", "lmdb no sync", "sqlite wal normal", "sqlite wal full"):
        with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
            path = Path(folder)
            get, put = _open(name, path)
            for i in range(KEYS):
                put(i)
            alone = (_time(get, seconds), _time(put, seconds))
            other = get_context("spawn").Process(
                target=_disturb, args=(name, path, seconds * 2 + 3), daemon=True
            )
            other.start()
            while not (path / "started").exists():
                time.sleep(0.01)
            both = (_time(get, seconds), _time(put, seconds))
            other.terminate()
            other.join()
            size = sum(f.stat().st_size for f in path.rglob("*") if f.is_file()) / 1e6
        print(
            f"{name:<28}{alone[0]:>9.1f}{alone[1]:>9.1f}{both[0]:>17.1f}{both[1]:>17.1f}{size:>9.1f}",
            flush=True,
        )
    return 0


def _disturb(name: str, path: Path, seconds: float) -> None:
    _, put = _open(name, path)
    (path / "started").touch()
    _time(put, seconds)


def _time(op: Op, seconds: float) -> float:
    end, n, start = time.perf_counter() + seconds, 0, time.perf_counter()
    while time.perf_counter() < end:
        for _ in range(10):
            op((n * 7919) % KEYS)
            n += 1
    return (time.perf_counter() - start) / n * 1e6


def _open(name: str, path: Path) -> tuple[Op, Op]:
    if name.startswith("lmdb"):
        import lmdb

        env = lmdb.open(str(path / "l"), map_size=1 << 30, readahead=False, sync="no" not in name)

        def lmdb_get(i: int) -> object:
            with env.begin() as txn:
                return txn.get(b"%024d" % i)

        def lmdb_put(i: int) -> object:
            with env.begin(write=True) as txn:
                return txn.put(b"%024d" % i, VALUE)

        return lmdb_get, lmdb_put
    db = sqlite3.connect(path / "s.sqlite", timeout=30, isolation_level=None)
    db.execute("PRAGMA journal_mode=WAL")
    db.execute(f"PRAGMA synchronous={'FULL' if 'full' in name else 'NORMAL'}")
    db.execute("CREATE TABLE IF NOT EXISTS c (k BLOB PRIMARY KEY, v BLOB) WITHOUT ROWID")

    def sqlite_get(i: int) -> object:
        return db.execute("SELECT v FROM c WHERE k = ?", (b"%024d" % i,)).fetchone()

    def sqlite_put(i: int) -> object:
        return db.execute("INSERT OR REPLACE INTO c VALUES (?, ?)", (b"%024d" % i, VALUE))

    return sqlite_get, sqlite_put
