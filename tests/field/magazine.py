"""A project in the style of real ones: rules, images, rows that are stored many at once, and a
request class, an exporter, a feed storage and a log formatter of its own."""

import sqlite3
from pathlib import Path

from scrapy import Request, signals
from scrapy.exporters import BaseItemExporter
from scrapy.extensions.feedexport import BlockingFeedStorage
from scrapy.linkextractors import LinkExtractor
from scrapy.logformatter import LogFormatter
from scrapy.spiders import CrawlSpider, Rule

from scrapy_bloom.signals import before_commit


class PageRequest(Request):
    """A request that knows in which rubric its page stands."""

    attributes = (*Request.attributes, "rubric")

    def __init__(self, *args, rubric="none", **options):
        self.rubric = rubric
        super().__init__(*args, **options)


class TabExporter(BaseItemExporter):
    def __init__(self, file, **options):
        super().__init__(dont_fail=True, **options)
        self.file = file

    def export_item(self, item):
        self.file.write(f"{item['url']}\t{item['rubric']}\n".encode())


class FolderStorage(BlockingFeedStorage):
    """Appends what it gets to the file that the URI names."""

    def __init__(self, uri, *, feed_options=None):
        self.path = Path(uri.partition("://")[2])

    def _store_in_thread(self, file):
        file.seek(0)
        with self.path.open("ab") as target:
            target.write(file.read())
        file.close()


class ShortLines(LogFormatter):
    def crawled(self, request, response, spider):
        return {**super().crawled(request, response, spider), "msg": "got %(request)s"}

    def dropped(self, item, exception, response, spider):
        return None


class SQLPipeline:
    """Stores pages in pages.sqlite: before each commit, and at the end."""

    def __init__(self, crawler):
        self.rows = []
        crawler.signals.connect(self.flush, before_commit)
        crawler.signals.connect(self.spider_closed, signals.spider_closed)

    @classmethod
    def from_crawler(cls, crawler):
        return cls(crawler)

    def open_spider(self):
        self.connection = sqlite3.connect("pages.sqlite")
        self.connection.execute("CREATE TABLE IF NOT EXISTS pages (url PRIMARY KEY, image)")

    def process_item(self, item):
        (image,) = item["images"]
        self.rows.append((item["url"], image["checksum"]))
        return item

    def flush(self):
        with self.connection:
            self.connection.executemany("INSERT OR REPLACE INTO pages VALUES (?, ?)", self.rows)
        self.rows.clear()

    def spider_closed(self):
        self.flush()
        self.connection.close()


class MagazineSpider(CrawlSpider):
    name = "magazine"
    rules = (
        Rule(LinkExtractor(allow=r"/list/"), process_request="with_rubric"),
        Rule(LinkExtractor(allow=r"/page/"), "parse_page", None, True, None, "with_rubric"),
    )
    custom_settings = {  # noqa: RUF012
        "FEED_EXPORTERS": {"tab": TabExporter},
        "FEED_STORAGES": {"folder": FolderStorage},
        "FEEDS": {
            "folder://pages.tab": {"format": "tab"},
            "pages.json": {"format": "json", "fields": ["url", "rubric"]},
            "pages.csv": {"format": "csv", "fields": ["url", "rubric"]},
        },
        "IMAGES_STORE": "images",
        "ITEM_PIPELINES": {"scrapy.pipelines.images.ImagesPipeline": 1, SQLPipeline: 300},
        "LOG_FORMATTER": ShortLines,
        "LOG_LEVEL": "DEBUG",
    }

    def __init__(self, first):
        super().__init__(start_urls=[first])

    def with_rubric(self, request, response):
        rubric = request.url.split("/")[-2]
        return request.replace(cls=PageRequest, rubric=rubric)

    def parse_page(self, response):
        image = response.urljoin(response.css("img::attr(src)").get())
        yield {"url": response.url, "rubric": response.request.rubric, "image_urls": [image]}
