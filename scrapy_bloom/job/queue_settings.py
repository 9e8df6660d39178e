"""Scrapy's settings of request queues: their classes, their order and their format; and the queue
that stands in for Scrapy's own where there are many slots."""

from __future__ import annotations

import logging
from bisect import bisect_left, bisect_right, insort
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import scrapy
from scrapy import squeues
from scrapy.pqueues import DownloaderAwarePriorityQueue, ScrapyPriorityQueue
from scrapy.utils.misc import build_from_crawler, load_object
from scrapy.utils.python import global_object_name

from ..scrapy_private import path_safe, pop_from, slot_keys, slot_loads, slots_take_turns
from ..settings import PICKLE
from .codec import FORMATS

if TYPE_CHECKING:
    from collections.abc import Callable

    from scrapy import Request
    from scrapy.crawler import Crawler
    from scrapy.settings import BaseSettings
    from typing_extensions import Self

logger = logging.getLogger("scrapy_bloom.durable.queues")


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
    where start requests wait among the others. SlotQueue takes the place of Scrapy's
    DownloaderAwarePriorityQueue, but not that of its subclasses. `pickles` is BLOOM_PICKLE."""

    priority_queue: type
    kind: QueueKind
    start: QueueKind | None
    pickles: bool

    @classmethod
    def read(cls, settings: BaseSettings) -> Self:
        """Read Scrapy's settings and ours. Raises ValueError for classes that are not Scrapy's
        own, and for a bad BLOOM_PICKLE."""
        priority_queue = _priority_queue(settings)
        if not issubclass(priority_queue, (DownloaderAwarePriorityQueue, ScrapyPriorityQueue)):
            raise ValueError(
                f"SCHEDULER_PRIORITY_QUEUE is {global_object_name(priority_queue)}:"
                " DurableScheduler knows Scrapy's own and their subclasses only"
            )
        kind = QueueKind.read(settings, "SCHEDULER_DISK_QUEUE")
        name = "SCHEDULER_START_DISK_QUEUE"
        start = QueueKind.read(settings, name) if settings[name] else None
        return cls(priority_queue, kind, start, PICKLE.read(settings))

    @property
    def newest_first(self) -> tuple[bool, bool]:
        """Whether the newest is next of equal requests, and of equal start requests."""
        return self.kind.newest_first, (self.start or self.kind).newest_first

    @property
    def by_slot(self) -> bool:
        """True if each download slot has queues of its own."""
        return issubclass(self.priority_queue, DownloaderAwarePriorityQueue)


class SlotQueue(DownloaderAwarePriorityQueue):
    """A DownloaderAwarePriorityQueue with the same order, whose costs do not grow with the number
    of its slots, apart from the moving of 8 bytes a slot when one is added or removed. The requests
    of a slot that is on hold are pending, and not popped."""

    def __init__(self, crawler: Crawler, *arguments: Any, **options: Any) -> None:
        super().__init__(crawler, *arguments, **options)
        self._slot_of = slot_keys(crawler)
        self._load = slot_loads(crawler)
        self._takes_turns = slots_take_turns()
        self._last: str | None = None
        self._held: set[str] = set()
        self._names = sorted(self.pqueues)
        """The slots that may be popped."""
        self._length: int = super().__len__()
        self.asks_last: Callable[[str], bool] = lambda slot: False
        """Whether the last in line of its highest priority is the next request of a slot."""

    def hold(self, slot: str) -> None:
        """Pop no request of `slot`, which may be empty, until its `release`."""
        if slot not in self._held:
            self._held.add(slot)
            if slot in self.pqueues:
                del self._names[bisect_left(self._names, slot)]

    def release(self, slot: str) -> None:
        """Let the requests of `slot` be popped again."""
        if slot in self._held:
            self._held.remove(slot)
            if slot in self.pqueues:
                insort(self._names, slot)

    def push(self, request: Request) -> None:
        """Add `request`. Raises as its queue does, ValueError if it cannot be serialized."""
        slot = self._slot_of(request)
        queue = self.pqueues.get(slot)
        if queue is None:
            queue = self.pqueues[slot] = self.pqfactory(slot)
            if slot not in self._held:
                insort(self._names, slot)
        queue.push(request)
        self._length += 1

    def pop(self) -> Request | None:
        """Return the next request; None if there is none but of slots on hold. Raises as its queue
        does. Cost: a look at each slot with active downloads, at most."""
        while (slot := self._next()) is not None:
            self._last = slot
            queue = self.pqueues[slot]
            before = len(queue)
            try:
                request = pop_from(queue, last=self.asks_last(slot))
            finally:
                left = len(queue)
                self._length += left - before
            if not left:
                self._remove(slot)
            # None is of a slot that a failed push or pop has left without requests
            if request is not None or not self._length:
                return request
        return None

    def peek(self) -> Request | None:
        """Return the result of the next `pop`, without popping."""
        slot = self._next()
        return None if slot is None else self.pqueues[slot].peek()

    def recount(self) -> None:
        """Count the requests of all slots again. Cost: a step for each slot."""
        self._length = super().__len__()

    def close(self) -> dict[str, list[int]]:
        """Close all queues; return their priorities by slot."""
        self._names.clear()
        self._length = 0
        return super().close()

    def __len__(self) -> int:
        return self._length

    def _next(self) -> str | None:
        """Return the slot with the fewest active downloads: of equal ones the first by name, or if
        they take turns, the first behind the last that was popped."""
        names = self._names
        start = 0
        if self._takes_turns and self._last is not None:
            start = bisect_right(names, self._last)
        found, least = None, 0.0
        for index in range(start - len(names), start):
            slot = names[index]
            load = self._load(slot)
            if not load:
                return slot
            if found is None or load < least:
                found, least = slot, load
        return found

    def _remove(self, slot: str) -> None:
        del self._names[bisect_left(self._names, slot)]
        self.pqueues.pop(slot).close()
        if self.key:
            with suppress(OSError):
                Path(self.key, path_safe()(slot)).rmdir()


def memory_queue(crawler: Crawler) -> ScrapyPriorityQueue:
    """Return a priority queue in memory, as Scrapy's scheduler has one."""
    return _build(crawler, _priority_queue(crawler.settings), "", "MEMORY")


