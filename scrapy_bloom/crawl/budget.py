"""BLOOM_BUDGET: how many requests of a download slot, or of a pattern of URLs, a round may have."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from math import inf
from typing import TYPE_CHECKING, Any

from scrapy.settings import BaseSettings

from ..amounts import MOST
from ..errors import encodable
from ..settings import Setting, Values, require
from .failed_request import CAPPED, LOST, FailedRequest
from .patterns import Patterns
from .start_requests import REPEAT_KEY

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.crawler import Crawler
    from typing_extensions import Self

    from .ledger_scheduler import LedgerScheduler

logger = logging.getLogger(__name__)

Name = str | bytes
"""What a request is counted under: a slot, or the bytes of a pattern, which no slot equals."""


def _budget(value: Any) -> dict[str, int]:
    """Return most pages by slot or pattern, from a dictionary or its JSON."""
    if value in ("", "None"):
        return {}
    require(isinstance(value, (str, Mapping)))
    found = BaseSettings({"value": value}).getdict("value")
    for key, most in found.items():
        require(isinstance(key, str) and key != "" and key == encodable(key))
        require(type(most) is int and 0 <= most <= MOST)
    return found


BUDGET: Setting[dict[str, int]] = Setting(
    "BLOOM_BUDGET",
    {},
    Values(
        "a dictionary of download slots, or globs with / or * over URLs, and whole numbers from 0"
        f" to {MOST:,}, such as {{'*': 10000, 'example.com': 50, 'example.com/calendar/*': 5}}; '*'"
        " is each other slot",
        _budget,
    ),
    "The most pages that a round fetches of a download slot, or of URLs that match a pattern",
)


class Budget:
    """The counts of a round, here in memory: never more than `limits` allow, by slot or by pattern.
    `"*"` is the limit of each slot without one. Raises ValueError as Patterns does."""

    counts_here = True
    """False where Redis counts what is scheduled."""

    def __init__(self, limits: Mapping[str, int]) -> None:
        self.patterns = patterns = [key for key in limits if is_pattern(key)]
        self._limits: dict[Name, int] = {
            key.encode() if key in patterns else key: most for key, most in limits.items()
        }
        self._counted: Counter[Name] = Counter()
        self._told: set[str] = set()
        self.pattern_of = Patterns(patterns).of

    @classmethod
    def of(cls, settings: BaseSettings, *about: Any) -> Self | None:
        """Return the budget in `settings`, None without one. Raises ValueError."""
        limits = BUDGET.read(settings)
        return cls(limits, *about) if limits else None

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
        self._counted.update(names)

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

    def names_in(self, scheduler: LedgerScheduler, request: Request) -> list[Name]:
        """Return the names under which a request counts that is scheduled: not where it is sent
        again, and none for one that each start repeats, such as a login."""
        if scheduler.ledger is not None and request.meta.get(REPEAT_KEY):
            return []
        both = (request, *scheduler._sources_of(request))
        pages = [(encodable(scheduler._slot_of(each)), each.url) for each in both]
        return self.names(*pages[0], pages[1:])

    def keeps_out(self, scheduler: LedgerScheduler, request: Request, delay: float | None) -> bool:
        """Count a request that is scheduled. Return True if there is no room for it: that is noted,
        and nothing else happens to it."""
        names = self.names_in(scheduler, request)
        full = self.refuses(names) if self.counts_here else None
        if full is not None:
            self.note(scheduler.crawler, full)
            self.keep(request, delay, full)
        return full is not None

    def keep(self, request: Request, delay: float | None, full: Name) -> None:
        """Keep a request for which `full` has no room: in a job, JobBudget does."""

    def lets_out(self, request: Request) -> bool:
        """Make durable, in a job, what has to be before `request` is dispatched; return False if
        that fails. The ledger does not know it yet: a commit would acknowledge it."""
        return True

    def _count(self, name: Name) -> int:
        return self._counted[name]


def is_pattern(key: str) -> bool:
    """Return True if a key of BLOOM_BUDGET is a pattern: a glob over URLs, and no slot."""
    return "/" in key or ("*" in key and key != "*")


def capped(url: str, method: str, slot: str, pattern: str = "") -> FailedRequest:
    """Return the record of a request for which its slot, or a pattern, has no room."""
    full = f"pattern {pattern!r}" if pattern else f"slot {slot!r}"
    return FailedRequest(url, method, CAPPED, exception=f"BLOOM_BUDGET has no room for {full}")


def lost(request: Request, slot: str) -> FailedRequest:
    """Return the record of a request of `slot` that is over the budget and cannot be serialized."""
    callback = getattr(request.callback, "__qualname__", "parse")
    what = f"callback {callback}, slot {slot!r}"
    return FailedRequest.of(request, LOST)._replace(attempts=0, exception=encodable(what))
