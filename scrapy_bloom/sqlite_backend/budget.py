"""The budget of a job: how many requests of each download slot its round may have."""

from __future__ import annotations

import json
import os
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING

from ..errors import encodable
from ..files import privately

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from .job_file import Group, RequestFile

_UNLIMITED = 2**63 - 1
_COUNT = (
    "INSERT INTO budget VALUES (NULL, ?, 1)"
    " ON CONFLICT DO UPDATE SET pushed = pushed + 1 WHERE pushed < ?"
)
_COUNT_STORED = (
    "INSERT INTO budget SELECT NULL, slot, COUNT(*) FROM (SELECT slot FROM requests"
    " UNION ALL SELECT slot FROM later) WHERE slot != '' GROUP BY slot"
    " ON CONFLICT DO UPDATE SET pushed = excluded.pushed"
)
_ROW = (
    "(SELECT COALESCE(MAX(id), 0) FROM (SELECT MAX(id) AS id FROM requests"
    " UNION ALL SELECT MAX(id) FROM later UNION ALL SELECT MAX(id) FROM unreadable))"
)
_CHOSEN = "FROM capped JOIN budget ON budget.id = budget WHERE retried = 2"
# all slots at once: a statement for each would read all rows each time
_ASK = (
    "CREATE TEMP TABLE rooms (budget INTEGER PRIMARY KEY, most INTEGER NOT NULL)",
    "INSERT INTO rooms SELECT CAST(key AS INTEGER), value FROM json_each(:rooms)",
    "UPDATE capped SET retried = 2 WHERE id IN (SELECT id FROM (SELECT id, most,"
    " ROW_NUMBER() OVER (PARTITION BY budget ORDER BY id) AS place"
    " FROM capped JOIN rooms USING (budget) WHERE retried) WHERE place <= most)",
    "DROP TABLE rooms",
    f"INSERT INTO requests SELECT {_ROW} + ROW_NUMBER() OVER (ORDER BY capped.id),"
    f" slot, priority, start, 0, '', request {_CHOSEN} ORDER BY capped.id",
    f"INSERT INTO budget SELECT NULL, slot, COUNT(*) {_CHOSEN} GROUP BY slot"
    " ON CONFLICT DO UPDATE SET pushed = pushed + excluded.pushed",
)


