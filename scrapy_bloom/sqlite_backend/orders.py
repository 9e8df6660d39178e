"""What an operator orders about the requests and the slots of a job.

Another process must not write what a running job has open. So an order to it is a file,
`JOBDIR/orders/ID.json`, that its scheduler carries out in commits of its own; the answer is
`ID.done`. What a kill has left undone the next start does: doing it again changes nothing. On a
stopped job a command does the same, under the job's lock.
"""

from __future__ import annotations

import json
import logging
import secrets
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

from ..amounts import counted
from ..files import make_directory, replace
from ..job.failed_request import FailedRequest
from ..job.records import PATIENCE, Action, Counts, Filter, State
from .job_file import MOST_ROWS
from .listing import Listing, part_of

if TYPE_CHECKING:
    from ..job.ledger import Ledger
    from ..job.protocols import Holds
    from ..jobdir import JobDirectory
    from .job_file import RequestFile
    from .records import SqliteRecords

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


@dataclass
class Change:
    """An order at work on the records in `file`, of a job that `is_running` or not."""

    file: RequestFile
    records: SqliteRecords
    order: Order
    is_running: bool = True
    counts: Counts = field(default_factory=Counts)
    after: int = 0

    def __post_init__(self) -> None:
        self._listing = Listing(self.file.execute, is_running=self.is_running)

    def proceed(self) -> bool:
        """Look at the next requests, and change the chosen ones, with the next commit. Return True
        if there are more. Raises sqlite3.Error."""
        order, chosen, ids = self.order, self.order.chosen, []
        left: Counter[str] = Counter()
        listing = self._listing
        part = part_of(listing.states(chosen))
        rows = self.file.execute(part, (self.after, order.end, AT_ONCE)).fetchall()
        for row in rows:
            id_, _, _, state, payload, due, _ = row
            if state == State.FAILED and (due or 0.0) > order.time:
                continue  # since the order was given
            if state == State.FAILED and order.action == "retry" and not payload:
                continue  # it could not be serialized
            record = listing.record(row, reads=chosen.reads or order.action == "fail")
            if not self.counts.add(record, chosen):
                continue
            ids.append(id_)
            left[record.slot] += record.state is State.PENDING
            if order.action == "fail":
                failed = FailedRequest.dropped(record.url, record.method, record.fields)
                self.file.execute(FAIL, (failed.time, failed.encode(), id_))
        if order.action == "retry":
            self.counts.states[State.CAPPED] -= len(ids) - self._retry(ids)
        elif order.action == "fail":
            self._change("DELETE FROM taken_children WHERE parent", ids)
        else:
            self._change("DELETE FROM request WHERE id", ids)
        self.records.dropped(left)
        self.after = rows[-1][0] if rows else order.end
        return len(rows) == AT_ONCE

    def _retry(self, ids: Sequence[int]) -> int:
        """Make failed and capped requests pending; return how many. Of a job that does not run the
        next start asks those that need room in its budget."""
        asked = 0 if self.is_running else self._change(ASK, ids)
        return asked + self.records.wake(ids)

    def _change(self, what: str, ids: Sequence[int]) -> int:
        """Do `what` with the rows of these ids; return how many there were."""
        return self.file.execute(f"{what} {_IN}", (json.dumps(ids),)).rowcount


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
        self._work: tuple[Path, Change] | None = None

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
            self._work = path, Change(self._file, self._records, order)
        change, has_more = self._work[1], True
        with ledger.guarded():
            self._file.write()
            has_more = change.proceed()
            ledger.commit()
        if not has_more:
            counts = change.counts
            count = counted(counts.states.total(), "request")
            text = f"{_DONE[order.action]} {count}, {counts.in_flight:,} more are in flight"
            self._finish(path, figures_of(counts), text)

    def _finish(self, path: Path, figures: Mapping[str, Any], text: str) -> None:
        if not self._ledger.stopped:
            answer(path, figures)
            logger.info("%(text)s, by the order %(order)s", {"text": text, "order": path})


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
