"""The requests of a job: a RequestStore over the records of its file."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Sequence
from functools import partial
from math import inf
from operator import attrgetter
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

from ..crawl.codec import Codec, Stored, url_and_method
from ..crawl.delays import DEAD, NO_HOLD
from ..crawl.failed_request import FailedRequest, class_and_message, is_first
from ..errors import encodable
from ..scrapy_private.slots import raw_slot_keys
from .job_file import MAX_BYTES
from .records import MOST_PRIORITY, SqliteRecords

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.crawler import Crawler

    from ..crawl.holds import LocalHolds
    from ..crawl.queue_order import QueueSettings
    from .job_file import RequestFile

logger = logging.getLogger(__name__)


def keep_holds(records: SqliteRecords, holds: LocalHolds, *, ends_dead: bool = False) -> None:
    """Keep the `holds` of a process in the file of `records`, and go on with those of the file, but
    for those by hand that are over, and with `ends_dead` those of dead hosts. This, and any later
    change, may raise sqlite3.Error."""
    holds.add(records.slots)
    holds.keep = partial(_keep, records, holds)
    now = time.time()
    for slot, until, times, pause in records.holds():
        # no longer than it was, if the clock was set back
        left = inf if until is None else min(until - now, pause or 0.0)
        if (times or left > 0) and not (times >= DEAD and ends_dead):
            holds.hold(slot, left, times, pause=pause)
        else:
            holds.keep(slot)


def _keep(records: SqliteRecords, holds: LocalHolds, slot: str) -> None:
    """Write a hold that has changed, and let what it has put off be due if it is over."""
    if slot != encodable(slot):
        return  # its requests are in memory, too
    hold = holds.holds.get(slot, NO_HOLD)
    left = hold.until - monotonic()
    end, pause = (time.time() + left, hold.pause) if left < inf else (None, None)
    records.hold(slot, end, None if hold is NO_HOLD else hold.times, pause)
    if left <= 0:
        records.end_hold(slot)


class SqliteStore:
    """The requests of `records`. `note_commit` is called after each commit with the file's id and
    the number of its commits, before its fingerprints are released."""

    failures = SqliteRecords.failures

    def __init__(
        self,
        crawler: Crawler,
        file: RequestFile,
        records: SqliteRecords,
        settings: QueueSettings,
        note_commit: Callable[[bytes, int], None],
        holds: LocalHolds,
    ) -> None:
        self.records = self.pending = records
        self.rollback, self.close, self.has_only = file.rollback, file.close, records.has_only
        self._crawler, self._file, self._note_commit = crawler, file, note_commit
        self._starts_apart = settings.newest_first[1] is not None
        self.dispatched: dict[Request, int] = {}  # the record of each
        self.codec = Codec(crawler.spider, MAX_BYTES, pickles=settings.pickles, stats=crawler.stats)
        self._slot_of = raw_slot_keys(crawler)
        self._holds = holds
        keep_holds(records, holds, ends_dead=True)
        self.last_pushed = 0

    later = property(attrgetter("records.delayed"))

    @property
    def uncommitted(self) -> int:
        """How many requests were pushed since the last commit."""
        return self.records.last - self._file.last

    @property
    def failed(self) -> int:
        """Number of requests that are stored as failed, or wait for dead hosts."""
        return self.records.failed + self.of_dead_hosts

    @property
    def of_dead_hosts(self) -> int:
        """How many requests wait for dead hosts."""
        is_any = any(hold.times >= DEAD for hold in self._holds.holds.values())
        return self.records.of_dead_hosts if is_any else 0

    @property
    def nbytes(self) -> int:
        """Bytes of the file and its log."""
        paths = Path(self._file.name), Path(f"{self._file.name}-wal")
        return sum(path.stat().st_size for path in paths if path.exists())

    @property
    def next_due(self) -> float | None:
        """Seconds until the next delayed request is due, by the clock of the machine."""
        due = self.records.next_due
        return None if due is None else due - time.time()

    def push(
        self, request: Request, sources: Sequence[Request], delay: float | None = None
    ) -> None:
        """Add a record for `request`. Raises ValueError if it cannot be serialized."""
        due = None if delay is None else time.time() + delay
        self.last_pushed = self.records.push(*self.record_of(request), due)

    def next(self) -> Request | None:
        """Return the next request, or None. Requests that cannot be read back fail. Makes up to 100
        pending that are due."""
        if self.records.next_due is not None:
            self.records.take_due(time.time())
        while (claimed := self.records.next()) is not None:
            id_, slot, payload = claimed
            stored = Stored(slot, payload)
            try:
                request = self.codec.load(stored)
            except Exception as error:  # noqa: BLE001 - of any class, by damaged bytes or its own code
                self._keep_unreadable(id_, stored, error)
                continue
            if self._holds.holds and not self._holds.admit(slot, request):
                self.records.put_off(id_)
                continue
            self.dispatched[request] = id_
            return request
        return None

    def done(self, request: Request) -> None:
        """Delete the record of a dispatched request."""
        id_ = self.dispatched.pop(request, None)
        if id_ is not None:
            self.records.done(id_)

    def fail(self, request: Request, failed: FailedRequest) -> bool:
        """Make a dispatched request a failed one. Return False for any other."""
        id_ = self.dispatched.pop(request, None)
        if id_ is not None:
            stored = Stored(*self.records.stored(id_))
            self.records.fail(id_, failed, self.codec.again(stored, failed).payload)
        return id_ is not None

    def commit(self, fingerprints: Collection[bytes] | None) -> bool:
        """Make all changes durable; None stands for the `fingerprints` of the last commit. Return
        False if there was nothing to write. Cost: an fsync."""
        if not self._file.changed:
            return False
        self._file.commit(fingerprints)
        self._note_commit(self._file.id, self._file.commits)
        return True

    def record_of(self, request: Request) -> tuple[str, int, bytes]:
        """Return slot, rank and payload of `request`. Raises ValueError where it has none."""
        start = bool(self._starts_apart and request.meta.get("is_start_request"))
        priority, slot = request.priority, self._slot_of(request)
        if not -MOST_PRIORITY <= priority <= MOST_PRIORITY:
            raise ValueError(f"the priority {priority} does not fit into 62 bits")
        if type(slot) is not str or not slot.isascii():
            slot = encodable(slot)
        _, payload = self.codec.dump(request, slot)
        return slot, start - 2 * priority, payload  # `rank_of` in line

    def _keep_unreadable(self, id_: int, stored: Stored, error: Exception) -> None:
        why = class_and_message(error)
        failed = FailedRequest.unreadable(*url_and_method(stored), why)
        self.records.fail(id_, failed)
        if not is_first(self._crawler.stats, "scheduler/unreadable"):
            return
        logger.error(
            "Row %(row)d of requests.sqlite cannot be made a request again (%(error)s): it has"
            " failed, and is tried again at the next start. Restore what is missing in the spider,"
            " its project or the job; 'scrapy bloom failed' lists such requests. No more of them"
            " are logged (see the stat scheduler/unreadable).",
            {"row": id_, "error": why},
            extra={"spider": self._crawler.spider},
        )
