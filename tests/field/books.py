"""A project in the style of real ones: rules, images, and rows that are stored many at once."""

import sqlite3

from scrapy import signals
from scrapy.linkextractors import LinkExtractor
from scrapy.spiders import CrawlSpider, Rule

from scrapy_bloom.signals import before_commit


class SQLPipeline:
    """Stores books in books.sqlite: before each commit, and at the end."""

    def __init__(self, crawler):
        self.rows = []
        crawler.signals.connect(self.flush, before_commit)
        crawler.signals.connect(self.spider_closed, signals.spider_closed)

    @classmethod
    def from_crawler(cls, crawler):
        return cls(crawler)

    def open_spider(self):
        self.connection = sqlite3.connect("books.sqlite")
        self.connection.execute("CREATE TABLE IF NOT EXISTS books (url PRIMARY KEY, title, image)")

    def process_item(self, item):
        (image,) = item["images"]
        self.rows.append((item["url"], item["title"], image["checksum"]))
        return item

    def flush(self):
        with self.connection:
            self.connection.executemany("INSERT OR REPLACE INTO books VALUES (?, ?, ?)", self.rows)
        self.rows.clear()

    def spider_closed(self):
        self.flush()
        self.connection.close()


class BooksSpider(CrawlSpider):
    name = "books"
    rules = (
        Rule(LinkExtractor(allow=r"/list/")),
        Rule(LinkExtractor(allow=r"/book/"), callback="parse_book", follow=True),
    )
    custom_settings = {  # noqa: RUF012
        "ITEM_PIPELINES": {
            "scrapy.pipelines.images.ImagesPipeline": 1,
            SQLPipeline: 300,
        },
        "IMAGES_STORE": "images",
        "FEEDS": {"books.csv": {"format": "csv", "fields": ["url", "title"]}},
    }

    def __init__(self, first):
        super().__init__(start_urls=[first])

    def parse_book(self, response):
        yield {
            "url": response.url,
            "title": response.css("h1::text").get(),
            "image_urls": [response.urljoin(response.css("img::attr(src)").get())],
        }
