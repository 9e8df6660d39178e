"""The claims of a worker, from the reply that names them to the call that gives them up."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from heapq import heapify, heappush
from typing import TYPE_CHECKING, NamedTuple

from .call import Call, Claim, ClaimReport, Failing

if TYPE_CHECKING:
    from scrapy import Request


MOST_GIVEN_UP = 200
"""The most claims that a call acknowledges or reports as failed."""


class Finished(NamedTuple):
    """A claim that the engine has finished, after the worker's entry number `tail`; its failure, if
    it has failed."""

    tail: int
    claim: str
    failing: Failing | None = None


class Claims:
    """The claims of a worker under one name. The states of a claim: in `stock`, until the server
    knows that the engine may get it; `ready`; `dispatched`; `uncommitted`, finished since the
    ledger's last commit; `given_up`, until all entries before it are answered. One that is put back
    is in none of them."""

    def __init__(self) -> None:
        self.all: dict[str, Claim] = {}
        """By number, until the server knows that they are given up."""
        self.stock: deque[Claim] = deque()
        self.ready: list[tuple[int, int, Claim]] = []
        self.uncommitted: dict[Request, Finished] = {}
        self.given_up: list[Finished] = []
        self.returned: list[str] = []
        """Those of held slots that the next call puts back."""
        self.dispatched: dict[Request, Claim] = {}
        """Those that the engine has and has not finished."""

    @property
    def spare(self) -> int:
        """How many claims are not dispatched."""
        return len(self.stock) + len(self.ready)

    def fail(self, failing: Failing) -> None:
        """Give up a claim that the engine does not get."""
        self.given_up.append(Finished(0, failing.claim, failing))

    def put_back(self, slot: str | None, held_until: float | None = None) -> None:
        """Return with the next call what the engine has not got of a held slot, with None of any,
        but for the request for which it is held until `held_until`, if there is one."""

        def goes(claim: Claim) -> bool:
            return slot in (None, claim.slot) and (
                held_until is None or claim.held_until != held_until
            )

        ready = [claim for _, _, claim in self.ready if goes(claim)]
        self.returned += [c.number for c in (*ready, *filter(goes, self.stock))]
        self.ready = [each for each in self.ready if not goes(each[2])]
        heapify(self.ready)
        self.stock = deque(claim for claim in self.stock if not goes(claim))

    def finish(self, request: Request, tail: int, failing: Failing | None = None) -> None:
        """Give up the claim that was dispatched as `request` with the next commit. Does nothing
        for any other request."""
        claim = self.dispatched.pop(request, None)
        if claim is not None:
            self.uncommitted[request] = Finished(tail, claim.number, failing)

    def commit(self) -> None:
        """Give up what is finished."""
        self.given_up += self.uncommitted.values()
        self.uncommitted.clear()

    def rollback(self) -> None:
        """Keep all claims that no call has given up."""
        self.uncommitted.clear()
        self.given_up.clear()

    def report(self, answered: int, *, leaving: bool, last: bool) -> ClaimReport:
        """Return what a call reports, when all entries up to number `answered` are answered; claims
        that were finished later wait."""
        due = [each for each in self.given_up if each.tail <= answered][:MOST_GIVEN_UP]
        told = {each.claim for each in due}
        self.given_up = [each for each in self.given_up if each.claim not in told]
        returned = sorted(self.returned, key=int, reverse=True)
        gone = {*told, *returned}
        self.returned = []
        return ClaimReport(
            acknowledged=[each.claim for each in due if each.failing is None],
            dispatched=[] if leaving else [claim.number for claim in self.stock],
            owned=[] if last else [number for number in self.all if number not in gone],
            failed=[each.failing for each in due if each.failing],
            returned=returned,
        )

    def take_answer(self, batch: Call, claimed: Iterable[Claim]) -> None:
        """Apply the answer to a call: its report is valid, and the `claimed` ones are new."""
        report = batch.claims
        failed = [each.claim for each in report.failed]
        for number in (*report.acknowledged, *failed, *report.returned):
            self.all.pop(number, None)
        dispatched = {*report.dispatched}
        for claim in [claim for claim in self.stock if claim.number in dispatched]:
            self.stock.remove(claim)
            heappush(self.ready, (claim.priority, int(claim.number), claim))
        for claim in claimed:
            self.all[claim.number] = claim
            self.stock.append(claim)
