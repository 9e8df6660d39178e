"""A bounded memory of URLs, for answering most duplicates without a fingerprint."""

from __future__ import annotations

import re
from random import random
from typing import AnyStr, Generic

LONGEST_URL = 500
"""URLs with more characters are not remembered, so that the memory stays bounded."""


class RecentUrls(Generic[AnyStr]):
    """Up to `size` strings, or keys; a new one takes the place of one chosen at random.

    Chance needs no bookkeeping when a URL is found again, and has no cliff: going
    round and round over 5 % more URLs than fit finds 90 % of them, where the least
    recently used, or the older of two generations, would just have been dropped, each
    time. On real crawls it finds as many. Cost of `add`: 0.1 µs, 0.25 µs when full.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.urls: set[AnyStr] = set()
        """For look-ups with `in`; always this object."""
        self._slots: list[AnyStr] = []

    def add(self, url: AnyStr) -> None:
        """Remember `url`, which is not in `urls`, unless it is too long."""
        if len(url) > LONGEST_URL:
            return
        slots = self._slots
        if len(slots) < self.size:
            slots.append(url)
        elif slots:
            slot = int(random() * self.size)  # noqa: S311 - nothing secret
            self.urls.discard(slots[slot])
            slots[slot] = url
        else:  # size 0
            return
        self.urls.add(url)

    def clear(self) -> None:
        """Forget everything."""
        self.urls.clear()
        self._slots.clear()

    def __len__(self) -> int:
        return len(self.urls)


_visible = re.compile(r"[!-~]+").fullmatch


def is_clean(url: str) -> bool:
    """Return True if `url` has only visible ASCII characters.

    Before others a fragment is not always without effect: w3lib strips the spaces at
    the end of a URL, so `http://a.example ` is `http://a.example`, which
    `http://a.example #x` is not.
    """
    return _visible(url) is not None
