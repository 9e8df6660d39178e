"""Scrapy's request queues over the rows of a RequestFile."""

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
    """Row `row` cannot be made a request again."""

    def __init__(self, row: int, error: Exception) -> None:
        super().__init__(described(error))
        self.row = row


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
    codec: ClassVar[Codec]

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
        fields = self.codec.fields(request)
        stored = self.codec.dump(fields, self._slot, self.kind.format)
        newest_first = self.kind.newest_first
        self.file.push(self._group, stored.format, stored.payload, newest_first=newest_first)
        self._length += 1

    def pop(self) -> Request | None:
        """Return the next request, which keeps its row, or None. Raises
        UnreadableRequestError; that row is not handed out again."""
        if not self._length:
            return None
        row, format_, payload = self.file.pop(self._group, newest=self.kind.newest_first)
        self._length -= 1
        request = self._read(row, format_, payload)
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

    def _read(self, row: int, format_: str, payload: bytes) -> Request:
        try:
            return self.codec.load(Stored(self._slot or "", format_, payload))
        except MemoryError:
            raise
        except Exception as error:
            raise UnreadableRequestError(row, error) from error
