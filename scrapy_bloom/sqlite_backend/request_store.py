"""The requests of a job, in one SQLite file and in the order of Scrapy's priority queues."""

from __future__ import annotations

import logging
import sqlite3
import time
from collections.abc import Callable, Collection, Mapping, Sequence, Sized
from contextlib import suppress
from functools import partial
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Any, ClassVar

from scrapy.pqueues import DownloaderAwarePriorityQueue, ScrapyPriorityQueue
from scrapy.utils.misc import build_from_crawler
from scrapy.utils.python import global_object_name

from ..errors import JobDirectoryError, encodable
from ..job.codec import Codec, Stored
from ..job.delays import take_delay
from ..job.failed_request import class_and_message, count_unreadable, lost
from ..job.queue_settings import SlotQueue, scrapy_disk_queue
from ..scrapy_private import SCOPES_KEY, SLOT_KEY, leave_emptied, path_safe, slot_keys
from .failed_store import OpenFailedStore
from .job_file import MAX_BYTES, PRIORITIES, RequestFile
from .rounds import KEPT, REOPEN

if TYPE_CHECKING:
    from pathlib import Path

    from scrapy import Request
    from scrapy.crawler import Crawler
    from typing_extensions import Self

    from ..job.delays import Hold
    from ..job.failed_request import FailedRequest
    from ..job.holds import LocalHolds
    from ..job.queue_settings import QueueKind, QueueSettings
    from .budget import LocalBudget
    from .job_file import Group
    from .scrapy_queues import ScrapyQueues

logger = logging.getLogger("scrapy_bloom.durable.sqlite_store")

MOST_DUE = 100
"""Delayed requests that become pending at once."""
_OF_SCRAPY = (SlotQueue, DownloaderAwarePriorityQueue, ScrapyPriorityQueue)
"""The priority queues that read no more of a request than a _StoredRequest has."""


