"""The spider of crawls of hosts that refuse requests or do not answer, for `scrapy runspider`."""

import json

import scrapy

from scrapy_bloom.crawl import hosts


class WaitingSpider(scrapy.Spider):
    """Asks for pages as `-a pages=` says in JSON, {name: how many}: of download slots of one
    `-a site=` or of sites. `-a rules=` are other values of rules, `-a meta=` is of all requests."""

    name = "waiting"
    site, rules, meta = "", "{}", "{}"

    async def start(self):
        for name, value in json.loads(self.rules).items():
            setattr(hosts, name, value)
        for name, count in json.loads(self.pages).items():
            meta = {"download_slot": name.rpartition("/")[2], **json.loads(self.meta)}
            for number in range(count):
                url = f"{self.site}/{name}/{number}" if self.site else f"{name}/{number}"
                yield scrapy.Request(url, meta=meta, errback=self.fails)

    def parse(self, response):
        yield {"page": response.url}

    def fails(self, failure):
        self.crawler.stats.inc_value("waiting/errbacks")
        raise failure.value
