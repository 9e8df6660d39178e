"""How many requests of a download slot, or of a pattern of URLs, a round may have."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf
from typing import TYPE_CHECKING

from .patterns import Patterns

if TYPE_CHECKING:
    from scrapy.crawler import Crawler

logger = logging.getLogger("scrapy_bloom.durable.base")

Name = str | bytes
"""What a request is counted under: a slot, or the bytes of a pattern, which no slot equals."""


class Budget:
    """The counts of a round: never more than `limits` allow, by slot or by pattern. `"*"` is the
    limit of each slot without one. `counted` has the counts of some names, `stored` returns that of
    any other; `changed` has those that are to be stored. Raises ValueError as Patterns does."""

    def __init__(self, limits: Mapping[str, int]) -> None:
        self.patterns = patterns = [key for key in limits if is_pattern(key)]
        self._limits: dict[Name, int] = {
            key.encode() if key in patterns else key: most for key, most in limits.items()
        }
        self.counted: dict[Name, int] = {}
        self.changed: set[Name] = set()
        self._told: set[str] = set()
        self.stored: Callable[[Name], int] = lambda name: 0
        self.pattern_of: Callable[[str], str] = lambda url: ""
        """Returns the pattern that counts a URL, an empty text without one."""
        if patterns:
            self.pattern_of = Patterns(patterns).of

    def names(self, slot: str, url: str, before: Iterable[tuple[str, str]] = ()) -> list[Name]:
        """Return the names under which a request counts: not those of the slots and URLs `before`,
        in place of which it is sent again."""
        names: list[Name] = [slot]
        if self.patterns and (pattern := self.pattern_of(url)):
            names.append(pattern.encode())
        for each in before:
            counted = self.names(*each)
            names = [name for name in names if name not in counted]
        return names

    def full(self, names: Iterable[Name]) -> Name | None:
        """Return the first of `names` that has no room, None if all have."""
        others = self._limits.get("*", inf)
        full = (name for name in names if self._count(name) >= self._limits.get(name, others))
        return next(full, None)

    def count(self, names: Iterable[Name]) -> None:
        """Count a request under all `names`."""
        for name in names:
            self.counted[name] = self._count(name) + 1
            self.changed.add(name)

    def refuses(self, names: Sequence[Name]) -> Name | None:
        """Count a new request under all `names`. Return one that is full, and count nothing, if it
        is over."""
        if (full := self.full(names)) is None:
            self.count(names)
        return full

    def note(self, crawler: Crawler, full: Name) -> None:
        """Add a request for which `full` has no room to the stats, and log the first of its key."""
        name = full.decode() if isinstance(full, bytes) else full
        key = name if full in self._limits else "*"
        for stat in ("scheduler/capped", f"scheduler/capped/{key}"):
            crawler.stats.inc_value(stat)
        if key not in self._told:
            self._told.add(key)
            told = "BLOOM_BUDGET has no room left for %(key)r: what is over it is capped"
            logger.info(told, {"key": key}, extra={"spider": crawler.spider})

    def _count(self, name: Name) -> int:
        return self.counted[name] if name in self.counted else self.stored(name)


def is_pattern(key: str) -> bool:
    """Return True if a key of BLOOM_BUDGET is a pattern: a glob over URLs, and no slot."""
    return "/" in key or ("*" in key and key != "*")
