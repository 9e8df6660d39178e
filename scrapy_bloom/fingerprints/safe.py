"""The fingerprints of a crawl's requests, also when its fingerprinter raises."""

from __future__ import annotations

import logging
from contextlib import suppress
from hashlib import sha1
from typing import TYPE_CHECKING

from scrapy.utils.request import fingerprint as scrapy_fingerprint

from ..errors import message_of
from .canonical import READ_BY_OURS, CanonicalRequestFingerprinter, fast_functions
from .fast import is_default

if TYPE_CHECKING:
    from collections.abc import Callable

    from scrapy import Request
    from scrapy.crawler import Crawler

logger = logging.getLogger(__name__)


class UnfailingFingerprinter:
    """The fingerprinter of `crawler`: by faster functions where these give the same results, and
    with a substitute where it raises.

    `of_url` returns the fingerprint for the URL of a GET request without a body and without meta
    keys that matter, or None where the request is needed; it is None for a fingerprinter without
    faster functions. `is_scrapys` is True if the fingerprints are those of Scrapy's default one,
    `reads_key` if META_KEY counts. `reads` is what the fingerprints depend on besides URL, method
    and body (see `reads_of`), None with the reason in `unknown` if that is not known.
    `has_substituted` is True if the last fingerprint was a substitute.
    """

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler
        fingerprinter = crawler.request_fingerprinter
        fast, self.of_url = fast_functions(fingerprinter)
        self._of_request: Callable[[Request], bytes] = fast or fingerprinter.fingerprint
        self.is_scrapys = is_default(fingerprinter)
        self.reads_key = isinstance(fingerprinter, CanonicalRequestFingerprinter)
        self._has_failed = False
        self.has_substituted = False
        self.unknown = ""
        self.reads: frozenset[str] | None = READ_BY_OURS
        if self.of_url is None:
            self.reads = None
            from .depends_on import reads_of

            try:
                self.reads = reads_of(fingerprinter)
            except Exception as error:  # noqa: BLE001 - foreign code
                self.unknown = message_of(error)

    def fingerprint(self, request: Request) -> bytes:
        """Return the fingerprint of `request`: by the crawler's fingerprinter, or if that raises by
        Scrapy's default one, or a hash of the raw URL. Never raises."""
        self.has_substituted = False
        try:
            fingerprint = self._of_request(request)
            if type(fingerprint) is bytes:
                return fingerprint
            raise TypeError(f"the fingerprint of {request} is {fingerprint!r}, not bytes")
        except Exception as error:  # noqa: BLE001 - foreign code
            return self._substitute(request, error)

    def _substitute(self, request: Request, error: Exception) -> bytes:
        self.has_substituted = True
        with suppress(Exception):
            self._crawler.stats.inc_value("bloom/fingerprint_errors")
        if not self._has_failed:
            self._has_failed = True
            logger.error(
                "The fingerprinter failed on %(request)s: %(error)s. Scrapy's default fingerprint"
                " is used for such requests; no more of them will be shown (see the stat"
                " bloom/fingerprint_errors).",
                {"request": request, "error": message_of(error)},
                exc_info=error,
                extra={"spider": self._crawler.spider},
            )
        try:
            return scrapy_fingerprint(request)
        except Exception:  # noqa: BLE001 - w3lib raises on some URLs
            url = str(request.url)
            return sha1(url.encode(errors="surrogatepass"), usedforsecurity=False).digest()
