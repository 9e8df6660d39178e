"""The tests of the delta store."""

from scrapy.utils.test import get_crawler

from scrapy_bloom.delta.middleware import DeltaMiddleware


def started(middleware=DeltaMiddleware, **settings):
    """Return what Scrapy makes of a middleware at the start of a crawl with these settings."""
    crawler = get_crawler(settings_dict=settings)
    crawler.spider = crawler.spidercls.from_crawler(crawler, "spider")
    return middleware.from_crawler(crawler)
