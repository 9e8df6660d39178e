"""Jobs with feeds, driven call by call on an engine that only keeps its books."""

from pathlib import Path

from scrapy import Request, signals
from scrapy.http import Response
from twisted.internet import reactor
from twisted.internet.task import deferLater

from scrapy_bloom import DurableFeedExporter
from scrapy_bloom.crawl.origins import ResponseOrigins
from tests.crawl.engine import DURABLE
from tests.crawl.rounds import RoundJob, waited_for
from tests.world import feeds as world_feeds


class Shelf(world_feeds.Shelf):
    """Stores in the next turn: without a running reactor there are no threads."""

    def store(self, file):
        return deferLater(reactor, 0, self._store_in_thread, file)


class FeedJob(RoundJob):
    """A job whose add-on has put our exporter in its place."""

    def __init__(self, folder, feeds, **settings):
        feeds = {
            str(uri): options if isinstance(options, dict) else {"format": options}
            for uri, options in feeds.items()
        }
        own = {"ADDONS": {"scrapy_bloom.Addon": 300}, "SCHEDULER": DURABLE, "FEEDS": feeds}
        own |= {
            "FEED_STORAGES": {"shelf": Shelf},
            "FEED_EXPORTERS": {"own": world_feeds.OwnExporter},
        }
        super().__init__(Path(folder) / "job", **(own | settings))
        self.exporter = self.crawler.get_extension(DurableFeedExporter)
        self.origins = ResponseOrigins(self.crawler)

    def open(self, *start):
        """Open the spider, with what its `start()` yields; return self."""
        super().open()
        for thing in self.starting(*start):
            if isinstance(thing, dict):
                self.item(thing)
        return self

    def send(self, signal, **arguments):
        """Send a signal, and wait for its handlers."""
        send = self.crawler.signals.send_catch_log_async
        waited_for(send(signal, spider=self.spider, **arguments))

    def item(self, item, response=None):
        """An item is through the pipelines."""
        self.send(signals.item_scraped, item=item, response=response)

    def response(self, request):
        """Return the answer to a request, and to one of a middleware, as the engine has it."""
        response = self.origins.process_response(Request("data:,"), Response(request.url))
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
        super().commit()
        reactor.iterate(0)
        reactor.iterate(0)