class LocalBudget:
    """The counts of a round in `file`, durable with the requests that they count: never more than
    `limits` allow, over kills. `"*"` is the limit of each slot without one. A start without limits
    forgets the counts.

    A request may be dispatched before the commit that has its count. So it is noted in a file at
    `notes`, which a kill leaves: the next start counts it, and admits it once more. `offered` is
    the fingerprint of the request that `admits` is asked about.

    Any method may raise sqlite3.Error.
    """

    def __init__(self, file: RequestFile, limits: Mapping[str, int], notes: Path) -> None:
        self._file = file
        self._limits = limits
        self._notes = _Notes(notes, file)
        self.offered = b""
        self._uncommitted: dict[bytes, str] = {}
        """The slots of the requests counted since the last commit, by fingerprint."""
        self._asked: Counter[bytes] = Counter()
        """The fingerprints of the table `asked`."""
        self.begins_now = False
        """True until the commit that begins a round, with its counts."""
        if limits and not file.query("SELECT 1 FROM budget WHERE pushed LIMIT 1"):
            # the start before had no budget
            self.begin_round()

    def admits(self, slot: str) -> bool:
        """Count a new request of `slot`, unless it was counted before a kill. Return False, and
        count nothing, if it is over the budget. Cost: a statement."""
        if self._asked[self.offered]:
            self._asked[self.offered] -= 1
            self._file.execute(
                "DELETE FROM asked WHERE id = (SELECT MIN(id) FROM asked WHERE fingerprint = ?)",
                (self.offered,),
            )
            return True
        slot, limit = encodable(slot), self._limit(slot)
        if not limit or self._file.execute(_COUNT, (slot, limit)).rowcount != 1:
            return False
        self._uncommitted[self.offered] = slot
        return True

    @property
    def has_uncommitted(self) -> bool:
        """True if requests were counted since the last commit, and not dispatched."""
        return bool(self._uncommitted)

    def dispatched(self, fingerprint: bytes) -> None:
        """Note a request that is dispatched, if no commit has its count. Raises OSError."""
        slot = self._uncommitted.pop(fingerprint, None)
        if slot is not None:
            self._notes.add(fingerprint, slot)

    def committed(self) -> None:
        """Forget the notes of what the last commit has counted. Raises OSError."""
        self.begins_now = False
        self._uncommitted.clear()
        self._notes.clear()

    def keep(self, group: Group, request: bytes) -> None:
        """Keep a request that is over the budget, of a group with its slot."""
        slot, priority, start = group
        self._file.execute("INSERT INTO budget VALUES (NULL, ?, 0) ON CONFLICT DO NOTHING", (slot,))
        self._file.execute(
            "INSERT INTO capped SELECT NULL, id, ?, ?, 0, ? FROM budget WHERE slot = ?",
            (priority, start, request, slot),
        )

    def ask_retried(self) -> int:
        """Make pending what is retried, as far as the budget of the last round has room, before the
        first push; return how many."""
        self._count_notes()
        slots = self._file.query(
            "SELECT budget.id, slot, pushed FROM budget WHERE id IN"
            " (SELECT budget FROM capped WHERE retried)"
        )
        rooms = {id_: self._limit(slot) - pushed for id_, slot, pushed in slots}
        values = {"rooms": json.dumps(rooms)}
        for statement in _ASK if rooms else ():
            self._file.execute(statement, values)
        asked = self._file.execute("DELETE FROM capped WHERE retried = 2").rowcount
        self._file.execute("UPDATE capped SET retried = 0 WHERE retried")
        if not self._limits:
            self._file.execute("UPDATE budget SET pushed = 0")
        if asked:
            self._file.recount()
        return asked

    def begin_round(self) -> None:
        """Count only what is stored, which is fetched in this round; what has failed before counts
        when it is retried."""
        self.begins_now = True
        self._file.execute("UPDATE budget SET pushed = 0")
        self._file.execute(_COUNT_STORED)
        self._file.execute(
            "DELETE FROM budget WHERE NOT pushed AND id NOT IN (SELECT budget FROM capped)"
        )
        self._file.execute("INSERT OR IGNORE INTO carried SELECT id FROM failed")
        self._file.execute("DELETE FROM asked")
        self._asked.clear()

    def _count_notes(self) -> None:
        """Count what was noted before a kill, in `asked` until it is offered again."""
        for fingerprint, slot in self._notes.read():
            self._file.execute(_COUNT, (slot, _UNLIMITED))
            self._file.execute("INSERT INTO asked VALUES (NULL, ?)", (fingerprint,))
        self._asked.update(each for (each,) in self._file.query("SELECT fingerprint FROM asked"))

    def _limit(self, slot: str) -> int:
        return self._limits.get(slot, self._limits.get("*", _UNLIMITED))


class _Notes:
    """Fingerprints and slots in the file at `path`, each with the number of commits that `file` had
    then: after the next commit they are void."""

    def __init__(self, path: Path, file: RequestFile) -> None:
        self._path = path
        self._file = file
        self._descriptor: int | None = None
        self._is_there = path.exists()

    def read(self) -> Iterator[tuple[bytes, str]]:
        """Yield those that are not void."""
        lines = self._path.read_bytes().splitlines() if self._is_there else []
        for line in lines:
            with suppress(TypeError, ValueError):  # a kill has cut it
                commits, fingerprint, slot = json.loads(line)
                if commits == self._file.commits:
                    yield bytes.fromhex(fingerprint), encodable(slot)

    def add(self, fingerprint: bytes, slot: str) -> None:
        """Add one. Cost: a write, without an fsync."""
        if self._descriptor is None:
            self._descriptor = privately(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            self._is_there = True
        line = json.dumps([self._file.commits, fingerprint.hex(), slot])
        os.write(self._descriptor, f"{line}\n".encode())

    def clear(self) -> None:
        """Remove all."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
        if self._is_there:
            self._path.unlink(missing_ok=True)
            self._is_there = False
