"""The requests of a crawl in Redis that are over its budget."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ..job.codec import Stored, url_and_method
from ..job.dictionaries import Dictionaries
from ..job.failed_request import ALL, CAPPED, Choice, FailedRequest
from .codec import known_dictionaries
from .layout import ODD_BYTES
from .lifecycle import run_in_crawl
from .scripts import CAPPED_COUNTS, READ_CAPPED, TAKE_CAPPED

if TYPE_CHECKING:
    from .client import RedisClient

AT_ONCE = 100
"""So many are moved by a script, or read."""
_SLOTS_AT_ONCE = 500
_LEFT, _DROPPED, _ASKED = "012"


def capped_in(client: RedisClient, key: str) -> tuple[dict[str, int], Sequence[int]]:
    """Return how many requests are over the budget of each slot, the first slot first, and the
    bytes of their lists, in parts, -1 if the user may not ask for it. Cost: a round trip for five
    hundred slots."""
    capped: dict[str, int] = {}
    sizes: list[int] = []
    found = [b""]
    while found:
        span = len(sizes) * _SLOTS_AT_ONCE, (len(sizes) + 1) * _SLOTS_AT_ONCE - 1
        found, nbytes = client.run(CAPPED_COUNTS, [key], *span)
        sizes.append(nbytes)
        for slot, count in zip(found[::2], found[1::2], strict=True):
            capped[slot.decode(errors=ODD_BYTES)] = count
    return capped, sizes


class CappedRequests:
    """The requests of the crawl beside the filter at `key` that are over its budget. Any method may
    raise SharedFilterError. Cost: a call for a hundred requests."""

    def __init__(self, client: RedisClient, key: str) -> None:
        self._client = client
        self._key = key
        self._dictionaries = Dictionaries()

    def count(self, choice: Choice = ALL) -> int:
        """Return how many are chosen. Cost: a call for 500 slots, unless their URLs decide."""
        if choice.urls:
            return len(self.requests(choice))
        if not choice.has_reason(CAPPED):
            return 0
        return sum(capped_in(self._client, self._key)[0].values())

    def requests(self, choice: Choice) -> list[FailedRequest]:
        """Return the chosen ones, by slot."""
        if not choice.has_reason(CAPPED):
            return []
        found = (
            self._failed_request(slot, element)
            for slot, count in self._slots().items()
            for first in range(0, count, AT_ONCE)
            for element in self._read(slot, first)
        )
        return [each for each in found if choice.includes(CAPPED, each.url)]

    def ask(self, choice: Choice) -> int:
        """Make the chosen ones pending, as far as the budget has room; return how many."""
        return self._take(choice, _ASKED)

    def drop(self, choice: Choice) -> int:
        """Forget the chosen ones; return how many."""
        return self._take(choice, _DROPPED)

    def _slots(self) -> dict[str, int]:
        """Return how many each slot has, and learn the dictionaries that they need."""
        capped, _ = capped_in(self._client, self._key)
        if capped:
            self._dictionaries = known_dictionaries(self._client, self._key)
        return capped

    def _take(self, choice: Choice, verdict: str) -> int:
        if not choice.has_reason(CAPPED):
            return 0
        taken = 0
        for slot, count in self._slots().items():
            looked = 0
            while looked < count:
                most = min(AT_ONCE, count - looked)
                told = [verdict] if not choice.urls else ["", *self._judged(slot, choice, verdict)]
                answers = run_in_crawl(self._client, TAKE_CAPPED, self._key, slot, most, *told)
                taken += answers.count(verdict.encode())
                looked += len(answers)
                if len(answers) < most:
                    break
        return taken

    def _judged(self, slot: str, choice: Choice, verdict: str) -> Iterator[bytes | str]:
        for element in self._read(slot, 0):
            url = self._failed_request(slot, element).url
            yield from (element, verdict if choice.includes(CAPPED, url) else _LEFT)

    def _read(self, slot: str, first: int) -> Sequence[bytes]:
        last = first + AT_ONCE - 1
        found: Sequence[bytes] = run_in_crawl(
            self._client, READ_CAPPED, self._key, slot, first, last
        )
        return found

    def _failed_request(self, slot: str, element: bytes) -> FailedRequest:
        stored = Stored(slot, element.partition(b"\0")[2])
        known = url_and_method(stored, self._dictionaries)
        return FailedRequest(*known, CAPPED, None, None, 0, 0.0, None)
