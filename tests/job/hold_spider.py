"""The spider of crawls with holds, run by `scrapy runspider`."""

import json

import scrapy


class HoldSpider(scrapy.Spider):
    """Asks for pages of several hosts, which are download slots of one site, as `-a pages=` says
    in JSON: {host: how many}. `-a meta=` goes into the meta of each request."""

    name = "holds"

    async def start(self):
        meta = json.loads(getattr(self, "meta", "{}"))
        for host, count in json.loads(self.pages).items():
            for number in range(count):
                own = {} if host == "127.0.0.1" else {"download_slot": host}
                yield scrapy.Request(f"{self.site}/{host}/{number}", meta={**own, **meta})

    def parse(self, response):
        yield {"page": response.url, "status": response.status, "meta": sorted(response.meta)}
