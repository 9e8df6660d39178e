"""When a crawl ends whose spider has a handler of spider_idle. Run as a module, this file crawls:
workers for each way to be idle, in one process."""

import json
import os
import signal
import sys

import pytest
from scrapy import Request, Spider, signals
from scrapy.crawler import CrawlerProcess
from scrapy.exceptions import CloseSpider, DontCloseSpider
from scrapy.http import TextResponse

from scrapy_bloom.redis.client import RedisClient
from scrapy_bloom.redis.layout import in_one_slot
from scrapy_bloom.redis.status import CrawlReader
from tests.processes import PACKAGE, run

FETCHED = []


class Answer:
    """Answers without a network."""

    def process_request(self, request, spider=None):
        FETCHED.append(request.url.rpartition("/")[2])
        return TextResponse(request.url, request=request)


class FedSpider(Spider):
    """Has one page, and a handler that does what `how` says when nothing is left."""

    name = "fed"

    @classmethod
    def from_crawler(cls, crawler, how):
        spider = super().from_crawler(crawler)
        crawler.signals.connect(getattr(spider, how), signals.spider_idle)
        return spider

    async def start(self):
        yield Request("http://example.com/start", dont_filter=True)

    def parse(self, response):
        pass

    def feed(self):
        if "fed" in FETCHED:
            raise CloseSpider("own reason")
        self.crawler.engine.crawl(Request("http://example.com/fed"))
        raise DontCloseSpider

    def wait(self):
        raise DontCloseSpider

    def interrupt(self):
        """Have something later, before which Ctrl-C comes."""
        os.kill(os.getpid(), signal.SIGINT)
        raise DontCloseSpider

    def stop(self):
        """Have something later, before which an extension closes the spider."""
        self.crawler.engine.close_spider(self, "closespider_timeout")
        raise DontCloseSpider


@pytest.mark.parametrize(
    ("how", "reason"), [("interrupt wait", "shutdown"), ("stop stop", "closespider_timeout")]
)
def test_a_worker_that_something_else_closes_does_not_end_the_crawl(redis_server, key, how, reason):
    """Takes as long as three processes do: nothing is left but what the handler would give, which
    the next start gets from it. One that closes for its own reason ends the crawl, also where
    something else closes another worker."""

    def crawl(how):
        module = ["-m", "tests.redis.test_idle", redis_server.url, key, *how.split()]
        done = run(module, cwd=PACKAGE, text=True)
        assert "Traceback" not in done.stderr, done.stderr
        with RedisClient(redis_server.url) as client:
            state = CrawlReader(client, in_one_slot(key)).look().state
        return json.loads(done.stdout), state

    assert crawl(how) == ([["start"], [reason] * 2], "at rest")
    reasons = ["own reason", "closespider_timeout"]
    assert crawl("feed stop") == ([["fed"], reasons], "finished")
    assert crawl("feed") == ([[], ["bloom_over"]], "finished")


def crawl(url, key, *all_how):
    """Crawl, and print what was fetched, and why each worker has closed."""
    settings = {
        "ADDONS": {"scrapy_bloom.Addon": 300},
        "BLOOM_CAPACITY": 1000,
        "BLOOM_REDIS_URL": url,
        "BLOOM_REDIS_KEY": key,
        "DOWNLOADER_MIDDLEWARES": {Answer: 1},
        "TELNETCONSOLE_ENABLED": False,
        "LOG_LEVEL": "WARNING",
    }
    process = CrawlerProcess(settings)
    crawlers = [process.create_crawler(FedSpider) for _ in all_how]
    for crawler, how in zip(crawlers, all_how, strict=True):
        process.crawl(crawler, how)
    process.start()
    reasons = [crawler.stats.get_value("finish_reason") for crawler in crawlers]
    print(json.dumps([sorted(FETCHED), reasons]))


if __name__ == "__main__":
    crawl(*sys.argv[1:])
