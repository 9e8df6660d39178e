"""The requests of a job in a directory, as an operator reads and changes them."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ..errors import RequestFileError
from ..job.holds import LocalHolds
from ..job.slots import Slots
from ..jobdir import JobDirectory
from .job_file import RequestFile, reading
from .listing import Listing
from .orders import Change, HoldOrder, Order, answer, counts_of, figures_of, read_order, send
from .records import SqliteRecords
from .request_store import StoredHolds
from .rounds import REOPEN
from .status import held_in

if TYPE_CHECKING:
    from pathlib import Path

    from ..job.records import Action, By, Counts, Filter, Record


class SqliteDesk:
    """The Desk of the job in a directory. It reads also while the job runs, as it was committed
    last; a running job gets its changes as orders.

    Its methods raise RequestFileError, `change` and `hold` also FilterLockedError, OSError and
    ValueError. Cost: 0.2 µs a request to count by slot, priority or reason, 7 to look into each.
    """

    def __init__(self, job: Path) -> None:
        self._job = JobDirectory(job)

    @property
    def taker(self) -> str:
        """The process that asks what is retried, in words."""
        return "the running job" if self._job.is_locked else "the next start"

    def count(self, chosen: Filter, by: By = "slot") -> Counts:
        """Return how many are chosen."""
        with self._reading() as listing:
            return listing.count(chosen, by)

    def scan(self, chosen: Filter) -> Iterator[Record]:
        """Yield the chosen ones, all as of one commit: pending ones, then others."""
        with self._reading() as listing:
            yield from listing.scan(chosen)

    def held(self) -> Mapping[str, float]:
        """Return the held slots, and the seconds of their holds that are left."""
        with reading(self._job.requests, or_empty=True) as connection:
            return held_in(connection.execute)

    def change(self, chosen: Filter, action: Action) -> Counts | None:
        """Do `action` with what is chosen; None if a running job has not answered in time."""
        order = Order(chosen, action)
        if not self._job.is_locked:
            return counts_of(self._carry_out(order))
        with reading(self._job.requests) as connection:
            ((end,),) = connection.execute("SELECT last FROM job")
        found = send(self._job, order._replace(end=end, time=time.time()))
        return None if found is None else counts_of(found)

    def hold(self, slots: Sequence[str], seconds: float | None) -> int | None:
        """Hold `slots` for so many seconds, with None release them; see Desk."""
        order = HoldOrder(slots, None if seconds is None else time.time() + seconds)
        found = send(self._job, order) if self._job.is_locked else self._carry_out(order)
        return None if found is None else int(found["slots"])

    @contextmanager
    def _reading(self) -> Iterator[Listing]:
        is_running = self._job.is_locked
        with reading(self._job.requests, or_empty=True) as connection:
            connection.execute("BEGIN")
            yield Listing(connection.execute, is_running=is_running)

    def _carry_out(self, what: Order | HoldOrder) -> Mapping[str, Any]:
        """Carry out an order on the stopped job, behind those that stand; return its figures."""
        path = self._job.requests
        with self._job.locked():
            file = RequestFile.open(path, starts=False)
            file.name = ""  # the error below has it
            try:
                records = SqliteRecords(file, Slots())
                for stands in sorted(self._job.orders.glob("*.json")):
                    answer(stands, _carried_out(file, records, read_order(stands)))
                return _carried_out(file, records, what)
            except sqlite3.Error as error:
                raise RequestFileError(
                    f"{path} cannot be changed: {error}; it was left as it is"
                ) from error
            finally:
                file.close(clean=False)


def _carried_out(
    file: RequestFile, records: SqliteRecords, what: Order | HoldOrder
) -> Mapping[str, Any]:
    if isinstance(what, HoldOrder):
        StoredHolds(records, holds := LocalHolds(0.0))
        figures = {"slots": what.apply(holds)}
        file.commit(None)
        return figures
    change, has_more = Change(file, records, what, is_running=False), True
    while has_more:
        has_more = change.proceed()
        file.execute(REOPEN)
        file.commit(None)
    return figures_of(change.counts)
