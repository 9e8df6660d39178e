"""Checks the requests of a crawl in Redis."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING

from ..amounts import counted
from ..bloom.inspection import Finding
from ..crawl.dictionaries import DEFLATED, id_of
from ..crawl.failed_request import LOST
from .desk import Element, RedisDesk, elements_of
from .filter import stored_header
from .layout import ODD_BYTES, crawl_id
from .lifecycle import why_not
from .scripts import CRAWL_NAMES, VERIFY_BOOKS, VERIFY_PLACE

if TYPE_CHECKING:
    from .client import RedisClient

_PRIORITY = re.compile(r"-?\d+", re.ASCII)
_NOT_FOUND = ": no worker finds that list, since"
_KINDS = {
    "later": ("delayed request", ""),
    "quarantined": ("quarantined request", ""),
    "lobby:": ("request", f"{_NOT_FOUND} its priority is not in 'priorities'"),
    "pending:": (
        "request",
        f"{_NOT_FOUND} its slot is not in 'slots:{{}}', or its priority is not in 'priorities'",
    ),
    "failed": ("failed request", ""),
    "capped:": ("request", ": its slot is not in 'capped', so none of them can be retried"),
    "claims:": ("claim", ", which is none of the workers: they never come back"),
}
"""By the kind of a place, in the order in which they are read: what it has, and what is wrong
where no worker finds the place."""


def queue_findings(client: RedisClient, key: str) -> Iterator[Finding]:
    """Yield what is wrong with the crawl beside the filter at `key`, or that it is sound; nothing
    without a crawl. Reads all requests, 200 in a call, while workers go on. Raises
    SharedFilterError."""
    check = _Check(client, key)
    crawl = check.look()
    if crawl is None:
        return
    name = f"{client.name} {key}:crawl"
    counts, wrong = check.places(), check.wrong
    # a place of which the crawl tells nothing has requests of dead hosts alone
    late = {"later": crawl.later, "quarantined": crawl.quarantined}
    kinds = ["lobby:", "pending:", *filter(late.get, late)]
    waiting = sum(counts[kind] for kind in kinds)
    failed = sum(counts[kind] for kind in ("failed", "capped:", "dead:", *late.keys() - kinds))
    check.books()
    check.texts()
    if not crawl.living and waiting < crawl.waiting:
        missing = counted(crawl.waiting - waiting, "request")
        wrong.append(f"{waiting:,} requests wait, and {crawl.waiting:,} should: {missing} is gone")
    yield from (Finding(name, sound=False, text=text) for text in wrong)
    if not wrong:
        dead = len(crawl.workers) - len(crawl.living)
        of_the_dead = (
            f" ({counted(dead, 'worker')} is dead: what it has comes back with the next call)"
        )
        text = (
            f"each of {counted(waiting, 'waiting request')} is where workers find it, each of"
            f" {counted(crawl.in_flight, 'claimed one')} has a worker{of_the_dead if dead else ''},"
            f" {counted(failed, 'failed one')} can be read"
        )
        yield Finding(name, sound=True, text=text)


class _Check(RedisDesk):
    """Looks through the crawl beside the filter at `key`, and notes what is `wrong`."""

    def __init__(self, client: RedisClient, key: str) -> None:
        super().__init__(client, key)
        self._has_dictionary: dict[str, bool] = {}
        self.wrong: list[str] = []

    def places(self) -> Counter[str]:
        """Return how many requests or claims are in the places of each kind."""
        found = chain.from_iterable(self._client.scan(CRAWL_NAMES, self._key, ""))
        names = sorted({name.decode(errors=ODD_BYTES) for name in found})
        # after what is delayed the lobbies, the lists, the rings: so a slot's list goes on
        counts = {
            name: self._read(name, what, _of(name))
            for kind, (what, _) in _KINDS.items()
            for name in names
            if _kind_of(name) == kind
        }
        # the lists that workers find, or will when a hold is over
        dead = {(priority, named) for priority, named, _ in self.parked([], "dead")}
        priorities, lists = self.priorities(), {*self.lists()}
        for each in sorted({*priorities, *(priority for priority, _ in lists)}):
            if not _PRIORITY.fullmatch(each):
                self.wrong.append(f"{each!r} in 'parked', 'priorities' or 'lobby:' is no priority")
        sums: Counter[str] = Counter()
        for name, count in counts.items():
            kind, (priority, _, slot) = _kind_of(name), name.partition(":")[2].partition(":")
            sums["dead:" if (priority, slot) in dead else kind] += count
            what, why = _KINDS[kind]
            # a ring turns while it is read, and to read all of it at once takes long
            is_found = kind == "pending:" and (priority, slot) in lists
            if why and not is_found and self._client.run(VERIFY_PLACE, [self._key], name):
                self.wrong.append(counted(count, what) + _of(name) + why.format(priority))
        return sums

    def books(self) -> None:
        """Look at what the crawl says of itself."""
        crawl, over, strangers, claims, waits = self._client.run(VERIFY_BOOKS, [self._key])
        header = stored_header(self._client, self._key)
        present = (crawl or b"").decode(errors=ODD_BYTES)
        if header is None or present != crawl_id(header.generation):
            why = why_not(present, header.generation if header else "-")
            self.wrong.append(f"the queue{why}")
        if strangers:
            self.wrong.append(
                f"{counted(strangers, 'worker')} at work without a lease: the crawl has no end"
            )
        if over and (claims or waits):
            self.wrong.append("the crawl is over, but something waits or is claimed")

    def texts(self) -> None:
        """Look for dictionaries that are not as they were made."""
        for name, text in self.dictionaries().items():
            if text is None or id_of(text) != name:
                what = "gone" if text is None else "damaged"
                self.wrong.append(
                    f"the dictionary {name} is {what}: requests that need it cannot be read"
                )

    def _read(self, place: str, what: str, of: str) -> int:
        """Return how many requests a place has."""
        count = bad = 0
        # from the end, since requests leave the lobby at its front while it is read
        cursor = 0 if place.startswith(("failed", "claims:")) else -1
        pieces = self._pieces(place, cursor=cursor)
        for each in (each for piece in pieces for each in elements_of(place, piece)):
            if each.entry or not (place.startswith("lobby:") or place.endswith("\0")):
                count += 1
                bad += not self._is_readable(place, each)
        if bad:
            self.wrong.append(f"{counted(bad, what)}{of} cannot be read")
        return count

    def _is_readable(self, place: str, element: Element) -> bool:
        """Return True if an entry is a digit and a payload, whose dictionary is there."""
        if place == "failed" and element.parts and element.parts[3] == LOST.encode():
            return True
        digit, form, name = element.entry[:1], element.entry[1:2], element.entry[2:4].hex()
        if form == DEFLATED and name not in self._has_dictionary:
            text = self._client.call("hget", f"{self._key}:crawl", f"dictionary:{name}")
            self._has_dictionary[name] = text is not None
        has_all = form != DEFLATED or self._has_dictionary[name]
        return digit.isdigit() and bool(form) and has_all


def _kind_of(name: str) -> str:
    return "".join(name.partition(":")[:2])


def _of(name: str) -> str:
    """Return a place or a worker as findings about it name it, empty for the one of its kind."""
    kind, _, of = name.partition(":")
    return of and f" of {of if kind == 'claims' else repr(name)}"
