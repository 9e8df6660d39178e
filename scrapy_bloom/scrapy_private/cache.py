"""Scrapy's HTTP cache."""

from __future__ import annotations

import logging
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from scrapy.downloadermiddlewares.httpcache import HttpCacheMiddleware
from scrapy.extensions.httpcache import FilesystemCacheStorage

if TYPE_CHECKING:
    from scrapy import Request, Spider
    from scrapy.crawler import Crawler
    from scrapy.http import Response

logger = logging.getLogger(__name__)


def mend_cache(sender: Crawler) -> None:
    """Have the HTTP cache of a crawler, if its storage is Scrapy's in files or a subclass, take an
    entry that a kill has cut short for none. Such an entry lacks `request_body`, which is written
    last."""
    storage = None
    with suppress(AttributeError, RuntimeError):  # a script without an engine has none
        storage = getattr(sender.get_downloader_middleware(HttpCacheMiddleware), "storage", None)
    if not isinstance(storage, FilesystemCacheStorage):
        return
    path_of = getattr(storage, "_get_request_path", None)
    if not callable(path_of):
        logger.warning("This Scrapy hides which entries of its HTTP cache a kill has cut short")
        return
    store, retrieve = storage.store_response, storage.retrieve_response

    def store_response(spider: Spider, request: Request, response: Response) -> None:
        Path(path_of(spider, request), "request_body").unlink(missing_ok=True)
        store(spider, request, response)

    def retrieve_response(spider: Spider, request: Request) -> Response | None:
        folder = Path(path_of(spider, request))
        # a subclass may have files of its own instead
        if (folder / "pickled_meta").exists() and not (folder / "request_body").exists():
            return None
        return retrieve(spider, request)

    vars(storage).update(store_response=store_response, retrieve_response=retrieve_response)
