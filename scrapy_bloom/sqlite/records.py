"""The records of a job: rows of the table `request`, each with its state."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from ..crawl.codec import Stored, url_and_method
from ..crawl.failed_request import CAPPED, HOST, FailedRequest
from ..crawl.records import Claimed, State
from . import schema

if TYPE_CHECKING:
    from ..crawl.budget import Budget, Name
    from ..crawl.slots import Slots
    from .job_file import RequestFile

MOST_SLOTS = 100_000
"""Most slots whose numbers or counts are in memory beside those of pending requests."""
MOST_DUE = 100
"""Delayed records that become pending at once."""
MOST_PRIORITY = 2**61

PUSH = "INSERT INTO request (id, slot, rank, place, state, payload) VALUES (?, ?, ?, ?, 0, ?)"
_PUT = (
    "INSERT INTO request (id, slot, rank, place, state, payload, due, round, detail)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
HEAD = "SELECT id, payload FROM request WHERE state = 0 AND slot = ? ORDER BY rank, place LIMIT 1"
LAST = (
    "SELECT id, payload FROM request WHERE state = 0 AND slot = ?1 AND rank = (SELECT rank"
    " FROM request WHERE state = 0 AND slot = ?1 ORDER BY rank LIMIT 1) ORDER BY place DESC LIMIT 1"
)
_NAMED = "request LEFT JOIN slot ON slot.id = slot"
HEAD_OF_ALL = (
    f"SELECT request.id, payload, name FROM {_NAMED}"  # noqa: S608 - no input
    " WHERE state = 0 ORDER BY rank, place LIMIT 1"
)
STORED = f"SELECT name, payload FROM {_NAMED} WHERE request.id = ?"  # noqa: S608 - no input
_NUMBER = "INSERT INTO slot (name) VALUES (?) ON CONFLICT DO UPDATE SET name = name RETURNING id"
CLAIM = "UPDATE request SET state = 1 WHERE id = ?"
DONE = "DELETE FROM request WHERE id = ?"
FAIL = (
    "UPDATE request SET state = 3, due = ?, round = ?, detail = ?, payload = COALESCE(?, payload)"
    " WHERE id = ?"
)
PUT_OFF = "UPDATE request SET state = 2, due = ? WHERE id = ?"
DUE = (
    f"SELECT request.id, name, rank FROM {_NAMED}"  # noqa: S608 - no input
    " WHERE state > 0 AND state = 2 AND due <= ? ORDER BY due, request.id LIMIT ?"
)
NEXT_DUE = "SELECT MIN(due) FROM request WHERE state > 0 AND state = 2"
DELAYED = "SELECT COUNT(*) FROM request WHERE state > 0 AND state = 2"
MOVE_DUE = (
    "UPDATE request SET due = ? WHERE state > 0 AND state = 2 AND due = ?"
    " AND slot = (SELECT id FROM slot WHERE name = ?)"
)
WAKE = (
    "UPDATE request SET state = 0, place = ?, due = NULL, round = NULL, detail = NULL WHERE id = ?"
)
PENDING_BY_SLOT = (
    "SELECT slot, name, n FROM (SELECT slot, COUNT(*) AS n FROM request WHERE state = 0"
    " GROUP BY slot) LEFT JOIN slot ON slot.id = slot"
)
FAILED = "SELECT COUNT(*) FROM request WHERE state > 0 AND state = 3"
REASONS = (
    f"SELECT CASE state WHEN 4 THEN '{CAPPED}' ELSE reason END AS reason,"  # noqa: S608 - no input
    " COUNT(*) FROM request WHERE state > 0 AND state IN (3, 4) GROUP BY 1 UNION ALL"
    f" SELECT '{HOST}', n FROM (SELECT {schema.OF_DEAD_HOSTS} AS n) WHERE n ORDER BY 2 DESC"
)
_NOT_DEAD = "SELECT 1 FROM request WHERE state > 0 AND state = 2 AND slot NOT IN dead LIMIT 1"
_KEPT = (
    # with 1 if the round has not counted it, when a capped one is due, and what a pattern reads
    "SELECT request.id, name, rank, state > 3"  # noqa: S608 - no input
    " OR round < COALESCE((SELECT number FROM rounds), 0), CASE WHEN state > 3 THEN due END AS due,"
    f" {{}} FROM {_NAMED} WHERE {{}} AND payload != x''"
)
# by their numbers, not by their states
_CHOSEN = "state IN (3, 4) AND request.id IN (SELECT value FROM json_each(?))"
CHOSEN = _KEPT.format("x''", _CHOSEN)
CAP = (
    "UPDATE request SET state = 4, due = CASE WHEN state > 3 THEN due END, detail = ? WHERE id = ?"
)
_COUNT_STORED = (
    "UPDATE slot SET counted = n FROM (SELECT slot, SUM(n) AS n FROM (SELECT slot, COUNT(*) AS n"
    " FROM request WHERE state = 0 GROUP BY slot UNION ALL SELECT slot, COUNT(*) FROM request"
    " WHERE state > 0 AND state IN (1, 2) GROUP BY slot) GROUP BY slot) AS stored"
    " WHERE stored.slot = slot.id"
)
_FORGET_PATTERNS = (
    "UPDATE slot SET counted = 0 WHERE typeof(name) = 'blob' AND counted"
    " AND CAST(name AS TEXT) NOT IN (SELECT value FROM json_each(?))"
)
_STORED_OF_ALL = f"SELECT name, payload FROM {_NAMED} WHERE state < 3"  # noqa: S608 - no input
_FORGET_SLOTS = (
    "DELETE FROM slot WHERE NOT counted AND times IS NULL AND id NOT IN (SELECT slot FROM request)"
)


class SqliteRecords:
    """The records in `file`, in the order that `slots` and `newest_first` make (QueueSettings);
    of equal ones that an earlier start has stored the order stays. Without it, for a command on a
    stopped job, the budget stays as it is, and what is pending is not counted. Any method may raise
    sqlite3.Error."""

    failures: tuple[type[Exception], ...] = (sqlite3.Error, OSError, OverflowError, MemoryError)

    def __init__(
        self,
        file: RequestFile,
        slots: Slots,
        newest_first: tuple[bool, bool | None] | None = None,
        budget: Budget | None = None,
    ) -> None:
        self.slots = slots
        self.next_due: float | None = None  # in seconds since 1970
        self.operations = 0  # records pushed or deleted since the last commit
        self.round: Callable[[], int] = lambda: 1  # the number of the round
        self._file = file
        self.budget = budget
        self._signs = [-1 if newest else 1 for newest in newest_first or (True, False)]
        self._ids: dict[Name, int] = {}
        self._last: int = file.last
        self._cursor = file.cursor()
        if newest_first is None:
            self.dropped({})
        else:
            self._use_index()
            self._open_budget()
            self.recount()
        file.before_commit = self._write_counts

    def __len__(self) -> int:
        return len(self.slots)

    def recount(self) -> None:
        """Read again how many records are pending, delayed and failed."""
        pending = {}
        for id_, name, count in self._file.query(PENDING_BY_SLOT):
            self._learn(name, id_)
            pending[name] = count
        self.slots.recount(pending)
        self.dropped({})

    def dropped(self, pending: Mapping[str, int]) -> None:
        """Count so many pending records of each slot no more, and the others again."""
        for slot, number in pending.items():
            self.slots.add(slot, -number)
        self.delayed = int(self._file.query(DELAYED)[0][0])
        self.failed = int(self._file.query(FAILED)[0][0])
        self._read_next_due()

    def push(
        self,
        slot: str,
        rank: int,
        payload: bytes,
        due: float | None = None,
        *,
        behind: bool = False,
    ) -> int:
        """Add a record; `behind` all others of its rank, and the later ones behind it."""
        if due is not None:
            self._count_delayed(due)
            return self._put(slot, rank, payload, State.DELAYED, due)
        number = self._ids.get(slot) or self._slot(slot)
        self._last = id_ = self._last + 1
        self.operations += 1
        place = id_ if behind else id_ * self._signs[rank & 1]
        self._cursor.execute(PUSH, (id_, number, rank, place, payload))
        self.slots.add(slot)
        return id_

    def cap(
        self, slot: str, rank: int, payload: bytes, due: float | None = None, full: Name = ""
    ) -> int:
        """Add a record for which `full` has no room, retried not before `due`; return its id."""
        state, detail = State.CAPPED, _pattern_in(full)
        return self._put(slot, rank, payload, state, due, self.round(), detail)

    def add_lost(self, slot: str, failed: FailedRequest) -> None:
        """Add the failure of a request that cannot be stored."""
        self._put(slot, 0, b"", State.FAILED, failed.time, self.round(), failed.encode())
        self.failed += 1

    def next(self) -> Claimed | None:
        """Claim the next record. Cost: 10 to 15 µs."""
        slots = self.slots
        slot = slots.next()
        if slot is None:
            return None
        ask = self._cursor.execute
        if slots.by_slot:
            number = self._ids.get(slot) or self._slot(slot)
            found = ask(LAST if slots.asks_last(slot) else HEAD, (number,)).fetchone()
        else:
            ((*found, slot),) = self._file.query(HEAD_OF_ALL) or [(slot,)]
        if not found:
            raise sqlite3.DatabaseError(f"a request of slot {slot!r} is missing")
        id_, payload = found
        ask(CLAIM, (id_,))
        slots.add(slot, -1)
        return Claimed(id_, slot, payload)

    def done(self, id_: int) -> None:
        """Delete a claimed record."""
        self._cursor.execute(DONE, (id_,))
        self.operations += 1

    def fail(self, id_: int, failed: FailedRequest, payload: bytes | None = None) -> None:
        """Make a claimed record a failed one, with another `payload` if there is one."""
        values = failed.time, self.round(), failed.encode(), payload, id_
        self._file.execute(FAIL, values)
        self.failed += 1
        self.operations += 1

    def put_off(self, id_: int, due: float) -> None:
        """Make a claimed record a delayed one."""
        self._file.execute(PUT_OFF, (due, id_))
        self._count_delayed(due)

    def move_due(self, slot: str, before: float, after: float) -> None:
        """Let the delayed records of `slot` that are due at `before` be due at `after`."""
        if self.delayed:
            self._file.execute(MOVE_DUE, (after, before, slot))
            self._read_next_due()

    def take_due(self, now: float) -> bool:
        """Make up to 100 records pending that are due. Cost: 10 µs for each."""
        if self.next_due is None or self.next_due > now:
            return False
        due = self._file.query(DUE, (now, MOST_DUE))
        self._wake(due)
        self.delayed -= len(due)
        self._read_next_due()
        return self.next_due is not None and self.next_due <= now

    def stored(self, id_: int) -> tuple[str, bytes]:
        """Return slot and payload of a record."""
        return self._file.query(STORED, (id_,))[0]

    def rollback(self) -> None:
        """Drop all changes since the last commit."""
        self.operations = 0
        if self.budget is not None:
            self.budget.changed.clear()  # the feeds may commit what they have stored
        self._file.rollback()

    def hold(
        self,
        slot: str,
        until: float | None = None,
        times: int | None = None,
        pause: float | None = None,
    ) -> None:
        """Store the hold of `slot`; with None for `times` it has none."""
        self._file.execute(
            "UPDATE slot SET until = ?, times = ?, pause = ? WHERE id = ?",
            (until, times, pause, self._slot(slot)),
        )

    def holds(self) -> list[tuple[str, float | None, int, float | None]]:
        """Return slot, end, times and length of each stored hold."""
        return self._file.query(
            "SELECT name, until, times, pause FROM slot WHERE times IS NOT NULL"
        )

    def retry(self, states: str) -> int:
        """Make the records in these kept states pending, as far as the budget has room for what the
        round has not counted; the others are capped. Return how many are pending."""
        return self._retry(f"state > 0 AND state IN ({states})", caps=True)

    def reasons(self) -> dict[str, int]:
        """Return how many requests are kept for each reason, most first."""
        return dict(self._file.query(REASONS))

    def has_only(self, slots: Collection[str]) -> bool:
        """Return True if all requests that wait are of these slots, those of the dead hosts."""
        return self.slots.has_only(slots) and not (self.delayed and self._file.query(_NOT_DEAD))

    @property
    def of_dead_hosts(self) -> int:
        """How many requests wait for dead hosts."""
        return int(self._file.query(f"SELECT {schema.OF_DEAD_HOSTS}")[0][0])

    def wake(self, ids: Sequence[int]) -> int:
        """Do the same with these; what there is no room for stays as it is."""
        return self._retry(_CHOSEN, json.dumps(ids))

    def begin_round(self) -> None:
        """Forget the slots of the last round, and count in the budget what is stored; what has
        failed before counts when it is retried."""
        self._file.execute("UPDATE slot SET counted = 0 WHERE counted")
        if self.budget is not None:
            self._file.execute(_COUNT_STORED)
            self.budget.counted.clear()
            self.budget.changed.clear()
            if self.budget.patterns:
                for slot, payload in self._file.execute(_STORED_OF_ALL):
                    self.budget.count(names_of(self.budget, slot, payload)[1:])
        self._file.execute(_FORGET_SLOTS)
        self._ids.clear()

    def _use_index(self) -> None:
        file = self._file
        index = schema.BY_SLOT if self.slots.by_slot else schema.BY_RANK
        if file.query("SELECT 1 FROM sqlite_master WHERE name = 'pending' AND sql != ?", (index,)):
            if not file.changed:
                file.execute("BEGIN IMMEDIATE")
            file.execute("DROP INDEX pending")
            file.execute(index)

    def _open_budget(self) -> None:
        has_counts = bool(self._file.query("SELECT 1 FROM slot WHERE counted LIMIT 1"))
        if self.budget is not None:
            self.budget.stored = partial(counted_in, self._file)
            # a pattern that comes back counts from then on
            self._file.execute(_FORGET_PATTERNS, (json.dumps(self.budget.patterns),))
        # the counts end with the budget, and begin with it
        if has_counts != (self.budget is not None):
            self.begin_round()

    def _retry(self, where: str, *values: object, caps: bool = False) -> int:
        reads = "payload" if self.budget and self.budget.patterns else "x''"
        rows = self._file.query(_KEPT.format(reads, where), values)
        found, refused = [], []
        later, now = 0, time.time()
        for id_, slot, rank, counts, due, payload in sorted(rows):
            full = None
            if counts and self.budget is not None:
                full = self.budget.refuses(names_of(self.budget, slot, payload))
            if full is not None:
                refused.append((_pattern_in(full), id_))
            elif due is not None and due > now:
                self.put_off(id_, due)
                later += 1
            else:
                found.append((id_, slot, rank))
        self._wake(found)
        if caps:
            self._file.execute_many(CAP, refused)
        self.dropped({})
        return len(found) + later

    def _put(
        self,
        slot: str,
        rank: int,
        payload: bytes,
        state: State,
        due: float | None,
        round_: int | None = None,
        detail: str | None = None,
    ) -> int:
        """Add a record that is not pending; return its id."""
        self._last = id_ = self._last + 1
        self.operations += 1
        place = id_ * self._signs[rank & 1]
        values = id_, self._slot(slot), rank, place, int(state), payload, due, round_, detail
        self._file.execute(_PUT, values)
        return id_

    def _wake(self, rows: Sequence[tuple[int, str, int]]) -> None:
        """Make records (id, slot, rank) pending, as the newest of their rank."""
        changes = []
        for id_, slot, rank in rows:
            self._last += 1
            changes.append((self._last * self._signs[rank & 1], id_))
            self.slots.add(slot)
        self._file.execute_many(WAKE, changes)
        self.operations += len(changes)

    def _write_counts(self) -> int:
        """Write what the budget has counted; return the last id or place that was given."""
        if self.budget is not None and self.budget.changed:
            counts = [(self.budget.counted[n], self._slot(n)) for n in self.budget.changed]
            self._file.execute_many("UPDATE slot SET counted = ? WHERE id = ?", counts)
            self.budget.changed.clear()
            if len(self.budget.counted) > MOST_SLOTS:
                self.budget.counted.clear()
        self.operations = 0
        return self._last

    def _read_next_due(self) -> None:
        ((self.next_due,),) = self._file.query(NEXT_DUE)

    def _count_delayed(self, due: float) -> None:
        self.delayed += 1
        self.next_due = due if self.next_due is None else min(due, self.next_due)

    def _slot(self, name: Name) -> int:
        """Return the number of a slot or a pattern, which may be new to the file."""
        if name not in self._ids:
            self._learn(name, self._file.query(_NUMBER, (name,))[0][0])
        return self._ids[name]

    def _learn(self, name: Name, id_: int) -> None:
        if len(self._ids) - len(self.slots.names) > MOST_SLOTS:
            self._ids.clear()
        self._ids[name] = id_


def counted_in(file: RequestFile, name: Name) -> int:
    """Return how many requests a budget has counted under `name`."""
    found = file.query("SELECT counted FROM slot WHERE name = ?", (name,))
    return int(found[0][0]) if found else 0


def names_of(budget: Budget, slot: str, payload: bytes) -> list[Name]:
    """Return the names under which `budget` counts a stored request, which it reads if there are
    patterns."""
    url = url_and_method(Stored(slot, payload))[0] if budget.patterns else ""
    return budget.names(slot, url)


def _pattern_in(full: Name) -> str | None:
    """Return the pattern that has no room, None for a slot."""
    return full.decode() if isinstance(full, bytes) else None
