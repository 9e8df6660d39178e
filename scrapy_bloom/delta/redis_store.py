"""The delta store in Redis: the marks of earlier rounds, shared by a spider's crawls on all
machines.

Slices are sets with an expiry, named by their width and number, so the time gives their names.
They are exact, and take some 70 bytes a page. Each of the FACTS has a hash beside them, which never
expires.
Adding twice changes nothing, so a repeated command does no harm.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from math import inf
from typing import NamedTuple

from ..amounts import counted
from ..errors import IncompatibleFilterError
from ..redis.client import RedisClient
from ..redis.scripts import DELTA_ADD, DELTA_KNOWS
from .file_store import FACTS, Row, is_same
from .settings import Lifetime

FORMAT = 1
"""It stands before the identity."""
SLICES = 8
"""Number of slices in a period."""
_AT_ONCE = 500
"""Keys in one script, few enough not to block the server."""


class Slice(NamedTuple):
    """The set `name`, with the marks between two times in seconds since the epoch, infinite without
    a period."""

    name: str
    start: float
    end: float


class RedisDeltaStore:
    """The delta store called `key` on the server at `url`, with a connection of its own, which
    `waits` as a RedisClient. Any method may raise SharedFilterError."""

    def __init__(
        self,
        url: str,
        key: str,
        lifetime: Lifetime,
        patience: float,
        clock: Callable[[], float] = time.time,
        *,
        waits: bool = False,
    ) -> None:
        self.lifetime = lifetime
        self._width = (lifetime.period or 0.0) / SLICES
        self.clock = clock
        self.client = RedisClient(url, patience, waits=waits)
        self.key = key = key.replace("{", "(").replace("}", ")")
        self.name = f"{self.client.name} {key}"
        self._key = f"{{{key}}}:delta"
        self._facts = {name: f"{self._key}:{name.rstrip('s')}s" for name in FACTS}
        prefix = re.escape(self._key.encode())
        self._name_of_slice = re.compile(
            prefix + rb":(\d{1,20}(?:\.\d{1,9})?(?:e[+-]\d\d)?):(-?\d{1,15})"
        )

    @property
    def is_empty(self) -> bool:
        """False: another worker may add to it at any time."""
        return False

    @property
    def holds(self) -> str:
        """The number of slices that exist and count, and of digests."""
        digests = self.digests
        slices = counted(len(self._there()), "slice")
        return f"{slices}, {counted(digests, 'digest')}" if digests else slices

    @property
    def digests(self) -> int:
        """Number of pages with a digest."""
        return int(self.client.call("hlen", self._facts["digest"]))

    @property
    def nbytes(self) -> int:
        """Bytes of the slices, as Redis reports them."""
        sizes = (self.client.call("memory_usage", name) for name in self._there())
        return sum(size or 0 for size in sizes)

    @property
    def oldest(self) -> float | None:
        """Start of the oldest slice in seconds since the epoch; None without any, or if marks do
        not expire."""
        if not self._width:
            return None
        starts = [int(name.rpartition(":")[2]) * self._width for name in self._there()]
        return min(starts, default=None)

    def look(self) -> None:
        """Raise IncompatibleFilterError if the store is of another format or fingerprinter."""
        if (identity := self.identity) and not is_same(identity, self.lifetime.identity):
            raise IncompatibleFilterError(
                f"{self.name} has marks of another fingerprinter (REQUEST_FINGERPRINTER_CLASS):"
                " set that back, or use another BLOOM_DELTA_DIR, or start afresh with"
                " BLOOM_DELTA_RESET = True"
            )

    def open(self) -> None:
        """Record in the store the identity of this fingerprinter. Raises as `look` does."""
        self.look()
        self.client.call("set", f"{self._key}:identity", f"{FORMAT}:{self.lifetime.identity}")

    def known_until(self, key: bytes, period: float | None = None) -> float:
        """Return the time until which `key` is sure to count as marked in the last seconds: those
        of the store, or up to a slice before; with a shorter `period` in that, or up to a slice
        less. 0 if it does not. Cost: a round trip."""
        if not self._is_in(self._names(period), key):
            return 0.0
        width, now = self._width, self.clock()
        until = (now // width + 1) * width if width else inf
        return until if period is None else now

    def fact(self, key: bytes, name: str) -> bytes | None:
        """Return one of the FACTS about the page of `key`, None without it. Cost: a round trip."""
        found: bytes | None = self.client.call("hget", self._facts[name], key)
        return found

    def add(self, rows: Iterable[Row | tuple[bytes, float]]) -> None:
        """Add pages: those with a time are done. Cost: a round trip for 500 keys of a slice, and
        for 500 facts of a kind."""
        now, width, period = self.clock(), self._width, self.lifetime.period
        by_slice: dict[int, list[bytes]] = {}
        facts: dict[str, dict[bytes, bytes]] = {name: {} for name in FACTS}
        for key, when, *given in (Row(*each) for each in rows):
            if when is not None:
                number = int(min(when, now) // width) if width else 0
                by_slice.setdefault(number, []).append(key)
            for name, fact in zip(FACTS, given, strict=True):
                if fact is not None:
                    facts[name][key] = fact
        for name, found in facts.items():
            waiting = iter(found.items())
            while some := dict(islice(waiting, _AT_ONCE)):
                self.client.call("hset", self._facts[name], None, None, some)
        for number, keys in by_slice.items():
            left = 0
            if period is not None:
                left = int((number + 1) * width + period - now) + 1
                if left <= 0:
                    continue  # these marks have expired already
            for first in range(0, len(keys), _AT_ONCE):
                names = [f"{self._key}:slices", self._name(number)]
                self.client.run(DELTA_ADD, names, left, *keys[first : first + _AT_ONCE])

    def forget_others(self, rows: Iterable[Row]) -> None:
        """Remove the facts about the pages of `rows` that are others than theirs. Cost: a round
        trip for 500 rows with facts, and each kind."""
        left = (row for row in rows if row[2:] != (None,) * len(FACTS))
        while some := {row.key: row for row in islice(left, _AT_ONCE)}:
            found = [*self._rows([*some], None)]
            for place, name in enumerate(FACTS, 2):
                facts = [(row.key, row[place], some[row.key][place]) for row in found]
                if others := [
                    key for key, it, own in facts if own is not None and it not in (None, own)
                ]:
                    self.client.call("hdel", self._facts[name], *others)

    @property
    def identity(self) -> str:
        """The text about the fingerprinter whose marks are there, empty without any. Raises
        IncompatibleFilterError for another format."""
        found: bytes = self.client.call("get", f"{self._key}:identity") or b""
        number, _, identity = found.decode(errors="backslashreplace").partition(":")
        if found and number != str(FORMAT):
            raise IncompatibleFilterError(
                f"{self.name} has format {number if number.isdigit() else 'none'}, and this"
                f" scrapy-bloom reads {FORMAT}: use the version that has made it, or another"
                " BLOOM_DELTA_DIR, or start afresh with BLOOM_DELTA_RESET = True"
            )
        return identity

    def counts(self, before: float | None) -> tuple[int, dict[str, int]]:
        """Return 0, and the number of keys of each slice: of all, or of those that ended
        `before`."""
        return 0, {
            each.name: int(self.client.call("scard", each.name)) for each in self._slices(before)
        }

    def marks(self, before: float | None) -> Iterator[Row]:
        """Yield the keys of all slices, or of those that ended `before`, with the starts of their
        slices, None for a slice without a period; and pages that have only facts. A page may be in
        several slices."""
        slices = self._slices(before)
        for each in slices:
            start = None if each.end == inf else each.start
            for keys in self._scanned("sscan", each.name):
                yield from self._rows(keys, start)
        names = [each.name for each in slices]
        for place, name in enumerate(FACTS if before is None else ()):
            for keys in self._scanned("hscan", self._facts[name]):
                for row in self._rows(keys, None):
                    if row[2 : 2 + place] == (None,) * place and not self._is_in(names, row.key):
                        yield row

    def _scanned(self, command: str, name: str) -> Iterator[list[bytes]]:
        """Yield the keys of a set or a hash, in lists that are not empty."""
        cursor = None
        while cursor != 0:
            cursor, keys = self.client.call(command, name, cursor or 0)
            if keys:
                yield [*keys]

    def _rows(self, keys: Sequence[bytes], start: float | None) -> Iterator[Row]:
        """Yield the row of each of `keys`, with its facts. Cost: a round trip for each kind."""
        facts = [self.client.call("hmget", self._facts[name], *keys) for name in FACTS]
        return (Row(key, start, *found) for key, *found in zip(keys, *facts, strict=True))

    def _is_in(self, names: Sequence[str], key: bytes) -> bool:
        return bool(names) and bool(self.client.run(DELTA_KNOWS, names, key))

    def forget(self, keys: Iterable[bytes]) -> int:
        """Remove `keys` from all slices, and their facts; return how many were there. Cost: a round
        trip for each key and slice."""
        names, known = [each.name for each in self._slices(None)], 0
        for key in keys:
            removed = sum(self.client.call("hdel", name, key) for name in self._facts.values())
            removed += sum(self.client.call("srem", name, key) for name in names)
            known += removed > 0
        return known

    def drop_older(self, seconds: float) -> tuple[int, list[Slice]]:
        """Remove the slices that ended more than `seconds` ago, and the facts of pages that are in
        no later one; return 0, and them."""
        dropped = self._slices(self.clock() - seconds)
        later = [each.name for each in self._slices(None) if each not in dropped]
        for each in dropped:
            for keys in self._scanned("sscan", each.name):
                if gone := [key for key in keys if not self._is_in(later, key)]:
                    for name in self._facts.values():
                        self.client.call("hdel", name, *gone)
            self.client.call("unlink", each.name)
        return 0, dropped

    def _slices(self, before: float | None) -> list[Slice]:
        """Return the slices that are there, of whatever period, or those that ended `before`, from
        the oldest on."""
        found = []
        for member in self.client.call("smembers", f"{self._key}:slices"):
            # any other member may be the name of a key of another program
            if not (match := self._name_of_slice.fullmatch(member)):
                continue
            name, (width, number) = member.decode(), map(float, match.groups())
            end = (number + 1) * width if width else inf
            if (before is None or end < before) and self.client.call("exists", name):
                found.append(Slice(name, number * width, end))
        return sorted(found, key=lambda each: each.start)

    def clear(self) -> None:
        """Remove all slices, all facts and the identity."""
        names = [each.name for each in self._slices(None)] + [*self._facts.values()]
        for name in (*names, f"{self._key}:slices", f"{self._key}:identity"):
            self.client.call("unlink", name)

    def close(self) -> None:
        """Close the connection."""
        self.client.close()

    def _name(self, number: int) -> str:
        return f"{self._key}:{self._width:g}:{number}"

    def _names(self, period: float | None = None) -> list[str]:
        """Return the names of the slices that count for the last `period` seconds."""
        width, longest = self._width, self.lifetime.period
        if longest is None:
            return [self._name(0)]
        # a slice counts for a shorter period if all of it lies there: a page is not fetched late
        reach = longest if period is None or period >= longest else period - width
        now = self.clock()
        newest = int(now // width)
        numbers = range(newest, newest - SLICES - 2, -1)
        return [self._name(n) for n in numbers if (n + 1) * width + reach >= now]

    def _there(self) -> list[str]:
        return [name for name in self._names() if self.client.call("exists", name)]
