"""Opened schedulers as in `tests.crawl.engine`, and what Scrapy does with Spider.start()."""

import time

from scrapy import Request, signals
from scrapy.utils.defer import deferred_from_coro
from twisted.internet import reactor

from tests.crawl.engine import Job, unfiltered
from tests.patience import PATIENCE


class RoundJob(Job):
    """A job whose spider opens, starts and closes."""

    def open(self):
        """Open the scheduler, and tell extensions so."""
        super().open()
        self.send(signals.spider_opened)
        return self

    def close(self, reason="finished"):
        """Close the scheduler, and tell extensions so."""
        super().close(reason)
        self.send(signals.spider_closed, reason=reason)

    def send(self, signal, **arguments):
        """Send a signal of Scrapy's."""
        self.crawler.signals.send_catch_log(signal, spider=self.spider, **arguments)

    def start(self, *things, middlewares=()):
        """Consume what Spider.start() yields as the engine does; return what arrives."""
        output = list(self.starting(*things, middlewares=middlewares))
        return [thing.url.rpartition("/")[2] for thing in output if isinstance(thing, Request)]

    def started(self, *names):
        """Consume start requests for pages of these names; return self."""
        self.start(*map(unfiltered, names))
        return self

    def starting(self, *things, middlewares=()):
        """Do the same one by one."""

        async def start():
            for thing in things:
                if isinstance(thing, Exception):
                    raise thing
                yield thing

        output = start()
        for process_start in [*middlewares, *self.engine.scraper.spidermw.methods["process_start"]]:
            output = process_start(output)
        while (thing := waited_for(anext(output, None))) is not None:
            if isinstance(thing, Request):
                self.scheduler.enqueue_request(thing)
            yield thing

    @property
    def round(self):
        """The round that the job is in."""
        return self.scheduler.round


def waited_for(awaitable):
    """Return what comes of an awaitable when the reactor has gone round."""
    results = []

    async def wait():
        return await awaitable

    deferred_from_coro(wait()).addBoth(results.append)
    deadline = time.monotonic() + PATIENCE
    while not results:
        assert time.monotonic() < deadline
        reactor.iterate(0)
    if hasattr(results[0], "raiseException"):
        results[0].raiseException()
    return results[0]
