"""What counts as failed if BLOOM_FAILED_KINDS names it: ignored requests, and items that a pipeline
does not take."""

from __future__ import annotations

from collections.abc import Collection
from traceback import walk_tb
from typing import TYPE_CHECKING, Any

from scrapy import signals
from scrapy.exceptions import IgnoreRequest

from ..scrapy_private.middlewares import on_download_exception

if TYPE_CHECKING:
    from scrapy import Request, Spider
    from scrapy.crawler import Crawler
    from twisted.python.failure import Failure

_NOT_THE_PAGES_FAULT = frozenset(
    f"scrapy.downloadermiddlewares.{name}" for name in ("offsite", "robotstxt")
)
"""Middlewares whose IgnoreRequest is not a failure."""


class OptionalFailures:
    """Tells `failures`, a Failures, of the kinds `ignored`, at the engine's end of the downloader
    middlewares, and `item`, by a signal. Raises JobDirectoryError as that does."""

    def __init__(self, crawler: Crawler, kinds: Collection[str], failures: Any) -> None:
        self._failures = failures
        if "ignored" in kinds:
            on_download_exception(crawler, self.process_exception)
        if "item" in kinds:
            crawler.signals.connect(self._item_error, signals.item_error)

    def process_exception(self, request: Request, exception: Exception) -> None:
        """Note a request that a downloader middleware ignores, and let the exception pass."""
        if isinstance(exception, IgnoreRequest) and request.errback is None:
            passed = (frame for frame, _ in walk_tb(exception.__traceback__))
            if _NOT_THE_PAGES_FAULT.isdisjoint(each.f_globals.get("__name__") for each in passed):
                self._failures.note_request(request, "ignored", exception)

    def _item_error(self, item: Any, response: Any, spider: Spider, failure: Failure) -> None:
        self._failures.note(response, "item", failure.value)
