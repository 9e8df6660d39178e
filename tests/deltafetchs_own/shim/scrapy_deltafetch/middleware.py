"""What scrapy-deltafetch's tests ask of its middleware, answered by the delta store."""

import time
from pathlib import Path
from types import SimpleNamespace

from scrapy import Request, Spider
from scrapy.exceptions import NotConfigured
from scrapy.settings import Settings
from scrapy.utils.test import get_crawler

from scrapy_bloom.delta.file_store import FileDeltaStore
from scrapy_bloom.delta.importing import DeltafetchFile, is_deltafetchs
from scrapy_bloom.delta.marks import Marks, Temporary
from scrapy_bloom.delta.pages import Pages
from scrapy_bloom.delta.settings import DeltaSettings, Lifetime
from scrapy_bloom.delta.skipping import Skipping
from tests.fakes import Engine


class DeltaFetch:
    """The names are deltafetch's; what is skipped, and under which key, is decided by ours."""

    def __init__(self, dir, reset=False, stats=None):  # noqa: A002 - deltafetch's
        self.dir, self.reset, self.stats = dir, reset, stats
        self.crawler = get_crawler(Spider)
        self.crawler.engine = Engine()
        self.crawler.spider = Spider("tests")

    @classmethod
    def from_crawler(cls, crawler):
        if not crawler.settings.getbool("DELTAFETCH_ENABLED"):
            raise NotConfigured
        given = {
            "BLOOM_DELTA": "item",
            "BLOOM_DELTA_DIR": str(crawler.settings.get("DELTAFETCH_DIR", "deltafetch")),
            "BLOOM_DELTA_RESET": crawler.settings.getbool("DELTAFETCH_RESET"),
        }
        settings = DeltaSettings.read(Settings(given), "tests")
        self = cls(str(settings.directory), settings.reset)
        self.stats = self.stats or crawler.stats
        return self

    def spider_opened(self, spider):
        memory = FileDeltaStore(Path(self.dir) / f"{spider.name}.memory", Lifetime())
        if self.reset or getattr(spider, "deltafetch_reset", False):
            memory.clear()
        elif is_deltafetchs(path := Path(self.dir) / f"{spider.name}.db"):
            memory.clear()
            memory.add(DeltafetchFile(path, time.time()).marks.items())
        memory.open()
        marks = Marks(Temporary())
        self.pages = Pages(self.crawler, marks, DeltaSettings(mode="item"), memory)
        self.skipping = Skipping(self.crawler, self.pages, 0)
        self.db = SimpleNamespace(keys=lambda: [row.key for row in marks])

    def spider_closed(self, spider):
        del self.db

    def process_spider_output(self, response, result, spider):
        for thing in result:
            if isinstance(thing, Request):
                if self.skipping.is_done(thing, response):
                    self.stats.inc_value("deltafetch/skipped")
                    continue
            else:
                outcome = self.pages.begin(response.request)
                outcome.is_complete, outcome.items = True, 1
                self.pages.done(response.request)
                self.stats.inc_value("deltafetch/stored")
            yield thing

    def _get_key(self, request):
        return self.pages.key_of(request)
