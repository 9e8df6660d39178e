"""Schedulers built as Scrapy builds them, on an engine that only keeps its books."""

import sqlite3
from contextlib import closing
from enum import Enum

from scrapy import Request, Spider
from scrapy.utils.misc import build_from_crawler, load_object
from scrapy.utils.test import get_crawler

from tests.fakes import Engine

DURABLE = "scrapy_bloom.DurableScheduler"
STOCK = "scrapy.core.scheduler.Scheduler"


class Slot(str, Enum):
    """Download slots with names, as projects have them."""

    EXAMPLE = "example.com"


class TestSpider(Spider):
    """Has a callback, to be found again by name."""

    __test__ = False
    name = "test"

    def parse(self, response):
        pass

    def parse_other(self, response):
        pass


class OtherSpider(TestSpider):
    """Has another name."""

    name = "other"


class ChangedSpider(TestSpider):
    """Has lost a callback."""

    def __getattribute__(self, name):
        if name == "parse_other":
            raise AttributeError(name)
        return super().__getattribute__(name)


class Job:
    """An opened scheduler and what goes with it."""

    def __init__(self, folder, scheduler=DURABLE, spider=TestSpider, **settings):
        settings = {
            "DUPEFILTER_CLASS": "scrapy_bloom.BloomDupeFilter",
            "BLOOM_CAPACITY": 1000,
            "JOBDIR": folder and str(folder),
            **settings,
        }
        self.crawler = get_crawler(spider, settings_dict=settings)
        self.crawler.engine = self.engine = Engine()
        self.engine.scraper.logformatter = self.crawler.logformatter
        self.crawler.spider = self.spider = spider.from_crawler(self.crawler)
        self.scheduler = None
        self._scheduler_class = load_object(scheduler)

    def open(self):
        self.scheduler = build_from_crawler(self._scheduler_class, self.crawler)
        if hasattr(self.engine._slot, "scheduler"):
            self.engine._slot.scheduler = self.scheduler
        self.scheduler.open(self.spider)
        return self

    def push(self, name, **options):
        return self.scheduler.enqueue_request(request(name, **options))

    def pushed(self, *names, **options):
        for name in names:
            self.push(name, **options)
        return self

    def pop(self):
        """Return the next request, which is then in progress."""
        popped = self.scheduler.next_request()
        if popped is not None:
            self.engine._slot.inprogress.add(popped)
        return popped

    def done(self, popped):
        self.engine._slot.inprogress.discard(popped)

    def names(self):
        """Pop all there is, in its order, and be done with it."""
        names = []
        while (popped := self.pop_any()) is not None:
            names.append(name_of(popped))
            self.done(popped)
        return names

    def pop_any(self):
        """Return the next request, past None for slots with nothing but what cannot be stored."""
        for _ in range(10):
            if (popped := self.pop()) is not None or not len(self.scheduler):
                return popped
        return None

    def commit(self):
        self.scheduler.ledger.commit()

    def close(self, reason="finished"):
        self.scheduler.close(reason)

    def finish(self, reason="finished"):
        """Crawl all there is, and close; return the names of the pages."""
        names = self.names()
        self.close(reason)
        return names

    def drop(self):
        """Release everything, as a process that is killed does."""
        if self.scheduler is None:
            return
        for name in ("_alarm", "_next_look"):
            if (alarm := getattr(self.scheduler, name, None)) is not None:
                alarm.cancel()
        ledger = getattr(self.scheduler, "ledger", None)
        if ledger is not None:
            ledger._alarm.cancel()
            ledger.store._file._connection.close()
        if hasattr(self.scheduler.df, "abandon"):
            self.scheduler.df.abandon()

    def stat(self, name):
        return self.crawler.stats.get_value(name)


def query(path, statement, *values):
    """Return what a statement gives, or changes, in a job's file or folder for another program."""
    path = path / "requests.sqlite" if path.is_dir() else path
    with closing(sqlite3.connect(path)) as connection, connection:
        return connection.execute(statement, values).fetchall()


def request(name, **options):
    return Request(f"http://example.com/{name}", **options)


def unfiltered(name, **options):
    return request(name, dont_filter=True, **options)


def unserializable(name, **options):
    """Return a request that can only be kept in memory."""
    return request(name, meta={"function": lambda: None}, **options)


def name_of(popped):
    return popped.url.rpartition("/")[2]
