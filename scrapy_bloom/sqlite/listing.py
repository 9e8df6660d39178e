"""The requests in the table of a job, as an operator sees them, and as another crawl takes them."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ..crawl.budget import capped
from ..crawl.choice import OF_URL, Counts, Filter, Record
from ..crawl.codec import Stored, plain_fields, stored_fields, url_and_method
from ..crawl.delays import DEAD
from ..crawl.failed_request import CAPPED, HOST, FailedRequest
from ..crawl.records import State
from ..errors import BloomError, RequestFileError
from . import schema
from .job_file import DAMAGED, check_header, looking
from .kept import readable
from .schema import START

if TYPE_CHECKING:
    from scrapy import Request

    from ..crawl.choice import By
    from ..crawl.codec import Codec
    from .job_file import RequestFile

T = TypeVar("T")

Query = Callable[[str], Iterable[Sequence[Any]]]

_ROW = "SELECT id, slot, rank, state, payload, due, detail FROM request"
_DUE = f"{_ROW} WHERE state <= 1 ORDER BY id"
_SLOTS = "SELECT id, name FROM slot"
_HOLDS = (
    "SELECT name, COALESCE(until, 9e999) AS until, times FROM slot WHERE times IS NOT NULL"
    " ORDER BY name"
)
COUNT_DELAYED = "SELECT COUNT(*), MIN(due) FROM request WHERE state > 0 AND state = 2"
_COUNTS = (
    "SELECT (SELECT COUNT(*) FROM request WHERE state <= 2),"
    " (SELECT COUNT(*) FROM request WHERE state > 2),"
    " MAX(0, (SELECT COUNT(*) FROM items WHERE request IS NULL)"
    " - (SELECT COALESCE(SUM(json_extract(facts, '$.items')), 0) FROM batches))"
)


def in_state(state: State) -> str:
    """Return the condition of a state, by which SQLite finds its partial index."""
    return "state = 0" if state is State.PENDING else f"state > 0 AND state = {int(state)}"


def all_of(state: State) -> str:
    """Return the statement that reads all requests in `state`, the oldest first."""
    if state is State.PENDING:
        return f"{_ROW} NOT INDEXED WHERE state = 0 ORDER BY id"
    return f"{_ROW} WHERE {in_state(state)} ORDER BY due, id"


def groups_of(state: State) -> str:
    """Return the statement that counts those in `state` by slot, rank and reason."""
    reason = {State.FAILED: "reason", State.CAPPED: f"'{CAPPED}'"}
    by = ", reason" if state is State.FAILED else ""
    return (
        f"SELECT slot, rank, {reason.get(state, repr(''))} AS reason, COUNT(*) FROM request"  # noqa: S608 - no input
        f" WHERE {in_state(state)} GROUP BY slot, rank{by}"
    )


def part_of(states: Iterable[State]) -> str:
    """Return the statement that reads so many requests in `states`: after an id, up to another."""
    listed = ", ".join(str(int(state)) for state in sorted(states))
    index = (
        "NOT INDEXED WHERE" if State.PENDING in states else "INDEXED BY other WHERE state > 0 AND"
    )
    return f"{_ROW} {index} state IN ({listed}) AND id > ? AND id <= ? ORDER BY id LIMIT ?"


def waiting(file: RequestFile, codec: Codec) -> Iterator[Request]:
    """Return what is pending or delayed, and can be read. Cost: reads all. Raises sqlite3.Error."""
    rows = "SELECT name, payload FROM request JOIN slot ON slot.id = slot WHERE state IN (0, 2)"
    return readable(codec, file.execute(rows))


class Listing:
    """The requests that `ask` reads, of a job that `is_running` or not. Any method may raise
    sqlite3.Error."""

    def __init__(self, ask: Query, *, is_running: bool) -> None:
        self._ask = ask
        self._is_running = is_running
        self._names: dict[int, str] = {}
        self._dead = {id_ for (id_,) in ask("SELECT id FROM dead")}

    def states(self, chosen: Filter) -> list[State]:
        """Return the states to look at: what a killed process has claimed is pending, and what
        waits for a dead host has failed."""
        found = {*chosen.states}
        if self._dead and State.FAILED in found:
            found |= {State.PENDING, State.DELAYED}
        if State.PENDING in (chosen.states if self._is_running else found):
            found.add(State.CLAIMED)
        return sorted(found - {State.QUARANTINED})

    def count(self, chosen: Filter, by: By = "slot") -> Counts:
        """Return how many are chosen."""
        found = Counts()
        if chosen.reads or by == "callback" or by in OF_URL:
            for record in self._each(chosen):
                found.add(record, chosen, by)
            return found
        for state in self.states(chosen):
            for slot, rank, why, count in self._ask(groups_of(state)):
                reason = HOST if (seen := self._seen(state, slot)) > state else why
                failed = FailedRequest("", "", reason) if reason else None
                record = Record(seen, self._name(slot), -(rank >> 1), {}, None, failed)
                if seen in (*chosen.states, State.CLAIMED):
                    found.add(record, chosen, by, count)
        return found

    def scan(self, chosen: Filter) -> Iterator[Record]:
        """Yield the chosen ones."""
        for record in self._each(chosen):
            if record.state in chosen.states and chosen.includes(record):
                yield record

    def record(self, row: Sequence[Any], *, reads: bool = True) -> Record:
        """Return a row as an operator sees it, its payload only if the caller `reads` it."""
        _, slot, rank, number, payload, due, detail = row
        state, name = State(number), self._name(slot)
        fields: Mapping[str, Any] = {}
        if reads and state is not State.FAILED:
            fields = plain_fields(Stored(name, payload))
        record = Record(seen := self._seen(state, slot), name, -(rank >> 1), fields)
        if seen > state:
            return record._replace(failed=record.dropped()._replace(reason=HOST, time=0.0))
        if state is State.DELAYED:
            # without a time it waits for its slot, or is damaged
            return record._replace(due=None if due is None else max(0.0, due - time.time()))
        if state is State.CAPPED:
            failed = capped(record.url, record.method, name, str(detail or ""))
            return record._replace(failed=failed)
        if state is State.FAILED:
            try:
                failed = FailedRequest.decode(detail)
            except (TypeError, ValueError, RecursionError) as error:
                why = f"the record of its failure is damaged: {error}"
                failed = FailedRequest.unreadable(*url_and_method(Stored(name, payload)), why)
                failed = failed._replace(time=due or 0.0)
            return record._replace(failed=failed)
        return record

    def _each(self, chosen: Filter) -> Iterator[Record]:
        for state in self.states(chosen):
            for row in self._ask(all_of(state)):
                is_chosen = self._seen(state, row[1]) in (*chosen.states, State.CLAIMED)
                if is_chosen and chosen.includes_slot(self._name(row[1])):
                    yield self.record(row)

    def _seen(self, state: State, slot: int) -> State:
        """Return the state of a request in `slot` as an operator sees it."""
        seen = State.PENDING if state is State.CLAIMED and not self._is_running else state
        waits = seen in (State.PENDING, State.DELAYED)
        return State.FAILED if waits and slot in self._dead else seen

    def _name(self, slot: int) -> str:
        if slot not in self._names:
            self._names.update((id_, name) for id_, name in self._ask(_SLOTS))
            if slot not in self._names:
                raise sqlite3.DatabaseError(f"slot {slot} has no name")
        return self._names[slot]


class StoppedJob(Listing):
    """The requests in the file at `path`, read through a `connection`, to continue the crawl
    elsewhere. The job is not changed.

    `pending` counts them, due or not. `failed` and `items` count what stays in the job: failed
    requests, and items that are in no feed yet.
    """

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        super().__init__(connection.execute, is_running=False)
        self._path = path
        ((self.pending, self.failed, self.items),) = self._ask(_COUNTS)

    def requests(self, move: Callable[[dict[str, Any]], T]) -> Iterator[tuple[T, float | None]]:
        """Yield what `move` makes of the fields of each request, as `stored_fields` returns them:
        those that are due, the oldest first, then each other one, with when it is due (seconds
        since 1970), in that order. Raises RequestFileError for one that cannot be moved."""
        rows = chain(self._ask(_DUE), self._ask(all_of(State.DELAYED)))
        for row, slot, _, _, payload, due, _ in rows:
            try:
                moved = move(stored_fields(Stored(self._name(slot), payload)))
            except Exception as error:
                raise RequestFileError(
                    f"row {row} of {self._path} cannot be moved ({type(error).__name__}: {error});"
                    " start the job once more, which keeps it as failed if it cannot be read"
                ) from error
            yield moved, due

    def holds(self) -> Iterable[Sequence[Any]]:
        """Return each slot that is held, until when (seconds since 1970, infinite until its
        release) and how many times in a row; the verdict on dead hosts ends with the start."""
        return [each for each in self._ask(_HOLDS) if each[2] < DEAD]

    def taken_start_requests(self) -> Iterator[bytes]:
        """Yield the mark of each start request that the round has taken, none after its end."""
        for (mark,) in self._ask(f"SELECT digest FROM taken WHERE source = {START}"):  # noqa: S608 - no input
            yield mark


def in_memory() -> sqlite3.Connection:
    """Return a connection to the tables of a job without requests."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    schema.create(connection)
    return connection


