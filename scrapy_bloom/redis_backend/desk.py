"""The requests of a crawl in Redis, as an operator reads and changes them while its workers go on.

The lists of a slot are dropped in a step each. Of everything else a piece is read, and a script
changes what is chosen of it, unless workers have taken it meanwhile. A command claims nothing, so
its death changes nothing.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from ..job.choice import KEPT, WAITING, By, Counts, Filter, Record, State
from ..job.codec import Stored, plain_fields
from ..job.dictionaries import Dictionaries
from ..job.failed_request import CAPPED, UNREADABLE, FailedRequest, matches
from .call import Holding
from .codec import details_of, known_dictionaries, page_in
from .layout import ODD_BYTES
from .lifecycle import run_in_crawl
from .scripts import CHANGE, HOLD_SLOTS, SCAN
from .status import (
    SLOTS_AT_ONCE,
    capped_in,
    held_in,
    is_failure,
    is_record,
    parked_in,
    pending_of,
    reasons_in,
    require_crawl,
    scrapys_priority,
)

if TYPE_CHECKING:
    from .client import RedisClient
    from .scripts import Script

Action = Literal["drop", "fail", "retry"]
AT_ONCE = 100
"""So many requests are changed by a call."""
READ_AT_ONCE = 500
"""So many are read by a call."""
MOST_TOLD = 10_000
"""The most failed requests whose reasons a worker counts."""
REST = 4
"""While workers are at work, the pause after a call is so many times as long as the call."""
_PLACES = {State.DELAYED: "later", State.FAILED: "failed", State.QUARANTINED: "quarantined"}
_UNREADABLE = (UNREADABLE.encode(), 0, b"", 0, b"")
_DETAILS = {"url": "", "method": "GET", "status": None, "exception": None, "referer": None}
_SHOWN = (State.PENDING, State.QUARANTINED, State.DELAYED, State.CLAIMED, *sorted(KEPT))


class Element(NamedTuple):
    """A request as a place has it, or a mark, whose entry is empty: what is `stored`, in a hash the
    field; its stored priority, empty if it cannot be read; its slot and entry; in how many ms it is
    due; and the parts of its record, None for a missing one."""

    stored: bytes
    priority: str
    slot: str
    entry: bytes
    due: int | None = None
    parts: Sequence[Any] = ()


def elements_of(place: str, found: Sequence[Any]) -> Iterator[Element]:
    """Yield what `lua/scan.lua` tells of a `place`."""
    kind, _, rest = place.partition(":")
    first, _, named = rest.partition(":")
    if kind in {"pending", "lobby", "capped"}:
        for stored in found:
            before, has_nul, after = stored.partition(b"\0")
            told = before.decode(errors=ODD_BYTES)
            if kind == "pending":
                yield Element(stored, first, slot_of(named), stored)
            elif kind == "capped":
                yield Element(stored, told, rest, b"0" + after)
            else:
                yield (
                    Element(stored, rest, told, after)
                    if has_nul
                    else Element(stored, rest, "", stored)
                )
        return
    for stored, more in zip(found[::2], found[1::2], strict=True):
        # of what is delayed the first bytes are a hash
        parts = stored[4:].split(b"\0", 2) if kind == "later" else more
        due = more if kind == "later" else None
        priority, slot, entry = parts[:3] if is_record(parts) else (b"", b"", b"")
        told = slot.decode(errors=ODD_BYTES)
        yield Element(stored, priority.decode(), told, entry, due, parts)


def slot_of(named: str) -> str:
    """Return the slot of a list, whose older one has a NUL behind it."""
    return named.partition("\0")[0]


@dataclass
class _Order:
    """What is to be done, if it `is_now` also with what needs room in the budget; what was `found`,
    what is `unknown` of it, and how many are `left` to the next start."""

    chosen: Filter
    action: Action
    is_now: bool
    found: Counts = field(default_factory=Counts)
    unknown: set[bytes] = field(default_factory=set)
    left: int = 0

    @property
    def reads(self) -> bool:
        """True if the request itself has to be read."""
        return self.chosen.reads or self.action == "fail"


class RedisDesk:
    """The Desk of the crawl beside the filter at `key`. `starts` is True for a worker that joins.

    While workers are at work, a request that they move meanwhile may count twice or not at all, and
    the order changes of a list from which others are dropped. Any method may raise
    SharedFilterError. Cost: to count by slot or priority, or to drop by slot, a call for a hundred
    slots, and for 500 requests of slots with few; to look into requests, a call for each slot, and
    for 500; to change those, two calls for a hundred, each of 0.3 ms of the server, and pauses.
    """

    taker = "all workers"

    def __init__(self, client: RedisClient, key: str, *, starts: bool = False) -> None:
        self._client = client
        self._key = key
        self._starts = starts
        self._dictionaries = Dictionaries()
        self._rest = 0

    def count(self, chosen: Filter, by: By = "slot") -> Counts:
        """Return how many are chosen; of waiting ones also how many more are in flight."""
        require_crawl(self._client, self._key)
        self._learn()
        found, states = Counts(), {*chosen.states}
        brief = not chosen.reads and by != "callback"
        if states & WAITING:
            states.add(State.CLAIMED)
        if brief and by != "reason" and State.PENDING in states:
            states.remove(State.PENDING)
            for priority, slot, count in self._counts():
                if count and chosen.includes_slot(slot):
                    found.by[priority if by == "priority" else slot] += count
                    found.states[State.PENDING] += count
        if brief and by != "priority" and State.CAPPED in states:
            states.remove(State.CAPPED)
            for slot, count in self._capped(chosen).items():
                found.by[CAPPED if by == "reason" else slot] += count
                found.states[State.CAPPED] += count
        for state in sorted(states):
            for record in self._records(state, chosen, brief=brief):
                found.add(record, chosen, by)
        return found

    def reasons(self) -> dict[str, int]:
        """Return how many requests have failed for each reason, most first, of very many the first
        ones only."""
        return reasons_in(self._client, self._key, MOST_TOLD)

    def unfinished(self) -> Counter[str]:
        """Return how many requests each slot has, waiting or claimed."""
        found: Counter[str] = self.count(Filter()).by
        found.update(each.slot for each in self._records(State.CLAIMED, Filter(), brief=True))
        return found

    def scan(self, chosen: Filter) -> Iterator[Record]:
        """Yield the chosen ones: pending ones by priority, then those that were lost with a worker
        and those that are not due; failed ones, the oldest first, and capped ones by slot."""
        require_crawl(self._client, self._key)
        self._learn()
        for state in _SHOWN:
            if state in chosen.states:
                yield from filter(chosen.includes, self._records(state, chosen))

    def change(self, chosen: Filter, action: Action) -> Counts:
        """Do `action` with what is chosen when it is called. What is retried is pending at once,
        and a crawl that is over goes on. Capped ones, and with a budget failed ones of earlier
        rounds, are retried as far as it has room: while workers are at work, or at the next
        start."""
        living = self._starts or require_crawl(self._client, self._key).living
        self._rest = REST if living and not self._starts else 0
        order = _Order(chosen, action, is_now=bool(living))
        if action == "retry":
            self._retry(order)
        else:
            self._drop(order)
            order.found.unknown = len(order.unknown)
        return order.found

    def held(self) -> dict[str, float]:
        """Return the slots on hold, and for how many seconds, `inf` until the release. Cost: a call
        for 100 holds."""
        return held_in(self._client, self._key)

    def hold(self, slots: Sequence[str], seconds: float | None) -> int:
        """Hold `slots` by hand for so many seconds, for all workers; with None release them. Return
        how many are held now, or were. Cost: a call for 100 slots."""
        pause, changed = Holding("", seconds).pause, 0
        for first in range(0, len(slots), SLOTS_AT_ONCE):
            changed += self._run(HOLD_SLOTS, pause, *slots[first : first + SLOTS_AT_ONCE])
        return changed

    def retry_ordered(self) -> int:
        """Make pending what retries have left to the next start; return how many. What the budget
        has no room for is not asked by a later start."""
        orders = self._orders()
        count = 0
        for reasons, urls, *slots in orders:
            chosen = Filter(KEPT, slots[0] if slots else (), reasons, urls)
            count += self.change(chosen, "retry").states.total()
        if orders:
            self._client.call("hdel", f"{self._key}:crawl", "retried")
        return count

    def _orders(self) -> list[Any]:
        found = self._client.call("hget", f"{self._key}:crawl", "retried")
        return [*json.loads(found)] if found else []

    def _retry(self, order: _Order) -> None:
        chosen, states = order.chosen, order.found.states
        if order.is_now:
            # first, since it may get some of the others
            self._change_all(State.CAPPED, order)
        self._change_all(State.FAILED, order)
        if order.is_now:
            return
        states[State.FAILED] += order.left
        left = order.left
        if State.CAPPED in chosen.states:
            capped = self.count(replace(chosen, states=(State.CAPPED,))).states.total()
            states[State.CAPPED] += capped
            left += capped
        if left:
            told = [*self._orders(), (chosen.reasons, chosen.urls, chosen.slots)]
            self._client.call("hset", f"{self._key}:crawl", "retried", json.dumps(told))

    def _drop(self, order: _Order) -> None:
        chosen = order.chosen
        self._change_all(State.DELAYED, order)
        if State.PENDING in chosen.states:
            self._drop_pending(order)
        self._change_all(State.QUARANTINED, order)
        self._change_all(State.FAILED, order)
        self._change_all(State.CAPPED, order)
        if {*chosen.states} & WAITING:
            claimed = self._records(State.CLAIMED, chosen, brief=not chosen.reads)
            order.found.in_flight = sum(map(chosen.includes, claimed))

    def _drop_pending(self, order: _Order) -> None:
        chosen = order.chosen
        for priority in self._priorities():
            lobby = f"lobby:{priority}"
            slots = (each.slot for each in self._elements(lobby))
            if order.reads or any(map(chosen.includes_slot, slots)):
                self._change(lobby, State.PENDING, order)
        done: set[tuple[str, str]] = set()
        for _ in range(2):  # a list that was behind a mark is found by the second
            names = {*self._lists()} - done
            done |= names
            names = {each for each in names if chosen.includes_slot(slot_of(each[1]))}
            if not order.reads:
                names = {(priority, slot_of(named)) for priority, named in names}
            for name in sorted(names):
                place = ":".join(("pending", *name))
                if order.reads:
                    self._change(place, State.PENDING, order)
                else:
                    dropped = self._pausing(CHANGE, place, order.action, "", "all")
                    order.found.states[State.PENDING] += dropped

    def _change_all(self, state: State, order: _Order) -> None:
        """Change the chosen ones in this state, if it is one of those that are chosen."""
        if state in order.chosen.states:
            for place in self._places(state, order.chosen):
                self._change(place, state, order)

    def _change(self, place: str, state: State, order: _Order) -> None:
        """Change the chosen ones of as many as a place has now: workers may take some, and add
        others."""
        self._learn()
        told = place, order.action, "1" * order.is_now
        if state is State.FAILED:
            elements = self._elements(place, brief=not order.chosen.reads)
            judged = [[*self._judged(each, state, order)] for each in elements]
            judged = [each for each in judged if each[1]]
            for first in range(0, len(judged), AT_ONCE):
                parts = [part for each in judged[first : first + AT_ONCE] for part in each]
                self._count(self._pausing(CHANGE, *told, "", *parts), state, order)
            return
        is_later, is_capped = state is State.DELAYED, state is State.CAPPED
        count = self._client.call("zcard" if is_later else "llen", f"{self._key}:{place}")
        looked = stayed = 0
        while looked < count:
            most = min(AT_ONCE, count - looked)
            if is_capped and not order.reads:
                answers = self._pausing(CHANGE, *told, most)
            else:
                # what stays is passed over from the last one on, since workers take the first
                cursor = -1 - stayed if is_later else 0
                _, found = self._run(SCAN, place, cursor, most, "")
                if not found:
                    break
                parts = [
                    part
                    for each in elements_of(place, found)
                    for part in self._judged(each, state, order)
                ]
                answers = self._pausing(CHANGE, *told, "", *parts)
            self._count(answers, state, order)
            looked += max(1, len(answers))
            stayed += answers.count(b"s")
            if is_capped and len(answers) < most:
                break

    def _count(self, answers: bytes, state: State, order: _Order) -> None:
        order.found.states[state] += answers.count(order.action[:1].encode())
        order.left += answers.count(b"l")

    def _judged(self, element: Element, state: State, order: _Order) -> Iterator[Any]:
        """Yield what the script is told of an element."""
        yield element.stored
        record = self._record(element, state, order.chosen, brief=not order.reads)
        if record is None or not order.chosen.includes(record):
            counts = Counts()
            if record is not None and not counts.add(record, order.chosen) and counts.unknown:
                order.unknown.add(element.stored)
            yield from ("", "", "", "")
        elif order.action == "fail":
            failed = FailedRequest.dropped(record.url, record.method, record.fields)
            page = page_in(record.fields, element.entry[1:])
            yield from ("1", page, failed.attempts, details_of(failed))
        else:
            yield from ("1", "", "", "")

    def _pausing(self, *told: Any) -> Any:
        """Run a script, and pause."""
        began = time.perf_counter()
        answer = self._run(*told)
        self._pause(began)
        return answer

    def _pause(self, began: float) -> None:
        time.sleep(self._rest * (time.perf_counter() - began))

    def _run(self, script: Script, *arguments: Any) -> Any:
        return run_in_crawl(self._client, script, self._key, *arguments)

    def _learn(self) -> None:
        """Read the dictionaries that the crawl has now. Cost: two round trips."""
        self._dictionaries = known_dictionaries(self._client, self._key)

    def _counts(self) -> Iterator[tuple[int, str, int]]:
        """Yield priorities, slots, and how many requests are in lists; a slot may come often."""
        for priority, counts in pending_of(self._client, self._key, lobbies=False).counts.items():
            for slot, count in counts.items():
                yield priority, slot, count
        # a script would take four times as long
        for stored in self._priorities():
            for each in self._elements(f"lobby:{stored}"):
                own = f"{self._key}:pending:{stored}:{each.slot}"
                count = 1 if each.entry else self._client.call("llen", own)
                yield scrapys_priority(stored), each.slot, count

    def _capped(self, chosen: Filter) -> dict[str, int]:
        """Return how many are over the budget of each chosen slot."""
        if not matches(chosen.reasons, CAPPED):
            return {}
        capped, _ = capped_in(self._client, self._key)
        return {slot: count for slot, count in capped.items() if chosen.includes_slot(slot)}

    def _lists(self) -> Iterator[tuple[str, str]]:
        """Yield priority and name of each list of a slot, in a ring, parked, or behind a mark."""
        yield from parked_in(self._client, self._key)
        for priority in self._priorities():
            for element in self._client.pages(
                "lrange", f"{self._key}:slots:{priority}", READ_AT_ONCE
            ):
                named = element.decode(errors=ODD_BYTES)
                yield priority, named
                if named.endswith("\0"):
                    last = f"{self._key}:pending:{priority}:{named}"
                    if self._client.call("lindex", last, -1) == b"":
                        yield priority, named[:-1]
            for each in self._elements(f"lobby:{priority}"):
                if not each.entry:
                    yield priority, each.slot

    def _priorities(self) -> Iterator[str]:
        """Yield the priorities that may have pending requests, the first one first."""
        for priority in self._client.call("zrange", f"{self._key}:priorities", 0, -1):
            yield priority.decode(errors=ODD_BYTES)

    def _places(self, state: State, chosen: Filter) -> Iterator[str]:
        """Yield the places of requests in that state which may be chosen."""
        if state is State.PENDING:
            for priority, named in self._lists():
                if chosen.includes_slot(slot_of(named)):
                    yield f"pending:{priority}:{named}"
            for priority in self._priorities():
                yield f"lobby:{priority}"
        elif state is State.CLAIMED:
            for worker in require_crawl(self._client, self._key).workers:
                yield f"claims:{worker.name}"
        elif state is State.CAPPED:
            yield from (f"capped:{slot}" for slot in self._capped(chosen))
        elif state in _PLACES:
            yield _PLACES[state]

    def _elements(self, place: str, *, brief: bool = False) -> Iterator[Element]:
        pieces = self._client.scan(SCAN, self._key, place, None, READ_AT_ONCE, "1" * brief)
        elements = (each for piece in pieces for each in elements_of(place, piece))
        if place != "failed":
            return elements
        # one may come twice, and the oldest is the first
        return iter(sorted({each.stored: each for each in elements}.values(), key=_claim_of))

    def _records(self, state: State, chosen: Filter, *, brief: bool = False) -> Iterator[Record]:
        """Yield the requests in that state which may be chosen; if `brief` none is read."""
        for place in self._places(state, chosen):
            for element in self._elements(place, brief=brief):
                record = self._record(element, state, chosen, brief=brief)
                if record is not None:
                    yield record

    def _record(
        self, element: Element, state: State, chosen: Filter, *, brief: bool
    ) -> Record | None:
        """Return an element as a record; None for a mark, and what cannot be read of other states
        than those of requests that are kept."""
        parts = element.parts
        is_mark = state is State.PENDING and not element.entry
        if is_mark or (state not in KEPT and not element.priority):
            return None
        fields: Mapping[str, Any] = {}
        is_told = state is State.FAILED and (not is_failure(parts) or bool(parts[7]))
        if not brief and (chosen.callbacks or not is_told) and chosen.includes_slot(element.slot):
            fields = plain_fields(Stored(element.slot, element.entry[1:]), self._dictionaries)
        due = None if element.due is None else element.due / 1000
        record = Record(state, element.slot, scrapys_priority(element.priority), fields, due)
        if state is State.FAILED:
            return record._replace(failed=_failure(parts, record.url, record.method))
        if state is State.CAPPED:
            return record._replace(failed=FailedRequest.capped(record.url, record.method))
        return record


def _claim_of(element: Element) -> int:
    """Return the number of the claim that has failed; with a worker, it is the field."""
    claim = element.parts[8] if len(element.parts) > 8 else None
    with suppress(ValueError):
        return int(element.stored if claim is None else claim)
    return 0


def _failure(parts: Sequence[Any], url: str, method: str) -> FailedRequest:
    """Return the record of a failed request, of which its worker has told, or else the payload."""
    known: dict[str, Any] = {**_DETAILS}
    reason, attempts, worker, when, details = _UNREADABLE
    if is_failure(parts):
        reason, attempts, worker, when, details = parts[3:8]
    if details:
        with suppress(ValueError, RecursionError):  # damaged
            told = json.loads(details)
            # a later version may know more
            for name in known.keys() & told if isinstance(told, dict) else ():
                if isinstance(told[name], int if name == "status" else str):
                    known[name] = told[name]
    elif worker:
        last = f"the last was {worker.decode(errors=ODD_BYTES)}"
        known |= {"url": url, "method": method, "exception": last}
    told_reason = reason.decode(errors=ODD_BYTES)
    return FailedRequest(reason=told_reason, attempts=attempts, time=when / 1000, **known)
