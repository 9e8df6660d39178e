"""The requests of a job in a directory, as an operator reads and changes them.

Another process must not write what a running job has open. So an order to it is a file,
`JOBDIR/orders/ID.json`, that its scheduler carries out in commits of its own; the answer is
`ID.done`. What a kill has left undone the next start does: doing it again changes nothing. On a
stopped job a command does the same, under the job's lock.
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
from ..errors import RequestFileError
from ..files import make_directory, replace
from ..job.choice import Counts, Filter
from ..job.failed_request import FailedRequest
from ..job.holds import LocalHolds
from ..job.records import PATIENCE, Action, State
from ..job.slots import Slots
from ..jobdir import JobDirectory
from .job_file import MOST_ROWS, RequestFile, reading
from .listing import Listing, part_of
from .records import SqliteRecords
from .request_store import StoredHolds
from .rounds import REOPEN
from .status import held_in

if TYPE_CHECKING:
    from ..job.choice import By, Record
    from ..job.ledger import Ledger
    from ..job.records import Holds

logger = logging.getLogger("scrapy_bloom.durable.orders")

AT_ONCE = 2000
"""So many requests are looked at in a transaction, before the engine has its turn again."""
_LISTS = ("slots", "reasons", "urls", "callbacks")
_DONE = {"drop": "Dropped", "fail": "Failed", "retry": "Retried"}
_ROUND = "(SELECT number FROM rounds) - (state = 5)"
"""Of a request that fails: an earlier one where the round has not counted it in its budget."""
FAIL = f"UPDATE request SET state = 3, due = ?, round = {_ROUND}, detail = ? WHERE id = ?"  # noqa: S608 - no input
_IN = "IN (SELECT value FROM json_each(?))"
ASK = (
    "UPDATE request SET state = 5, due = NULL, detail = NULL"
    " WHERE (state = 4 OR round < (SELECT number FROM rounds)) AND id"
)


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

    def apply(self, holds: Holds) -> int:
        """Hold or release the slots in `holds`; return how many are held now, or were."""
        changed, now = 0, time.time()
        for slot in self.slots:
            if self.until is None:
                changed += slot in holds.holds
                holds.release(slot)
            elif self.until > now:
                holds.hold(slot, self.until - now, 0)
                changed += 1
        return changed


def work_on(
    order: Order, file: RequestFile, records: SqliteRecords, *, is_running: bool
) -> Iterator[tuple[bool, Counts]]:
    """Carry out an order on the `records` in `file`, of a job that `is_running` or not, in parts
    that the caller commits. Yield with each whether there are more, and what is done so far. Raises
    sqlite3.Error."""
    chosen, counts, after, has_more = order.chosen, Counts(), 0, True
    listing = Listing(file.execute, is_running=is_running)
    part = part_of(listing.states(chosen))

    def change(what: str) -> int:
        return file.execute(f"{what} {_IN}", (json.dumps(ids),)).rowcount

    while has_more:
        ids: list[int] = []
        left: Counter[str] = Counter()
        rows = file.execute(part, (after, order.end, AT_ONCE)).fetchall()
        for row in rows:
            id_, _, _, state, payload, due, _ = row
            if state == State.FAILED and (due or 0.0) > order.time:
                continue  # since the order was given
            if state == State.FAILED and order.action == "retry" and not payload:
                continue  # it could not be serialized
            record = listing.record(row, reads=chosen.reads or order.action == "fail")
            if not counts.add(record, chosen):
                continue
            ids.append(id_)
            left[record.slot] += record.state is State.PENDING
            if order.action == "fail":
                failed = FailedRequest.dropped(record.url, record.method, record.fields)
                file.execute(FAIL, (failed.time, failed.encode(), id_))
        if order.action == "drop":
            change("DELETE FROM request WHERE id")
        elif order.action == "fail":
            change("DELETE FROM taken_children WHERE parent")
        else:
            asked = 0 if is_running else change(ASK)
            counts.states[State.CAPPED] -= len(ids) - asked - records.wake(ids)
        records.dropped(left)
        after = rows[-1][0] if rows else order.end
        has_more = len(rows) == AT_ONCE
        yield has_more, counts


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
        self._file = file
        self._records = records
        self._holds = holds
        self._refused: set[Path] = set()
        self._work: tuple[Path, Iterator[tuple[bool, Counts]]] | None = None

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
        ledger, order = self._ledger, read_order(path)
        if isinstance(order, HoldOrder):
            changed = order.apply(self._holds)
            ledger.commit()
            done = "released" if order.until is None else "held"
            self._finish(path, {"slots": changed}, f"{counted(changed, 'download slot')} {done}")
            return
        if self._work is None or self._work[0] != path:
            self._work = path, work_on(order, self._file, self._records, is_running=True)
        has_more = True
        with ledger.guarded():
            self._file.write()
            has_more, counts = next(self._work[1])
            ledger.commit()
        if not has_more:
            count = counted(counts.states.total(), "request")
            text = f"{_DONE[order.action]} {count}, {counts.in_flight:,} more are in flight"
            self._finish(path, figures_of(counts), text)

    def _finish(self, path: Path, figures: Mapping[str, Any], text: str) -> None:
        if not self._ledger.stopped:
            answer(path, figures)
            logger.info("%(text)s, by the order %(order)s", {"text": text, "order": path})


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
    figures: Mapping[str, Any] = {}
    if isinstance(what, HoldOrder):
        StoredHolds(records, holds := LocalHolds(0.0))
        figures = {"slots": what.apply(holds)}
        file.commit(None)
        return figures
    for _, counts in work_on(what, file, records, is_running=False):
        file.execute(REOPEN)
        file.commit(None)
        figures = figures_of(counts)
    return figures


def send(job: JobDirectory, what: Order | HoldOrder) -> Mapping[str, Any] | None:
    """Write an order to the process that has `job`, durably, and wait for the answer: its figures,
    None if it does not come in time. Raises OSError."""
    done, until = give(job, what), time.monotonic() + PATIENCE
    while time.monotonic() < until:
        with suppress(FileNotFoundError):
            figures: Mapping[str, Any] = json.loads(done.read_bytes())
            done.unlink()
            return figures
        time.sleep(0.05)
    return None


def give(job: JobDirectory, what: Order | HoldOrder) -> Path:
    """Write an order, durably; return where its answer will be. Raises OSError."""
    make_directory(job.orders, 0o700)
    path = job.orders / f"{time.time_ns()}-{secrets.token_hex(4)}.json"
    replace(path, what.encode().encode())
    return path.with_suffix(".done")


def answer(path: Path, figures: Mapping[str, Any]) -> None:
    """Answer an order that was committed. Raises OSError."""
    replace(path.with_suffix(".done"), json.dumps(figures).encode())
    path.unlink()


def figures_of(counts: Counts) -> dict[str, Any]:
    """Return the answer to an order."""
    return {**vars(counts), "by": {}}


def counts_of(figures: Mapping[str, Any]) -> Counts:
    """Return what an answer says."""
    states = {State(int(state)): count for state, count in figures["states"].items()}
    return Counts(Counter(), Counter(states), figures["in_flight"], figures["unknown"])


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