def scrapy_disk_queue(crawler: Crawler, folder: str, state: Any) -> ScrapyPriorityQueue:
    """Return the priority queue on the disk that Scrapy's scheduler has left in `folder`
    with `state`."""
    queue_class = load_object(crawler.settings["SCHEDULER_PRIORITY_QUEUE"])
    return _build(crawler, queue_class, folder, "DISK", startprios=state)


def _build(
    crawler: Crawler, queue_class: type, key: str, medium: str, **options: Any
) -> ScrapyPriorityQueue:
    settings = crawler.settings
    start = settings[f"SCHEDULER_START_{medium}_QUEUE"]
    queue: ScrapyPriorityQueue = build_from_crawler(
        queue_class,
        crawler,
        downstream_queue_cls=load_object(settings[f"SCHEDULER_{medium}_QUEUE"]),
        key=key,
        start_queue_cls=load_object(start) if start else None,
        **options,
    )
    return queue


def _priority_queue(settings: BaseSettings) -> type:
    """Return the class of the priority queue, SlotQueue for one that it stands in for."""
    found: type = load_object(settings["SCHEDULER_PRIORITY_QUEUE"])
    return _stand_in() if found is DownloaderAwarePriorityQueue else found


@cache
def _stand_in() -> type:
    if slots_take_turns() is not None:
        return SlotQueue
    logger.warning(
        "DownloaderAwarePriorityQueue of Scrapy %(version)s has an order that scrapy-bloom does not"
        " know, so it is used itself: each request costs more, the more slots have requests",
        {"version": scrapy.__version__},
    )
    return DownloaderAwarePriorityQueue
