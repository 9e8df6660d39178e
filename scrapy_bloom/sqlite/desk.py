"""The requests of a job in a directory, as an operator reads and changes them.

Another process must not write what a running job has open. So an order to it is a file,
`JOBDIR/orders/ID.json`, that its scheduler carries out in commits of its own; the answer is
`ID.done`. What a kill has left undone the next start does, before anything else: doing it again
changes nothing. On a stopped job a command does the same, under the job's lock.
"""

from __future__ import annotations

import json
import logging
import secrets
import sqlite3
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

from ..amounts import counted
from ..crawl.choice import PATIENCE, Action, Counts, Filter
from ..crawl.holds import LocalHolds
from ..crawl.records import State
from ..crawl.slots import Slots
from ..errors import RequestFileError
from ..files import make_directory, replace
from ..jobdir import JobDirectory
from .job_file import MOST_ROWS, RequestFile
from .kept import wake
from .listing import Listing, held_in, part_of, reading
from .records import SqliteRecords
from .request_store import keep_holds
from .rounds import KEPT, RUNNING
from .schema import WAITS

if TYPE_CHECKING:
    from ..crawl.choice import By, Record
    from ..crawl.ledger import Ledger
    from ..crawl.protocols import Holds

logger = logging.getLogger(__name__)

AT_ONCE = 2000
"""So many requests are looked at in a transaction, before the engine has its turn again."""
FORGOTTEN = 3600
"""Seconds after which what an order has left is removed: no command waits for it so long."""
Parts = Iterator[tuple[bool, dict[str, Any], str]]
"""The work on an order: with each part, whether there are more, what is done so far, and that in
words. May raise sqlite3.Error."""
_LISTS = ("slots", "reasons", "urls", "callbacks")
_DONE = {"drop": "Dropped", "fail": "Failed", "retry": "Retried"}
_ROUND = "(SELECT number FROM rounds) - (state = 5)"
"""Of a request that fails: an earlier one where the round has not counted it in its budget."""
FAIL = f"UPDATE request SET state = 3, due = ?, round = {_ROUND}, detail = ? WHERE id = ?"  # noqa: S608 - no input
_IN = "IN (SELECT value FROM json_each(?))"
_LAST = "SELECT last, (SELECT MAX(due) FROM request WHERE state > 0 AND state = 3) AS due FROM job"
ASK = (
    "UPDATE request SET state = 5, due = CASE state WHEN 4 THEN due END, detail = NULL"
    " WHERE (state = 4 OR round < (SELECT number FROM rounds)) AND id"
)


GO_ON = f"UPDATE rounds SET phase = '{RUNNING}' WHERE phase = '{KEPT}'"  # noqa: S608 - no input
REOPEN = f"{GO_ON} AND {WAITS}"


class Order(NamedTuple):
    """Does `action` with the chosen requests up to the id `end`, and those that had failed by a
    `time` (seconds since 1970): what is pushed or fails later stays, and what is in flight."""

    chosen: Filter
    action: Action
    end: int = MOST_ROWS
    time: float = inf

    def encode(self) -> str:
        """Return the text of the order."""
        chosen = {name: [*getattr(self.chosen, name)] for name in ("states", *_LISTS)}
        return json.dumps({**self._asdict(), "chosen": chosen})

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> Order:
        """Return the order in a text. Raises ValueError for one that cannot be read."""
        chosen, action = found["chosen"], found["action"]
        if action not in get_args(Action):
            raise ValueError(f"it does {action!r} with requests")
        states = frozenset(map(State, chosen["states"]))
        if not states - {State.QUARANTINED}:
            raise ValueError("it chooses no state of a job")
        lists = {name: _texts(chosen[name]) for name in _LISTS}
        end = int(found["end"])
        if not 0 <= end <= MOST_ROWS:
            raise ValueError(f"it ends at the request {end}")
        return cls(Filter(states, **lists), action, end, float(found["time"]))

    def parts(
        self,
        file: RequestFile,
        records: SqliteRecords,
        holds: Holds | None,
        *,
        was_running: bool = False,
    ) -> Parts:
        """Carry out the order on the `records` in `file`, of a job that runs with these `holds`, or
        of one that is stopped, perhaps given while it `was_running`. The caller commits each
        part."""
        counts, after, has_more = Counts(), 0, True
        listing = Listing(file.execute, is_running=was_running or holds is not None)
        part = part_of(listing.states(self.chosen))
        reads = self.chosen.reads or self.action == "fail"
        answering: set[str] = set()

        def change(what: str) -> int:
            return file.execute(f"{what} {_IN}", (json.dumps(ids),)).rowcount

        while has_more:
            ids: list[int] = []
            left: Counter[str] = Counter()
            rows = file.execute(part, (after, self.end, AT_ONCE)).fetchall()
            for row in rows:
                id_, _, _, state, payload, due, _ = row
                if state == State.FAILED and (due or 0.0) > self.time:
                    continue  # since the order was given
                if state == State.FAILED and self.action == "retry" and not payload:
                    continue  # it could not be serialized
                record = listing.record(row, reads=reads)
                if record.state not in (*self.chosen.states, State.CLAIMED):
                    continue  # what waits for a dead host has failed, and nothing else has
                if not counts.add(record, self.chosen):
                    continue
                if self.action == "retry" and state != record.state:
                    answering.add(record.slot)
                    continue
                ids.append(id_)
                left[record.slot] += state == State.PENDING
                if self.action == "fail":
                    failed = record.dropped()
                    file.execute(FAIL, (failed.time, failed.encode(), id_))
            if self.action == "drop":
                change("DELETE FROM request WHERE id")
            elif self.action == "retry":
                asked = change(ASK) if holds is None else 0
                woken = wake(records, ids)
                counts.states[State.CAPPED] -= len(ids) - asked - woken
                if holds is None and woken:
                    file.execute(GO_ON)  # also if its slot is that of a dead host
            after = rows[-1][0] if rows else self.end
            has_more = len(rows) == AT_ONCE
            if answering and not has_more:
                found = stored_holds(records) if holds is None else holds
                for slot in sorted(answering):
                    found.release(slot)
            if holds is None:
                file.execute(REOPEN)
            records.dropped(left)
            count = counted(counts.states.total(), "request")
            told = f"{_DONE[self.action]} {count}, {counts.in_flight:,} more are in flight"
            yield has_more, {**vars(counts), "by": {}}, told


