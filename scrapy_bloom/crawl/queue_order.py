"""Scrapy's settings of request queues: their classes, and so their order."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from scrapy import squeues
from scrapy.pqueues import DownloaderAwarePriorityQueue, ScrapyPriorityQueue
from scrapy.utils.misc import load_object
from scrapy.utils.python import global_object_name

from ..settings import PICKLE
from .records import MemoryRecords
from .slots import OneLine, Slots

if TYPE_CHECKING:
    from scrapy.crawler import Crawler
    from scrapy.settings import BaseSettings
    from typing_extensions import Self

_NAMES = {
    "DISK": "(Pickle|Marshal)(Fifo|Lifo)(Disk|SQLite)Queue",
    "MEMORY": "(Fifo|Lifo)MemoryQueue",
}
"""How Scrapy names the classes of its queues, by medium."""


class QueueSettings(NamedTuple):
    """The queues on the disk or in memory. Whether each download slot has a line of its own;
    whether the newest is next of equal requests, and of equal start requests, None where these wait
    among the others. `pickles` is BLOOM_PICKLE."""

    by_slot: bool = True
    newest_first: tuple[bool, bool | None] = True, False
    pickles: bool = True

    @classmethod
    def read(cls, settings: BaseSettings, medium: str = "DISK") -> Self:
        """Read Scrapy's settings and ours. Raises ValueError for classes that are not Scrapy's
        own, on the disk also of those in memory, and for a bad BLOOM_PICKLE, and ImportError."""
        by_slot, pickles = _takes_slots(settings), True
        if medium == "DISK":
            cls.read(settings, "MEMORY")
            pickles = PICKLE.read(settings)
        newest = _is_newest_first(settings, f"SCHEDULER_{medium}_QUEUE", medium)
        name = f"SCHEDULER_START_{medium}_QUEUE"
        start = _is_newest_first(settings, name, medium) if settings[name] else None
        return cls(by_slot, (newest, start), pickles)

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


def _is_newest_first(settings: BaseSettings, name: str, medium: str) -> bool:
    """Return whether the newest is next in the queue class in the setting `name`. Raises ValueError
    for one that is not Scrapy's own."""
    queue_class = _loaded(settings, name)
    for class_name, found in vars(squeues).items():
        if found is queue_class and re.fullmatch(_NAMES[medium], class_name):
            return "Lifo" in class_name
    raise ValueError(
        f"{name} is {global_object_name(queue_class)}: DurableScheduler knows the order of Scrapy's"
        f" own only, scrapy.squeues.{_NAMES[medium]}"
    )


def _loaded(settings: BaseSettings, name: str) -> Any:
    """Return the class in the setting `name`. Raises ImportError that names both."""
    try:
        return load_object(settings[name])
    except Exception as error:
        what = f"{name} is {settings[name]!r}, which cannot be loaded ({error})"
        raise ImportError(f"{what}: correct it, or leave it out") from error
