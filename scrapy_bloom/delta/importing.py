"""Reads the database of scrapy-deltafetch as marks."""

from __future__ import annotations

import dbm
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

from ..errors import BloomError, message_of
from ..migration.sources import Source
from .settings import KEY_BYTES, key_of_text


def is_deltafetchs(path: Path) -> bool:
    """Return True if `path` is a dbm file, by its content."""
    return bool(dbm.whichdb(str(path)))


class DeltafetchFile(Source):
    """The dbm file at `path`: `marks` are the times by their keys, `now` for an invalid time.
    Raises BloomError.

    A record has up to two keys: its own of 20 bytes may be a fingerprint, one of 40 digits a
    fingerprint of an older release; all may be a `deltafetch_key`.
    """

    unit, size = "record", 0

    def __init__(self, path: Path, now: float) -> None:
        self.name = str(path)
        self.marks: dict[bytes, float] = {}
        try:
            with closing(dbm.open(self.name, "r")) as database:
                for key in database.keys():  # noqa: SIM118 - a dbm is no mapping
                    self.size += 1
                    for each in _keys(key if isinstance(key, bytes) else key.encode()):
                        self.marks[each] = _time(database[key], now)
        except Exception as error:  # each module of dbm has errors of its own
            raise BloomError(
                f"{path} cannot be read here ({message_of(error)}): it is damaged, or this Python"
                " lacks the dbm module that has written it"
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
