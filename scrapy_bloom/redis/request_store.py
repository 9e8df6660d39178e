"""The request store of a worker, whose requests are in Redis."""

from __future__ import annotations

import os
import secrets
import socket
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop
from itertools import islice
from time import monotonic
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from ..crawl.budget import lost
from ..crawl.delays import NO_HOLD, Hold
from ..crawl.failed_request import FailedRequest
from ..crawl.start_requests import REPEAT_KEY
from ..crawl.stats import COUNTED
from ..errors import SharedFilterError
from .call import FENCED, LEAVE, OVER, Call, Entry, Full, Holding, Packed, Policy, Reply
from .claims import Claims
from .codec import RedisCodec, details_of, is_storable_slot
from .scripts import GROWN

if TYPE_CHECKING:
    from scrapy import Request

    from ..crawl.budget import Name
    from .dupefilter import RedisBloomDupeFilter
    from .transport import Transport

MOST_ENTRIES = 50
"""The most new requests in a call: each blocks the server for some 20 µs."""
MOST_CLAIMED = 200
"""The most requests that a call claims."""
POLL_SECONDS = 0.5
"""The pause of an idle worker between calls."""
BUSY_SECONDS = 0.02
"""The pause of a worker that has room for more requests."""

_NOTHING = (0,) * len(COUNTED)


def worker_name(*what: str) -> str:
    """Return a new name for a worker of this process, which begins with `what` it is."""
    host = socket.gethostname().partition(".")[0]
    return ":".join([*what, host, str(os.getpid()), secrets.token_hex(4)])


@dataclass
class Observers:
    """The functions that a store calls."""

    heard: Callable[[Reply], None]
    """For each reply to this worker."""
    fenced: Callable[[], None]
    """The lease was lost, or Redis went back in time."""
    answered: Callable[[Entry, int, Name | None], None]
    """An entry is NEW and was pushed, SEEN, or over the budget: then with the name that is full."""
    changed: Callable[[], None]
    """Requests are ready, or the crawl may be at rest."""
    unreadable: Callable[[str, Exception], None]
    """A request cannot be read back, and has failed."""
    gone: Callable[[], None]
    """The crawl is not there any more."""
    held: Callable[[str], None]
    """A slot is held, perhaps by another worker."""


