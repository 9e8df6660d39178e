"""The spider of crawls with holds, run by `scrapy runspider`."""

import json
import math

import scrapy


class HoldSpider(scrapy.Spider):
    """Asks for pages of several hosts, which are download slots of one site, as `-a pages=` says
    in JSON: {host: how many}. `-a meta=` goes into the meta of each request, `-a held=` is held
    until a release."""

    name = "holds"

    async def start(self):
        meta = json.loads(getattr(self, "meta", "{}"))
        if held := getattr(self, "held", ""):
            self.crawler.engine._slot.scheduler.hold(held, math.inf, 0)
        for host, count in json.loads(self.pages).items():
            for number in range(count):
                own = {} if host == "127.0.0.1" else {"download_slot": host}
                yield scrapy.Request(f"{self.site}/{host}/{number}", meta={**own, **meta})

    def parse(self, response):
        yield {"page": response.url, "status": response.status, "meta": sorted(response.meta)}
