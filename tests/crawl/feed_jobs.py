"""Jobs with feeds, driven call by call on an engine that only keeps its books."""

import time
from pathlib import Path

from scrapy import signals
from scrapy.http import Response
from scrapy.utils.defer import deferred_from_coro

from scrapy_bloom import DurableFeedExporter
from scrapy_bloom.crawl.origins import ResponseOrigins
from tests.crawl import feed_crawls
from tests.crawl.engine import DURABLE, Job
from tests.patience import PATIENCE


def run(coroutine):
    """Run a coroutine to its end, with the reactor, and return its result."""
    from twisted.internet import reactor

    results = []
    deferred_from_coro(coroutine).addBoth(results.append)
    deadline = time.monotonic() + PATIENCE
    while not results:
        assert time.monotonic() < deadline
        reactor.iterate(0.01)
    if hasattr(results[0], "raiseException"):
        results[0].raiseException()
    return results[0]


class Shelf(feed_crawls.Shelf):
    """Stores at once: without a running reactor there are no threads."""

    def store(self, file):
        self._store_in_thread(file)


class FeedJob(Job):
    """A job whose add-on has put our exporter in its place."""

    def __init__(self, folder, feeds, **settings):
        feeds = {
            str(uri): options if isinstance(options, dict) else {"format": options}
            for uri, options in feeds.items()
        }
        super().__init__(
            Path(folder) / "job",
            ADDONS={"scrapy_bloom.Addon": 300},
            SCHEDULER=DURABLE,
            FEEDS=feeds,
            FEED_STORAGES={"shelf": Shelf},
            FEED_EXPORTERS={"own": feed_crawls.OwnExporter},
            **settings,
        )
        self.exporter = self.crawler.get_extension(DurableFeedExporter)
        self.origins = ResponseOrigins(self.crawler)

    def open(self, *start):
        """Open the spider, with what its `start()` yields; return self."""
        super().open()
        self.send(signals.spider_opened)
        self.started = run(self._start(start))
        return self

    async def _start(self, things):
        async def stream():
            for thing in things:
                yield thing

        found = stream()
        for method in self.engine.scraper.spidermw.methods["process_start"]:
            found = method(found)
        started = []
        async for thing in found:
            started.append(thing)
            if isinstance(thing, dict):
                self.item(thing)
            else:
                self.scheduler.enqueue_request(thing)
        return started

    def send(self, signal, **arguments):
        """Send a signal, and wait for its handlers."""
        run(self.crawler.signals.send_catch_log_async(signal, spider=self.spider, **arguments))

    def item(self, item, response=None):
        """An item is through the pipelines."""
        self.send(signals.item_scraped, item=item, response=response)

    def response(self, request):
        """Return the answer to a request, as it has come to the engine."""
        response = Response(request.url)
        return self.origins.process_response(request, response)

    def page(self, name, *items):
        """Return the request of a page that is fetched, with its items, and not done."""
        assert self.push(name)
        popped = self.pop()
        self.items(popped, *items)
        return popped

    def items(self, popped, *items):
        """Items come of a request."""
        response = self.response(popped)
        for item in items:
            self.item(item, response)

    def pages(self, **pages):
        """Pages are fetched, with an item each, and acknowledged; return self."""
        for name, item in pages.items():
            self.done(self.page(name, item))
        self.commit()
        return self

    def commit(self):
        """Commit now, and let the reactor do what comes of it."""
        from twisted.internet import reactor

        super().commit()
        reactor.iterate(0)
        reactor.iterate(0)

    def close(self, reason="finished"):
        """Close the spider."""
        super().close(reason)
        self.send(signals.spider_closed, reason=reason)