class RedisStore:
    """A RequestStore in Redis: what this worker has pushed, claimed and finished.

    The effects of `push`, `done` and `note` go to the server with the next call after `commit`,
    children before their parent: a request is acknowledged only in a call after all entries before
    it are answered. `next` returns claimed requests that the server knows as dispatched.
    """

    failures: tuple[type[Exception], ...] = (SharedFilterError, MemoryError)

    def __init__(
        self,
        sender: Transport,
        dupefilter: RedisBloomDupeFilter,
        codec: RedisCodec,
        policy: Policy,
        *,
        capacity: int,
        observers: Observers,
        round_: str = "",
        counted: Callable[[], tuple[int, ...]] = lambda: _NOTHING,
    ) -> None:
        self._sender = sender
        self._dupefilter = dupefilter
        self._codec = codec
        self._policy = policy
        self._capacity = capacity
        self._observers = observers
        self._counted = counted
        self._told = self._counting = _NOTHING
        self.calls = 0
        self.slowest_call = 0.0  # seconds
        self.waiting = self.failed = self.nbytes = 0
        """Pending requests of the crawl, failed ones, and the bytes of the pending ones, as of the
        last reply."""
        self.starting = False
        self.start_done = False
        """True if this worker has run start() to its end, in this round and under this name."""
        self.round = round_
        """The round of the crawl, as of the last reply."""
        self._tail = 0
        self._unsent: deque[Entry] = deque()
        self._doubtful: set[bytes] = set()
        """Fingerprints of requests in memory whose children Redis may have lost, until the next
        commit with them."""
        self._holds: dict[str, Hold] = {}
        self._unsent_holds: list[Holding] = []
        self._own: set[bytes] = set()
        """Fingerprints that were pushed since the last commit."""
        self._paused_until: float | None = None
        self._last_call = 0.0
        self._leaving = False
        self._lost: WeakSet[Request] = WeakSet()
        self._enter()

    @property
    def pending(self) -> Sequence[object]:
        """The requests that `next` can return at once."""
        return self.claims.ready

    @property
    def uncommitted(self) -> int:
        """How many requests were pushed or finished; 0 while a call is open."""
        return 0 if self._sender.busy else len(self._unsent) + len(self.claims.uncommitted)

    @property
    def is_idle(self) -> bool:
        """True if this worker has nothing to send, to dispatch or to acknowledge."""
        return not (self._unsent or self.claims.all)

    @property
    def is_quiet(self) -> bool:
        """True if by the last reply start() has ended and no requests are left, and this worker has
        none since."""
        return self.is_still and self.last.start_done

    @property
    def is_still(self) -> bool:
        """As `is_quiet`, whether or not start() has ended."""
        return self.last.still and self.is_idle

    @property
    def unsent(self) -> int:
        """How many requests were not sent to the server."""
        return sum(entry.packed is not None for entry in self._unsent)

    def has_only(self, slots: Collection[str]) -> bool:
        """Return True if all requests that wait here, or are not due, are of these."""
        return not (self.claims.ready or self.later)

    @property
    def next_due(self) -> float | None:
        """Seconds until the next delayed request of the crawl is due, or the next hold is over, as
        of the last reply; None if nothing waits for a time."""
        return None if self._due is None else self._due - monotonic()

    @property
    def only_later(self) -> bool:
        """True if by the last reply nothing is left but requests that are not due or held, and this
        worker has none since."""
        return self.last.only_later and self.is_idle

    @property
    def only_dispatched(self) -> bool:
        """True if by the last reply nothing waits in the crawl, and all claims of this worker are
        with the engine, or wait for requests in memory."""
        claims = self.claims
        is_told = not (self._unsent or claims.uncommitted or claims.given_up or claims.returned)
        return is_told and not (claims.spare or self.waiting or self.last.fenced)

    @property
    def holds(self) -> Mapping[str, Hold]:
        """The holds of this worker's slots, as of the last reply, and those that it has made."""
        return self._holds

    def hold(self, slot: str, seconds: float, times: int) -> None:
        """Hold `slot` for all workers, with the next commit; see RequestStore."""
        if not is_storable_slot(slot):
            return  # nothing of it is in Redis
        self._holds[slot] = self._holds.get(slot, NO_HOLD).met(monotonic() + seconds, times)
        self._unsent_holds.append(Holding(slot, seconds, times))
        self.claims.put_back(slot)

    def release(self, slot: str) -> None:
        """End the hold of `slot` for all workers, with the next commit."""
        if (hold := self._holds.pop(slot, None)) is not None:
            self._unsent_holds.append(Holding(slot, times=hold.times))

    def pause(self, seconds: float | None) -> None:
        """Return what the engine has not got, and claim nothing for so many seconds, and then one
        request at a time; with None end that."""
        self._paused_until = None if seconds is None else monotonic() + seconds
        if seconds is not None:
            self.claims.put_back(None)

    def push(
        self, request: Request, sources: Sequence[Request], delay: float | None = None
    ) -> None:
        """Store `request`, as which the dispatched `sources` are sent again, for `delay` seconds
        from now on. Raises ValueError if it cannot be serialized."""
        claim = next(filter(None, map(self.claims.dispatched.get, sources)), None)
        packed = self._codec.dump(request, again=claim)
        before = ((self._codec.slot_of(each) or "", each.url) for each in sources)
        names = self._codec.budget.names(packed.slot, request.url, before)
        fingerprint = None
        if not request.dont_filter:
            known = self._dupefilter.fingerprint(request)
            # a seen request that was let pass is not held back, and bypasses the filter
            fingerprint = known if known in self._dupefilter.uncommitted else None
            self._own.add(known)
        self._enqueue(
            packed=packed,
            fingerprint=fingerprint,
            names=() if request.meta.get(REPEAT_KEY) else names,
            due=None if delay is None else monotonic() + delay,
        )

    def count(self, request: Request, slot: str, names: Sequence[Name], then: Full) -> None:
        """Count `request` of `slot`, which is in memory only, under these `names`. `then` is called
        with the one that has no room, or None. Without room its record is kept."""
        packed = Packed("0", slot, details_of(lost(request, slot)).encode())
        self._enqueue(packed=packed, kind="count", names=names, when_counted=then)

    def mark(self, mark: bytes) -> None:
        """Give the request that was pushed last the mark of a start request."""
        self._unsent[-1].mark = mark

    def note(self, *, fingerprint: bytes | None = None, mark: bytes = b"") -> None:
        """Store a fingerprint or a mark without a request."""
        self._enqueue(fingerprint=fingerprint, mark=mark)

    def next(self) -> Request | None:
        """Return the next claimed request; None without one, and then claim more."""
        while self.claims.ready:
            *_, claim = heappop(self.claims.ready)
            try:
                request = self._codec.load(claim)
                if not request.dont_filter:
                    # a redirect back to it would pass for the request itself
                    self._dupefilter.settle(self._dupefilter.fingerprint(request))
            except Exception as error:  # noqa: BLE001 - a stored request may raise anything
                self.claims.fail(self._codec.unreadable(claim, error))
                self._observers.unreadable(claim.number, error)
                continue
            self.claims.dispatched[request] = claim
            hold = self._holds.get(claim.slot, NO_HOLD)
            if claim.held_until is not None and hold.lets_pass(request):
                self.hold(claim.slot, 0.0, hold.times)  # another one is to ask the silent host
            return request
        self.flush(hungry=True)
        return None

    def done(self, request: Request) -> None:
        """Acknowledge a dispatched request, after all entries so far."""
        self.claims.finish(request, self._tail)

    def fail(self, request: Request, failed: FailedRequest) -> bool:
        """Record a dispatched request as failed, after all entries so far. If its claim was lost,
        its new owner records the failure. Return False, and do nothing, for any other request."""
        claim = self.claims.dispatched.get(request)
        if claim is None:
            return request in self._lost
        self.claims.finish(request, self._tail, self._codec.failing(claim, failed))
        return True

    def commit(self, fingerprints: Collection[bytes]) -> bool:
        """Send all entries unless a call is open, with the `fingerprints` that belong to no request
        here. Return True if a call was made."""
        calls = self.calls
        for fingerprint in fingerprints:
            if fingerprint in self._own:
                continue
            if fingerprint in self._doubtful:
                self._doubtful.remove(fingerprint)
            else:
                self.note(fingerprint=fingerprint)
        self._own.clear()
        self.claims.commit()
        self.flush()
        return self.calls > calls

    def rollback(self) -> None:
        """Keep the claims that were not given up."""
        self.claims.rollback()

    def close(self, *, clean: bool) -> None:
        """Do nothing: see `leave`."""

    def flush(self, *, hungry: bool = False) -> None:
        """Make a call if one is due: for entries and acknowledgements, unless this worker is only
        `hungry` for requests; for requests, if the last call was a while ago; for the lease."""
        if self._sender.busy:
            return
        since = monotonic() - self._last_call
        claims = self.claims
        has_news = self._unsent or self._unsent_holds or claims.given_up or claims.returned
        wants = claims.stock or (self._wanted and (hungry or not claims.all))
        is_due = self._due is not None and self._due <= monotonic()
        found = self.last.fenced or self.last.claimed or has_news or is_due
        if (
            (has_news and not hungry)
            or (wants and since >= (BUSY_SECONDS if found else POLL_SECONDS))
            or since >= self._policy.lease / 4000
        ):
            self._call()

    def leave(self, *, over: bool, seconds: float) -> bool:
        """Send all entries, give back the claims that are not acknowledged, and leave; `over` ends
        the crawl if no requests are left. Return False if the server does not answer for `seconds`:
        then the lease has to expire."""
        self._leaving = True
        deadline = monotonic() + seconds
        while self._sender.wait(max(0.0, deadline - monotonic())):
            if not (self._unsent or self._unsent_holds or self.claims.given_up):
                self._call(OVER if over else LEAVE)
                return self._sender.wait(max(0.0, deadline - monotonic()))
            self._call()
        return False

    def _enter(self) -> None:
        """Take a new name, under which the server does not know this worker."""
        self.worker = worker_name()
        self._number = 0
        self.claims = Claims()
        self.last = Reply([FENCED])
        """The last one, or that for a worker whose name the server has not heard."""
        self.later = 0
        """Requests of the crawl that are not due, as of the last reply."""
        self._due: float | None = None

    def _enqueue(self, **what: Any) -> None:
        self._tail += 1
        self._unsent.append(Entry(self._tail, **what))

    @property
    def _wanted(self) -> int:
        """How many more requests to claim; none beside a quarantined one."""
        if self._leaving or any(claim.quarantined for claim in self.claims.all.values()):
            return 0
        if self._paused_until is not None:
            return max(0, (not self._is_paused) - self.claims.spare)
        return max(0, min(MOST_CLAIMED, self._capacity - self.claims.spare))

    @property
    def _is_paused(self) -> bool:
        return self._paused_until is not None and self._paused_until > monotonic()

    def _call(self, action: str = "") -> None:
        self._number += 1
        self.calls += 1
        self._last_call = monotonic()
        self._send(self._batch(action))

    def _send(self, batch: Call) -> None:
        arguments = batch.encode(self.worker, self._policy, self._dupefilter.shared)
        self._sender.send(arguments, lambda answer: self._take(batch, Reply(answer)))

    def _batch(self, action: str) -> Call:
        entries = [*islice(self._unsent, MOST_ENTRIES)]
        answered = self._unsent[0].number - 1 if self._unsent else self._tail
        self._counting = self._counted()
        return Call(
            self._number,
            entries,
            self._codec.dictionaries,
            action,
            claims=self.claims.report(answered, leaving=self._leaving, last=bool(action)),
            round=self.round,
            starting=self.starting,
            start_done=self.start_done and len(entries) == len(self._unsent),
            wanted=-1 if self._is_paused else self._wanted,
            slots=Counter(claim.slot for claim in self.claims.all.values()),
            counted=[now - then for now, then in zip(self._counting, self._told, strict=True)],
            holds=[*self._unsent_holds],
        )

    def _take(self, batch: Call, reply: Reply) -> None:
        self.slowest_call = max(self.slowest_call, monotonic() - self._last_call)
        if reply.asked_for:
            batch.offer(reply.asked_for)
            self._send(batch)
            return
        if reply.gone:
            self.last = reply
            self._observers.gone()
            return
        if not reply.fenced:
            self._told = self._counting
            self.waiting, self.nbytes = reply.waiting, reply.waiting_bytes
            self.failed = reply.failed
        if batch.action:
            return
        if reply.fenced:
            self._be_fenced()
            return
        reply.teach(self._dupefilter.shared, batch)
        self._settle(batch, reply)
        self._take_holds(batch, reply)
        self.claims.take_answer(batch, reply.claimed)
        if self._is_paused:
            self.claims.put_back(None)
        if reply.round != self.round:
            self.round, self.start_done = reply.round, False
        self.last = reply
        self._observers.heard(reply)
        starves = bool(self.claims.stock) and not self.claims.ready
        if not self._leaving and (
            starves or self.claims.returned or len(self._unsent) >= MOST_ENTRIES
        ):
            self._call()
        self._observers.changed()

    def _settle(self, batch: Call, reply: Reply) -> None:
        again: list[Entry] = []
        for entry, answer in zip(batch.entries, reply.answers, strict=True):
            self._unsent.popleft()
            if answer == GROWN:
                again.append(entry)
                continue
            if entry.fingerprint is not None:
                self._dupefilter.settle(entry.fingerprint)
            full = entry.full_by(answer)
            if entry.kind == "count":
                entry.when_counted(full)
            else:
                self._observers.answered(entry, answer, full)
        self._unsent.extendleft(reversed(again))

    def _take_holds(self, batch: Call, reply: Reply) -> None:
        """Learn what is delayed and held, and put back what was claimed of a held slot."""
        now = monotonic()
        self.later = reply.later
        self._due = None if reply.due_in is None else now + reply.due_in
        del self._unsent_holds[: len(batch.holds)]
        unsent = {each.slot for each in self._unsent_holds}
        for slot in [*self._holds]:
            # the others are over, or were released by another worker
            is_known = slot in unsent or slot not in batch.slots
            if slot not in reply.holds and not (is_known and self._holds[slot].until > now):
                del self._holds[slot]
        for slot, hold in reply.holds.items():
            if slot not in unsent:
                self._holds[slot] = hold
                if hold.until > now:
                    self.claims.put_back(slot, reply.held_until[slot])
                    self._observers.held(slot)

    def _be_fenced(self) -> None:
        """Go on as a new worker. Requests in memory are not marked as done, and start() has not
        ended: Redis may have lost their children, and only a new run yields these again."""
        requests = [entry for entry in self._unsent if entry.packed is not None]
        done = {entry.fingerprint for entry in self._unsent if entry.packed is None}
        in_memory = {*self._dupefilter.uncommitted} - {entry.fingerprint for entry in requests}
        self._unsent = deque(requests)
        self._doubtful |= in_memory - done
        self.start_done = False
        self._dupefilter.forget_known(in_memory)
        self._lost.update(self.claims.dispatched)
        self._enter()
        self._observers.fenced()
