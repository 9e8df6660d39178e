"""The faster `request_seen` for fingerprinters of other packages, and what their URLs say."""

from __future__ import annotations

from types import MethodType
from typing import TYPE_CHECKING, Any

from ..errors import message_of
from ..fingerprints.depends_on import CALLBACK, META, reads_of
from ..fingerprints.fast import META_KEY, REDIRECT_URLS
from .known import KnownUrls

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from scrapy import Request

    from ..dupefilter import FilterDupeFilter


MOST_CALLBACKS = 1_000
"""Callbacks that the cache tells apart; the requests of others need their fingerprints."""


class KnownByCallback(KnownUrls):
    """Answers by a fingerprinter of others, as far as that says what it reads: the cache has whole
    URLs, behind a text for the callback if that counts."""

    ignores_fragments = False

    def __init__(self, df: FilterDupeFilter) -> None:
        reads: frozenset[str] = frozenset()
        try:
            reads = reads_of(df.crawler.request_fingerprinter)
        except Exception as error:  # noqa: BLE001 - foreign code
            self.why_unknown = message_of(error)
        super().__init__(df, {word.removeprefix(META) for word in reads - {CALLBACK}})
        self.reads_callback = CALLBACK in reads
        self._callbacks: dict[object, str] = {}

    def prefix_of(
        self, callback: object, method: str, body: object, meta: Mapping[str, Any]
    ) -> str | None:
        """Return what stands before the URL, as for a fingerprinter of ours."""
        prefix = None if self.why_unknown else super().prefix_of(callback, method, body, meta)
        if prefix is None or not self.reads_callback:
            return prefix
        return self._prefix_of_callback(callback)

    def _prefix_of_callback(self, callback: object) -> str | None:
        """Return a text for `callback`, None unless it is a method of the spider. Never raises."""
        spider = self._df.crawler.spider
        try:
            if callback is None:
                callback = getattr(spider, "parse", None)
            if type(callback) is not MethodType or callback.__self__ is not spider:
                return None
            function = callback.__func__
            prefix = self._callbacks.get(function)
            if prefix is None and len(self._callbacks) < MOST_CALLBACKS:
                # the function is kept, so that no later one can be taken for it
                prefix = self._callbacks[function] = f"{len(self._callbacks)}:"
        except Exception:  # noqa: BLE001 - a callback like no other
            return None
        return prefix


def by_callback_or_fingerprint(
    df: FilterDupeFilter,
    ask: Callable[[Request], bool],
    remember: Callable[[str | bytes], None],
) -> Callable[[Request], bool]:
    """Return the shortcut for a fingerprinter without a function of the URL.

    If it says what it reads, the cache has whole URLs with their callbacks. Where these do not
    decide, it has fingerprints, which need no look into the filter.
    """
    known, urls = KnownByCallback(df), df._recent.urls
    df._known = known

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
                    return True
        except Exception:  # noqa: BLE001 - a request like no other
            key = None
        seen = df.see(key) if isinstance(key, bytes) else ask(request)
        if key is not None and key not in urls:
            remember(key)
        return seen

    return request_seen
