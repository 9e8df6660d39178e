"""A project in the style of real ones: a request class, an exporter, a feed storage and a log
formatter of its own."""

from pathlib import Path

from scrapy import Request, Spider
from scrapy.exporters import BaseItemExporter
from scrapy.extensions.feedexport import BlockingFeedStorage
from scrapy.logformatter import LogFormatter


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
        self.file.write(("\t".join(item.values()) + "\n").encode())


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


class MagazineSpider(Spider):
    name = "magazine"
    custom_settings = {  # noqa: RUF012
        "FEED_EXPORTERS": {"tab": TabExporter},
        "FEED_STORAGES": {"folder": FolderStorage},
        "FEEDS": {"folder://pages.tab": {"format": "tab"}, "pages.json": {"format": "json"}},
        "LOG_FORMATTER": ShortLines,
        "LOG_LEVEL": "DEBUG",
    }

    def __init__(self, first):
        self.first = first

    async def start(self):
        yield PageRequest(self.first, rubric="cover")

    def parse(self, response):
        yield {"url": response.url, "rubric": response.request.rubric}
        for link in response.css("a::attr(href)").getall():
            rubric = link.strip("/").partition("/")[0]
            yield PageRequest(response.urljoin(link), rubric=rubric)
