"""What a worker has claimed, from the reply that names it to the call that gives it up."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from heapq import heappop, heappush
from itertools import count
from typing import TYPE_CHECKING, NamedTuple

from .protocol import ClaimReport, Failing

if TYPE_CHECKING:
    from scrapy import Request

    from .protocol import Batch, Claim

MOST_GIVEN_UP = 200
"""Claims that are acknowledged or have failed, in a call."""


class Finished(NamedTuple):
    """A claim that the engine is done with, after the worker's request number `tail`; and
    how it has failed, if it has."""

    tail: int
    claim: str
    failing: Failing | None = None


class Claims:
    """The claims of a worker under one name, each in one of these states: in `stock`, until
    the server knows that the engine may get it; `ready`; handed out; finished, until the
    ledger commits; and given up, until all that was pushed before has been answered."""

    def __init__(self) -> None:
        self.all: dict[str, Claim] = {}
        """All of them."""
        self.stock: deque[Claim] = deque()
        self.ready: list[tuple[int, int, Claim]] = []
        self.uncommitted: list[Finished] = []
        self.given_up: list[Finished] = []
        self._unreadable: list[Failing] = []
        self.dispatched: dict[Request, str] = {}
        """The numbers of those that the engine has got, and is not done with."""
        self._arrivals = count()

    @property
    def is_idle(self) -> bool:
        """True if there are none, and none to give up."""
        return not (self.all or self.uncommitted or self.given_up)

    @property
    def has_news(self) -> bool:
        """True if there is something to tell the server."""
        return bool(self.given_up or self._unreadable)

    @property
    def spare(self) -> int:
        """How many of them the engine has not got."""
        return len(self.stock) + len(self.ready)

    @property
    def has_quarantined(self) -> bool:
        """True if one of them is handed out alone."""
        return any(claim.quarantined for claim in self.all.values())

    @property
    def by_slot(self) -> dict[str, int]:
        """How many there are for each slot."""
        return Counter(claim.slot for claim in self.all.values())

    def pop(self) -> Claim | None:
        """Return the next one that is ready, or None."""
        return heappop(self.ready)[2] if self.ready else None

    def dispatch(self, request: Request, claim: Claim) -> None:
        """Note that the engine gets `claim` as `request`."""
        self.dispatched[request] = claim.number

    def fail(self, failing: Failing) -> None:
        """Give up a claim that the engine does not get."""
        self._unreadable.append(failing)

    def claim_of(self, request: Request) -> Claim | None:
        """Return the claim that was handed out as `request`, or None."""
        number = self.dispatched.get(request)
        return None if number is None else self.all[number]

    def finish(self, request: Request, tail: int, failing: Failing | None = None) -> None:
        """Give up what was handed out as `request`, with the next commit. Does nothing for
        any other."""
        claim = self.dispatched.pop(request, None)
        if claim is not None:
            self.uncommitted.append(Finished(tail, claim, failing))

    def commit(self) -> None:
        """Let what is finished be given up."""
        self.given_up += self.uncommitted
        self.uncommitted.clear()

    def rollback(self) -> None:
        """Give up nothing any more."""
        self.uncommitted.clear()
        self.given_up.clear()

    def report(self, answered: int, *, leaving: bool, last: bool) -> ClaimReport:
        """Return what a call tells of them, when all requests up to that number have been
        answered; those that were finished later wait."""
        due = [each for each in self.given_up if each.tail <= answered][:MOST_GIVEN_UP]
        told = {each.claim for each in due}
        self.given_up = [each for each in self.given_up if each.claim not in told]
        failed = [*self._unreadable, *(each.failing for each in due if each.failing)]
        gone = {*told, *(each.claim for each in self._unreadable)}
        self._unreadable = []
        return ClaimReport(
            acknowledged=[each.claim for each in due if each.failing is None],
            dispatched=[] if leaving else [claim.number for claim in self.stock],
            owned=[] if last else [number for number in self.all if number not in gone],
            failed=failed,
        )

    def take_answer(self, batch: Batch, claimed: Iterable[Claim]) -> None:
        """Take the answer to a call: what it told is so, and these are new."""
        for number in (*batch.claims.acknowledged, *(each.claim for each in batch.claims.failed)):
            self.all.pop(number, None)
        dispatched = {*batch.claims.dispatched}
        for claim in [claim for claim in self.stock if claim.number in dispatched]:
            self.stock.remove(claim)
            heappush(self.ready, (claim.priority, next(self._arrivals), claim))
        for claim in claimed:
            self.all[claim.number] = claim
            self.stock.append(claim)
