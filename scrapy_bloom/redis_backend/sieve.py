"""Drops pending requests of a crawl in Redis, while its workers go on.

The lists of a slot go in a step each. Everything else is sieved: some requests are read, and a
script drops those of them that are selected, unless workers have taken them meanwhile. The tool
claims nothing, so its death changes nothing.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from ..job.pending import PendingRequest, Selection
from .codec import page_in
from .failed_store import details_of
from .layout import ODD_BYTES
from .lifecycle import run_in_crawl
from .scripts import DROP_LISTS, PENDING_RECORDS, SIEVE
from .status import require_crawl

if TYPE_CHECKING:
    from .pending_store import RedisPendingStore

AT_ONCE = 100
"""So many requests are sieved by a call."""
REST = 4
"""While workers are at work, the pause after a call is so many times as long as the call."""
_LEFT, _DROPPED, _FAILED, _UNKNOWN = "0123"


class _Element(NamedTuple):
    """A pending request in Redis, or a mark, which has no payload."""

    stored: bytes
    priority: str
    slot: str
    entry: bytes


class Sieve:
    """Drops what is selected of the requests in `store`; with `keep` it fails, for the reason
    `dropped`. Raises SharedFilterError.

    Cost: a call for the lists of a slot and a priority, if nothing else decides; else two calls for
    a hundred requests, each of 0.3 ms of the server, and pauses. Where workers take from a list
    meanwhile, its order changes.
    """

    def __init__(self, store: RedisPendingStore, selection: Selection, *, keep: bool) -> None:
        self._client = store.client
        self._key = store.key
        self._selection = selection
        self._keep = keep
        self._reads = keep or selection.reads_requests
        self._store = store
        self._rest = REST if require_crawl(store.client, store.key).living else 0
        self._found: Counter[str] = Counter()

    def drop(self) -> dict[str, int]:
        """Drop what is pending when it is called; return how many were `dropped`, `later` among
        them, how many more are `in_flight`, and how many cannot be read."""
        self._sieve("later")
        later = self._dropped
        for priority in self._store.priorities():
            slots = (slot for slot, _ in self._store.lobby(priority))
            if self._reads or any(map(self._selection.includes_slot, slots)):
                self._sieve(f"lobby:{priority}", priority)
        at_once = 0
        done: set[tuple[str, str]] = set()
        for _ in range(2):  # a list that was behind a mark is found by the second
            names = {*self._store.lists()} - done
            done |= names
            at_once += self._drop_lists(names)
        self._sieve("quarantined")
        return {
            "dropped": self._dropped + at_once,
            "later": later,
            "in_flight": self._store.in_flight(self._selection),
            "unknown": self._found[_UNKNOWN],
        }

    @property
    def _dropped(self) -> int:
        return self._found[_DROPPED] + self._found[_FAILED]

    def _drop_lists(self, names: set[tuple[str, str]]) -> int:
        """Drop what is selected of these lists; return how many went in a step."""
        names = {each for each in names if self._selection.includes_slot(_slot(each[1]))}
        if self._reads:
            for priority, named in sorted(names):
                self._sieve(f"pending:{priority}:{named}", priority)
            return 0
        dropped = 0
        for priority, slot in sorted({(priority, _slot(named)) for priority, named in names}):
            began = time.perf_counter()
            dropped += self._run(DROP_LISTS, priority, slot)
            self._pause(began)
        return dropped

    def _sieve(self, name: str, priority: str = "") -> None:
        """Sieve as many elements as a list has now, that of a `priority`, or `later`: workers may
        take them, and add others."""
        self._store.learn_dictionaries()
        is_later = name == "later"
        looked = 0
        count = self._client.call("zcard" if is_later else "llen", f"{self._key}:{name}")
        while looked < count:
            began = time.perf_counter()
            if priority:
                last = min(AT_ONCE, count - looked) - 1
                found = self._client.call("lrange", f"{self._key}:{name}", 0, last)
                elements = [_element(name, priority, each) for each in found]
            else:
                # what stays is passed over from the last one on, since workers take the first
                _, found = self._run(
                    PENDING_RECORDS, name, looked - self._dropped if is_later else 0, "1"
                )
                elements = [
                    _Element(stored, of.decode(), slot.decode(errors=ODD_BYTES), b"0" + payload)
                    for of, slot, payload, _, stored in found
                ]
            if not elements:
                break
            arguments = [part for each in elements for part in self._judged(each)]
            answers: bytes = self._run(SIEVE, name, *arguments)
            self._found.update(answers.decode())
            self._pause(began)
            looked += max(1, len(answers))

    def _pause(self, began: float) -> None:
        time.sleep(self._rest * (time.perf_counter() - began))

    def _judged(self, element: _Element) -> Iterator[Any]:
        """Yield what the script is told of an element."""
        stored, priority, slot, entry = element
        yield from (stored, priority, slot, entry)
        fields: dict[str, Any] = {}
        payload = entry[1:]
        if entry and self._reads and self._selection.includes_slot(slot):
            fields = self._store.fields(slot, payload)
        request = PendingRequest.of(fields, slot, -(int(priority) // 2))
        if not entry or not self._selection.includes(request):
            is_unknown = entry and self._selection.includes_slot(slot) and not request.url
            yield from (_UNKNOWN if is_unknown else _LEFT, "", "", "")
        elif not self._keep:
            yield from (_DROPPED, "", "", "")
        else:
            failed = request.dropped(fields)
            yield from (_FAILED, page_in(fields, payload), failed.attempts, details_of(failed))

    def _run(self, script: Any, *arguments: Any) -> Any:
        return run_in_crawl(self._client, script, self._key, *arguments)


def _slot(named: str) -> str:
    """Return the slot of a list, whose older one has a NUL behind it."""
    return named.partition("\0")[0]


def _element(name: str, priority: str, stored: bytes) -> _Element:
    if name.startswith("lobby:"):
        raw, _, entry = stored.partition(b"\0")
        return _Element(stored, priority, raw.decode(errors=ODD_BYTES), entry)
    return _Element(stored, priority, _slot(name.split(":", 2)[2]), stored)
