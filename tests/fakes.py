"""An engine that only keeps its books, and what fails or does harm."""

import os
from collections import defaultdict, deque
from types import SimpleNamespace

from scrapy import pqueues

HAS_SCOPES = not hasattr(pqueues, "DownloaderInterface")
"""True for a Scrapy with https://github.com/scrapy/scrapy/pull/6931."""


class Downloader:
    """Slots by host, or as the request says."""

    def __init__(self):
        self.active = set()
        self.slots = {}

    def get_slot_key(self, request):
        return request.meta.get("download_slot", "example.com")


class Engine:
    """Knows what is in progress because tests tell it."""

    running = True

    def __init__(self):
        self.downloader = Downloader()
        self.scraper = SimpleNamespace(
            slot=SimpleNamespace(active=set()),
            _check_if_closing=lambda: None,
            spidermw=SimpleNamespace(
                methods=defaultdict(deque), middlewares=(), process_start=lambda: None
            ),
        )
        self.woken = 0
        self._slot = SimpleNamespace(
            inprogress=set(), nextcall=SimpleNamespace(schedule=self._wake), scheduler=None
        )
        self._throttler_waiting = set()
        self.closed = []

    def _wake(self):
        self.woken += 1

    def _spider_idle(self):
        """Scrapy's would ask the handlers, and close the spider."""

    async def close_spider_async(self, *, reason):
        self.closed.append(reason)


def raising(error):
    """Return a function that raises `error`, whatever it is given."""

    def fails(*_, **__):
        raise error

    return fails


class Evil:
    """Makes a directory where it is unpickled, once unless `often`."""

    def __init__(self, path, *, often=False):
        self.path, self.often = str(path), often

    def __reduce__(self):
        return os.makedirs, (self.path, 0o777, self.often)
