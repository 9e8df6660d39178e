"""Recognises requests of callbacks for pages that an earlier round has done."""

from __future__ import annotations

import logging
from math import inf
from time import monotonic
from typing import TYPE_CHECKING

from ..amounts import seconds
from ..dupefilter import FilterDupeFilter
from ..errors import message_of
from ..fingerprints.canonical import copied_key_remover
from ..scrapy_private.progress import scheduler_of
from ..speed import RecentKeys
from ..speed.known import known_urls
from .pages import is_same
from .settings import KEYS, MARK_KEYS, VERSION, drop_copied, key_in, version_of, wish_of

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.crawler import Crawler
    from scrapy.http import Response

    from .pages import Pages

logger = logging.getLogger(__name__)

PAUSE = 60.0
"""Seconds in which a store that has failed is not asked: it may have been waited for."""


class Skipping:
    """Decides which requests of a crawl to skip: none where nothing counts as done. A cache has
    the URLs of up to `url_cache` skipped plain requests, until the first of their marks ceases to
    count."""

    def __init__(self, crawler: Crawler, pages: Pages, url_cache: int) -> None:
        self._crawler = crawler
        self._skips = pages.settings.mode is not None
        self._pages = pages
        self._remove_copied_key = copied_key_remover(crawler)
        self._store = pages.store
        self._told: set[str] = set()
        dupefilter = getattr(scheduler_of(crawler), "df", None)
        self._known = known_urls(dupefilter) if isinstance(dupefilter, FilterDupeFilter) else None
        self._recent: RecentKeys[str] = RecentKeys(url_cache)
        self._recent_until = inf
        self._asked_from = 0.0

    def is_done(self, request: Request, response: Response) -> bool:
        """Return True if `request`, of the callback of `response`, is for a page that an earlier
        round has done, unless its meta demands a fetch. Never raises."""
        try:
            is_own = is_same(request, response.request)
            if self._remove_copied_key is not None and not is_own:
                self._remove_copied_key(request)
            if not is_own and drop_copied(request, response.meta):
                self._tell(
                    "copied",
                    "%(request)s has meta keys of the response that its meta was copied from; what"
                    " they say about BLOOM_DELTA does not count there, nor in other such requests."
                    " Copy the keys that you need only.",
                    request,
                )
            told = (
                "%%(request)s has %%(what)r for the meta key %s: it must be text%s. Such pages %s."
            )
            if not isinstance(version := request.meta.get(VERSION, ""), (str, type(None))):
                text = told % (VERSION, "", "are skipped as those without")
                self._tell("version", text, request, version)
            if (key := key_in(request.meta)) is not None and not isinstance(key, (str, bytes)):
                text = told % (KEYS[0], " or bytes", "are known by their URLs")
                self._tell("key", text, request, key)
            return self._asks and self._is_done(request, response)
        except Exception as error:  # noqa: BLE001 - the page is fetched
            self._pause(request, error)
            return False

    def forget(self) -> None:
        """Ask the store about each page again."""
        self._recent.clear()
        self._recent_until = inf

    def validators_of(self, request: Request) -> list[bytes]:
        """Return the validators of the page of `request`, if an earlier round has done it, and its
        callback has not begun. Never raises."""
        try:
            asks = self._asks and wish_of(request.meta) is not False
            asks = asks and self._pages.outcome(request) is None
            return self._pages.validators_of(request) if asks else []
        except Exception as error:  # noqa: BLE001 - the page is fetched
            self._pause(request, error)
            return []

    @property
    def _asks(self) -> bool:
        return self._skips and not self._store.is_empty and monotonic() >= self._asked_from

    def _pause(self, request: Request, error: Exception) -> None:
        self._asked_from = monotonic() + PAUSE
        text = "The delta store failed on %(request)s: %(what)s. Nothing is skipped for a minute"
        self._tell("failed", text, request, message_of(error))

    def _is_done(self, request: Request, response: Response) -> bool:
        known = self._known
        if known is not None and known.is_known(request):
            return False  # it is sure to be dropped as a duplicate
        if request.url in (response.url, getattr(response.request, "url", None)):
            return False  # the callback requests its own page once more
        meta = request.meta
        url = None
        if known is not None and meta.keys().isdisjoint(MARK_KEYS):
            prefix = known.prefix_of(request.callback, request.method, request.body, meta)
            if prefix is not None:
                url = known.key_of(prefix, request.url)
        if url in self._recent.urls:
            if self._store.clock() < self._recent_until:
                return True
            self.forget()
        wish, period = wish_of(meta), None
        version = None if wish is False else version_of(meta)
        if version is not None:
            key = self._pages.key_of(request)
            return self._store.fact(key, "version") == version and key not in self._pages.marks
        if wish is not None and wish is not True:  # a day is 1, which equals True
            period = None if wish is False else self._period(wish, request)
            if period is None:
                return False
        key = self._pages.key_of(request)
        until = self._store.known_until(key, period)
        if not until or key in self._pages.marks:
            return False
        if url is not None and url not in self._recent.urls:
            self._recent.add(url)
            self._recent_until = min(self._recent_until, until)
        return True

    def _period(self, wish: object, request: Request) -> float | None:
        """Return the period of a request in seconds, None for a wrong value."""
        period = seconds(wish)
        if period and self._store.lifetime.period is not None:
            return period
        reason = "it must be True, False, or a number of days above 0"
        if period:
            reason = "a number needs BLOOM_DELTA_DAYS"
        text = "%(request)s has %(what)r for the meta key bloom_delta: {}. Such pages are fetched."
        self._tell("days", text.format(reason), request, wish)
        return None

    def _tell(self, about: str, text: str, request: Request, what: object = None) -> None:
        """Log the first warning `about` something only."""
        if about not in self._told:
            self._told.add(about)
            logger.warning(
                text, {"request": request, "what": what}, extra={"spider": self._crawler.spider}
            )
