"""The spider of crawls with hosts that do not answer, run by `scrapy runspider`."""

import json

import scrapy

from scrapy_bloom.crawl import hosts


class SilentSpider(scrapy.Spider):
    """Asks for so many pages of each site, `-a pages=` in JSON, which is a download slot of its
    own. `-a rules=` are other values for names of the rules, `-a meta=` is for each request."""

    name = "silent"

    async def start(self):
        for name, value in json.loads(getattr(self, "rules", "{}")).items():
            setattr(hosts, name, value)
        meta = json.loads(getattr(self, "meta", "{}"))
        for site, count in json.loads(self.pages).items():
            slot = {"download_slot": site.rpartition("/")[2]}
            for number in range(count):
                url = f"{site}/{number}"
                yield scrapy.Request(url, meta={**slot, **meta}, errback=self.fails)

    def parse(self, response):
        yield {"page": response.url}

    def fails(self, failure):
        self.crawler.stats.inc_value("silent/errbacks")
        raise failure.value