@contextmanager
def reading(path: Path, *, or_empty: bool = False) -> Iterator[sqlite3.Connection]:
    """Give a connection to the file at `path` that changes nothing, also while the job runs; with
    `or_empty` one to empty tables if there is no file. Raises RequestFileError."""
    is_there = check_header(path) or not or_empty
    try:
        with looking(path) if is_there else closing(in_memory()) as connection:
            yield connection
    except BloomError:
        raise  # of the caller, of something else
    except DAMAGED as error:
        raise RequestFileError(f"{path} cannot be read: {error}") from error


@contextmanager
def stopped_job(path: Path) -> Iterator[StoppedJob]:
    """Give the contents of the file at `path`, no requests if there is no file. Raises
    RequestFileError."""
    with reading(path, or_empty=True) as connection:
        yield StoppedJob(path, connection)


def waiting_in(ask: Query) -> tuple[int, float | None, int]:
    """Return how many requests are delayed, seconds until the next of them is due, None if no time
    is known, and how many slots are held."""
    ((later, due),) = ask(COUNT_DELAYED)
    return later, None if due is None else max(0.0, due - time.time()), len(held_in(ask))


def held_in(ask: Query) -> dict[str, float]:
    """Return the held slots with the seconds that are left, `inf` until the release, and those of
    dead hosts, which are asked then."""
    now = time.time()
    return {
        slot: max(0.0, until - now)
        for slot, until, times in ask(_HOLDS)
        if until > now or times >= DEAD
    }
