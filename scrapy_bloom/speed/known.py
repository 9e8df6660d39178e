"""What the URLs seen last say of links and requests, before a scheduler has them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MethodType
from typing import TYPE_CHECKING, Any

from scrapy.utils.python import global_object_name

from ..errors import message_of
from ..fingerprints.fast import CALLBACK, META, READ_BY_OURS
from ..startup import is_own_method

if TYPE_CHECKING:
    from scrapy import Request

    from ..dupefilter import FilterDupeFilter

MOST_CALLBACKS = 1_000
"""Callbacks that the cache tells apart; the requests of others need their fingerprints."""


def known_urls(df: FilterDupeFilter) -> KnownUrls:
    """Return what the URLs of `df` say, the same object at each call."""
    if df._known is None:
        df._known = KnownUrls(df)
    known: KnownUrls = df._known
    return known


class KnownUrls:
    """Answers from the cache of `df`, the URLs that it has seen last."""

    def __init__(self, df: FilterDupeFilter) -> None:
        self._df = df
        self._recent = df._recent
        self.log = df.log
        self._unknown = ""
        is_own = is_own_method(df, "fingerprint", "scrapy_bloom")
        self._reads = self._read(df) if is_own else None
        self.ignores_fragments = is_own and df._fingerprinter.of_url is not None
        """True if URLs that differ in their fragments only are known to be one page."""
        reads = self._reads or frozenset()
        self._reads_callback = CALLBACK in reads
        self._meta_keys = {word[len(META) :] for word in reads if word.startswith(META)}
        self._callbacks: dict[object, str] = {}

    def _read(self, df: FilterDupeFilter) -> frozenset[str] | None:
        """Return what the fingerprints depend on besides URL, method and body, None with the reason
        in `_unknown` if that is not known."""
        if df._fingerprinter.of_url is not None:
            return READ_BY_OURS
        from ..fingerprints.depends_on import reads_of

        try:
            return reads_of(df.crawler.request_fingerprinter)
        except Exception as error:  # noqa: BLE001 - foreign code
            self._unknown = message_of(error)
            return None

    def is_known(self, request: Request) -> bool:
        """Return True if a scheduler is sure to drop `request`, now and later, since its URL is in
        the cache. Never raises."""
        try:
            url = request.url
            if not self._reads_callback and "#" not in url and url not in self._recent.urls:
                return False  # as most, without a look at the rest
            if request.dont_filter:
                return False
            meta = request.meta
            prefix = self.prefix_of(request.callback, request.method, request.body, meta)
            return prefix is not None and self.has_recent(prefix, url)
        except Exception:  # noqa: BLE001 - a request like no other
            return False

    def prefix_of(
        self, callback: object, method: str, body: object, meta: Mapping[str, Any]
    ) -> str | None:
        """Return what stands before the URL of such a request in the cache: its callback, if that
        counts. Return None if URL and callback do not decide whether it was seen."""
        if (
            self._reads is None
            or method != "GET"
            or body
            or (meta and not self._meta_keys.isdisjoint(meta))
        ):
            return None
        return self._prefix_of_callback(callback) if self._reads_callback else ""

    def key_of(self, prefix: str, url: str) -> str:
        """Return what stands in the cache for a request with `url`, and with the prefix that
        `prefix_of` returned for it: without a fragment that does not count."""
        if self.ignores_fragments and "#" in url:
            url = url[: url.index("#")]
        return prefix + url

    def has_recent(self, prefix: str, url: str) -> bool:
        """Return True if a request with this prefix and `url` was seen, and is in the cache."""
        self._df.confirm_recent()
        return self.key_of(prefix, url) in self._recent.urls

    def why_not_early(self) -> str | None:
        """Return why `is_known` cannot replace `request_seen`, None if it can."""
        df = self._df
        if df._audit is not None:
            return "BLOOM_AUDIT is to record them"
        for name in ("request_seen", "fingerprint", "log"):
            if not is_own_method(df, name, "scrapy_bloom"):
                return f"{global_object_name(type(df))} has a changed {name}"
        if self._reads is None:
            return self._unknown
        return None if self._recent.size else "BLOOM_URL_CACHE is 0"

    def count_filtered(self, count: int) -> None:
        """Add to `dupefilter/filtered` the links to known pages that did not become requests."""
        if count:
            self._df.crawler.stats.inc_value("dupefilter/filtered", count)

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
