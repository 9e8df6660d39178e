"""Requests derived from one another: redirects, and children with a copied meta."""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING

from ..fingerprints.canonical import META_KEY
from ..scrapy_compat import EngineView

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.crawler import Crawler

    from ..fingerprints.unfailing import UnfailingFingerprinter

logger = logging.getLogger("scrapy_bloom.redirects")


class RequestChains:
    """Recognises redirects of `crawler` to the same page by an identity wider than Scrapy's.

    The meta of a request is not enough: a child may have copied it from its response. A redirect
    is scheduled while its source is in the engine and in no callback. Raises JobDirectoryError
    where Scrapy does not show what the engine does.
    """

    def __init__(self, crawler: Crawler, fingerprinter: UnfailingFingerprinter) -> None:
        self._crawler = crawler
        self._engine = EngineView(crawler)
        self._fingerprinter = fingerprinter
        self._has_told = False

    def is_redirect(self, request: Request) -> bool:
        """Return True for a redirect whose source may have the same fingerprint. Such a request
        must not be dropped; REDIRECT_MAX_TIMES ends loops. Never raises."""
        try:
            urls = request.meta.get("redirect_urls")
            if urls and self._fingerprinter.may_merge(request):
                times = request.meta.get("redirect_times", 0) - 1
                return any(
                    source.url == urls[-1] and source.meta.get("redirect_times", 0) == times
                    for source in self._engine.just_downloaded()
                )
        except Exception:  # noqa: BLE001 - a request like no other
            return False
        return False

    def drop_copied_key(self, request: Request) -> None:
        """Remove META_KEY from a request that copied the meta of a response, since the key names
        that response's page. Never raises.

        Only the meta of a downloaded request has a `download_latency`.
        """
        with suppress(Exception):  # a request like no other
            meta = request.meta
            if (
                META_KEY in meta
                and "download_latency" in meta
                and self._fingerprinter.reads_key
                and not self._is_sent_again(request)
            ):
                del meta[META_KEY]
                self._tell(request)

    def _is_sent_again(self, request: Request) -> bool:
        """Return True for a redirect or retry: a downloader middleware made it of a request with
        the same key."""
        key = request.meta[META_KEY]
        return any(source.meta.get(META_KEY) == key for source in self._engine.just_downloaded())

    def _tell(self, request: Request) -> None:
        if self._has_told:
            return
        self._has_told = True
        logger.warning(
            "%(request)s has the meta key %(key)s of the response that its meta was copied from;"
            " it does not count there, nor in other such requests. Copy the keys that you need"
            " only.",
            {"request": request, "key": META_KEY},
            extra={"spider": self._crawler.spider},
        )
