"""A log file of the requests that a dupefilter drops, with the reason (BLOOM_AUDIT)."""

from __future__ import annotations

import json
import logging
import time
from contextlib import suppress
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from typing import TYPE_CHECKING

from scrapy.utils.request import referer_str

from ..files import privately

if TYPE_CHECKING:
    from collections.abc import Callable

    from scrapy import Request

    from .overlay import Overlay

logger = logging.getLogger("scrapy_bloom.audit")

FILE_BYTES = 100_000_000
FILES = 10
"""Number of files: the current one and the older PATH.1, PATH.2 and so on."""


class Audit:
    """Writes the requests that a dupefilter drops to a file, a line of JSON each: it stands in
    front of the dupefilter's `request_seen`. A failure to write does not stop the crawl. Raises
    ValueError if the file cannot be opened."""

    def __init__(
        self,
        path: str,
        request_seen: Callable[[Request], bool],
        is_known: Callable[[Request], bool],
        overlay: Overlay,
        fingerprint: Callable[[Request], bytes],
    ) -> None:
        self._ask = request_seen
        self._is_known = is_known
        self._overlay = overlay
        self._fingerprint = fingerprint
        self._release = overlay.release
        self._uncommitted: dict[bytes, Request] = {}
        """New requests by uncommitted fingerprint, which an exact filter tests later."""
        try:
            self._handler = _Handler(path)
        except OSError as error:
            raise ValueError(
                f"BLOOM_AUDIT is {path!r}, which cannot be written:"
                f" {error.strerror}; choose another path"
            ) from error
        # set on the instance, so that a crawl without an audit has no cost
        if overlay.filter.exact:
            vars(overlay)["release"] = self.release

    def request_seen(self, request: Request) -> bool:
        """Return the answer of the dupefilter, and log the request if it is True."""
        # before the dupefilter answers, which puts the URL into the cache
        why, avoided = self._why(request), self._avoided
        if self._ask(request):
            self._note(request, *why)
            return True
        if self._avoided > avoided:
            self._note(request, "avoided")
        elif self._overlay.filter.exact:
            fingerprint = self._fingerprint(request)
            if fingerprint in self._overlay.uncommitted:
                self._uncommitted[fingerprint] = request
        return False

    def release(self, fingerprint: bytes) -> None:
        """Release the fingerprint, and log it if the exact table avoided a false positive."""
        avoided, request = self._avoided, self._uncommitted.pop(fingerprint, None)
        self._release(fingerprint)
        if request is not None and self._avoided > avoided:
            self._note(request, "avoided")

    @property
    def _avoided(self) -> int:
        return self._overlay.filter.false_positives_avoided

    def _why(self, request: Request) -> tuple[str, int | None]:
        """Return why `request`, if it was seen, counts as seen, and the layer of the filter that
        shows it, from 0, or None. Never raises.

        Its URL is in the cache (`recent`), or its fingerprint is uncommitted (`held`), or in the
        filter (`filter`, or `exact` for an exact one).
        """
        if self._is_known(request):
            return "recent", None
        with suppress(Exception):  # whatever fails below, the crawl goes on
            fingerprint, known = self._fingerprint(request), self._overlay.filter
            if fingerprint in self._overlay.uncommitted:
                return "held", None
            for number, layer in enumerate(known.layers):
                contains = getattr(layer, "__contains__", None)
                if contains is not None and contains(fingerprint):
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
        """Close the file."""
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
