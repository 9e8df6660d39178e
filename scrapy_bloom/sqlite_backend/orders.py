"""Orders of an operator about the pending requests of a job, which its process carries out.

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
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ..files import make_directory, replace
from ..job.codec import Stored, plain_fields
from ..job.dictionaries import Dictionaries
from ..job.failure import ATTEMPTS_KEY, FailedRequest
from ..job.pending import PendingRequest, Selection
from . import schema
from .failed_store import writing

if TYPE_CHECKING:
    from ..job.ledger import Ledger
    from ..jobdir import JobDirectory
    from .request_file import Group, RequestFile
    from .request_store import SqliteStore

logger = logging.getLogger("scrapy_bloom.durable.orders")

AT_ONCE = 2000
"""So many requests are looked at before the engine has its turn again."""
DROPPED = "dropped"
"""The reason of requests that are dropped and kept."""
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
    def decode(cls, text: str) -> Order:
        """Return the order of a text. Raises ValueError for one that cannot be read."""
        found = json.loads(text)
        if not isinstance(found, dict) or found.keys() != {"drop", "keep"}:
            raise ValueError("it is no order of this version")
        lists = found["drop"]
        if not isinstance(lists, dict) or lists.keys() != {*Selection._fields}:
            raise ValueError("it selects no requests")
        if not all(isinstance(each, str) for texts in lists.values() for each in texts):
            raise ValueError("it selects no requests")
        selection = Selection(**{name: tuple(texts) for name, texts in lists.items()})
        if not any(selection) or not isinstance(found["keep"], bool):
            raise ValueError("it selects no requests")
        return cls(selection, found["keep"])


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


class _Work:
    """An order at work on the rows of `file`, of which a running job has `popped` some that the
    file does not mark; None if no job runs."""

    def __init__(
        self,
        file: RequestFile | sqlite3.Connection,
        order: Order,
        dictionaries: Dictionaries,
        *,
        pickles: bool,
        popped: Collection[int] | None = None,
    ) -> None:
        self._file = file
        self._order = order
        self._dictionaries = dictionaries
        self._pickles = pickles
        self._popped = popped
        self.dropped: Counter[Group] = Counter()
        """How many of each group have left the table `requests`."""
        self.kept = 0

    def state(self, name: str) -> _State:
        """Return how far the order of that name is."""
        for (text,) in self._file.execute("SELECT state FROM orders WHERE name = ?", (name,)):
            return _State(*json.loads(text))
        # what is due meanwhile is met among the others
        return self._at("later", {})

    def proceed(self, name: str, state: _State) -> _State:
        """Look at the next requests, drop the selected ones, and return the new state, which is
        kept: of no table at the end."""
        rows = self._file.execute(
            f"SELECT id, slot, priority, start, request, {_POPPED[state.table]}"  # noqa: S608 - no input
            f" FROM {state.table} WHERE id > ? AND id <= ? ORDER BY id LIMIT ?",
            (state.row, state.end, AT_ONCE),
        ).fetchall()
        found = Counter(state.figures)
        selection, chosen = self._order.selection, []
        for row, slot, priority, start, payload, is_popped in rows:
            fields: dict[str, Any] = {}
            if self._order.keep or selection.reads_requests:
                stored = Stored(slot, payload)
                fields = plain_fields(stored, self._dictionaries, pickles=self._pickles)
            request = PendingRequest.of(fields, slot, -priority)
            if not selection.includes(request):
                found["unknown"] += selection.includes_slot(slot) and not request.url
            elif self._popped is not None and (is_popped or row in self._popped):
                found["in_flight"] += 1
            else:
                chosen.append(row)
                self._keep(state.table, row, request, fields)
                found["later"] += state.table == "later"
                if state.table == "requests":
                    self.dropped[slot, priority, start] += 1
        found["dropped"] += len(chosen)
        self._execute(
            f"DELETE FROM {state.table} WHERE id IN (SELECT value FROM json_each(?))",  # noqa: S608 - no input
            (json.dumps(chosen),),
        )
        if len(rows) == AT_ONCE:
            state = _State(state.table, rows[-1][0], state.end, **found)
        else:
            state = self._at("requests" if state.table == "later" else "", found)
        self._execute("INSERT OR REPLACE INTO orders VALUES (?, ?)", (name, json.dumps(state)))
        return state

    def _keep(
        self, table: str, row: int, request: PendingRequest, fields: Mapping[str, Any]
    ) -> None:
        if not self._order.keep:
            return
        meta, headers = fields.get("meta", {}), fields.get("headers", {})
        tries = (meta.get(key, 0) for key in (ATTEMPTS_KEY, "retry_times"))
        referer = next(iter(headers.get(b"Referer", ())), None)
        failed = FailedRequest(
            url=request.url,
            method=request.method,
            reason=DROPPED,
            status=None,
            exception=None,
            attempts=sum(each for each in tries if isinstance(each, int)),
            time=time.time(),
            referer=None if referer is None else referer.decode("utf-8", "backslashreplace"),
        )
        copy = f"SELECT NULL, slot, priority, start, '', request, {_VALUES} FROM {table}"  # noqa: S608 - no input
        self._execute(f"INSERT INTO failed {copy} WHERE id = ?", (*failed, row))
        self.kept += 1

    def _at(self, table: str, figures: Mapping[str, int]) -> _State:
        """Return the state at the beginning of a table."""
        first = last = 0
        if table:
            ((first, last),) = self._file.execute(
                f"SELECT COALESCE(MIN(id), 0), COALESCE(MAX(id), 0) FROM {table}"  # noqa: S608 - no input
            )
        return _State(table, first - 1, last, **figures)

    def _execute(self, statement: str, values: Sequence[object]) -> None:
        self._file.execute(statement, values)


class Orders:
    """The orders to a running job, carried out by its scheduler."""

    def __init__(
        self, job: JobDirectory, ledger: Ledger, file: RequestFile, store: SqliteStore
    ) -> None:
        self._folder = job.orders
        self._ledger = ledger
        self._file = file
        self._store = store
        self._refused: set[Path] = set()

    def proceed(self) -> bool:
        """Carry out a part of the oldest order. Return True if there is more to do. Cost: 10 µs for
        each request that it looks at, of which there are 2,000 at most, and a commit."""
        for path in _standing(self._folder):
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

    def _proceed(self, path: Path, order: Order) -> None:
        ledger, name, state = self._ledger, path.stem, None
        with ledger.guarded():
            state = self._take_a_part(name, order)
        if ledger.stopped or state is None or state.table:
            return
        _finish(path, state)
        with ledger.guarded():
            self._file.execute("DELETE FROM orders WHERE name = ?", (name,))
        ledger.commit()
        logger.info(
            "Dropped %(dropped)d pending requests, %(later)d of them later, by the order %(order)s;"
            " %(in_flight)d more are in flight, and stay",
            {"order": path, **state.figures},
        )

    def _take_a_part(self, name: str, order: Order) -> _State:
        """Do a part of an order, and commit it. Raises sqlite3.Error."""
        file, store = self._file, self._store
        file.write()
        work = _Work(
            file,
            order,
            store.codec.dictionaries,
            pickles=store.pickles,
            popped={*file.popped_in_memory},
        )
        state = work.state(name)
        if state.table:
            state = work.proceed(name, state)
            store.dropped(work.dropped, kept=work.kept)
            self._ledger.commit()
        return state


def send(job: JobDirectory, what: Order) -> Path:
    """Write an order to the process that has `job`, durably. Return where its answer will be."""
    make_directory(job.orders)
    path = job.orders / f"{time.time_ns()}-{secrets.token_hex(4)}.json"
    replace(path, what.encode().encode())
    return path.with_suffix(".done")


def carry_out(job: JobDirectory, what: Order, *, pickles: bool) -> dict[str, int]:
    """Carry out an order on a stopped job, behind those that stand; return its figures. Raises
    FilterLockedError if the job runs, RequestFileError if it cannot be changed, OSError and
    ValueError for an order that stands and cannot be read."""
    with job.locked():
        for path in _standing(job.orders):
            _finish(path, _carry_out(job, path.stem, _read(path), pickles=pickles))
        return _carry_out(job, "", what, pickles=pickles).figures


def _carry_out(job: JobDirectory, name: str, what: Order, *, pickles: bool) -> _State:
    with writing(job.requests) as connection:
        dictionaries = Dictionaries(schema.dictionaries(connection))
        work = _Work(connection, what, dictionaries, pickles=pickles)
        state = work.state(name)
        while state.table:
            state = work.proceed(name, state)
        # of an order without a file nothing need be remembered, nor of those that are done
        connection.execute("DELETE FROM orders WHERE name != ? OR name = ''", (name,))
        return state


def _standing(folder: Path) -> list[Path]:
    """Return the orders that stand, oldest first."""
    return sorted(folder.glob("*.json"))


def _read(path: Path) -> Order:
    try:
        return Order.decode(path.read_text(encoding="utf-8"))
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path} is no order: {error}") from error


def _finish(path: Path, state: _State) -> None:
    """Answer an order that was committed."""
    replace(path.with_suffix(".done"), json.dumps(state.figures).encode())
    path.unlink()
