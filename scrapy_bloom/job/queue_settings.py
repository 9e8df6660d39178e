"""Scrapy's settings of request queues: their classes, their order and their format."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from scrapy import squeues
from scrapy.pqueues import DownloaderAwarePriorityQueue, ScrapyPriorityQueue
from scrapy.utils.misc import build_from_crawler, load_object
from scrapy.utils.python import global_object_name

from .codec import FORMATS

if TYPE_CHECKING:
    from scrapy.crawler import Crawler
    from scrapy.settings import BaseSettings
    from typing_extensions import Self


@dataclass(frozen=True)
class QueueKind:
    """The order within a priority and the format of the requests, as the class of a disk
    queue of Scrapy's has them."""

    newest_first: bool
    format: str

    @classmethod
    def read(cls, settings: BaseSettings, name: str) -> Self:
        """Return the kind of the queue class in the setting `name`. Raises ValueError
        for one that is not Scrapy's own."""
        queue_class = load_object(settings[name])
        known = {
            f"{format_.capitalize()}{order}{medium}Queue": cls(order == "Lifo", format_)
            for format_ in FORMATS
            for order in ("Fifo", "Lifo")
            for medium in ("Disk", "SQLite")
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
    """The class of the priority queue, and the kinds of the queues in it. `start` is None
    where start requests wait among the others."""

    priority_queue: type
    kind: QueueKind
    start: QueueKind | None

    @classmethod
    def read(cls, settings: BaseSettings) -> Self:
        """Read Scrapy's settings. Raises ValueError for classes that are not Scrapy's own."""
        priority_queue = load_object(settings["SCHEDULER_PRIORITY_QUEUE"])
        if not issubclass(priority_queue, (DownloaderAwarePriorityQueue, ScrapyPriorityQueue)):
            raise ValueError(
                f"SCHEDULER_PRIORITY_QUEUE is {global_object_name(priority_queue)}:"
                " DurableScheduler knows Scrapy's own and their subclasses only"
            )
        kind = QueueKind.read(settings, "SCHEDULER_DISK_QUEUE")
        start = None
        if settings["SCHEDULER_START_DISK_QUEUE"]:
            start = QueueKind.read(settings, "SCHEDULER_START_DISK_QUEUE")
        return cls(priority_queue, kind, start)

    @property
    def newest_first(self) -> tuple[bool, bool]:
        """Whether the newest is next of equal requests, and of equal start requests."""
        return self.kind.newest_first, (self.start or self.kind).newest_first

    @property
    def by_slot(self) -> bool:
        """True if each download slot has queues of its own."""
        return issubclass(self.priority_queue, DownloaderAwarePriorityQueue)


def memory_queue(crawler: Crawler) -> ScrapyPriorityQueue:
    """Return the priority queue in memory that Scrapy's scheduler has."""
    return _build(crawler, "", "MEMORY")


def scrapy_disk_queue(crawler: Crawler, folder: str, state: Any) -> ScrapyPriorityQueue:
    """Return the priority queue on the disk that Scrapy's scheduler has left in `folder`
    with `state`."""
    return _build(crawler, folder, "DISK", startprios=state)


def _build(crawler: Crawler, key: str, medium: str, **options: Any) -> ScrapyPriorityQueue:
    settings = crawler.settings
    start = settings[f"SCHEDULER_START_{medium}_QUEUE"]
    queue: ScrapyPriorityQueue = build_from_crawler(
        load_object(settings["SCHEDULER_PRIORITY_QUEUE"]),
        crawler,
        downstream_queue_cls=load_object(settings[f"SCHEDULER_{medium}_QUEUE"]),
        key=key,
        start_queue_cls=load_object(start) if start else None,
        **options,
    )
    return queue
