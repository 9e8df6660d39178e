"""Workers of one crawl whose spider handles spider_idle, all in this process, which prints as JSON
what was fetched and why each has closed: `python -m tests.redis.fed_crawl URL KEY HOW…`."""

import json
import os
import signal
import sys

from scrapy import Request, Spider, signals
from scrapy.crawler import CrawlerProcess
from scrapy.exceptions import CloseSpider, DontCloseSpider
from scrapy.http import TextResponse

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

    def own_reason(self):
        """Have nothing else."""
        raise CloseSpider("own reason")

    def feed(self):
        """Have another page, once."""
        if "fed" in FETCHED:
            raise CloseSpider("own reason")
        self.crawler.engine.crawl(Request("http://example.com/fed"))
        raise DontCloseSpider

    def wait(self):
        """Have something later."""
        raise DontCloseSpider

    def interrupt(self):
        """Have something later, before which Ctrl-C comes."""
        os.kill(os.getpid(), signal.SIGINT)
        raise DontCloseSpider

    def stop(self):
        """Have something later, before which an extension closes the spider."""
        self.crawler.engine.close_spider(self, "closespider_timeout")
        raise DontCloseSpider


def main():
    url, key, *all_how = sys.argv[1:]
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
    print(json.dumps({"fetched": sorted(FETCHED), "reasons": reasons}))


if __name__ == "__main__":
    main()
