"""Orders of an operator about the pending requests and the slots of a job, which its process
carries out.

Another process must not write what a running job has open. So an order is a file,
`JOBDIR/orders/ID.json`. The scheduler carries it out in commits of its own, in which the table
`orders` keeps how far it is: no kill has any of it done twice, or not at all. The answer is
`ID.done`. On a stopped job a command does the same, under the job's lock.
"""

from __future__ import annotations

import json
import logging
import secrets
import sqlite3
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ..files import make_directory, replace
from ..job.codec import Stored, plain_fields
from ..job.failed_request import FailedRequest
from ..job.pending import PendingRequest, Selection
from ..reporting import counted
from .failed_store import writing

if TYPE_CHECKING:
    from ..job.ledger import Ledger
    from ..job.request_store import Holds
    from ..jobdir import JobDirectory
    from .job_file import Group, RequestFile
    from .request_store import SqliteStore

logger = logging.getLogger("scrapy_bloom.durable.orders")

AT_ONCE = 2000
"""So many requests are looked at before the engine has its turn again."""
_VALUES = ", ".join("?" * len(FailedRequest._fields))
_POPPED = {"requests": "popped", "later": "0"}


class Order(NamedTuple):
    """Drops the selected pending requests; with `keep` they have failed, for the reason `dropped`.
    They stay seen. What is in flight is not touched."""

    selection: Selection
    keep: bool = False

    def encode(self) -> str:
        """Return the text of the order."""
        return json.dumps({"drop": self.selection._asdict(), "keep": self.keep})

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> Order:
        """Return the order in a text. Raises ValueError for one that cannot be read."""
        lists = found["drop"]
        if not isinstance(lists, dict) or lists.keys() != {*Selection._fields}:
            raise ValueError("it selects no requests")
        if not all(isinstance(each, str) for texts in lists.values() for each in texts):
            raise ValueError("it selects no requests")
        selection = Selection(**{name: tuple(texts) for name, texts in lists.items()})
        if not any(selection) or not isinstance(found["keep"], bool):
            raise ValueError("it selects no requests")
        return cls(selection, found["keep"])


class HoldOrder(NamedTuple):
    """Holds download slots by hand until a time, in seconds since 1970, `inf` until their release;
    without a time releases them."""

    slots: Sequence[str]
    until: float | None = None

    def encode(self) -> str:
        """Return the text of the order."""
        if self.until is None:
            return json.dumps({"release": self.slots})
        return json.dumps({"hold": self.slots, "until": None if self.until == inf else self.until})

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> HoldOrder:
        """Return the order in a text. Raises ValueError for one that cannot be read."""
        slots = found["hold"] if "hold" in found else found["release"]
        until = found.get("until")
        if (
            not isinstance(slots, list)
            or not all(isinstance(slot, str) for slot in slots)
            or not isinstance(until, (float, int, type(None)))
        ):
            raise ValueError("it names no slots")
        if "hold" not in found:
            return cls(slots)
        return cls(slots, inf if until is None else until)

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

    def apply_to_file(self, file: sqlite3.Connection) -> int:
        """Do what `apply` does in the file of a stopped job."""
        changed, now = 0, time.time()
        for slot in self.slots:
            row = file.execute("SELECT until FROM holds WHERE slot = ?", (slot,)).fetchone()
            before = now if row is None else inf if row[0] is None else row[0]
            if self.until is None:
                changed += row is not None
                file.execute("DELETE FROM holds WHERE slot = ?", (slot,))
                # those that a queue of the project has put off
                file.execute("UPDATE later SET due = ? WHERE due = ?", (now, before))
            elif self.until > now:
                until = max(before, self.until)
                ends = (until, until - now) if until < inf else (None, None)
                file.execute("REPLACE INTO holds VALUES (?, ?, 0, ?)", (slot, *ends))
                changed += 1
        return changed


class _State(NamedTuple):
    """How far an order is: the table that it is in, the last row that it has looked at there, the
    last one that it looks at, and its figures."""

    table: str
    row: int
    end: int
    dropped: int = 0
    later: int = 0
    in_flight: int = 0
    unknown: int = 0

    @property
    def figures(self) -> dict[str, int]:
        """What the operator is told."""
        return {name: getattr(self, name) for name in ("dropped", "later", "in_flight", "unknown")}


