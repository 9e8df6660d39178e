"""Filters with an exact table: time beside the plain filter and other exact sets, bytes a key
in memory and on the disk, and how long it takes to open one again.

    python tests/benchmarks/bench_exact.py [--capacity N] [--keys N] [--rounds N] [--open 1e7]

The others are an SQLite table WITHOUT ROWID of whole fingerprints, which is how DiskDupeFilter
of Scrapy's pull request #7952 keeps them (write-ahead log; here one commit for 1,000 new keys,
and one for each), the same of 8 bytes, and LMDB. All are files in one directory.
"""

from __future__ import annotations

import os
import random
import resource
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

from sidebyside import OPERATIONS, operations, parser_of, table

from scrapy_bloom import BloomFilter, ScalableBloomFilter

RATE = 1e-6


class SQLite:
    """A table of keys, cut to `length` bytes, with a commit for so many new ones."""

    def __init__(self, path: Path, length: int = 20, each: int = 1000) -> None:
        self._length, self._each, self._new = length, each, 0
        self._database = sqlite3.connect(path, isolation_level=None)
        self._execute = self._database.execute
        self._execute("PRAGMA journal_mode = WAL")
        self._execute("PRAGMA synchronous = NORMAL")
        self._execute("CREATE TABLE seen (key BLOB PRIMARY KEY) WITHOUT ROWID")
        self._execute("BEGIN")

    def add(self, key: bytes) -> bool:
        """Return True if the key was there, else add it."""
        inserted = self._execute("INSERT OR IGNORE INTO seen VALUES (?)", (key[: self._length],))
        if not inserted.rowcount:
            return True
        self._new += 1
        if self._new % self._each == 0:
            self._execute("COMMIT")
            self._execute("BEGIN")
        return False

    def __contains__(self, key: bytes) -> bool:
        found = self._execute("SELECT 1 FROM seen WHERE key = ?", (key[: self._length],))
        return found.fetchone() is not None

    def close(self) -> None:
        self._execute("COMMIT")
        self._execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self._database.close()


class LMDB:
    """Keys without values, with a commit for each thousand new ones and no sync."""

    def __init__(self, path: Path) -> None:
        import lmdb

        self._environment = lmdb.open(str(path), map_size=1 << 36, subdir=False, sync=False)
        self._transaction, self._new = self._environment.begin(write=True), 0

    def add(self, key: bytes) -> bool:
        """Return True if the key was there, else add it."""
        if not self._transaction.put(key, b"", overwrite=False):
            return True
        self._new += 1
        if self._new % 1000 == 0:
            self._transaction.commit()
            self._transaction = self._environment.begin(write=True)
        return False

    def __contains__(self, key: bytes) -> bool:
        return self._transaction.get(key) is not None

    def close(self) -> None:
        self._transaction.commit()
        self._environment.sync(True)
        self._environment.close()


def makers(capacity: int, folder: Path) -> dict[str, Callable[[], object]]:
    """Return functions that make each of the sets, by name."""
    found: dict[str, Callable[[], object]] = {
        "BloomFilter": lambda: BloomFilter(capacity, RATE, folder / "plain"),
        "exact": lambda: BloomFilter(capacity, RATE, folder / "exact", exact=True),
        "exact, p = 0.01": lambda: BloomFilter(capacity, 0.01, folder / "rough", exact=True),
        "ScalableBloomFilter": lambda: ScalableBloomFilter(capacity, RATE, folder / "layers"),
        "ScalableBloomFilter, exact": lambda: ScalableBloomFilter(
            capacity, RATE, folder / "exact layers", exact=True
        ),
        "SQLite, as DiskDupeFilter": lambda: SQLite(folder / "fingerprints.sqlite"),
        "SQLite, a commit each": lambda: SQLite(folder / "commits.sqlite", each=1),
        "SQLite, 8 bytes": lambda: SQLite(folder / "short.sqlite", 8),
        "LMDB": lambda: LMDB(folder / "lmdb"),
    }
    try:
        import lmdb  # noqa: F401
    except ImportError:
        print("lmdb is not installed, and left out")
        del found["LMDB"]
    return found


def times(capacity: int, keys: int, rounds: int) -> None:
    """Print the ratios of each set's time to that of BloomFilter, then nanoseconds."""
    with tempfile.TemporaryDirectory() as folder:
        made = {name: make() for name, make in makers(capacity, Path(folder)).items()}
        each = operations(made, capacity, keys, rounds)
        for tested in made.values():
            tested.close()
    table(
        ["", *OPERATIONS, *(f"{operation}/ns" for operation in OPERATIONS)],
        [
            [
                name,
                *(f"{a / b:.2f}" for a, b in zip(took, each["BloomFilter"], strict=True)),
                *(f"{each * 1000:.0f}" for each in took),
            ]
            for name, took in each.items()
        ],
    )


