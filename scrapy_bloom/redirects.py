"""Requests derived from one another: redirects, and children with a copied meta."""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING

from scrapy import signals

from .errors import JobDirectoryError
from .fingerprints.fast import META_KEY, REDIRECT_URLS, is_default
from .scrapy_private.engine import REDIRECT_TIMES, EngineView
from .startup import is_component

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.crawler import Crawler

    from .dupefilter import FilterDupeFilter

logger = logging.getLogger("scrapy_bloom.redirects")

COPIED = "bloom_copied_redirects"
"""Meta key: how many of these URLs are of another request, whose meta was copied."""
RECEIVED = "bloom_received_fingerprint"
"""Meta key: the META_KEY of a request whose response has come, which children may copy."""
META_REFRESH = "meta refresh"
"""Scrapy's reason of a redirect by a page, among those in the meta."""


def attach(df: FilterDupeFilter) -> None:
    """Have `df` tell redirects from duplicates. Raises JobDirectoryError where Scrapy does not show
    what the engine does, unless the fingerprints are those of its default fingerprinter."""
    try:
        chains = RequestChains(df.crawler)
    except (JobDirectoryError, RuntimeError) as error:  # in a script there is no engine
        if not is_default(df.crawler.request_fingerprinter):
            raise
        if isinstance(error, JobDirectoryError):
            missing = str(error).partition(", which")[0]
            logger.warning("%s: redirects to a page that led to them are dropped", missing)
        return
    ask = df._ask

    def request_seen(request: Request) -> bool:
        """Return True if `request` was seen before, else add it. Never raises.

        A redirect is no duplicate of the requests that led to it.
        """
        fingerprint = chains.lead_back(request, df)
        if fingerprint is None:
            return ask(request)
        df.is_fresh = False
        df.let_pass(fingerprint)
        return False

    df.put_in_front(request_seen)
    if chains.reads_key:
        df.before_fingerprint = chains.drop_copied_key


class RequestChains:
    """Recognises redirects of `crawler` to one of the pages that led to them.

    The meta of a request is not enough: a child may have copied it from its response. A redirect
    is scheduled while its source is in the engine and in no callback. Raises JobDirectoryError
    where Scrapy does not show what the engine does. `reads_key` is True if META_KEY counts.
    """

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler
        self._engine = EngineView(crawler)
        self._has_told = False
        fingerprinter = type(crawler.request_fingerprinter)
        self.reads_key = is_component(fingerprinter, "CanonicalRequestFingerprinter")
        if self.reads_key:
            crawler.signals.connect(self._note_key, signals.response_received)

    def lead_back(self, request: Request, df: FilterDupeFilter) -> bytes | None:
        """Return the fingerprint by `df` of a redirect to the page of a request that led to it.

        Such a redirect must not be dropped; REDIRECT_MAX_TIMES ends loops. By a meta tag a page
        leads back once. In the meta of any other request with `redirect_urls` it is noted how many
        of them were copied. Never raises. Source: https://github.com/scrapy/scrapy/issues/1225
        """
        try:
            meta = request.meta
            if REDIRECT_URLS not in meta:
                return None
            this, fingerprint = df.fingerprint_of_any(request), df.fingerprint
            source = next(self._engine.sent_again_as(request, (REDIRECT_TIMES,)), None)
            if source is None:
                meta[COPIED] = len(meta[REDIRECT_URLS])
                return None
            first = meta.get(COPIED, 0)
            before = [request.replace(url=url) for url in meta[REDIRECT_URLS][first:-1]]
            leads = [fingerprint(each) == this for each in (*before, source)]
            reasons = meta.get("redirect_reasons", ())[first:]
            again = (META_REFRESH, True) in zip(reasons, leads[1:], strict=False)
            if not any(leads) or (again and reasons[-1] == META_REFRESH):
                return None
            meta["dont_cache"] = True  # the HTTP cache would answer with the same redirect
            return this
        except Exception:  # noqa: BLE001 - a request like no other
            return None

    def _note_key(self, request: Request) -> None:
        request.meta.pop(RECEIVED, None)  # that of a page before
        if META_KEY in request.meta:
            request.meta[RECEIVED] = request.meta[META_KEY]

    def drop_copied_key(self, request: Request) -> None:
        """Remove META_KEY where it was copied with the meta of a response. Never raises."""
        with suppress(Exception):  # a request like no other
            meta = request.meta
            if RECEIVED in meta and meta.pop(RECEIVED) == meta.get(META_KEY):
                del meta[META_KEY]
                if not self._has_told:
                    self._has_told = True
                    logger.warning(
                        "%(request)s has the meta key %(key)s of the response that its meta was"
                        " copied from; it does not count there, nor in other such requests. Copy"
                        " the keys that you need only.",
                        {"request": request, "key": META_KEY},
                        extra={"spider": self._crawler.spider},
                    )
