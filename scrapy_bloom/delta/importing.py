"""Reads the database of scrapy-deltafetch as marks."""

from __future__ import annotations

import dbm
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from ..errors import BloomError
from .settings import KEY_BYTES, key_of_text

_SQLITE = b"SQLite format 3\0"


def is_deltafetchs(path: Path) -> bool:
    """Return True if `path` is a dbm file, by its content. Raises BloomError for a database of
    scrapy-crawl-once, which cannot be imported."""
    if _is_crawl_onces(path):
        raise BloomError(
            f"{path} is of scrapy-crawl-once, whose keys are the fingerprints of Scrapy before 2.7:"
            " no request of this Scrapy has them, and URLs cannot be made of them. Let a crawl"
            " with BLOOM_DELTA fetch everything once more, or import a list of the URLs"
        )
    return bool(dbm.whichdb(str(path)))


def marks_in(path: Path, now: float) -> Iterator[tuple[bytes, float]]:
    """Yield the marks in the dbm file at `path` with their times, `now` for an invalid time. Raises
    BloomError.

    A key of 20 bytes may be a fingerprint, one of 40 digits a fingerprint of an older release; all
    keys may be a `deltafetch_key`.
    """
    try:
        with closing(dbm.open(str(path), "r")) as database:
            for key in database.keys():  # noqa: SIM118 - a dbm is no mapping
                for each in _keys(key if isinstance(key, bytes) else key.encode()):
                    yield each, _time(database[key], now)
    except dbm.error as error:
        raise BloomError(
            f"{path} cannot be read here ({error}): this Python may lack the dbm module that has"
            " written it"
        ) from error


def _keys(key: bytes) -> Iterator[bytes]:
    yield key_of_text(key)
    if len(key) == KEY_BYTES:
        yield key
    elif len(key) == 2 * KEY_BYTES:
        try:
            yield bytes.fromhex(key.decode())
        except ValueError:
            return


def _time(value: bytes, now: float) -> float:
    try:
        when = float(value)
    except ValueError:
        return now
    return when if 0.0 <= when <= now else now  # NaN is not


def _is_crawl_onces(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        if file.read(len(_SQLITE)) != _SQLITE:
            return False
    uri = f"file:{quote(os.fsencode(path.absolute()))}?mode=ro"
    try:
        with closing(sqlite3.connect(uri, uri=True)) as connection:
            columns = connection.execute("PRAGMA table_info(requests)").fetchall()
    except sqlite3.Error:
        return False
    return [name for _, name, *_ in columns] == ["key", "value"]
