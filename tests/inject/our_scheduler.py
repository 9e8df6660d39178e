"""A plugin of pytest: without a JOBDIR, Scrapy's scheduler is DurableScheduler in this process."""

from unittest.mock import Mock

from scrapy.core import scheduler

from scrapy_bloom import DurableScheduler

Scrapys = scheduler.Scheduler


class Scheduler(DurableScheduler):
    """What Scrapy's tests build; with a JOBDIR their dupefilters need Scrapy's."""

    @classmethod
    def from_crawler(cls, crawler):
        engine = crawler._engine if hasattr(crawler, "_engine") else crawler.engine
        if isinstance(engine, Mock):  # it keeps no books
            engine._slot.inprogress = engine.scraper.slot.active = engine.downloader.active = set()
            engine._throttler_waiting = set()
        return (Scrapys if crawler.settings["JOBDIR"] else DurableScheduler).from_crawler(crawler)


scheduler.Scheduler = Scheduler
