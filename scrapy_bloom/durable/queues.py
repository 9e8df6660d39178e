"""Scrapy's request queues over the rows of a RequestFile."""

from __future__ import annotations

import marshal
import pickle
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

from scrapy import squeues
from scrapy.utils.python import global_object_name
from scrapy.utils.request import request_from_dict

from ..errors import RequestFileError
from .request_file import MAX_BYTES, PRIORITIES, Group, RequestFile

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.crawler import Crawler
    from typing_extensions import Self

FORMATS: dict[str, tuple[Callable[[Any], bytes], Callable[[bytes], Any]]] = {
    "pickle": (lambda thing: pickle.dumps(thing, protocol=4), pickle.loads),
    "marshal": (marshal.dumps, marshal.loads),
}


def queue_kind(queue_class: type, setting: str) -> tuple[bool, str]:
    """Return for one of Scrapy's disk queues whether the newest comes first, and the
    format of its requests. Raises ValueError for another one."""
    known = {
        f"{format_.capitalize()}{order}{medium}Queue": (order == "Lifo", format_)
        for format_ in FORMATS
        for order in ("Fifo", "Lifo")
        for medium in ("Disk", "SQLite")
    }
    for name, kind in known.items():
        if getattr(squeues, name, None) is queue_class:
            return kind
    raise ValueError(
        f"{setting} is {global_object_name(queue_class)}: DurableScheduler knows the order and"
        f" the format of Scrapy's own only (scrapy.squeues: {', '.join(known)})"
    )


class RequestQueue:
    """One queue of Scrapy's priority queues: the rows of one group. `bound` makes
    the class for a file."""

    file: ClassVar[RequestFile]
    newest_first: ClassVar[bool]
    format: ClassVar[str]
    root: ClassVar[str]
    """What the keys of all queues begin with."""
    slots: ClassVar[dict[str, str]]
    """The slots of the stored requests, by what the keys have for them."""
    popped: ClassVar[Callable[[Request, int], None]]
    """Called with each popped request and its row."""

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
        serialize, _ = FORMATS[self.format]
        try:
            stored = serialize(request.to_dict(spider=self._crawler.spider))
        except Exception as error:
            raise ValueError(str(error)) from error
        if len(stored) > MAX_BYTES:
            raise ValueError(f"{len(stored):,} bytes are more than {MAX_BYTES:,}")
        self.file.push(self._group, self.format, stored, newest_first=self.newest_first)
        self._length += 1

    def pop(self) -> Request | None:
        """Return the next request, or None. Raises what reading it back raises."""
        if not self._length:
            return None
        row, request = self._next()
        self._length -= 1
        type(self).popped(request, row)
        return request

    def peek(self) -> Request | None:
        """Return what `pop` would return."""
        return self._next(keep=True)[1] if self._length else None

    def close(self) -> None:
        """Do nothing: the file is closed as a whole."""

    def __len__(self) -> int:
        return self._length

    @property
    def _group(self) -> Group:
        return self._slot or "", self._priority, self._start

    def _next(self, *, keep: bool = False) -> tuple[int, Request]:
        row, format_, stored = self.file.pop(self._group, newest=self.newest_first, keep=keep)
        try:
            _, deserialize = FORMATS[format_]
            return row, request_from_dict(deserialize(stored), spider=self._crawler.spider)
        except Exception as error:
            raise RequestFileError(
                f"row {row} of requests.sqlite cannot be made a request again: {error};"
                " restore what is missing in the spider or its project, then resume the job"
            ) from error
