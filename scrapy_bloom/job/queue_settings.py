"""Scrapy's settings of request queues: their classes, their order and their format."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from scrapy import squeues
from scrapy.pqueues import DownloaderAwarePriorityQueue, ScrapyPriorityQueue
from scrapy.utils.misc import load_object
from scrapy.utils.python import global_object_name

from ..settings import PICKLE
from .codec import FORMATS
from .memory_records import MemoryRecords
from .slots import OneLine, Slots

if TYPE_CHECKING:
    from collections.abc import Iterable

    from scrapy.crawler import Crawler
    from scrapy.settings import BaseSettings
    from typing_extensions import Self


@dataclass(frozen=True)
class QueueKind:
    """The order within a priority and the format of the requests, as the class of a queue of
    Scrapy's has them."""

    newest_first: bool
    format: str

    @classmethod
    def read(cls, settings: BaseSettings, name: str, formats: Iterable[str] = FORMATS) -> Self:
        """Return the kind of the queue class in the setting `name`. Raises ValueError
        for one that is not Scrapy's own."""
        queue_class = load_object(settings[name])
        media = ("Disk", "SQLite") if formats else ("Memory",)
        known = {
            f"{format_.capitalize()}{order}{medium}Queue": cls(order == "Lifo", format_)
            for format_ in formats or ("",)
            for order in ("Fifo", "Lifo")
            for medium in media
        }
        for class_name, kind in known.items():
            if getattr(squeues, class_name, None) is queue_class:
                return kind
        raise ValueError(
            f"{name} is {global_object_name(queue_class)}: DurableScheduler knows the order and"
            f" the format of Scrapy's own only (scrapy.squeues: {', '.join(known)})"
        )


@dataclass(frozen=True)
class QueueSettings:
    """Whether each download slot has a line of its own, and the kinds of the queues on the disk.
    `start` is None where start requests wait among the others. `pickles` is BLOOM_PICKLE."""

    by_slot: bool
    kind: QueueKind
    start: QueueKind | None
    pickles: bool

    @classmethod
    def read(cls, settings: BaseSettings) -> Self:
        """Read Scrapy's settings and ours. Raises ValueError for classes that are not Scrapy's
        own, and for a bad BLOOM_PICKLE."""
        by_slot, _ = memory_order(settings)
        return cls(by_slot, *_kinds(settings, "DISK"), PICKLE.read(settings))

    @property
    def newest_first(self) -> tuple[bool, bool | None]:
        """Whether the newest is next of equal requests, and of equal start requests."""
        return _newest_first(self.kind, self.start)


def takes_slots(settings: BaseSettings) -> bool:
    """Return True if each download slot has a line of its own, False for one line. Raises
    ValueError for another priority queue than Scrapy's two."""
    found = load_object(settings["SCHEDULER_PRIORITY_QUEUE"])
    if found is DownloaderAwarePriorityQueue and settings.getint("CONCURRENT_REQUESTS_PER_IP"):
        raise ValueError(
            "DownloaderAwarePriorityQueue does not support CONCURRENT_REQUESTS_PER_IP: set"
            " CONCURRENT_REQUESTS_PER_DOMAIN, or SCHEDULER_PRIORITY_QUEUE to"
            " 'scrapy.pqueues.ScrapyPriorityQueue'"
        )
    if found in (DownloaderAwarePriorityQueue, ScrapyPriorityQueue):
        return found is DownloaderAwarePriorityQueue
    raise ValueError(
        f"SCHEDULER_PRIORITY_QUEUE is {global_object_name(found)}, and DurableScheduler knows the"
        " order of Scrapy's own only: use the priority or the download_slot of a request, or set"
        " SCHEDULER to 'scrapy.core.scheduler.Scheduler'"
    )


def slots_of(crawler: Crawler, *, by_slot: bool) -> Slots:
    """Return the empty slots of a queue of `crawler`."""
    return (Slots if by_slot else OneLine).of(crawler)


def memory_order(settings: BaseSettings) -> tuple[bool, tuple[bool, bool | None]]:
    """Return `takes_slots`, and whether the newest in memory is next of equal requests, and of
    equal start requests, None where these wait among the others. Raises ValueError for classes that
    are not Scrapy's own."""
    return takes_slots(settings), _newest_first(*_kinds(settings, "MEMORY", ()))


def memory_records(crawler: Crawler) -> MemoryRecords:
    """Return the records in memory of `crawler`, in the order of Scrapy's settings."""
    by_slot = True
    newest_first: tuple[bool, bool | None] = True, False
    with suppress(ValueError):  # a command for one page
        by_slot, newest_first = memory_order(crawler.settings)
    return MemoryRecords(slots_of(crawler, by_slot=by_slot), newest_first, by_slot=by_slot)


def _kinds(
    settings: BaseSettings, medium: str, formats: Iterable[str] = FORMATS
) -> tuple[QueueKind, QueueKind | None]:
    kind = QueueKind.read(settings, f"SCHEDULER_{medium}_QUEUE", formats)
    name = f"SCHEDULER_START_{medium}_QUEUE"
    return kind, QueueKind.read(settings, name, formats) if settings[name] else None


def _newest_first(kind: QueueKind, start: QueueKind | None) -> tuple[bool, bool | None]:
    return kind.newest_first, None if start is None else start.newest_first
