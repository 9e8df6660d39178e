"""The requests of a job in a directory, as an operator reads and changes them."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from ..errors import RequestFileError
from ..job.records import Action
from ..jobdir import JobDirectory
from . import schema
from .job_file import check_header, connect, reading
from .listing import Listing
from .orders import Change, HoldOrder, Order, answer, counts_of, figures_of, send, standing
from .progress import held_in
from .rounds import REOPEN

if TYPE_CHECKING:
    from pathlib import Path

    from ..job.choice import By, Counts, Filter, Record

FOR_THE_NEXT_START = (
    "SELECT id FROM request WHERE id IN (SELECT value FROM json_each(?))"
    " AND (state = 4 OR round < (SELECT number FROM rounds))"
)
ASK = "UPDATE request SET state = 5, due = NULL, detail = NULL WHERE id = ?"
WAKE = (
    "UPDATE request SET state = 0, due = NULL, round = NULL, detail = NULL, place = (SELECT last *"
    " CASE COALESCE(CASE WHEN rank & 1 THEN newest_start END, newest) WHEN 0 THEN 1 ELSE -1 END"
    " FROM job) WHERE id = ?"
)


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
        with self._job.locked(), _writing(self._job.requests) as connection:
            for path, order in standing(self._job):
                answer(path, _carried_out(connection, order))
            return _carried_out(connection, what)


def _carried_out(connection: sqlite3.Connection, what: Order | HoldOrder) -> Mapping[str, Any]:
    if isinstance(what, HoldOrder):
        with connection:
            connection.execute("BEGIN IMMEDIATE")
            return {"slots": what.apply_to_file(connection)}
    change = Change(connection, what, partial(woken, connection), is_running=False)
    has_more = True
    while has_more:
        with connection:
            connection.execute("BEGIN IMMEDIATE")
            has_more = change.proceed()
            connection.execute(REOPEN)
    return figures_of(change.counts)


def woken(file: sqlite3.Connection, ids: Sequence[int]) -> int:
    """Make failed and capped requests of a job that does not run pending, as the newest of their
    rank; those that are capped, or of an earlier round, are asked by the next start, as far as its
    budget has room. Return how many."""
    for_the_next_start = {*file.execute(FOR_THE_NEXT_START, (json.dumps(ids),))}
    for id_ in ids:
        if (id_,) in for_the_next_start:
            file.execute(ASK, (id_,))
        else:
            file.execute("UPDATE job SET last = last + 1")
            file.execute(WAKE, (id_,))
    return len(ids)


@contextmanager
def _writing(path: Path) -> Iterator[sqlite3.Connection]:
    """Give a connection to the file of a stopped job, of the current version. Raises
    RequestFileError."""
    check_header(path)
    try:
        with closing(connect(path, "rw")) as connection:
            connection.execute("PRAGMA synchronous = FULL")
            schema.check(connection)
            yield connection
    except sqlite3.Error as error:
        raise RequestFileError(
            f"{path} cannot be changed: {error}; it was left as it is"
        ) from error