class SqliteStore:
    """The rows of `file` as a RequestStore: one of Scrapy's priority queues over them, of the class
    and the kinds in `settings`. Failed requests go to `failed`. `note_commit` is called after each
    commit, before its fingerprints are released."""

    failures: tuple[type[Exception], ...] = (sqlite3.Error, OSError)

    def __init__(
        self,
        crawler: Crawler,
        file: RequestFile,
        path: Path,
        settings: QueueSettings,
        failed: OpenFailedStore,
        note_commit: Callable[[], None],
        holds: LocalHolds,
    ) -> None:
        self._crawler = crawler
        self._note_commit = note_commit
        self._file = file
        self._path = path
        self._settings = settings
        self._dispatched: dict[Request, int] = {}
        """The row of each dispatched request."""
        self._queues: dict[Group, RowQueue] = {}
        """The queues of groups with pending requests."""
        self.codec = Codec(
            crawler.spider,
            MAX_BYTES,
            has_cache=crawler.settings.getbool("HTTPCACHE_ENABLED"),
            pickles=settings.pickles,
            stats=crawler.stats,
        )
        self._failed = failed
        self.budget: LocalBudget | None = None
        """With BLOOM_BUDGET."""
        self.renumbered: Callable[[int], object] = lambda row: None
        """Called when the delayed request of this number has become the last pushed row."""
        # the path of a file, since Scrapy's queues remove the folders of empty slots; SlotQueue
        # is told that there are none
        self.root = "" if settings.priority_queue is SlotQueue else str(path)
        """The common prefix of the keys of all queues."""
        self.slots: dict[str, str] = {}
        """The slots of the stored requests, by their form in the keys; empty after the start."""
        self.pending: ScrapyPriorityQueue = self._open_queue()
        self._holds = holds
        self.holds: Mapping[str, Hold] = holds.holds
        """The holds by slot."""
        self._until: dict[str, float] = {}
        """When each hold ends, in seconds since 1970."""
        self._open_holds()

    @property
    def uncommitted(self) -> int:
        """Number of rows pushed or deleted since the last commit."""
        return self._file.operations

    @property
    def failed(self) -> int:
        """Number of requests that are stored as failed."""
        return self._failed.count

    @property
    def nbytes(self) -> int:
        """Bytes of the file and its log."""
        log = self._path.with_name(f"{self._path.name}-wal")
        return sum(path.stat().st_size for path in (self._path, log) if path.exists())

    @property
    def later(self) -> int:
        """The number of delayed requests."""
        return self._file.later

    @property
    def next_due(self) -> float | None:
        """Seconds until the next delayed request is due, by the clock of the machine."""
        return None if self._file.due is None else self._file.due - time.time()

    def push(
        self, request: Request, sources: Sequence[Request], delay: float | None = None
    ) -> None:
        """Add a row for `request`, with a `delay` in the table `later`. Raises ValueError if it
        cannot be serialized."""
        if delay is None:
            self.pending.push(request)
            return
        group, payload = self._stored(request, by_slot=self._settings.by_slot)
        self._file.delay(time.time() + delay, group, payload)

    def admits(self, slot: str) -> bool:
        """Count a new request of `slot`; see Budget. Raises sqlite3.Error."""
        return self.budget is None or self.budget.admits(slot)

    def cap(self, request: Request) -> None:
        """Keep `request`, which is over the budget, and is not pending. Raises ValueError if it
        cannot be serialized: then its record is kept."""
        assert self.budget is not None
        try:
            self.budget.keep(*self._stored(request, by_slot=True))
        except ValueError:
            slot = encodable(self._slot_of(request))
            self._failed.add_lost(slot, lost(request, slot))
            raise

    def take_due(self) -> bool:
        """Make up to 100 requests pending that are due. Return True if there are more. Cost: 10 µs
        for each."""
        if (due := self._file.due) is None or due > (now := time.time()):
            return False
        for row, group, payload in self._file.take_due(now, MOST_DUE):
            self.pending.push(self._due(group, payload))
            self.renumbered(row)
        return self._file.due is not None and self._file.due <= now

    def dropped(self, groups: Mapping[Group, int], *, kept: int) -> None:
        """Count so many rows of these groups no more, and `kept` failed requests more: an operator
        has dropped them. Cost: a step for each slot."""
        for group, number in groups.items():
            self._queues[group].dropped(number)
        leave_emptied(self.pending)
        if isinstance(self.pending, SlotQueue):
            self.pending.recount()
        self._file.recount_later()
        self._failed.count += kept

    def next(self) -> Request | None:
        """Return the next request, whose row stays, or None. Requests that cannot be read back
        fail."""
        empty = len(self._queues)
        while True:
            request = self.pending.pop()
            if isinstance(request, UnreadableRequestError):
                self._keep_unreadable(request)
                continue
            if (
                request is None
                and empty
                and not isinstance(self.pending, SlotQueue)
                and len(self.pending) > 0
            ):
                # from each queue that a failure or a drop has emptied, Scrapy's give None once; a
                # subclass may also give it because it keeps its requests back
                empty -= 1
                continue
            if request is not None and self._holds.holds and self._must_wait(request):
                continue
            return request

    def hold(self, slot: str, seconds: float, times: int) -> None:
        """Hold `slot`; see RequestStore. Raises sqlite3.Error."""
        self._holds.hold(slot, seconds, times)

    def release(self, slot: str) -> None:
        """End the hold of `slot`. Raises sqlite3.Error."""
        self._holds.release(slot)

    def done(self, request: Request) -> None:
        """Delete the row of a dispatched request."""
        row = self._dispatched.pop(request, None)
        if row is not None:
            self._file.delete(row)

    def fail(self, request: Request, failed: FailedRequest) -> bool:
        """Move the row of a dispatched request to the failed ones. Return False for any other.
        Raises sqlite3.Error."""
        row = self._dispatched.pop(request, None)
        if row is None:
            return False
        (found,) = self._file.query("SELECT slot, request FROM requests WHERE id = ?", (row,))
        again = self.codec.again(Stored(*found), failed)
        if self.budget is not None and not self._settings.by_slot:
            # a retry in a later round counts in its slot
            again = self.codec.moved(again, encodable(self._slot_of(request)))
        self._failed.add(row, again.payload, failed, again.slot)
        self._file.delete(row)
        return True

    def row_of(self, request: Request) -> int | None:
        """Return the row of a dispatched request, None for any other."""
        return self._dispatched.get(request)

    @property
    def dispatched_rows(self) -> set[int]:
        """The rows of all dispatched requests."""
        return {*self._dispatched.values()}

    def commit(self, fingerprints: Collection[bytes]) -> bool:
        """Make all changes durable; return False if there was nothing to write. Cost: an fsync."""
        if not self._file.changed:
            return False
        self._file.commit(fingerprints)
        self._note_commit()
        if self.budget is not None:
            self.budget.committed()
        return True

    def reopen_round(self) -> None:
        """Let the last round go on if a request that it has kept is pending again, and can be read.
        Cost: reads the stored requests of a round that is over, up to the first such one."""
        kept = self._file.query("SELECT 1 FROM rounds WHERE phase = ?", (KEPT,))
        # the others fail again when they are popped
        if kept and self.codec.loads_any(self._file.iterate("SELECT slot, request FROM requests")):
            self._file.execute(REOPEN)

    def rollback(self) -> None:
        """Drop all changes since the last commit."""
        self._file.rollback()

    def close(self, *, clean: bool) -> None:
        """Close the file, marked as `clean` or not."""
        self._file.close(clean=clean)

    def _stored(self, request: Request, *, by_slot: bool) -> tuple[Group, bytes]:
        start = self._settings.start if request.meta.get("is_start_request") else None
        slot = encodable(self._slot_of(request)) if by_slot else ""
        group = slot, -request.priority, int(start is not None)
        return group, self.dump(request, group, start or self._settings.kind)

    def dump(self, request: Request, group: Group, kind: QueueKind) -> bytes:
        """Return `request` as it is stored in `group`. Raises ValueError if it cannot be
        serialized."""
        slot, priority, _ = group
        if priority not in PRIORITIES:
            raise ValueError(f"the priority {-priority} does not fit into 64 bits")
        return self.codec.dump(self.codec.fields(request), slot, kind.format).payload

    def take_over(self, left: ScrapyQueues) -> int:
        """Move the pending requests of Scrapy's own scheduler here; return their number."""

        def take(request: Request) -> None:
            self.admits(self._slot_of(request))
            self.push(request, (), take_delay(request))

        return left.move(self._file, partial(scrapy_disk_queue, self._crawler), take)

    def _due(self, group: Group, payload: bytes) -> Any:
        """Return what stands for a stored request in a push, so that none is read; the request
        itself where a class of the project decides its place."""
        if group[0] and not self._settings.by_slot:
            # the settings have changed; what is damaged shows when it is popped
            with suppress(ValueError):
                payload = self.codec.moved(Stored(group[0], payload), "").payload
            group = "", *group[1:]
        stand_in: Any = _StoredRequest(group, payload)
        if type(self.pending) in _OF_SCRAPY and (
            not self._settings.by_slot or self._slot_of(stand_in) == group[0]
        ):
            return stand_in
        try:
            return self.codec.load(Stored(group[0], payload))
        except Exception:  # noqa: BLE001 - it fails again when it is popped
            return stand_in

    def _slot_of(self, request: Request) -> str:
        return slot_keys(self._crawler)(request)

    def _open_holds(self) -> None:
        """Go on with the holds of the file, but for those by hand that are over."""
        if isinstance(self.pending, SlotQueue):
            self._holds.add(self.pending)
        now = time.time()
        for slot, until, times, pause in self._file.query("SELECT * FROM holds"):
            # no longer than it was, if the clock was set back
            end = inf if until is None else min(until, now + pause)
            if times < 0:
                self._holds.hold(slot, -inf, times)
            elif times or end > now:
                self._until[slot] = end
                self._holds.hold(slot, end - now, times, pause=pause)
            else:
                self._file.execute("DELETE FROM holds WHERE slot = ?", (slot,))
            if until is not None and end < until:
                self._file.move_due(until, end)
        self._holds.keep = self._keep_hold

    def _keep_hold(self, slot: str) -> None:
        """Write a hold that has changed, and let requests that were put off wait for its end."""
        hold, now = self._holds.holds.get(slot), time.time()
        until = now if hold is None else now + hold.until - monotonic()
        before = self._until.pop(slot, None)
        if hold is not None:
            self._until[slot] = until
        if slot != encodable(slot):
            pass  # its requests are in memory, too
        elif hold is None:
            self._file.execute("DELETE FROM holds WHERE slot = ?", (slot,))
        else:
            ends = (until, self._holds.pauses[slot]) if until < inf else (None, None)
            self._file.execute(
                "REPLACE INTO holds VALUES (?, ?, ?, ?)", (slot, ends[0], hold.times, ends[1])
            )
        if before is not None and not isinstance(self.pending, SlotQueue):
            self._file.move_due(before, until)

    def _must_wait(self, request: Request) -> bool:
        """Return True, and put `request` off, if its slot is held, which SlotQueue has looked at
        itself. Cost: moves a row."""
        slot = self._slot_of(request)
        if self._holds.admit(slot):
            return False
        row = self._dispatched.pop(request)
        ((*group, payload),) = self._file.query(
            "SELECT slot, priority, start, request FROM requests WHERE id = ?", (row,)
        )
        self._file.delay(self._until[slot], (group[0], group[1], group[2]), payload)
        self.renumbered(row)
        self._file.delete(row)
        return True

    def _keep_unreadable(self, error: UnreadableRequestError) -> None:
        self._failed.add_unreadable(error.row, str(error))
        self._file.delete(error.row)
        if not count_unreadable(self._crawler.stats):
            return
        logger.error(
            "Row %(row)d of requests.sqlite cannot be made a request again (%(error)s): it has"
            " failed, and is tried again at the next start. Restore what is missing in the spider,"
            " its project or the job; 'scrapy bloom failed' lists such requests. No more of them"
            " are logged (see the stat scheduler/unreadable).",
            {"row": error.row, "error": error},
            extra={"spider": self._crawler.spider},
        )

    def _open_queue(self) -> ScrapyPriorityQueue:
        file, settings = self._file, self._settings
        if not settings.by_slot:
            self._merge_slots()
        if settings.start is None:
            file.merge_starts()
        if settings.by_slot:
            folder_of = path_safe()
            self.slots.update((folder_of(slot), slot) for slot, _, _ in file.counts)
        queue: ScrapyPriorityQueue = build_from_crawler(
            settings.priority_queue,
            self._crawler,
            downstream_queue_cls=RowQueue.of(self, settings.kind),
            key=self.root,
            startprios=self._priorities(),
            start_queue_cls=settings.start and RowQueue.of(self, settings.start),
        )
        self.slots.clear()
        if file.counts:
            raise JobDirectoryError(
                f"{self._path} holds requests that {global_object_name(settings.priority_queue)}"
                " would not serve; set SCHEDULER_PRIORITY_QUEUE to one of Scrapy's own"
            )
        return queue

    def _merge_slots(self) -> None:
        """Move all requests into the slot '', whose bytes depend on their slot."""

        def moved(row: int, slot: str, request: bytes) -> bytes | None:
            try:
                return self.codec.moved(Stored(slot, request), "").payload
            except ValueError as error:
                self._keep_unreadable(UnreadableRequestError(row, error))
                return None

        self._file.merge_slots(moved)

    def _priorities(self) -> Sized:
        """Return the stored priorities in the form the priority queue starts with."""
        if not self._settings.by_slot:
            return sorted({priority for _, priority, _ in self._file.counts})
        by_slot: dict[str, set[int]] = {}
        for slot, priority, _ in self._file.counts:
            by_slot.setdefault(slot, set()).add(priority)
        return {slot: sorted(priorities) for slot, priorities in by_slot.items()}


