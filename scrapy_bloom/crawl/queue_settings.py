"""Scrapy's settings of request queues: their classes, their order and their format."""

from __future__ import annotations

from contextlib import suppress
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

from scrapy import squeues
from scrapy.pqueues import DownloaderAwarePriorityQueue, ScrapyPriorityQueue
from scrapy.utils.misc import load_object
from scrapy.utils.python import global_object_name

from ..settings import PICKLE
from .codec import FORMATS
from .records import MemoryRecords
from .slots import OneLine, Slots

if TYPE_CHECKING:
    from collections.abc import Mapping

    from scrapy.crawler import Crawler
    from scrapy.settings import BaseSettings
    from typing_extensions import Self

_KINDS = {"DISK": (("Disk", "SQLite"), tuple(FORMATS)), "MEMORY": (("Memory",), ("",))}
"""How Scrapy names the classes of its queues: by medium, and by format."""


class QueueSettings(NamedTuple):
    """The queues on the disk or in memory. Whether each download slot has a line of its own;
    whether the newest is next of equal requests, and of equal start requests, None where these wait
    among the others; the formats of both. `pickles` is BLOOM_PICKLE."""

    by_slot: bool = True
    newest_first: tuple[bool, bool | None] = True, False
    formats: tuple[str, str] = "", ""
    pickles: bool = True

    @classmethod
    def read(cls, settings: BaseSettings, medium: str = "DISK") -> Self:
        """Read Scrapy's settings and ours. Raises ValueError for classes that are not Scrapy's
        own, on the disk also of those in memory, and for a bad BLOOM_PICKLE, and ImportError."""
        by_slot, pickles = _takes_slots(settings), True
        if medium == "DISK":
            cls.read(settings, "MEMORY")
            pickles = PICKLE.read(settings)
        newest, format_ = _kind(settings, f"SCHEDULER_{medium}_QUEUE", medium)
        name, start = f"SCHEDULER_START_{medium}_QUEUE", (None, format_)
        newest_start, start_format = _kind(settings, name, medium) if settings[name] else start
        return cls(by_slot, (newest, newest_start), (format_, start_format), pickles)

    def is_start(self, meta: Mapping[str, Any]) -> bool:
        """Return True if a request with this `meta` is in the line of start requests."""
        return self.newest_first[1] is not None and bool(meta.get("is_start_request"))

    def slots(self, crawler: Crawler) -> Slots:
        """Return the empty slots of a queue of `crawler`."""
        return (Slots if self.by_slot else OneLine).of(crawler)


def memory_records(crawler: Crawler) -> MemoryRecords:
    """Return the records in memory of `crawler`, in the order of Scrapy's settings."""
    queues = QueueSettings()
    with suppress(ValueError, ImportError):  # a command for one page
        queues = QueueSettings.read(crawler.settings, "MEMORY")
    return MemoryRecords(queues.slots(crawler), queues.newest_first)


def _takes_slots(settings: BaseSettings) -> bool:
    """Return True if each download slot has a line of its own, False for one line. Raises
    ValueError for another priority queue than Scrapy's two."""
    found = _loaded(settings, "SCHEDULER_PRIORITY_QUEUE")
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


def _kind(settings: BaseSettings, name: str, medium: str) -> tuple[bool, str]:
    """Return whether the newest is next in the queue class in the setting `name`, and its format.
    Raises ValueError for one that is not Scrapy's own."""
    queue_class = _loaded(settings, name)
    media, formats = _KINDS[medium]
    known = {
        f"{format_.capitalize()}{order}{each}Queue": (order == "Lifo", format_)
        for format_, order, each in product(formats, ("Fifo", "Lifo"), media)
    }
    for class_name, kind in known.items():
        if getattr(squeues, class_name, None) is queue_class:
            return kind
    raise ValueError(
        f"{name} is {global_object_name(queue_class)}: DurableScheduler knows the order and"
        f" the format of Scrapy's own only (scrapy.squeues: {', '.join(known)})"
    )


def _loaded(settings: BaseSettings, name: str) -> Any:
    """Return the class in the setting `name`. Raises ImportError that names both."""
    try:
        return load_object(settings[name])
    except Exception as error:
        what = f"{name} is {settings[name]!r}, which cannot be loaded ({error})"
        raise ImportError(f"{what}: correct it, or leave it out") from error
