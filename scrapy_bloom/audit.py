"""A record of the requests that a dupefilter drops, for those who want to know why."""

from __future__ import annotations

import json
import logging
import time
from logging.handlers import RotatingFileHandler
from random import random
from typing import TYPE_CHECKING, NamedTuple

from scrapy.utils.request import referer_str

if TYPE_CHECKING:
    from scrapy import Request
    from typing_extensions import Self

    from .seen import Seen
    from .settings import AuditSettings

logger = logging.getLogger(__name__)

FILE_BYTES = 100_000_000
FILES = 10
"""The file itself, and those that it was before: PATH.1, PATH.2 and so on."""


class Why(NamedTuple):
    """Why a request counts as seen: its URL is among the `recent` ones, its fingerprint is
    `held` in memory until its row is safe, or in the `filter`, there in a layer from 0 (None
    where the filter does not tell)."""

    reason: str
    layer: int | None = None

    @classmethod
    def of(cls, fingerprint: bytes, seen: Seen) -> Self:
        """Return why that fingerprint counts as seen, if it does."""
        if fingerprint in seen.held:
            return cls("held")
        for number, layer in enumerate(seen.filter.layers):
            contains = getattr(layer, "__contains__", None)
            if contains is not None and contains(fingerprint):
                return cls("filter", number)
        return cls("filter")


class Audit:
    """Writes dropped requests to a file, a line of JSON each; what it cannot write is no
    reason to stop. Raises ValueError if the file cannot be opened."""

    def __init__(self, settings: AuditSettings) -> None:
        self._share = settings.share
        try:
            self._handler = _Handler(settings.path)
        except OSError as error:
            raise ValueError(
                f"BLOOM_AUDIT is {settings.path!r}, which cannot be written: {error.strerror}"
            ) from error

    def is_due(self) -> bool:
        """Return True if the next request belongs to the share that is recorded."""
        return self._share == 1 or random() < self._share  # noqa: S311 - nothing secret

    def note(self, request: Request, why: Why) -> None:
        """Record that `request` is dropped. Never raises."""
        line = json.dumps(
            {
                "time": round(time.time(), 3),
                "url": request.url,
                "method": request.method,
                "referer": referer_str(request),
                "reason": why.reason,
                "layer": why.layer,
            }
        )
        self._handler.handle(logging.makeLogRecord({"msg": line}))

    def close(self) -> None:
        """Close the file."""
        self._handler.close()


class _Handler(RotatingFileHandler):
    """Writes lines as they are, to a file of limited size; says once if it cannot."""

    _has_told = False

    def __init__(self, path: str) -> None:
        super().__init__(path, maxBytes=FILE_BYTES, backupCount=FILES - 1, encoding="utf-8")

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - its name there
        """Go on without that line."""
        if not self._has_told:
            self._has_told = True
            logger.exception("Cannot write to %s, which BLOOM_AUDIT names", self.baseFilename)
