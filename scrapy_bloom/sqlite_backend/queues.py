"""Scrapy's request queues over the rows of a RequestFile."""

from __future__ import annotations

import marshal
import pickle
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from scrapy import Request, squeues
from scrapy.pqueues import DownloaderAwarePriorityQueue, ScrapyPriorityQueue
from scrapy.utils.misc import build_from_crawler, load_object
from scrapy.utils.python import global_object_name
from scrapy.utils.request import request_from_dict

from ..job.failure import Format, described
from .request_file import MAX_BYTES, PRIORITIES, Group, RequestFile

if TYPE_CHECKING:
    from scrapy import Spider
    from scrapy.crawler import Crawler
    from scrapy.settings import BaseSettings
    from typing_extensions import Self

FORMATS: dict[str, Format] = {
    "pickle": (lambda thing: pickle.dumps(thing, protocol=4), pickle.loads),
    "marshal": (marshal.dumps, marshal.loads),
}


@dataclass(frozen=True)
class QueueKind:
    """What the class of a disk queue of Scrapy's says: the order within a priority and
    the format of the requests."""

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
    """The order in which Scrapy's settings want requests: the class of the priority
    queue, and the kinds of the queues in it. `start` is None where start requests wait
    among the others."""

    priority_queue: type
    kind: QueueKind
    start: QueueKind | None

    @classmethod
    def read(cls, settings: BaseSettings) -> Self:
        """Return what the settings say. Raises ValueError for classes that are not
        Scrapy's own."""
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


class UnreadableRequestError(Exception):
    """Row `row` cannot be made a request again."""

    def __init__(self, row: int, error: Exception) -> None:
        super().__init__(described(error))
        self.row = row


class Callbacks:
    """The names that `Request.to_dict` finds for the callbacks of a spider.

    Scrapy looks for them among all attributes of the spider, for each request, which
    takes longer than all else of storing it. This stands for the spider there, and has
    only what it found the last time.
    """

    def __init__(self, spider: Spider | None) -> None:
        self._spider = spider
        self._names: dict[object, str] = {}
        """By function."""
        self._wanted: list[str] = []

    def to_dict(self, request: Request) -> dict[str, Any]:
        """Return `request.to_dict(spider=spider)`. Raises what that raises."""
        if type(request).to_dict is not Request.to_dict:
            return request.to_dict(spider=self._spider)
        functions = [getattr(m, "__func__", None) for m in (request.callback, request.errback)]
        self._wanted = [self._names[each] for each in functions if each in self._names]
        stand_in: Any = self
        with suppress(ValueError):
            return request.to_dict(spider=stand_in)
        found = request.to_dict(spider=self._spider)
        for function, name in zip(functions, (found["callback"], found["errback"]), strict=True):
            if function is not None:
                self._names[function] = name
        return found

    def __dir__(self) -> list[str]:
        return self._wanted

    def __getattr__(self, name: str) -> Any:
        return getattr(self._spider, name)


class RowQueue:
    """One queue of Scrapy's priority queues: the rows of one group. `bound` makes
    the class for a file."""

    file: ClassVar[RequestFile]
    kind: ClassVar[QueueKind]
    root: ClassVar[str]
    """What the keys of all queues begin with."""
    slots: ClassVar[dict[str, str]]
    """The slots of the stored requests, by what the keys have for them."""
    handed_out: ClassVar[dict[Request, int]]
    """The row of each request that was popped."""
    callbacks: ClassVar[Callbacks]

    @classmethod
    def bound(cls, **attributes: Any) -> type[Self]:
        """Return the class of the queues that have these attributes."""
        return type(cls.__name__, (cls,), attributes)

    def __init__(self, crawler: Crawler, key: str) -> None:
        self._crawler = crawler
        # "/-1s": start requests of priority 1; "/example.com-<hash>/0": those of a slot
        folder, _, name = key.removeprefix(self.root).removeprefix("/").rpartition("/")
        self._start = int(name.endswith("s"))
        self._priority = int(name.removesuffix("s"))
        self._slot = self.slots.get(folder) if folder else ""
        # what was stored counts once: the rows of a queue that was emptied are in flight
        self._length = self.file.counts.pop(self._group, 0) if self._slot is not None else 0

    @classmethod
    def from_crawler(cls, crawler: Crawler, key: str) -> Self:
        """Return the queue for `key`, as Scrapy's priority queues ask for it."""
        return cls(crawler, key)

    def push(self, request: Request) -> None:
        """Store `request`. Raises ValueError if it cannot be serialized."""
        if self._slot is None:
            self._slot = self._crawler.engine.downloader.get_slot_key(request)
        if self._priority not in PRIORITIES:
            raise ValueError(f"the priority {-self._priority} does not fit into 64 bits")
        serialize, _ = FORMATS[self.kind.format]
        try:
            stored = serialize(self.callbacks.to_dict(request))
        except Exception as error:
            raise ValueError(str(error)) from error
        if len(stored) > MAX_BYTES:
            raise ValueError(f"{len(stored):,} bytes are more than {MAX_BYTES:,}")
        newest_first = self.kind.newest_first
        self.file.push(self._group, self.kind.format, stored, newest_first=newest_first)
        self._length += 1

    def pop(self) -> Request | None:
        """Return the next request, which keeps its row, or None. Raises
        UnreadableRequestError; that row is not handed out again."""
        if not self._length:
            return None
        row, format_, stored = self.file.pop(self._group, newest=self.kind.newest_first)
        self._length -= 1
        request = self._read(row, format_, stored)
        self.handed_out[request] = row
        return request

    def peek(self) -> Request | None:
        """Return what `pop` would return."""
        if not self._length:
            return None
        newest = self.kind.newest_first
        return self._read(*self.file.pop(self._group, newest=newest, keep=True))

    def close(self) -> None:
        """Do nothing: the file is closed as a whole."""

    def __len__(self) -> int:
        return self._length

    @property
    def _group(self) -> Group:
        return self._slot or "", self._priority, self._start

    def _read(self, row: int, format_: str, stored: bytes) -> Request:
        try:
            _, deserialize = FORMATS[format_]
            return request_from_dict(deserialize(stored), spider=self._crawler.spider)
        except MemoryError:
            raise
        except Exception as error:
            raise UnreadableRequestError(row, error) from error
