"""A cache of URLs of bounded size, which recognises most duplicates without a fingerprint."""

from __future__ import annotations

import re
from random import random
from typing import AnyStr, Generic

LONGEST_URL = 500
"""Most characters of a cached URL, which bounds the memory of the cache."""


class RecentKeys(Generic[AnyStr]):
    """Up to `size` strings or keys; in a full cache a new one replaces a random one.

    Random replacement needs no bookkeeping for a hit and has no cliff: in repeated passes over 5 %
    more URLs than fit, 90 % are hits. With the least recently used, or two generations, there are
    none. On real crawls the hits are equal. Cost of `add`: 0.1 µs, 0.25 µs when full.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.urls: set[AnyStr] = set()
        """For look-ups with `in`; this object is never replaced."""
        self._slots: list[AnyStr] = []

    def add(self, url: AnyStr) -> None:
        """Add `url`, which must not be in `urls`; a URL that is too long is ignored."""
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
        """Remove all URLs."""
        self.urls.clear()
        self._slots.clear()


_visible = re.compile(r"[!-~]+").fullmatch


def is_clean(url: str) -> bool:
    """Return True if `url` has only visible ASCII characters.

    After other characters, removing a fragment may change the page: w3lib strips spaces at the end
    of a URL, so `http://a.example ` equals `http://a.example`, but `http://a.example #x` does not.
    """
    return _visible(url) is not None