class HoldOrder(NamedTuple):
    """Holds download slots by hand until a time, in seconds since 1970, `inf` until their release;
    without a time releases them."""

    slots: Sequence[str]
    until: float | None = None

    def encode(self) -> str:
        """Return the text of the order."""
        return json.dumps({"hold": self.slots, "until": self.until})

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> HoldOrder:
        """Return the order in a text. Raises ValueError for one that cannot be read."""
        until = found["until"]
        return cls(_texts(found["hold"]), None if until is None else float(until))

    def parts(
        self, file: RequestFile, records: SqliteRecords, holds: Holds | None, **_: bool
    ) -> Parts:
        """Carry out the order as the other one does; it tells how many slots are held now, or
        were."""
        found = stored_holds(records) if holds is None else holds
        changed, now = 0, time.time()
        for slot in self.slots:
            if self.until is None:
                changed += slot in found.holds
                found.release(slot)
            elif self.until > now:
                found.hold(slot, self.until - now, 0)
                changed += 1
        if holds is None:
            file.execute(REOPEN)  # by what has waited for a dead host
        done = "released" if self.until is None else "held"
        yield False, {"slots": changed}, f"{counted(changed, 'download slot')} {done}"


def stored_holds(records: SqliteRecords) -> LocalHolds:
    """Return the holds of a stopped job, which are stored when they change."""
    keep_holds(records, holds := LocalHolds(0.0))
    return holds


class Orders:
    """The orders to a running job, carried out by its scheduler."""

    def __init__(
        self,
        job: JobDirectory,
        ledger: Ledger,
        file: RequestFile,
        records: SqliteRecords,
        holds: Holds,
    ) -> None:
        self._job = job
        self._ledger = ledger
        self._about = file, records, holds
        self._refused: set[Path] = set()
        self._work: tuple[Path, Parts] | None = None

    def proceed(self) -> bool:
        """Carry out a part of the oldest order. Return True if there is more to do. Cost: 10 µs for
        each request that it looks at, of which there are 2,000 at most, and a commit."""
        for path in sorted(self._job.orders.glob("*.json")):
            if path in self._refused or self._ledger.stopped:
                continue
            try:
                self._proceed(path)
            except (OSError, ValueError) as error:
                self._refused.add(path)
                logger.error(
                    "The order %(path)s cannot be carried out (%(error)s): remove it, and give it"
                    " anew",
                    {"path": path, "error": error},
                )
            else:
                return not self._ledger.stopped
        return False

    def _proceed(self, path: Path) -> None:
        order = read_order(path)
        if self._work is None or self._work[0] != path:
            self._work = path, order.parts(*self._about)
        part: tuple[bool, Mapping[str, Any], str] = True, {}, ""
        with self._ledger.guarded():
            part = next(self._work[1])
            self._ledger.commit()
        has_more, figures, told = part
        if not (has_more or self._ledger.stopped):
            _answer_and_tell(path, figures, told)


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
        """The process that asks what was retried, in words."""
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
        if self._job.is_locked:
            with reading(self._job.requests) as connection:
                ((end, due),) = connection.execute(_LAST)
            # the clock may have been set back since the last has failed
            order = order._replace(end=end, time=max(time.time(), due or 0.0))
        if (found := self._give(order)) is None:
            return None
        states = {State(int(state)): count for state, count in found["states"].items()}
        return Counts(Counter(), Counter(states), found["in_flight"], found["unknown"])

    def hold(self, slots: Sequence[str], seconds: float | None) -> int | None:
        """Hold `slots` for so many seconds, with None release them; see Desk."""
        found = self._give(HoldOrder(slots, None if seconds is None else time.time() + seconds))
        return None if found is None else int(found["slots"])

    @contextmanager
    def _reading(self) -> Iterator[Listing]:
        is_running = self._job.is_locked
        with reading(self._job.requests, or_empty=True) as connection:
            yield Listing(connection.execute, is_running=is_running)

    def _give(self, order: Order | HoldOrder) -> Mapping[str, Any] | None:
        """Give an order to the running job, or carry it out on the stopped one, behind those that
        stand. Return its figures, None if they do not come in time."""
        if not self._job.is_locked:
            with self._job.locked():
                return carry_out(self._job, order)
        done, until = give(self._job, order), time.monotonic() + PATIENCE
        is_locked = True
        while is_locked and time.monotonic() < until:
            is_locked = self._job.is_locked  # before the look for its last answer
            with suppress(FileNotFoundError):
                figures: Mapping[str, Any] = json.loads(done.read_bytes())
                done.unlink()
                return figures
            time.sleep(0.05)
        return None


