"""Ways to break the scheduler, each of which the kill tests must notice."""

import os

from scrapy.core import scraper

from scrapy_bloom import dupefilter
from scrapy_bloom.bloom import file as storage
from scrapy_bloom.durable import scheduler
from tests.durable.points import Proxy

MUTANTS = {}


def mutant(function):
    """Make a function that breaks something a mutant of its name."""
    MUTANTS[function.__name__] = function
    return function


@mutant
def mark_before_commit():
    """The filter learns of a request as soon as it is seen."""
    dupefilter.BloomDupeFilter.hold_back = lambda self: None


@mutant
def delete_on_pop():
    """A row goes when its request is handed out."""
    start = scheduler.InFlight.start

    def start_and_delete(self, request, row=None):
        start(self, request, None)
        if row is not None:
            self.file.delete(row)

    opened = scheduler.DurableScheduler._recover

    def recover(self, file):
        self._in_flight.file = file
        opened(self, file)

    scheduler.InFlight.start = start_and_delete
    scheduler.DurableScheduler._recover = recover


@mutant
def acknowledge_at_the_end_of_the_callback():
    """A request counts as done when its callback's generator ends, as a spider
    middleware would see it."""
    call_spider = scraper.Scraper.call_spider_async

    def end(self, request):
        durable = self.crawler.engine._slot.scheduler
        for job in durable._in_flight.finish(request):
            if job.row is not None:
                durable._file.delete(job.row)
        durable._commit()

    def watch(self, output, request):
        yield from output
        end(self, request)

    async def watch_later(self, output, request):
        async for thing in output:
            yield thing
        end(self, request)

    async def call(self, result, request):
        output = await call_spider(self, result, request)
        watched = watch_later if hasattr(output, "__aiter__") else watch
        return watched(self, output, request)

    scraper.Scraper.call_spider_async = call


@mutant
def header_not_synced():
    """A new file of the filter is not synced before its bits are set."""

    def fsync(descriptor):
        if os.path.isdir(f"/proc/self/fd/{descriptor}"):
            os.fsync(descriptor)

    storage.os = Proxy(os, fsync=fsync)
