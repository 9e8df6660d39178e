"""The requests of a crawl in Redis, as an operator reads and changes them while its workers go on.

The lists of a slot are dropped in a step each. Of everything else a piece is read, and a script
changes what is chosen of it, unless workers have taken it meanwhile. A command claims nothing, so
its death changes nothing.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

from ..crawl.budget import Budget, capped
from ..crawl.choice import OF_URL, Action, By, Counts, Filter, Record, matches
from ..crawl.codec import Stored, stored_fields
from ..crawl.dictionaries import Dictionaries
from ..crawl.failed_request import CAPPED, HOST, UNREADABLE, FailedRequest
from ..crawl.records import KEPT, WAITING, State
from .call import Holding
from .codec import details_of, page_in
from .layout import ODD_BYTES
from .lifecycle import budget_in, no_crawl
from .scripts import CHANGE, HOLD_SLOTS, SCAN, Script
from .status import CrawlReader, pairs_of, scrapys_priority, slot_of

if TYPE_CHECKING:
    from .client import RedisClient

AT_ONCE = 100
"""So many requests are changed by a call."""
HELD_AT_ONCE = 40
"""So many slots are held, or released with their lists, by a call."""
REST = 4
"""While workers are at work, the pause after a call is so many times as long as the call."""
_STATES = {
    "pending": State.PENDING,
    "lobby": State.PENDING,
    "later": State.DELAYED,
    "quarantined": State.QUARANTINED,
    "claims": State.CLAIMED,
    "failed": State.FAILED,
    "capped": State.CAPPED,
}
"""By the first word of a place."""
_UNREADABLE = (UNREADABLE.encode(), 0, b"", 0, b"")
_DETAILS = {"url": "", "method": "GET", "status": None, "exception": None, "referer": None}
_SHOWN = (State.PENDING, State.QUARANTINED, State.DELAYED, State.CLAIMED, *sorted(KEPT))
_ORDER = (State.DELAYED, State.PENDING, State.QUARANTINED, State.CAPPED, State.FAILED)
"""In which states are changed: what is due meanwhile is pending then, and failed ones may be
capped."""
_CHANGED = {"drop": WAITING | KEPT, "fail": WAITING, "retry": KEPT}


class Element(NamedTuple):
    """A request as a place has it, or a mark, whose entry is empty: its state; what is `stored`, in
    a hash the field; its stored priority, empty if it cannot be read; its slot and entry; in how
    many seconds it is due; and the parts of its record."""

    state: State
    stored: bytes
    priority: str
    slot: str
    entry: bytes
    due: float | None = None
    parts: Sequence[Any] = ()


def elements_of(place: str, found: Sequence[Any]) -> Iterator[Element]:
    """Yield what `lua/scan.lua` tells of a `place`."""
    kind, _, of = place.partition(":")
    rest = of.encode(errors=ODD_BYTES)
    is_plain = kind in {"pending", "lobby", "capped"}
    for stored, more in zip(found, found, strict=True) if is_plain else pairs_of(found):
        before, has_nul, after = stored.partition(b"\0")
        parts, due = more, None
        if kind == "pending":
            priority, _, named = rest.partition(b":")
            parts = priority, named.partition(b"\0")[0], stored
        elif kind == "lobby":
            # one without a slot is that of an empty one
            parts = rest, *((before, after) if has_nul else (b"", stored))
        elif kind == "capped":
            priority, _, pattern = before.partition(b" ")
            parts = priority.partition(b"@")[0], rest, b"0" + after, pattern
        elif kind == "later":
            parts, due = stored[4:].split(b"\0", 2), more / 1000  # behind a hash
        number, slot, entry = parts[:3] if len(parts) > 2 else (b"",) * 3
        texts = number.decode(errors=ODD_BYTES), slot.decode(errors=ODD_BYTES)
        yield Element(_STATES[kind], stored, *texts, entry, due, parts)


@dataclass
class _Task:
    """A change of what is chosen, if it `is_now` also of what needs room in the `budget`; what was
    `found`, and how many are `left` to the next start."""

    chosen: Filter
    action: Action
    is_now: bool
    budget: Budget
    found: Counts = field(default_factory=Counts)
    left: int = 0

    @property
    def reads(self) -> bool:
        """True if the requests themselves have to be read."""
        retries = self.action == "retry" and bool(self.budget.patterns)
        return self.chosen.reads or self.action == "fail" or retries


class RedisDesk(CrawlReader):
    """The Desk of the crawl beside the filter at `key`. `starts` is True for a worker that joins.

    While workers are at work, a request that they move meanwhile may count twice or not at all, and
    the order changes of a list from which others are dropped. Any method may raise
    SharedFilterError. Cost: to count by slot or priority, a call for a hundred slots; to drop by
    slot, a call for each; to look into requests, a call for each slot, and for 200 of them; to
    change those, two calls for a hundred, each of a ms of the server, and pauses.
    """

    taker = "all workers"

    def __init__(self, client: RedisClient, key: str, *, starts: bool = False) -> None:
        super().__init__(client, key)
        self._starts = starts
        self._dictionaries = Dictionaries()
        self._dead: Collection[str] = ()
        """The dead slots: what waits of them has failed."""
        self._rest = 0
        self._since = 0.0

    def count(self, chosen: Filter, by: By = "slot") -> Counts:
        """Return how many are chosen; of waiting ones also how many more are in flight."""
        self._learn()
        states = self._stored_in(chosen)
        if WAITING.intersection(chosen.states):
            states.add(State.CLAIMED)
        return self._count(sorted(states), chosen, by)

    def _count(self, states: Iterable[State], chosen: Filter, by: By = "slot") -> Counts:
        """Return how many are chosen of those that are stored in these states."""
        found, reads = Counts(), chosen.reads or by == "callback" or by in OF_URL
        for state in states:
            counted: Iterable[tuple[Record, int]]
            if not reads and (state is State.PENDING or (state, by) == (State.CAPPED, "slot")):
                counted = self._lengths(state)
            else:
                counted = ((each, 1) for each in self._records(state, chosen, reads=reads))
            for record, count in counted:
                if record.state is State.CLAIMED or record.state in chosen.states:
                    found.add(record, chosen, by, count)
        return found

    def _stored_in(self, chosen: Filter) -> set[State]:
        """Return the states in which the chosen ones may be stored. Reads which slots are dead."""
        self._dead, states = self.dead(), {*chosen.states}
        if self._dead and State.FAILED in states and matches(chosen.reasons, HOST):
            states |= WAITING
        return states

    def unfinished(self, budget: Budget) -> Counter[str]:
        """Return how many requests each slot has, waiting or claimed, and each pattern of `budget`,
        which has a NUL before it. Cost: reads them if there are patterns."""
        claimed = self._records(State.CLAIMED, Filter(), reads=False)
        waiting = self._count(WAITING, Filter(WAITING | KEPT))
        found = waiting.by + Counter(each.slot for each in claimed)
        for state in sorted(WAITING | {State.CLAIMED}) if budget.patterns else ():
            for each in self._records(state, Filter(), reads=True):
                if pattern := budget.pattern_of(each.url):
                    found[f"\0{pattern}"] += 1
        return found

    def scan(self, chosen: Filter) -> Iterator[Record]:
        """Yield the chosen ones: pending ones by priority, then those that were lost with a worker
        and those that are not due; failed ones, the oldest first, and capped ones by slot."""
        self._learn()
        stored_in = self._stored_in(chosen)
        for state in filter(stored_in.__contains__, _SHOWN):
            for each in self._records(state, chosen, reads=True):
                if each.state in chosen.states and chosen.includes(each):
                    yield each

    def change(self, chosen: Filter, action: Action) -> Counts:
        """Do `action` with what is chosen when it is called. What is retried is pending at once,
        and a crawl that is over goes on. Capped ones, and with a budget failed ones of earlier
        rounds, are retried as far as it has room: while workers are at work, or at the next
        start."""
        is_at_work = not self._starts and bool(self.require().living)
        self._rest, self._since = REST if is_at_work else 0, time.perf_counter()
        limits = self._client.call("hget", f"{self._key}:crawl", "budget") or b""
        is_now = self._starts or is_at_work
        task = _Task(chosen, action, is_now, budget_in(limits.decode(errors=ODD_BYTES)))
        states = _CHANGED[action].intersection(self._stored_in(chosen))
        for state in filter(states.__contains__, _ORDER):
            if action == "retry" and state is State.CAPPED and not task.is_now:
                task.left = self.count(replace(chosen, states=(state,))).states.total()
                task.found.states[state] = task.left
            else:
                for place in self._places(state, chosen):
                    self._change(place, task)
        if task.left:
            told = [*self._orders(), (chosen.reasons, chosen.urls, chosen.slots)]
            self._client.call("hset", f"{self._key}:crawl", "retried", json.dumps(told))
        if action == "retry" and State.FAILED in states:
            task.found.states[State.FAILED] += self.revive(chosen)
        if WAITING.intersection(chosen.states):
            claimed = self._records(State.CLAIMED, chosen, reads=chosen.reads)
            task.found.in_flight = sum(map(chosen.includes, claimed))
        return task.found

    def hold(self, slots: Sequence[str], seconds: float | None) -> int:
        """Hold `slots` by hand for so many seconds, for all workers; with None release them. Return
        how many are held now, or were. Cost: a call for 40 slots."""
        holds, changed = [Holding(slot, seconds).told() for slot in slots], 0
        for first in range(0, len(holds), HELD_AT_ONCE):
            changed += self._run(HOLD_SLOTS, "".join(holds[first : first + HELD_AT_ONCE]))
        return changed

    def revive(self, chosen: Filter) -> int:
        """End the verdict on each dead slot of which a request is chosen; return how many are.
        Changes nothing where Redis has no memory left."""
        if State.FAILED not in chosen.states or WAITING.isdisjoint(self._stored_in(chosen)):
            return 0
        found = self._count(WAITING, replace(chosen, states=KEPT))
        slots = filter(found.by.__contains__ if chosen.reads else chosen.includes_slot, self._dead)
        self.hold([*slots], None)
        return found.states.total()

    def lists(self) -> Iterator[tuple[str, str]]:
        """Yield priority and name of each list of a slot, in a ring, parked, or behind a mark."""
        for priority, named, _ in chain(self.listed([]), self.parked([], "dead")):
            yield priority, named
        for priority in self.priorities():
            for each in self._elements(f"lobby:{priority}"):
                if not each.entry:
                    yield priority, each.slot

    def retry_ordered(self) -> int:
        """Make pending what retries have left to the next start; return how many. What the budget
        has no room for is not asked by a later start."""
        orders = self._orders()
        count = 0
        for reasons, urls, slots in orders:
            count += self.change(Filter(KEPT, slots, reasons, urls), "retry").states.total()
        if orders:
            self._client.call("hdel", f"{self._key}:crawl", "retried")
        return count

    def _orders(self) -> list[Any]:
        found = self._client.call("hget", f"{self._key}:crawl", "retried")
        return [*json.loads(found)] if found else []

    def _change(self, place: str, task: _Task) -> None:
        """Change the chosen ones of as many as a place has now: workers may take some, and add
        others."""
        if task.reads:
            self._learn()
        kind = place.partition(":")[0]
        if kind == "pending" and not task.reads:
            # the older list of a slot goes with it
            dropped = self._run(CHANGE, place.rstrip("\0"), "drop", "", "all")
            task.found.states[State.PENDING] += dropped
            self._pause()
        elif kind == "failed":
            judged = self._judged(self._elements(place, reads=task.reads), task)
            pairs = [pair for pair in judged if pair[1]]
            for first in range(0, len(pairs), AT_ONCE):
                self._tell(place, task, pairs[first : first + AT_ONCE])
        else:
            self._change_list(place, kind, task)

    def _change_list(self, place: str, kind: str, task: _Task) -> None:
        count = self._client.call("zcard" if kind == "later" else "llen", f"{self._key}:{place}")
        looked = stayed = 0
        while looked < count:
            most = min(AT_ONCE, count - looked)
            if kind == "capped" and not task.reads:
                answers = self._tell(place, task, (), most)
            else:
                # what stays is passed over from the last one on, since workers take the first
                cursor = -1 - stayed if kind == "later" else 0
                _, found = self._run(SCAN, cursor, place, most, "")
                if not found:
                    break
                answers = self._tell(place, task, self._judged(elements_of(place, found), task))
            looked += max(1, len(answers))
            stayed += answers.count(b"s")
            if kind == "capped" and len(answers) < most:
                break

    def _tell(
        self, place: str, task: _Task, pairs: Iterable[tuple[bytes, str]], most: int | str = ""
    ) -> bytes:
        """Have the script change requests, and pause; return what became of each."""
        told = place, task.action, "1" * task.is_now, most, *chain.from_iterable(pairs)
        answers: bytes = self._run(CHANGE, *told)
        left = 0 if task.is_now else answers.count(b"l")
        changed = answers.count(task.action[:1].encode()) + left
        task.found.states[_STATES[place.partition(":")[0]]] += changed
        task.left += left
        self._pause()
        return answers

    def _judged(self, elements: Iterable[Element], task: _Task) -> Iterator[tuple[bytes, str]]:
        """Yield what the script is told of each element, and what it is to do with it."""
        looked = Counts()
        for element in elements:
            record = self._record(element, task.chosen, reads=task.reads)
            verdict, states = "", task.chosen.states
            if record is None or record.state not in states:
                pass
            elif looked.add(record, task.chosen):
                verdict = f"1{task.budget.pattern_of(record.url)}"
                if task.action == "fail":
                    failed = record.dropped()
                    page = page_in(record.fields, element.slot, element.entry[1:])
                    verdict = f"{failed.attempts} {details_of(failed)}\n{page}"
            yield element.stored, verdict
        task.found.unknown += looked.unknown

    def _pause(self) -> None:
        """Rest after a call, and what was done before it."""
        time.sleep(self._rest * (time.perf_counter() - self._since))
        self._since = time.perf_counter()

    def _run(self, script: Script, *arguments: Any) -> Any:
        """Return the answer of `script`, which is -1 where there is no crawl."""
        answer = self._client.run(script, [self._key], *arguments)
        if answer == -1:
            raise no_crawl(self._client, self._key)
        return answer

    def _learn(self) -> None:
        """Read the dictionaries that the crawl has now. Cost: two round trips."""
        self._dictionaries = Dictionaries(filter(None, self.dictionaries().values()))

    def _lengths(self, state: State) -> Iterator[tuple[Record, int]]:
        """Yield a record without fields for each priority and slot of pending ones, or for each
        slot of capped ones, and how many there are."""
        if state is State.PENDING:
            for priority, slots in self.pending().counts.items():
                for slot, count in slots.items():
                    yield self._seen(Record(state, slot, priority, {})), count
            for stored, named, count in self.parked([], "dead"):
                record = Record(state, slot_of(named), scrapys_priority(stored), {})
                yield self._seen(record), count
        else:
            for slot, count in self.capped([]).items():
                yield Record(state, slot, 0, {}, failed=FailedRequest("", "", CAPPED)), count

    def _places(self, state: State, chosen: Filter) -> Iterator[str]:
        """Yield the places of requests in that state which may be chosen."""

        def may_be_chosen(slot: str) -> bool:
            seen = State.FAILED if slot in self._dead else state
            return seen in chosen.states and chosen.includes_slot(slot)

        if state is State.PENDING:
            for priority in self.priorities():
                lobby = f"lobby:{priority}"
                slots = (each.slot for each in self._elements(lobby))
                is_sure = state in chosen.states and not chosen.slots
                if is_sure or any(map(may_be_chosen, slots)):
                    yield lobby
            seen: set[tuple[str, str]] = set()
            for _ in range(2):  # a list that was behind a mark is found by the second
                names = [each for each in dict.fromkeys(self.lists()) if each not in seen]
                seen.update(names)
                for priority, named in names:
                    if may_be_chosen(slot_of(named)):
                        yield f"pending:{priority}:{named}"
        elif state is State.CLAIMED:
            for worker in self.require().workers:
                yield f"claims:{worker.name}"
        elif state is State.CAPPED:
            if matches(chosen.reasons, CAPPED):
                slots = (record.slot for record, _ in self._lengths(state))
                yield from (f"capped:{slot}" for slot in slots if chosen.includes_slot(slot))
        else:
            yield from (place for place, its_state in _STATES.items() if its_state is state)

    def _elements(self, place: str, *, reads: bool = True) -> Iterator[Element]:
        """Yield what a place has, without the longest parts unless it `reads` them."""
        pieces = self._pieces(place, "1" * (not reads))
        elements = (each for piece in pieces for each in elements_of(place, piece))
        if place != "failed":
            return elements
        # one may come twice, and the oldest is the first
        by_page = {each.stored: each for each in elements}
        return iter(sorted(by_page.values(), key=lambda each: each.parts[8] if each.parts else 0))

    def _records(self, state: State, chosen: Filter, *, reads: bool) -> Iterator[Record]:
        """Yield the requests in that state which may be chosen."""
        for place in self._places(state, chosen):
            for element in self._elements(place, reads=reads):
                if (record := self._record(element, chosen, reads=reads)) is not None:
                    yield record

    def _record(self, element: Element, chosen: Filter, *, reads: bool) -> Record | None:
        """Return an element as a record, with its fields if it `reads`; None for a mark, and for
        what cannot be read, unless it is kept."""
        state, _, priority, slot, entry, due, parts = element
        if (state is State.PENDING and not entry) or (state not in KEPT and not priority):
            return None
        fields: dict[str, Any] = {}
        if reads and chosen.includes_slot(slot):
            with suppress(ValueError):
                fields = stored_fields(Stored(slot, self._dictionaries.inflate(entry[1:])))
        record = self._seen(Record(state, slot, scrapys_priority(priority), fields, due))
        if state is State.FAILED:
            return record._replace(failed=_failure(parts, record.url, record.method))
        if state is State.CAPPED:
            pattern = parts[3].decode(errors=ODD_BYTES)
            return record._replace(failed=capped(record.url, record.method, slot, pattern))
        return record

    def _seen(self, record: Record) -> Record:
        """Return it as failed if it waits for a dead host."""
        if record.state not in WAITING or record.slot not in self._dead:
            return record
        failed = record.dropped()._replace(reason=HOST, time=0.0)
        return record._replace(state=State.FAILED, due=None, failed=failed)


def _failure(parts: Sequence[Any], url: str, method: str) -> FailedRequest:
    """Return the record of a failed request, of which its worker has told, or else the payload."""
    known: dict[str, Any] = {**_DETAILS}
    reason, attempts, worker, when, details = parts[3:8] or _UNREADABLE
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
