"""Serves the embedded site inside the crawl, and hands the crawl's stats to whoever started it."""

import json
from pathlib import Path
from typing import Any

from scrapy import signals
from scrapy.crawler import Crawler
from scrapy.exceptions import NotConfigured
from scrapy.spiders import Spider
from scrapy.utils.asyncio import create_looping_call
from scrapy.utils.job import job_dir

from example.site import HOST, listen, write_whole


class EmbeddedSite:
    """Serves the site on the crawl's own reactor for a spider that was given no other.

    The first run of a job takes a free port and notes it in the job directory, because the
    queued requests of the job name it. A port that is taken stops the crawl before it opens.
    """

    def __init__(self, listener: Any) -> None:
        self.listener = listener

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> "EmbeddedSite":
        spider: Any = crawler.spider
        # Other spiders know no start_url, and the Scrapy shell has no spider at this point.
        if getattr(spider, "start_url", "") is not None:
            raise NotConfigured
        if not crawler.settings.getbool("TWISTED_REACTOR_ENABLED", True):
            raise ValueError(
                "TWISTED_REACTOR_ENABLED=False leaves nothing to serve the embedded site with:"
                " set it to True, or name another site with -a start=URL"
            )
        folder = job_dir(crawler.settings)
        note = Path(folder, "site.port") if folder else None
        listener = listen(int(note.read_text(encoding="utf-8")) if note and note.exists() else 0)
        port = listener.getHost().port
        if note:
            write_whole(note, str(port))
        spider.start_url = f"http://{HOST}:{port}/"
        extension = cls(listener)
        crawler.signals.connect(extension.spider_closed, signals.spider_closed)
        return extension

    def spider_closed(self) -> None:
        self.listener.stopListening()


class StatsFile:
    """Writes the stats as JSON to the file `STATS_FILE`, while the crawl runs and at its end."""

    def __init__(self, crawler: Crawler, path: Path) -> None:
        self.crawler = crawler
        self.path = path
        self.loop = create_looping_call(self.write)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> "StatsFile":
        path = crawler.settings.get("STATS_FILE")
        if not path:
            raise NotConfigured
        extension = cls(crawler, Path(path))
        crawler.signals.connect(extension.spider_opened, signals.spider_opened)
        crawler.signals.connect(extension.spider_closed, signals.spider_closed)
        return extension

    def spider_opened(self) -> None:
        self.loop.start(0.25)

    def spider_closed(self, spider: Spider, reason: str) -> None:
        if self.loop.running:
            self.loop.stop()
        self.write(reason)

    def write(self, reason: str | None = None) -> None:
        assert self.crawler.stats is not None
        stats = {**self.crawler.stats.get_stats(), "finish_reason": reason}
        write_whole(self.path, json.dumps(stats, default=str, sort_keys=True))
