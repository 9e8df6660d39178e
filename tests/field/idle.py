"""A crawl of nothing, for the line at its start."""

from scrapy import Spider


class IdleSpider(Spider):
    name = "idle"