def sizes(capacity: int) -> None:
    """Print the bytes a key of filters that are full, and just after growing."""
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        numbers = count()

        def fill(tested: ScalableBloomFilter, keys: int) -> None:
            while len(tested) < keys:
                tested.add(b"%d" % next(numbers))

        def show(what: str, tested: ScalableBloomFilter, path: Path) -> None:
            rows.append([what, len(tested), tested.nbytes, disk_bytes(path)])

        for title, exact in (("plain", False), ("exact", True)):
            path = folder / title
            with ScalableBloomFilter(capacity, RATE, path, exact=exact) as tested:
                for layers in range(1, 4):
                    full = capacity * (2**layers - 1)
                    fill(tested, full)
                    show(f"{title}, {layers} full", tested, path)
                    fill(tested, full + 1)
                    show(f"{title}, grown to {layers + 1}", tested, path)
        for title, make in makers(capacity, folder).items():
            if title.startswith(("SQLite", "LMDB")):
                tested = make()
                for _ in range(capacity):
                    tested.add(os.urandom(20))
                tested.close()
                path = next(p for p in folder.iterdir() if p.stem in FILES[title])
                rows.append([title, capacity, 0, disk_bytes(path)])
                path.unlink()
    print("\nbytes a key: bits, which belong in memory, and the whole on the disk")
    table(
        ["", "keys", "memory", "disk"],
        [
            [title, f"{keys:,}", f"{bits / keys:.2f}" if bits else "", f"{size / keys:.2f}"]
            for title, keys, bits, size in rows
        ],
    )


FILES = {
    "SQLite, as DiskDupeFilter": ["fingerprints"],
    "SQLite, a commit each": ["commits"],
    "SQLite, 8 bytes": ["short"],
    "LMDB": ["lmdb"],
}


def disk_bytes(path: Path) -> int:
    """Return what the file or the files in the directory take on the disk."""
    return sum(p.stat().st_blocks * 512 for p in [path, *path.glob("*")] if p.is_file())


def opening(keys: int) -> None:
    """Print how long it takes to open a filter of so many keys again, and to recount it."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for title, exact in (("plain", False), ("exact", True)):
            path = Path(folder, title)
            # with room for the new ones
            with ScalableBloomFilter(keys + 10_000, RATE, path, exact=exact) as tested:
                for key in random_keys(keys):
                    tested.add(key)
            took = []
            for _ in range(5):
                started = time.perf_counter()
                tested = ScalableBloomFilter.open(path)
                took.append(time.perf_counter() - started)
                tested.close()
            with (path / "0.bloom").open("r+b") as file:
                file.seek(4096)
                file.write(bytes(100))
            started = time.perf_counter()
            tested = ScalableBloomFilter.open(path)
            recounted = time.perf_counter() - started
            tested.close()
            pages = [read_pages(path, known) for known in (False, True)]
            rows.append(
                [title, f"{min(took) * 1000:.1f}", f"{recounted * 1000:.0f}"]
                + [f"{each:.2f}" for each in pages]
            )
    print(f"\n{keys:,} keys, capacity set, and pages of a table on the disk that a key takes")
    table(["", "opens in ms", "after a kill in ms", "pages, new", "pages, known"], rows)


def random_keys(count: int, seed: int = 1) -> Iterator[bytes]:
    chance = random.Random(seed)
    return (chance.randbytes(20) for _ in range(count))


def read_pages(path: Path, known: bool, keys: int = 1000) -> float:
    """Return how many pages are read from the disk for a key, when the bits are in memory
    and the table is not (0 where the file system does not say)."""
    with (path / "0.bloom").open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    with ScalableBloomFilter.open(path) as tested:
        sum(tested.layers[0]._store.block_counts())
        before = resource.getrusage(resource.RUSAGE_SELF).ru_inblock
        for key in random_keys(keys, 1 if known else 2):
            tested.add(key)
        return (resource.getrusage(resource.RUSAGE_SELF).ru_inblock - before) * 512 / 4096 / keys


def main() -> None:
    arguments = parser_of(
        __doc__,
        capacity=1_000_000,
        keys=(10_000, "timed in each round"),
        rounds=10,
        open=(1e7, "keys of the filter to open"),
    ).parse_args()
    times(arguments.capacity, arguments.keys, arguments.rounds)
    sizes(arguments.capacity)
    opening(int(arguments.open))


if __name__ == "__main__":
    main()
