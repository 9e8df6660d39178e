"""What the URLs seen last say of links and requests, before a scheduler has them."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import TYPE_CHECKING, Any

from scrapy.utils.python import global_object_name

from ..fingerprints.fast import KEYS_READ
from ..startup import is_own_method

if TYPE_CHECKING:
    from scrapy import Request

    from ..dupefilter import FilterDupeFilter


def known_urls(df: FilterDupeFilter) -> KnownUrls:
    """Return what the URLs of `df` say."""
    known: KnownUrls = df._known or KnownUrls(df)
    return known


class KnownUrls:
    """Answers from the cache of `df`, the URLs that it has seen last, here by a fingerprinter of
    Scrapy's or ours. The cache stays empty while a method of `df` is another's."""

    ignores_fragments = True
    """True if URLs that differ in their fragments only are known to be one page."""
    reads_callback = False
    why_unknown = ""
    """Why it is not known what fingerprints depend on besides URL, method and body."""

    def __init__(self, df: FilterDupeFilter, meta_keys: Set[str] = KEYS_READ) -> None:
        self._df, self.stats = df, df.crawler.stats
        self._recent = df._recent
        self.log = df.log
        self._meta_keys = meta_keys

    def is_known(self, request: Request) -> bool:
        """Return True if a scheduler is sure to drop `request`, now and later, since its URL is in
        the cache. Never raises."""
        try:
            url = request.url
            if not self.reads_callback and "#" not in url and url not in self._recent.urls:
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
        if method != "GET" or body or (meta and not self._meta_keys.isdisjoint(meta)):
            return None
        return ""

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
        if df.debug:
            return "DUPEFILTER_DEBUG logs them with their referers"
        if df._audit is not None:
            return "BLOOM_AUDIT is to record them"
        for name in ("request_seen", "fingerprint", "log"):
            if not is_own_method(df, name, "scrapy_bloom"):
                return f"{global_object_name(type(df))} has a changed {name}"
        return self.why_unknown or (None if self._recent.size else "BLOOM_URL_CACHE is 0")
