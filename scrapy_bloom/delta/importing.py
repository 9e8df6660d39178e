"""Reads the database of scrapy-deltafetch as marks."""

from __future__ import annotations

import dbm
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

from ..errors import BloomError
from .settings import KEY_BYTES, key_of_text


def is_deltafetchs(path: Path) -> bool:
    """Return True if `path` is a dbm file, by its content."""
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
        with suppress(ValueError):
            yield bytes.fromhex(key.decode())


def _time(value: bytes, now: float) -> float:
    try:
        when = float(value)
    except ValueError:
        return now
    return when if 0.0 <= when <= now else now  # NaN is not