def carry_out(job: JobDirectory, order: Order | HoldOrder | None = None) -> Mapping[str, Any]:
    """Carry out the orders that stand in a stopped `job`, which the caller has locked, then another
    one; return its figures. Raises RequestFileError."""
    file = RequestFile.open(job.requests, starts=False)
    try:
        records = SqliteRecords(file, Slots())
        for path in sorted(job.orders.glob("*.json")):
            # what cannot be read or answered the running job tells
            with suppress(OSError, ValueError):
                stands = read_order(path)
                _answer_and_tell(path, *_carried_out(file, records, stands, was_running=True))
        return {} if order is None else _carried_out(file, records, order)[0]
    except (sqlite3.Error, OverflowError) as error:
        raise RequestFileError(
            f"{job.requests} cannot be changed: {error}; it was left as it is"
        ) from error
    finally:
        file.close(clean=False)


def _carried_out(
    file: RequestFile,
    records: SqliteRecords,
    order: Order | HoldOrder,
    *,
    was_running: bool = False,
) -> tuple[Mapping[str, Any], str]:
    """Return the figures of an order on a stopped job, perhaps given `was_running`, and what is
    done in words."""
    figures: Mapping[str, Any] = {}
    told = ""
    for part in order.parts(file, records, None, was_running=was_running):
        file.commit(None)
        _, figures, told = part
    return figures, told


def give(job: JobDirectory, what: Order | HoldOrder) -> Path:
    """Write an order, durably; return where its answer will be. Raises OSError."""
    make_directory(job.orders, 0o700)
    path = job.orders / f"{time.time_ns()}-{secrets.token_hex(4)}.json"
    replace(path, what.encode().encode())
    for left in (*job.orders.glob("*.done"), *job.orders.glob(".*.bloom.tmp")):
        with suppress(OSError):  # by what was interrupted or killed
            if path.stat().st_mtime - left.stat().st_mtime > FORGOTTEN:
                left.unlink()
    return path.with_suffix(".done")


def answer(path: Path, figures: Mapping[str, Any]) -> None:
    """Answer an order that was committed. Raises OSError."""
    replace(path.with_suffix(".done"), json.dumps(figures).encode())
    path.unlink()


def _answer_and_tell(path: Path, figures: Mapping[str, Any], told: str) -> None:
    answer(path, figures)
    logger.info("%(text)s, by the order %(order)s", {"text": told, "order": path})


def read_order(path: Path) -> Order | HoldOrder:
    """Return an order that stands. Raises OSError, and ValueError for one that cannot be read."""
    kinds: Mapping[frozenset[str], type[Order | HoldOrder]] = {
        frozenset(Order._fields): Order,
        frozenset({"hold", "until"}): HoldOrder,
    }
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        kind = kinds.get(frozenset(found)) if isinstance(found, dict) else None
        if kind is None:
            raise ValueError("it is no order of this version")
        return kind.of(found)
    except (TypeError, ValueError, LookupError, ArithmeticError, RecursionError) as error:
        raise ValueError(f"{path} is no order: {error}") from error


def _texts(found: Any) -> tuple[str, ...]:
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise ValueError(f"it has {found!r} in place of texts")
    return tuple(found)
