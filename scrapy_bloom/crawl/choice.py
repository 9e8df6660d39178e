"""The states of stored requests, these as an operator sees them, and which of them a command is
about."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from ..errors import encodable
from .failed_request import matches

if TYPE_CHECKING:
    from .failed_request import FailedRequest


class State(IntEnum):
    """The states of a record. What is acknowledged or dropped has no record any more."""

    PENDING = 0
    CLAIMED = 1  # by an engine; pending again after a crash
    DELAYED = 2  # pending when it is due
    FAILED = 3
    CAPPED = 4  # over the budget of its slot
    ASKED = 5  # to be retried by the next start, as far as the budget of its slot has room
    QUARANTINED = 6  # lost with two workers of a crawl in Redis, and claimed alone


WAITING = frozenset({State.PENDING, State.DELAYED, State.ASKED, State.QUARANTINED})
KEPT = frozenset({State.FAILED, State.CAPPED})
UNFINISHED = WAITING | {State.CLAIMED}
"""A round with a record in one of these states is not over."""


By = Literal["slot", "callback", "priority", "reason"]


class Record(NamedTuple):
    """A stored request. `fields` (`Request.to_dict`) are read without running code of the request,
    none of a damaged one. `due` is in seconds from now, None unless it is delayed; `failed` tells
    why it is kept."""

    state: State
    slot: str
    priority: int
    fields: Mapping[str, Any]
    due: float | None = None
    failed: FailedRequest | None = None

    @property
    def url(self) -> str:
        """Its URL, empty if it cannot be read."""
        return self.failed.url if self.failed else encodable(self.fields.get("url") or "")

    @property
    def method(self) -> str:
        """Its HTTP method."""
        return self.failed.method if self.failed else encodable(self.fields.get("method") or "GET")

    @property
    def callback(self) -> str | None:
        """The name of its callback, None if it cannot be read."""
        return encodable(self.fields.get("callback") or "parse") if self.fields else None

    @property
    def reason(self) -> str:
        """Why it is kept."""
        return self.failed.reason if self.failed else ""


@dataclass(frozen=True)
class Filter:
    """The records in these `states` whose slot, reason and URL match one of the globs, and whose
    callback has one of the names; all of them, where none is given. Raises ValueError for a glob
    that cannot be used."""

    states: Collection[State] = WAITING
    slots: Sequence[str] = ()
    reasons: Sequence[str] = ()
    urls: Sequence[str] = ()
    callbacks: Sequence[str] = ()

    def __post_init__(self) -> None:
        for globs in (self.slots, self.reasons, self.urls):
            matches(globs, "")

    @property
    def reads(self) -> bool:
        """True if more than state, slot and reason decides."""
        return bool(self.urls or self.callbacks)

    def includes_slot(self, slot: str) -> bool:
        """Return True if records of `slot` may be chosen."""
        return matches(self.slots, slot)

    def includes(self, record: Record) -> bool:
        """Return True if `record`, of one of the states, is chosen: it needs a URL and a callback
        if they decide."""
        return (
            self.includes_slot(record.slot)
            and matches(self.reasons, record.reason)
            and (not self.urls or (bool(record.url) and matches(self.urls, record.url)))
            and (not self.callbacks or record.callback in self.callbacks)
        )


@dataclass
class Counts:
    """How many records are chosen: `by` value, and by state. Claimed ones are `in_flight` and not
    chosen; `unknown` ones, of slots that are, cannot be read."""

    by: Counter[Any] = field(default_factory=Counter)
    states: Counter[State] = field(default_factory=Counter)
    in_flight: int = 0
    unknown: int = 0

    def add(self, record: Record, chosen: Filter, by: By = "slot", count: int = 1) -> bool:
        """Count `record`, which stands for so many of them; return True if it is chosen."""
        if not chosen.includes(record):
            self.unknown += chosen.reads and not record.url and chosen.includes_slot(record.slot)
            return False
        if record.state is State.CLAIMED:
            self.in_flight += count
            return False
        self.by[getattr(record, by)] += count
        self.states[record.state] += count
        return True
