"""The marks that wait in a crawl in Redis, on their way to the delta store.

The call that acknowledges a request leaves the marks of its page in the crawl's hash slot. The
delta store has a slot of its own, so a worker carries them over: it reads some, adds them to the
store, and removes them if they are still the first. After a crash in between they are carried over
again, and two workers may carry over the same ones: adding twice changes nothing.
"""

from __future__ import annotations

import json
import threading
from contextlib import closing
from hashlib import sha1
from math import isnan, nan
from struct import Struct
from typing import TYPE_CHECKING

from ..redis_backend.layout import LEAST_MARK
from ..redis_backend.lifecycle import stored_header
from ..redis_backend.scripts import MARKS_CARRIED
from .redis_store import RedisDeltaStore
from .settings import KEY_BYTES, Lifetime
from .table import Row

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..redis_backend.client import RedisClient

SECONDS = 1.0
"""The pause of a worker between two looks for marks that wait."""
AT_ONCE = 500
"""Marks that are carried over at a time."""
_PATIENCE = 5.0
_FORM = Struct(f">{KEY_BYTES}sd")


def packed(row: Row) -> bytes:
    """Return a mark as it waits: its key, its time as a big-endian double, NaN for a page that is
    not done, and its digest, if it has one."""
    return _FORM.pack(row.key, nan if row.time is None else row.time) + (row.digest or b"")


def unpacked(mark: bytes) -> Row:
    """Return the row of a mark. Raises struct.error."""
    key, when = _FORM.unpack_from(mark)
    return Row(key, None if isnan(when) else when, mark[LEAST_MARK:] or None)


def named(name: str, period: float | None) -> str:
    """Return the text by which a crawl names the delta store of its marks."""
    return json.dumps({"name": name, "period": period})


def carry_over(store: RedisDeltaStore, crawl: str) -> int:
    """Add the marks that wait in the crawl at the key `crawl` to `store`; return how many. Cost:
    three round trips for 500 marks. Raises SharedFilterError."""
    carried = 0
    while marks := store.client.call("lrange", f"{crawl}:delta_waiting", 0, AT_ONCE - 1):
        store.add(unpacked(mark) for mark in marks if len(mark) >= LEAST_MARK)
        carried += len(marks)
        digest = sha1(b"".join(marks), usedforsecurity=False).hexdigest()
        is_removed = store.client.run(MARKS_CARRIED, [crawl], len(marks), digest)
        if is_removed and len(marks) < AT_ONCE:
            break
    return carried


def carry_over_left(client: RedisClient, url: str, crawl: str) -> tuple[int, str]:
    """Carry over what waits in the crawl at the key `crawl` of `client`, whose server is at `url`,
    to the delta store that the crawl names; return how many marks, and the name of the store.
    Raises SharedFilterError, IncompatibleFilterError for marks of another fingerprinter."""
    count, text = waiting_in(client, crawl)
    header = stored_header(client, crawl) if count and text else None
    if header is None:
        return 0, ""
    found = json.loads(text)
    lifetime = Lifetime(found["period"], header.identity)
    with closing(RedisDeltaStore(url, found["name"], lifetime, _PATIENCE)) as store:
        store.open()
        return carry_over(store, crawl), store.name


def waiting_in(client: RedisClient, crawl: str) -> tuple[int, str]:
    """Return how many marks wait in the crawl at the key `crawl`, and what `named` returned for
    their delta store, empty without one. Raises SharedFilterError."""
    text = client.call("hget", f"{crawl}:crawl", "delta_store") or b""
    return client.call("llen", f"{crawl}:delta_waiting"), text.decode()


class Carrier:
    """Carries the marks that wait in the crawl at the key `crawl` over to `store`: at once, each
    second from a thread, with a connection of its own, and when it is closed. What fails is tried
    again; the first error is told to `tell`."""

    def __init__(
        self, store: RedisDeltaStore, crawl: str, tell: Callable[[Exception], None]
    ) -> None:
        self._store = store
        self._crawl = crawl
        self._tell = tell
        self._has_told = False
        self._ending = threading.Event()
        # the crawl may name another store: that of workers before BLOOM_DELTA_DIR was changed
        self._try(lambda: carry_over_left(store.client, store.url, crawl))
        beside = store.again()
        threading.Thread(
            target=self._work, args=[beside], name="scrapy-bloom marks", daemon=True
        ).start()

    def close(self) -> None:
        """End the thread, and carry over what is left."""
        self._ending.set()
        self._try(lambda: carry_over(self._store, self._crawl))

    def _work(self, store: RedisDeltaStore) -> None:
        while not self._ending.wait(SECONDS):
            self._try(lambda: carry_over(store, self._crawl))
        store.close()

    def _try(self, carry: Callable[[], object]) -> None:
        try:
            carry()
        except Exception as error:  # noqa: BLE001 - it costs repetitions
            if not self._has_told:
                self._has_told = True
                self._tell(error)
