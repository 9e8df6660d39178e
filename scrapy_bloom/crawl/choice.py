"""Stored requests as an operator sees them, which of them a command is about, and what it does."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, Protocol
from urllib.parse import unquote_plus

from ..errors import encodable
from .failed_request import FailedRequest, attempts_of
from .patterns import pattern, place_of
from .records import WAITING, State

PATIENCE = 30.0
"""Seconds that a running job has for the answer to an order."""
Action = Literal["drop", "fail", "retry"]
"""The records go; they fail, for the reason `dropped`; they are pending again."""
DROPPED = "dropped"
"""The reason of failed requests that an operator has dropped, and kept."""
By = Literal["slot", "callback", "priority", "reason", "path", "parameter"]
OF_URL = frozenset(("path", "parameter"))
"""What is found in the URL; the callback is in the request, too."""
DEEPEST = 8
"""Most parts of a path that are told apart."""
MOST_VALUES = 100_000
"""Most paths or parameters that are counted apart: then each with less than a ten-thousandth of all
is folded."""


class Record(NamedTuple):
    """A stored request. `fields` (`Request.to_dict`) are read without running code of the request,
    none of a damaged one. `due` is in seconds from now, None without a time; `failed` tells why it
    is kept."""

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

    def values(self, by: By) -> Collection[Any]:
        """Return what counts it: of `path` its host and path, of `parameter` each name in its
        query."""
        if by not in OF_URL:
            return [getattr(self, by)]
        place, _, query = "".join(place_of(self.url)).partition("?")
        if by == "parameter":
            names = (each.partition("=")[0] for each in query.split("&") if each)
            return dict.fromkeys(map(unquote_plus, names))
        parts = place.split("/")
        return ["/".join([*parts[: DEEPEST + 1], *([""] if parts[DEEPEST + 1 :] else [])])]

    def dropped(self) -> FailedRequest:
        """Return the record of the request as one that is dropped and kept."""
        values = (self.fields.get("headers") or {}).get(b"Referer")
        referer = values[0] if isinstance(values, list) and values else None
        before = referer.decode("utf-8", "backslashreplace") if isinstance(referer, bytes) else None
        attempts = attempts_of(self.fields.get("meta") or {})
        found = FailedRequest(self.url, self.method, DROPPED, attempts=attempts, referer=before)
        return found._replace(time=time.time())


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
    examples: dict[Any, str] = field(default_factory=dict)
    """By path or parameter the URL of one of them."""

    def add(self, record: Record, chosen: Filter, by: By = "slot", count: int = 1) -> bool:
        """Count `record`, which stands for so many of them; return True if it is chosen."""
        if not chosen.includes(record):
            self.unknown += chosen.reads and not record.url and chosen.includes_slot(record.slot)
            return False
        if record.state is State.CLAIMED:
            self.in_flight += count
            return False
        self.states[record.state] += count
        for value in record.values(by):
            self.by[value] += count
            if by in OF_URL:
                self.examples.setdefault(value, record.url)
        if by in OF_URL and len(self.by) > MOST_VALUES:
            found = self.folded(10 * self.states.total() / MOST_VALUES)
            self.by, self.examples = found.by, found.examples
        return True

    def folded(self, least: float) -> Counts:
        """Return them with each path that has fewer than `least` counted in the one above it, which
        ends in a slash or is an empty text: the prefixes that are left share all there is."""
        by, examples = Counter(self.by), {**self.examples}
        by_length: dict[int, list[str]] = {}
        for value in by:
            by_length.setdefault(len(value), []).append(value)
        for length in range(max(by_length, default=0), 0, -1):
            for value in by_length.get(length, ()):
                if by[value] < least:
                    directory, slash, _ = value[:-1].rpartition("/")
                    if (above := directory + slash) not in by:
                        by_length.setdefault(len(above), []).append(above)
                    by[above] += by.pop(value)
                    examples.setdefault(above, examples.pop(value))
        return replace(self, by=by, examples=examples)


class Desk(Protocol):
    """The records of a job or a crawl, while engines are at work or not. Raises BloomError."""

    @property
    def taker(self) -> str:
        """The process that asks what is retried, in words."""

    def count(self, chosen: Filter, by: By = "slot") -> Counts:
        """Return how many are chosen."""

    def scan(self, chosen: Filter) -> Iterator[Record]:
        """Yield the chosen ones: pending ones, then others, of each state the oldest first."""

    def change(self, chosen: Filter, action: Action) -> Counts | None:
        """Do `action` with what is chosen; None if a running job has not answered in time."""

    def held(self) -> Mapping[str, float]:
        """Return the slots on hold, and for how many seconds, `inf` until the release."""

    def hold(self, slots: Sequence[str], seconds: float | None) -> int | None:
        """Hold `slots` for so many seconds, with None release them. Return how many are held now,
        or were; None as `change` does."""


def matches(globs: Sequence[str], text: str) -> bool:
    """Return True if `text` matches one of the `globs` of the standard library's fnmatch, in which
    case counts, or if there are none. Raises ValueError for a glob that is too long."""
    return not globs or pattern(*globs).match(text) is not None