class _StoredRequest:
    """A stored request of a group, with as much of a request as Scrapy's priority queues read."""

    url = "data:,"

    def __init__(self, group: Group, payload: bytes) -> None:
        slot, priority, start = group
        self.priority = -priority
        self.meta = {SLOT_KEY: slot, SCOPES_KEY: slot, "is_start_request": start}
        self.payload = payload


class UnreadableRequestError(Exception):
    """Row `row` cannot be read back as a request."""

    def __init__(self, row: int, error: Exception) -> None:
        super().__init__(class_and_message(error))
        self.row = row


class RowQueue:
    """One queue of Scrapy's priority queues: the rows of one group. `of` makes the class for a
    store."""

    store: ClassVar[SqliteStore]
    kind: ClassVar[QueueKind]

    @classmethod
    def of(cls, store: SqliteStore, kind: QueueKind) -> type[Self]:
        """Return the subclass for the queues of that `kind`."""
        return type(cls.__name__, (cls,), {"store": store, "kind": kind})

    def __init__(self, key: str) -> None:
        store = self.store
        self._file, self._codec = store._file, store.codec
        self._dispatched, self._queues = store._dispatched, store._queues
        # "/-1s": start requests of priority 1; "/example.com-<hash>/0": those of a slot
        folder, _, name = key.removeprefix(store.root).removeprefix("/").rpartition("/")
        self._start = int(name.endswith("s"))
        self._priority = int(name.removesuffix("s"))
        self._slot = store.slots.get(folder) if folder else ""
        self.q = [self.kind.newest_first, not self.kind.newest_first]
        """Whether the newest is next. It is reversed as the line of a queue in memory is."""
        # stored rows count once: if the queue is emptied and made again, its rows are dispatched
        self._length = self._file.counts.pop(self._group, 0) if self._slot is not None else 0
        if self._length:
            self._queues[self._group] = self

    @classmethod
    def from_crawler(cls, crawler: Crawler, key: str) -> Self:
        """Return the queue for `key`. Scrapy's priority queues call it."""
        return cls(key)

    def push(self, request: Any) -> None:
        """Store `request`, or a _StoredRequest. Raises ValueError if it cannot be serialized."""
        if self._slot is None:
            self._slot = self.store._slot_of(request)
        group = self._group
        if isinstance(request, _StoredRequest):
            payload = request.payload
        else:
            payload = self.store.dump(request, group, self.kind)
        self._file.push(group, payload, newest_first=self.kind.newest_first)
        self._length += 1
        if self._length == 1:
            self._queues[group] = self

    def pop(self) -> Request | UnreadableRequestError | None:
        """Return the next request, which keeps its row, or None; for a row that is none, once, an
        UnreadableRequestError. Raised, it would leave a queue of Scrapy's between two states."""
        if not self._length:
            return None
        row, payload = self._file.pop(self._group, newest=self.q[0])
        self._length -= 1
        try:
            request = self._read(row, payload)
        except UnreadableRequestError as error:
            return error
        self._dispatched[request] = row
        return request

    def peek(self) -> Request | None:
        """Return the result of the next `pop`, without popping."""
        if not self._length:
            return None
        newest = self.kind.newest_first
        return self._read(*self._file.pop(self._group, newest=newest, keep=True))

    def dropped(self, number: int) -> None:
        """Count so many rows no more."""
        self._length -= number

    def close(self) -> None:
        """Do nothing but for the books: the store closes the file of all queues."""
        if self._queues.get(self._group) is self:
            del self._queues[self._group]

    def __len__(self) -> int:
        return self._length

    @property
    def _group(self) -> Group:
        return self._slot or "", self._priority, self._start

    def _read(self, row: int, payload: bytes) -> Request:
        try:
            return self._codec.load(Stored(self._slot or "", payload))
        except Exception as error:
            raise UnreadableRequestError(row, error) from error
