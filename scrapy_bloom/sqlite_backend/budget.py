"""The budget of a job: how many requests of each download slot its round may have."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import encodable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .request_file import Group, RequestFile

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
_ASK = (
    f"INSERT INTO requests SELECT {_ROW}"  # noqa: S608 - no input
    " + ROW_NUMBER() OVER (ORDER BY id), :slot, priority, start,"
    " 0, '', request FROM capped WHERE budget = :id AND retried ORDER BY id LIMIT :room"
)
_ASKED = (
    "DELETE FROM capped WHERE id IN (SELECT id FROM capped WHERE budget = :id AND retried"
    " ORDER BY id LIMIT :room)"
)


class LocalBudget:
    """The counts of a round in `file`, durable with the requests that they count: never more than
    `limits` allow, over kills. `"*"` is the limit of each slot without one. A start without limits
    forgets the counts.

    Any method may raise sqlite3.Error.
    """

    def __init__(self, file: RequestFile, limits: Mapping[str, int]) -> None:
        self._file = file
        self._limits = limits
        if not limits:
            file.execute("UPDATE budget SET pushed = 0")
        elif not file.query("SELECT 1 FROM budget WHERE pushed LIMIT 1"):
            # the start before had no budget, or this one begins a round
            self._begin()

    def admits(self, slot: str) -> bool:
        """Count a new request of `slot`. Return False, and count nothing, if it is over the budget.
        Cost: a statement."""
        limit = self._limit(slot)
        if not limit:
            return False
        return self._file.execute(_COUNT, (encodable(slot), limit)).rowcount == 1

    def keep(self, group: Group, request: bytes) -> None:
        """Keep a request that is over the budget, of a group with its slot."""
        slot, priority, start = group
        self._file.execute("INSERT INTO budget VALUES (NULL, ?, 0) ON CONFLICT DO NOTHING", (slot,))
        self._file.execute(
            "INSERT INTO capped SELECT NULL, id, ?, ?, 0, ? FROM budget WHERE slot = ?",
            (priority, start, request, slot),
        )

    def ask_retried(self, *, begins_round: bool) -> int:
        """Make pending what is retried, as far as the budget of the last round has room, before the
        first push; return how many. Where this start begins a round, only these count in it, and
        what is stored."""
        slots = self._file.query(
            "SELECT budget.id, slot, pushed FROM budget WHERE id IN"
            " (SELECT budget FROM capped WHERE retried)"
        )
        if begins_round:
            self._begin()
        asked = 0
        for id_, slot, pushed in slots:
            room = max(0, self._limit(slot) - pushed)
            self._file.execute(_ASK, {"id": id_, "slot": slot, "room": room})
            number = self._file.execute(_ASKED, {"id": id_, "room": room}).rowcount
            self._file.execute("UPDATE budget SET pushed = pushed + ? WHERE id = ?", (number, id_))
            asked += number
        self._file.execute("UPDATE capped SET retried = 0 WHERE retried")
        if begins_round:
            self._file.execute(
                "DELETE FROM budget WHERE NOT pushed AND id NOT IN (SELECT budget FROM capped)"
            )
        if asked:
            self._file.recount()
        return asked

    def _begin(self) -> None:
        """Count only what is stored, which is fetched in this round; what has failed before counts
        when it is retried."""
        self._file.execute("UPDATE budget SET pushed = 0")
        self._file.execute(_COUNT_STORED)
        self._file.execute("INSERT OR IGNORE INTO carried SELECT id FROM failed")

    def _limit(self, slot: str) -> int:
        return self._limits.get(slot, self._limits.get("*", _UNLIMITED))
