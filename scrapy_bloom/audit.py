"""A log file of the requests that a dupefilter drops, with the reason (BLOOM_AUDIT)."""

from __future__ import annotations

import json
import logging
import os
import time
from contextlib import suppress
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING

from scrapy.utils.request import referer_str

from .bloom.fixed import layers_of
from .files import privately
from .settings import OFF, PATH, Setting, Values
from .speed.known import known_urls

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from scrapy import Request
    from scrapy.crawler import Crawler

    from .dupefilter import FilterDupeFilter


logger = logging.getLogger(__name__)

AUDIT = Setting(
    "BLOOM_AUDIT",
    "",
    Values(PATH.allowed, lambda path: None if path in OFF else PATH.convert(path)),
    "The path of a file that gets a line of JSON for each request that is dropped",
)
FILE_BYTES = 100_000_000
FILES = 10
"""Number of files: the current one and the older PATH.1, PATH.2 and so on."""


def check(crawler: Crawler) -> None:
    """Raise ValueError for a bad setting, or a file that cannot be written. Changes nothing."""
    if path := AUDIT.read(crawler.settings):
        _require_writable(path)


def _require_writable(path: str) -> None:
    try:
        try:
            os.close(privately(path, os.O_WRONLY | os.O_APPEND))
        except FileNotFoundError:
            TemporaryFile(dir=Path(path).absolute().parent).close()
    except OSError as error:
        raise ValueError(
            f"BLOOM_AUDIT is {path!r}, which cannot be written:"
            f" {error.strerror}; choose another path"
        ) from error


def attach(dupefilter: FilterDupeFilter) -> None:
    """Put the audit in front of the `request_seen` of `dupefilter`, if one is wanted."""
    if path := AUDIT.read(dupefilter.crawler.settings):
        dupefilter._audit = audit = Audit(path, dupefilter)
        vars(dupefilter)["request_seen"] = audit.request_seen


class Audit:
    """Writes the requests that a dupefilter drops to a file, a line of JSON each. A failure to
    write does not stop the crawl. Raises ValueError if the file cannot be opened."""

    def __init__(self, path: str, dupefilter: FilterDupeFilter) -> None:
        self._dupefilter = dupefilter
        self._ask = dupefilter.request_seen
        self._is_known = known_urls(dupefilter).is_known
        self._uncommitted: dict[bytes, Request] = {}
        """New requests by uncommitted fingerprint, which an exact filter tests later."""
        _require_writable(path)
        self._handler = _Handler(path)

    def request_seen(self, request: Request) -> bool:
        """Return the answer of the dupefilter, and log the request if it is True."""
        # before the dupefilter answers, which puts the URL into the cache
        why, avoided = self._why(request), self._avoided
        is_seen = self._ask(request)
        if is_seen:
            self._note(request, *why)
            return True
        if self._avoided > avoided:
            self._note(request, "avoided")
        elif (seen := self._dupefilter._seen) is not None and seen.filter.exact:
            fingerprint = self._dupefilter.fingerprint(request)
            if fingerprint in self._held:
                self._uncommitted[fingerprint] = request
        return False

    def watched(self, release: Callable[[bytes], None]) -> Callable[[bytes], None]:
        """Return `release`, which adds an uncommitted fingerprint to the filter, with a line in the
        log if an exact table avoids a false positive then."""

        def release_and_note(fingerprint: bytes) -> None:
            avoided, request = self._avoided, self._uncommitted.pop(fingerprint, None)
            release(fingerprint)
            if request is not None and self._avoided > avoided:
                self._note(request, "avoided")

        return release_and_note if self._dupefilter.filter.exact else release

    @property
    def _avoided(self) -> int:
        seen = self._dupefilter._seen
        return 0 if seen is None else seen.filter.false_positives_avoided

    @property
    def _held(self) -> Collection[bytes]:
        seen = self._dupefilter._seen
        return () if seen is None else seen.uncommitted

    def _why(self, request: Request) -> tuple[str, int | None]:
        """Return why `request`, if it was seen, counts as seen, and the layer of the filter that
        shows it, from 0, or None. Never raises.

        Its URL is in the cache (`recent`), or its fingerprint is uncommitted (`held`), or in the
        filter (`filter`, or `exact` for an exact one).
        """
        if self._is_known(request):
            return "recent", None
        with suppress(Exception):  # whatever fails below, the crawl goes on
            fingerprint = self._dupefilter.fingerprint_of_any(request)
            known = self._dupefilter.filter
            if fingerprint in self._held:
                return "held", None
            for number, layer in enumerate(layers_of(known)):
                if fingerprint in layer:
                    return "exact" if known.exact else "filter", number
        return "filter", None

    def _note(self, request: Request, reason: str, layer: int | None = None) -> None:
        line = json.dumps(
            {
                "time": round(time.time(), 3),
                "url": request.url,
                "method": request.method,
                "referer": referer_str(request),
                "reason": reason,
                "layer": layer,
            }
        )
        self._handler.handle(logging.makeLogRecord({"msg": line}))

    def close(self) -> None:
        """Close the file. Never raises."""
        with suppress(OSError):
            self._handler.close()


class _Handler(RotatingFileHandler):
    """Writes lines unchanged to files of limited size; logs the first failure only."""

    _has_told = False

    def __init__(self, path: str) -> None:
        super().__init__(path, maxBytes=FILE_BYTES, backupCount=FILES - 1, encoding="utf-8")

    def _open(self) -> TextIOWrapper:
        # the lines have URLs, and the directory may be one where others write
        return open(self.baseFilename, "a", encoding="utf-8", opener=privately)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - its name there
        """Drop the line; log the first failure."""
        if not self._has_told:
            self._has_told = True
            logger.exception("Cannot write to %s, which BLOOM_AUDIT names", self.baseFilename)
