"""The fingerprints of a crawl, also when its fingerprinter raises; and the identity of the
fingerprinter that filled a filter: its answers to fixed requests.

Under another fingerprinter a filter is useless: a resumed crawl would fetch everything again, or
take new pages for seen ones. So the filter records the fingerprints of a few fixed requests, and
a job is resumed only where they are the same.
"""

from __future__ import annotations

import json
import logging
from contextlib import suppress
from hashlib import sha1, sha256
from typing import TYPE_CHECKING, NamedTuple

from scrapy import Request
from scrapy.utils.python import global_object_name
from scrapy.utils.request import fingerprint as scrapy_fingerprint

from ..errors import IncompatibleFilterError, message_of
from .fast import fast_functions

if TYPE_CHECKING:
    from collections.abc import Callable

    from scrapy.crawler import Crawler
    from scrapy.utils.request import RequestFingerprinterProtocol

logger = logging.getLogger(__name__)


class UnfailingFingerprinter:
    """The fingerprinter of `crawler`: by faster functions where these give the same results, and
    with a substitute where it raises.

    `of_url` returns the fingerprint for the URL of a GET request without a body and without meta
    keys that matter, or None where the request is needed; it is None for a fingerprinter without
    faster functions. `has_substituted` is True if the last one was a substitute.
    """

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler
        fingerprinter = crawler.request_fingerprinter
        fast, self.of_url = fast_functions(fingerprinter)
        self._of_request: Callable[[Request], bytes] = fast or fingerprinter.fingerprint
        self.has_substituted = self._has_failed = False

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


# All releases of w3lib agree on their canonical URLs.
_PLAIN = (
    ("GET", "http://example.com/", b""),
    ("GET", "https://www.example.com/a/page.html#part", b""),
    ("GET", "https://www.example.com/search?q=1&page=2", b""),
    ("GET", "https://www.example.com/search?page=2&q=1", b""),
    ("GET", "https://www.example.com/caf%c3%a9", b""),
    ("HEAD", "http://example.com/", b""),
    ("POST", "http://example.com/", b""),
    ("POST", "http://example.com/", b"q=1"),
)

_LONGEST_IDENTITY = 1_000
"""Bytes as JSON within JSON, so that all of it fits into the page of a filter file."""


class FingerprinterIdentity(NamedTuple):
    """A fingerprinter as a filter records it: `plain` are its answers to the fixed requests,
    `identity` is its attribute of that name, if it has one."""

    name: str
    identity: str
    plain: list[str]

    @classmethod
    def of(cls, fingerprinter: RequestFingerprinterProtocol) -> FingerprinterIdentity:
        """Ask `fingerprinter` for the fingerprints of the fixed requests."""
        identity = getattr(fingerprinter, "identity", "")
        if isinstance(identity, (set, frozenset)):
            identity = sorted(map(repr, identity))
        if not isinstance(identity, str):
            identity = repr(identity).partition(" at 0x")[0]  # an address is another next time
        if len(json.dumps(json.dumps(identity))) > _LONGEST_IDENTITY:
            identity = "SHA-256 " + sha256(identity.encode(errors="surrogatepass")).hexdigest()
        return cls(
            name=global_object_name(type(fingerprinter))[:300],
            identity=identity,
            plain=[_answer(fingerprinter, *request) for request in _PLAIN],
        )

    def to_text(self) -> str:
        """Return the identity as JSON, for the filter file."""
        return json.dumps(self._asdict())

    @classmethod
    def from_text(cls, text: str) -> FingerprinterIdentity:
        """Return the identity that `to_text` has written. Raises ValueError for any other text."""
        try:
            found = json.loads(text)
            return cls(found["name"], found["identity"], found["plain"])
        except (ValueError, TypeError, LookupError) as error:
            raise ValueError(f"{text!r} does not describe a fingerprinter") from error

    def require_same(self, stored: str | None, place: str, fresh: str = "a new JOBDIR") -> None:
        """Raise IncompatibleFilterError, with the remedy to use something `fresh`, if the identity
        that is `stored` as text, if any, is another; ValueError if that text is no identity."""
        if not stored:
            return
        then = self.from_text(stored)
        if then[1:] != self[1:]:
            raise IncompatibleFilterError(
                f"the fingerprinter of this job was {then.name} with identity {then.identity!r},"
                f" now it is {self.name} with identity {self.identity!r}, whose fingerprints"
                f" are others (REQUEST_FINGERPRINTER_CLASS): set it back, or use {fresh} ({place}"
                " holds fingerprints that only the old one can recognise)"
            )


def _answer(fingerprinter: RequestFingerprinterProtocol, method: str, url: str, body: bytes) -> str:
    try:
        fingerprint = fingerprinter.fingerprint(Request(url, method=method, body=body))
        return sha256(fingerprint).hexdigest()[:16]
    except Exception as error:  # noqa: BLE001 - any fingerprinter, any error
        return f"raises {type(error).__name__}"
