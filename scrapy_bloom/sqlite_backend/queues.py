"""Scrapy's request queues over the rows of the request file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from ..job.codec import Stored
from ..job.failure import described
from .request_file import PRIORITIES, Group, RequestFile

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.crawler import Crawler
    from typing_extensions import Self

    from ..job.codec import Codec
    from ..job.queue_settings import QueueKind


class UnreadableRequestError(Exception):
    """Row `row` cannot be read back as a request."""

    def __init__(self, row: int, error: Exception) -> None:
        super().__init__(described(error))
        self.row = row


class RowQueue:
    """One queue of Scrapy's priority queues: the rows of one group. `bound` makes the class for a
    file."""

    file: ClassVar[RequestFile]
    kind: ClassVar[QueueKind]
    root: ClassVar[str]
    """The common prefix of the keys of all queues."""
    slots: ClassVar[dict[str, str]]
    """The slots of the stored requests, by their form in the keys."""
    dispatched: ClassVar[dict[Request, int]]
    """The row of each dispatched request."""
    codec: ClassVar[Codec]

    @classmethod
    def bound(cls, **attributes: Any) -> type[Self]:
        """Return a subclass with these attributes."""
        return type(cls.__name__, (cls,), attributes)

    def __init__(self, crawler: Crawler, key: str) -> None:
        self._crawler = crawler
        # "/-1s": start requests of priority 1; "/example.com-<hash>/0": those of a slot
        folder, _, name = key.removeprefix(self.root).removeprefix("/").rpartition("/")
        self._start = int(name.endswith("s"))
        self._priority = int(name.removesuffix("s"))
        self._slot = self.slots.get(folder) if folder else ""
        # stored rows count once: if the queue is emptied and made again, its rows are dispatched
        self._length = self.file.counts.pop(self._group, 0) if self._slot is not None else 0

    @classmethod
    def from_crawler(cls, crawler: Crawler, key: str) -> Self:
        """Return the queue for `key`. Scrapy's priority queues call it."""
        return cls(crawler, key)

    def push(self, request: Request) -> None:
        """Store `request`. Raises ValueError if it cannot be serialized."""
        if self._slot is None:
            self._slot = self._crawler.engine.downloader.get_slot_key(request)
        if self._priority not in PRIORITIES:
            raise ValueError(f"the priority {-self._priority} does not fit into 64 bits")
        fields = self.codec.fields(request)
        stored = self.codec.dump(fields, self._slot, self.kind.format)
        newest_first = self.kind.newest_first
        self.file.push(self._group, stored.format, stored.payload, newest_first=newest_first)
        self._length += 1

    def pop(self) -> Request | None:
        """Return the next request, which keeps its row, or None. Raises UnreadableRequestError for
        a row, once."""
        if not self._length:
            return None
        row, format_, payload = self.file.pop(self._group, newest=self.kind.newest_first)
        self._length -= 1
        request = self._read(row, format_, payload)
        self.dispatched[request] = row
        return request

    def peek(self) -> Request | None:
        """Return the result of the next `pop`, without popping."""
        if not self._length:
            return None
        newest = self.kind.newest_first
        return self._read(*self.file.pop(self._group, newest=newest, keep=True))

    def close(self) -> None:
        """Do nothing: the store closes the file of all queues."""

    def __len__(self) -> int:
        return self._length

    @property
    def _group(self) -> Group:
        return self._slot or "", self._priority, self._start

    def _read(self, row: int, format_: str, payload: bytes) -> Request:
        try:
            return self.codec.load(Stored(self._slot or "", format_, payload))
        except MemoryError:
            raise
        except Exception as error:
            raise UnreadableRequestError(row, error) from error
