"""The records of a job: rows of the table `request`, each with its state."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from ..crawl.failed_request import CAPPED, HOST, FailedRequest
from ..crawl.records import State
from . import schema

if TYPE_CHECKING:
    from ..crawl.slots import Slots
    from .job_file import RequestFile

MOST_SLOTS = 200_000
"""Most slots whose numbers are in memory. Cost of another one: 10 µs."""
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
END_HOLD = (
    "UPDATE request SET due = 0 WHERE state = 2 AND due IS NULL"
    " AND slot = (SELECT id FROM slot WHERE name = ?)"
)
WAKE = (
    "UPDATE request SET state = 0, place = ?, due = NULL, round = NULL, detail = NULL WHERE id = ?"
)
PENDING_BY_SLOT = (
    "SELECT name, n FROM (SELECT slot, COUNT(*) AS n FROM request WHERE state = 0"
    " GROUP BY slot) LEFT JOIN slot ON slot.id = slot"
)
FAILED = "SELECT COUNT(*) FROM request WHERE state > 0 AND state = 3"
REASONS = (
    f"SELECT CASE state WHEN 4 THEN '{CAPPED}' ELSE reason END AS reason,"  # noqa: S608 - no input
    " COUNT(*) FROM request WHERE state > 0 AND state IN (3, 4) GROUP BY 1 UNION ALL"
    f" SELECT '{HOST}', n FROM (SELECT {schema.OF_DEAD_HOSTS} AS n) WHERE n ORDER BY 2 DESC"
)
_NOT_DEAD = "SELECT 1 FROM request WHERE state > 0 AND state = 2 AND slot NOT IN dead LIMIT 1"
_FORGET_SLOTS = "DELETE FROM slot WHERE times IS NULL AND id NOT IN (SELECT slot FROM request)"


class SqliteRecords:
    """The records in `file`, in the order that `slots` and `newest_first` make (QueueSettings);
    of equal ones that an earlier start has stored the order stays. Without it, for a command on a
    stopped job, what is pending is not counted. Any method may raise sqlite3.Error."""

    failures: tuple[type[Exception], ...] = (sqlite3.Error, OSError, OverflowError, MemoryError)

    def __init__(
        self,
        file: RequestFile,
        slots: Slots,
        newest_first: tuple[bool, bool | None] | None = None,
    ) -> None:
        self.slots = slots
        self.next_due: float | None = None  # in seconds since 1970
        self.round: Callable[[], int] = lambda: 1  # the number of the round
        self.refuses: Callable[[Sequence[int]], Collection[int]] = lambda ids: ()
        """Returns those of these kept records for which a budget has no room."""
        self.file = file
        self._signs = [-1 if newest else 1 for newest in newest_first or (True, False)]
        self._slot = lru_cache(MOST_SLOTS)(self._number)
        self.last = file.last
        """The last id or place that was given."""
        self._cursor = file.cursor()
        if newest_first is None:
            self.dropped({})
        else:
            self._use_index()
            self.recount()
        file.before_commit = lambda: self.last

    def __len__(self) -> int:
        return len(self.slots)

    def recount(self) -> None:
        """Read again how many records are pending, delayed and failed."""
        self.slots.recount(dict(self.file.query(PENDING_BY_SLOT)))
        self.dropped({})

    def dropped(self, pending: Mapping[str, int]) -> None:
        """Count so many pending records of each slot no more, and the others again."""
        for slot, number in pending.items():
            self.slots.add(slot, -number)
        self.delayed = int(self.file.query(DELAYED)[0][0])
        self.failed = int(self.file.query(FAILED)[0][0])
        self._count_delayed(0)

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
            id_ = self.put(slot, rank, payload, State.DELAYED, due)
            self._count_delayed(1)
            return id_
        number = self._slot(slot)
        self.last = id_ = self.last + 1
        place = id_ if behind else id_ * self._signs[rank & 1]
        self._cursor.execute(PUSH, (id_, number, rank, place, payload))
        self.slots.add(slot)
        return id_

    def put(
        self,
        slot: str,
        rank: int,
        payload: bytes,
        state: State,
        due: float | None,
        round_: int | None = None,
        detail: str | None = None,
    ) -> int:
        """Add a record that is not pending, and is not counted; return its id."""
        self.last = id_ = self.last + 1
        place = id_ * self._signs[rank & 1]
        values = id_, self._slot(slot), rank, place, int(state), payload, due, round_, detail
        self.file.execute(_PUT, values)
        return id_

    def next(self) -> tuple[int, str, bytes] | None:
        """Claim the next record. Cost: 10 to 15 µs."""
        slots = self.slots
        slot = slots.next()
        if slot is None:
            return None
        ask = self._cursor.execute
        if slots.by_slot:
            statement = LAST if slots.asks_last(slot) else HEAD
            found = ask(statement, (self._slot(slot),)).fetchone()
        else:
            ((*found, slot),) = self.file.query(HEAD_OF_ALL) or [(slot,)]
        if not found:
            raise sqlite3.DatabaseError(f"a request of slot {slot!r} is missing")
        id_, payload = found
        ask(CLAIM, (id_,))
        slots.add(slot, -1)
        return id_, slot, payload

    def done(self, id_: int) -> None:
        """Delete a claimed record."""
        self._cursor.execute(DONE, (id_,))

    def fail(self, id_: int, failed: FailedRequest, payload: bytes | None = None) -> None:
        """Make a claimed record a failed one, with another `payload` if there is one."""
        values = failed.time, self.round(), failed.encode(), payload, id_
        self.file.execute(FAIL, values)
        self.failed += 1

    def put_off(self, id_: int, due: float | None = None) -> None:
        """Make a claimed record a delayed one, without `due` until the end of its slot's hold."""
        self.file.execute(PUT_OFF, (due, id_))
        self._count_delayed(1)

    def end_hold(self, slot: str) -> None:
        """Let the records of `slot` be due that were put off until the end of its hold."""
        if self.delayed:
            self.file.execute(END_HOLD, (slot,))
            self._count_delayed(0)

    def take_due(self, now: float) -> None:
        """Make up to 100 records pending that are due. Cost: 10 µs for each."""
        if self.next_due is None or self.next_due > now:
            return
        due = self.file.query(DUE, (now, MOST_DUE))
        self.wake(due)
        self._count_delayed(-len(due))

    def wake(self, rows: Sequence[tuple[int, str, int]]) -> None:
        """Make records (id, slot, rank) pending, as the newest of their rank."""
        changes = []
        for id_, slot, rank in rows:
            self.last += 1
            changes.append((self.last * self._signs[rank & 1], id_))
            self.slots.add(slot)
        self.file.execute_many(WAKE, changes)

    def stored(self, id_: int) -> tuple[str, bytes]:
        """Return slot and payload of a record."""
        return self.file.query(STORED, (id_,))[0]

    def hold(self, slot: str, until: float | None, times: int | None, pause: float | None) -> None:
        """Store the hold of `slot`; with None for `times` it has none."""
        self.file.execute(
            "UPDATE slot SET until = ?, times = ?, pause = ? WHERE id = ?",
            (until, times, pause, self._slot(slot)),
        )

    def holds(self) -> list[tuple[str, float | None, int, float | None]]:
        """Return slot, end, times and length of each stored hold."""
        return self.file.query("SELECT name, until, times, pause FROM slot WHERE times IS NOT NULL")

    def reasons(self) -> dict[str, int]:
        """Return how many requests are kept for each reason, most first."""
        return dict(self.file.query(REASONS))

    def has_only(self, slots: Collection[str]) -> bool:
        """Return True if all requests that wait are of these slots, those of the dead hosts."""
        return self.slots.has_only(slots) and not (self.delayed and self.file.query(_NOT_DEAD))

    @property
    def of_dead_hosts(self) -> int:
        """How many requests wait for dead hosts."""
        return int(self.file.query(f"SELECT {schema.OF_DEAD_HOSTS}")[0][0])

    def forget_slots(self) -> None:
        """Forget the slots of which nothing is stored."""
        self.file.execute(_FORGET_SLOTS)
        self._slot.cache_clear()

    def _use_index(self) -> None:
        file = self.file
        index = schema.BY_SLOT if self.slots.by_slot else schema.BY_RANK
        if file.query("SELECT 1 FROM sqlite_master WHERE name = 'pending' AND sql != ?", (index,)):
            if not file.changed:
                file.execute("BEGIN IMMEDIATE")
            file.execute("DROP INDEX pending")
            file.execute(index)

    def _count_delayed(self, more: int) -> None:
        self.delayed += more
        ((self.next_due,),) = self.file.query(NEXT_DUE)

    def _number(self, slot: str) -> int:
        """Return the number of a slot, which may be new to the file."""
        return int(self.file.query(_NUMBER, (slot,))[0][0])