@dataclass
class _Work:
    """An order at work on the rows of `file`, of which a running job has `popped` some that the
    file does not mark; None if no job runs."""

    file: RequestFile | sqlite3.Connection
    order: Order
    popped: Collection[int] | None = None
    dropped: Counter[Group] = field(default_factory=Counter)
    """How many of each group have left the table `requests`."""
    kept: int = 0

    def state(self, name: str) -> _State:
        """Return how far the order of that name is."""
        for (text,) in self.file.execute("SELECT state FROM orders WHERE name = ?", (name,)):
            return _State(*json.loads(text))
        # what is due meanwhile is met among the others
        return self._at("later", {})

    def proceed(self, name: str, state: _State) -> _State:
        """Look at the next requests, drop the selected ones, and return the new state, which is
        kept: of no table at the end."""
        rows = self.file.execute(
            f"SELECT id, slot, priority, start, request, {_POPPED[state.table]}"  # noqa: S608 - no input
            f" FROM {state.table} WHERE id > ? AND id <= ? ORDER BY id LIMIT ?",
            (state.row, state.end, AT_ONCE),
        ).fetchall()
        found = Counter(state.figures)
        selection, chosen = self.order.selection, []
        for row, slot, priority, start, payload, is_popped in rows:
            fields: dict[str, Any] = {}
            if self.order.keep or selection.reads_requests:
                fields = plain_fields(Stored(slot, payload))
            request = PendingRequest.of(fields, slot, -priority)
            if not selection.includes(request):
                found["unknown"] += selection.includes_slot(slot) and not request.url
            elif self.popped is not None and (is_popped or row in self.popped):
                found["in_flight"] += 1
            else:
                chosen.append(row)
                if self.order.keep:
                    copy = f"SELECT NULL, slot, priority, start, '', request, {_VALUES}"
                    self.file.execute(
                        f"INSERT INTO failed {copy} FROM {state.table} WHERE id = ?",
                        (*request.dropped(fields), row),
                    )
                    self.kept += 1
                found["later"] += state.table == "later"
                if state.table == "requests":
                    self.dropped[slot, priority, start] += 1
        found["dropped"] += len(chosen)
        self.file.execute(
            f"DELETE FROM {state.table} WHERE id IN (SELECT value FROM json_each(?))",  # noqa: S608 - no input
            (json.dumps(chosen),),
        )
        if len(rows) == AT_ONCE:
            state = _State(state.table, rows[-1][0], state.end, **found)
        else:
            state = self._at("requests" if state.table == "later" else "", found)
        self.file.execute("INSERT OR REPLACE INTO orders VALUES (?, ?)", (name, json.dumps(state)))
        return state

    def _at(self, table: str, figures: Mapping[str, int]) -> _State:
        """Return the state at the beginning of a table."""
        first = last = 0
        if table:
            ((first, last),) = self.file.execute(
                f"SELECT COALESCE(MIN(id), 0), COALESCE(MAX(id), 0) FROM {table}"  # noqa: S608 - no input
            )
        return _State(table, first - 1, last, **figures)


class Orders:
    """The orders to a running job, carried out by its scheduler."""

    def __init__(
        self, job: JobDirectory, ledger: Ledger, file: RequestFile, store: SqliteStore, holds: Holds
    ) -> None:
        self._holds = holds
        self._folder = job.orders
        self._ledger = ledger
        self._file = file
        self._store = store
        self._refused: set[Path] = set()

    def proceed(self) -> bool:
        """Carry out a part of the oldest order. Return True if there is more to do. Cost: 10 µs for
        each request that it looks at, of which there are 2,000 at most, and a commit."""
        for path in sorted(self._folder.glob("*.json")):
            if path in self._refused or self._ledger.stopped:
                continue
            try:
                self._proceed(path, _read(path))
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

    def _proceed(self, path: Path, order: Order | HoldOrder) -> None:
        ledger, name, state = self._ledger, path.stem, None
        if isinstance(order, HoldOrder):
            changed = order.apply(self._holds)
            ledger.commit()
            if not ledger.stopped:
                _finish(path, {"slots": changed})
                logger.info(
                    "%(count)s %(done)s, by the order %(order)s",
                    {
                        "count": counted(changed, "download slot"),
                        "done": "released" if order.until is None else "held",
                        "order": path,
                    },
                )
            return
        with ledger.guarded():
            file, store = self._file, self._store
            file.write()
            work = _Work(file, order, popped={*file.popped_in_memory})
            state = work.state(name)
            if state.table:
                state = work.proceed(name, state)
                store.dropped(work.dropped, kept=work.kept)
                ledger.commit()
        if ledger.stopped or state is None or state.table:
            return
        _finish(path, state.figures)
        with ledger.guarded():
            self._file.execute("DELETE FROM orders WHERE name = ?", (name,))
        ledger.commit()
        logger.info(
            "Dropped %(dropped)d pending requests, %(later)d of them later, by the order %(order)s;"
            " %(in_flight)d more are in flight, and stay",
            {"order": path, **state.figures},
        )


def send(job: JobDirectory, what: Order | HoldOrder) -> Path:
    """Write an order to the process that has `job`, durably. Return where its answer will be."""
    make_directory(job.orders, 0o700)
    path = job.orders / f"{time.time_ns()}-{secrets.token_hex(4)}.json"
    replace(path, what.encode().encode())
    return path.with_suffix(".done")


def carry_out(job: JobDirectory, what: Order | HoldOrder) -> dict[str, int]:
    """Carry out an order on a stopped job, behind those that stand; return its figures. Raises
    FilterLockedError if the job runs, RequestFileError if it cannot be changed, OSError and
    ValueError for an order that stands and cannot be read."""
    with job.locked():
        for path in sorted(job.orders.glob("*.json")):
            _finish(path, _carry_out(job, path.stem, _read(path)))
        return _carry_out(job, "", what)


def _carry_out(job: JobDirectory, name: str, what: Order | HoldOrder) -> dict[str, int]:
    with writing(job.requests) as connection:
        if isinstance(what, HoldOrder):
            return {"slots": what.apply_to_file(connection)}
        work = _Work(connection, what)
        state = work.state(name)
        while state.table:
            state = work.proceed(name, state)
        # of an order without a file nothing need be remembered, nor of those that are done
        connection.execute("DELETE FROM orders WHERE name != ? OR name = ''", (name,))
        return state.figures


_KINDS: dict[frozenset[str], type[Order | HoldOrder]] = {
    frozenset({"drop", "keep"}): Order,
    frozenset({"hold", "until"}): HoldOrder,
    frozenset({"release"}): HoldOrder,
}


def _read(path: Path) -> Order | HoldOrder:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        kind = _KINDS.get(frozenset(found)) if isinstance(found, dict) else None
        if kind is None:
            raise ValueError("it is no order of this version")
        return kind.of(found)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path} is no order: {error}") from error


def _finish(path: Path, figures: Mapping[str, int]) -> None:
    """Answer an order that was committed."""
    replace(path.with_suffix(".done"), json.dumps(figures).encode())
    path.unlink()
