"""The same answers sooner: without this folder each answer of a dupefilter is the same.

A function in the place of `request_seen`, which answers in a common crawl, remembers the URLs seen
last: most duplicates need no fingerprint, and a new request needs fewer calls.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from random import random
from time import monotonic
from typing import TYPE_CHECKING, AnyStr, Generic

from ..dupefilter import FilterDupeFilter
from ..fingerprints.fast import META_KEY, REDIRECT_URLS
from ..startup import is_own_method

if TYPE_CHECKING:
    from scrapy import Request

RequestSeen = Callable[["Request"], bool]
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
        if len(url) > LONGEST_URL or not self.size:
            return
        slots = self._slots
        if len(slots) < self.size:
            slots.append(url)
        else:
            slot = int(random() * self.size)  # noqa: S311 - nothing secret
            self.urls.discard(slots[slot])
            slots[slot] = url
        self.urls.add(url)

    def clear(self) -> None:
        """Remove all URLs."""
        self.urls.clear()
        self._slots.clear()


is_clean = re.compile(r"[!-~]+").fullmatch
"""Whether a URL has only visible ASCII characters. After others, removing a fragment may change the
page: w3lib strips spaces at the end of a URL, so `http://a.example ` equals `http://a.example`, but
`http://a.example #x` does not."""


def attach(df: FilterDupeFilter) -> None:
    """Give `df` the cache of BLOOM_URL_CACHE, and put the shortcut in front if `look_up` and
    `fingerprint` are its own."""
    df._recent = RecentKeys(df._settings.url_cache)
    if not all(is_own_method(df, name, "scrapy_bloom") for name in ("look_up", "fingerprint")):
        return
    if df._fingerprinter.of_url is not None:
        df.put_in_front(_by_url(df, df._ask, df._fingerprinter.of_url))
    else:
        from .others import by_callback_or_fingerprint

        df.put_in_front(by_callback_or_fingerprint(df, df._ask, partial(_remember, df)))


def _remember(df: FilterDupeFilter, key: str | bytes) -> None:
    """Put into the cache what stands for a request that was just asked about by its fingerprint."""
    failed = df._closing or df._fingerprinter.has_substituted
    if not failed and (isinstance(key, bytes) or is_clean(key)):
        df._recent.add(key)


def _by_url(
    df: FilterDupeFilter, ask: RequestSeen, of_url: Callable[[str], bytes | None]
) -> RequestSeen:
    """Return the shortcut for fingerprints by the URL of a plain request, without fragment."""
    urls, remember = df._recent.urls, df._recent.add

    def request_seen(request: Request) -> bool:
        """Return True if `request` was seen before, else add it. Never raises."""
        try:
            # in line, since calls would double the time, and each duplicate comes here
            if (
                request.method != "GET"
                or request.body
                or (
                    (meta := request.meta)
                    and ("verbatim_url" in meta or META_KEY in meta or REDIRECT_URLS in meta)
                )
            ):
                return ask(request)
            whole = url = request.url
            if "#" in whole:
                url = whole[: whole.index("#")]
            if url in urls:
                return True
            fingerprint = of_url(whole)
        except Exception:  # noqa: BLE001 - a request like no other
            return ask(request)
        if fingerprint is None:
            seen = ask(request)
            _remember(df, url)
            return seen
        df.last_request, df.last_fingerprint = request, fingerprint
        try:  # `see` in line
            seen = df._see(fingerprint)
        except Exception as error:  # noqa: BLE001 - whatever fails below, the crawl goes on
            return df.see_despite(error, fingerprint)
        remember(url)
        if not seen and (df.watches_each_new or monotonic() >= df.stats_due):
            df.do_what_is_due()
        return seen

    return request_seen
