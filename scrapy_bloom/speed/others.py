"""The faster `request_seen` for fingerprinters of other packages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..fingerprints.fast import META_KEY, REDIRECT_URLS
from .known import known_urls

if TYPE_CHECKING:
    from collections.abc import Callable

    from scrapy import Request

    from ..dupefilter import FilterDupeFilter


def by_callback_or_fingerprint(
    df: FilterDupeFilter,
    ask: Callable[[Request], bool],
    remember: Callable[[str | bytes], None],
) -> Callable[[Request], bool]:
    """Return the shortcut for a fingerprinter without a function of the URL.

    If it says what it reads, the cache has whole URLs with their callbacks. Where these do not
    decide, it has fingerprints, which need no look into the filter.
    """
    known, urls = known_urls(df), df._recent.urls

    def request_seen(request: Request) -> bool:
        """Return True if `request` was seen before, else add it. Never raises."""
        key: str | bytes | None = None
        try:
            meta = request.meta
            if REDIRECT_URLS not in meta:
                prefix = known.prefix_of(request.callback, request.method, request.body, meta)
                if prefix is not None:
                    key = prefix + request.url
                elif df._recent.size and META_KEY not in meta:  # which may be a copy
                    key = df.fingerprint_of_any(request)
                if key in urls:
                    df.is_fresh = False
                    return True
        except Exception:  # noqa: BLE001 - a request like no other
            key = None
        seen = ask(request)
        if key is not None and key not in urls:
            remember(key)
        return seen

    return request_seen
