"""The spider that crawls the small site, run by `scrapy runspider`."""

import os

import scrapy

if "FILE_SIZE_LIMIT" in os.environ:
    import resource

    limit = int(os.environ["FILE_SIZE_LIMIT"])
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))


class SmallSpider(scrapy.Spider):
    """Follows every link."""

    name = "small"

    async def start(self):
        yield scrapy.Request(self.first)

    def parse(self, response):
        yield {"page": f"{response.request.method} {response.url} {response.request.body.decode()}"}
        for method, url, body in response.json():
            yield response.follow(url, method=method, body=body)
