"""BLOOM_BUDGET in a job: its counts go on with the round, and what is over it stays, as capped."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import inf
from typing import TYPE_CHECKING, Any

from ..crawl.budget import Budget, lost
from ..crawl.codec import Stored, url_and_method
from ..crawl.records import State
from ..errors import encodable

if TYPE_CHECKING:
    from scrapy import Request

    from ..crawl.budget import Name
    from ..crawl.ledger import Ledger
    from ..crawl.ledger_scheduler import LedgerScheduler
    from .job_file import RequestFile
    from .records import SqliteRecords
    from .request_store import SqliteStore
    from .rounds import Round

_COUNT = (
    "INSERT INTO budget SELECT name, SUM(n) FROM (SELECT slot, COUNT(*) AS n FROM request"
    " WHERE state = 0 GROUP BY slot UNION ALL SELECT slot, COUNT(*) FROM request"
    " WHERE state > 0 AND state IN (1, 2) GROUP BY slot) JOIN slot ON slot.id = slot GROUP BY name"
)
_ADD = "INSERT INTO budget VALUES (?, 1) ON CONFLICT DO UPDATE SET counted = counted + 1"
_NAMED = "request JOIN slot ON slot.id = slot"
_STORED = f"SELECT name, payload FROM {_NAMED} WHERE state < 3"  # noqa: S608 - no input
_KEPT = (
    # those that the round has not counted
    f"SELECT request.id, name, {{}} FROM {_NAMED}"  # noqa: S608 - no input
    " WHERE request.id IN (SELECT value FROM json_each(?))"
    " AND (state > 3 OR round < COALESCE((SELECT number FROM rounds), 0)) ORDER BY request.id"
)
_FORGET_PATTERNS = (
    "DELETE FROM budget WHERE typeof(name) = 'blob'"
    " AND CAST(name AS TEXT) NOT IN (SELECT value FROM json_each(?))"
)
_CAP = (
    "UPDATE request SET state = 4, due = CASE WHEN state > 3 THEN due END, detail = ? WHERE id = ?"
)


class JobBudget(Budget):
    """The budget of a job: its counts are in `file`, and are committed before what they have
    counted is dispatched. Any method may raise sqlite3.Error."""

    _starts = True  # until `open`
    _counted_after = -1  # this commit
    _scheduler: LedgerScheduler
    _store: SqliteStore
    _ledger: Ledger

    def __init__(self, limits: Mapping[str, int], file: RequestFile) -> None:
        super().__init__(limits)
        self._file = file

    def with_room(self, rows: Iterable[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
        """Yield slots and payloads of `rows` for which there is room, or that, by their third
        value, the round has counted."""
        for slot, payload, is_new in rows:
            if not is_new or self.full(self._names(slot, payload)) is None:
                yield slot, payload

    def begin(self, records: SqliteRecords) -> None:
        """Decide which of the kept `records` are pending again. A pattern that comes back counts
        from then on, and a budget where the last start had none what is stored."""
        records.refuses = self._refuses
        self._file.execute(_FORGET_PATTERNS, (json.dumps(self.patterns),))
        if not self._file.query("SELECT 1 FROM budget LIMIT 1"):
            self.begin_round()

    def open(
        self, scheduler: LedgerScheduler, store: SqliteStore, ledger: Ledger, round_: Round
    ) -> None:
        """Count what `scheduler` gets in this round, in the commits of `ledger`."""
        self._scheduler, self._store, self._ledger = scheduler, store, ledger
        self._starts = False
        round_.at_begin.append(self.begin_round)

    def begin_round(self) -> None:
        """Count what is stored; what has failed before counts when it is retried."""
        self._file.execute("DELETE FROM budget")
        self._file.execute(_COUNT)
        for slot, payload in self._file.execute(_STORED) if self.patterns else ():
            self.count(self._names(slot, payload)[1:])

    def count(self, names: Iterable[Name]) -> None:
        """Count a request under all `names`."""
        self._file.execute_many(_ADD, [(name,) for name in names])
        self._counted_after = self._file.commits

    def keep(self, request: Request, delay: float | None, full: Name) -> None:
        """Keep `request`, which is not pending, or its record if it cannot be serialized."""
        scheduler, store = self._scheduler, self._store
        records, number = store.records, store.records.round()
        try:
            slot, rank, payload = store.record_of(request)
        except ValueError as error:
            scheduler._tell_of_unserializable(request, error)
            slot = encodable(scheduler._slot_of(request))
            failed = lost(request, slot)
            records.put(slot, 0, b"", State.FAILED, failed.time, number, failed.encode())
            records.failed += 1
        else:
            due = None if delay is None else time.time() + delay
            records.put(slot, rank, payload, State.CAPPED, due, number, _pattern_in(full))
            if request.dont_filter:
                scheduler._children.stored(request, ())
        if request is scheduler._start_requests.offered:
            scheduler._start_requests.mark_stored()
        self._ledger.stored(request, scheduler._sources_of(request))

    def lets_out(self, request: Request) -> bool:
        """Commit what was counted, and the round that has counted it, before `request` goes."""
        id_ = self._store.dispatched.get(request)
        is_new = self._counted_after == self._file.commits and (id_ or inf) > self._file.last
        if is_new or not self._ledger.commits:
            self._ledger.commit()
        return not self._ledger.stopped

    def _refuses(self, ids: Sequence[int]) -> dict[int, str | None]:
        """Count those of these kept requests that have room, but for those that the round has
        counted. Return the others, which a start caps, with the patterns that are full."""
        refused = {}
        statement = _KEPT.format("payload" if self.patterns else "x''")
        for id_, slot, payload in self._file.query(statement, (json.dumps(ids),)):
            if (full := self.refuses(self._names(slot, payload))) is not None:
                refused[id_] = _pattern_in(full)
        if self._starts:
            self._file.execute_many(_CAP, [(pattern, id_) for id_, pattern in refused.items()])
        return refused

    def _names(self, slot: str, payload: bytes) -> list[Name]:
        """Return the names of a stored request, which is read if there are patterns."""
        return self.names(slot, url_and_method(Stored(slot, payload))[0] if self.patterns else "")

    def _count(self, name: Name) -> int:
        found = self._file.query("SELECT counted FROM budget WHERE name = ?", (name,))
        return int(found[0][0]) if found else 0


def _pattern_in(full: Name) -> str | None:
    """Return the pattern that has no room, None for a slot."""
    return full.decode() if isinstance(full, bytes) else None
