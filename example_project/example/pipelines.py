"""Stores items in SQLite before their pages count as done."""

import sqlite3
from typing import Any

from scrapy import signals
from scrapy.crawler import Crawler

from scrapy_bloom.signals import before_commit


class SQLitePipeline:
    """Keeps items, and stores them at each commit of the job, in the file `SQLITE_FILE`.

    After a kill the pages that were in progress are scraped again, so that some items come twice:
    the later one replaces the first.
    """

    def __init__(self, crawler: Crawler) -> None:
        self.path = crawler.settings["SQLITE_FILE"]
        self.items: list[tuple[str, str]] = []
        crawler.signals.connect(self.store, before_commit)
        # not in `close_spider`, which Scrapy calls before the last commit
        crawler.signals.connect(self.spider_closed, signals.spider_closed)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> "SQLitePipeline":
        return cls(crawler)

    def open_spider(self) -> None:
        self.connection = sqlite3.connect(self.path)
        self.connection.execute("CREATE TABLE IF NOT EXISTS pages (url PRIMARY KEY, title)")

    def process_item(self, item: Any) -> Any:
        self.items.append((item["url"], item["title"]))
        return item

    def store(self) -> None:
        with self.connection:  # one transaction
            self.connection.executemany(
                "INSERT INTO pages VALUES (?, ?)"
                " ON CONFLICT (url) DO UPDATE SET title = excluded.title",
                self.items,
            )
        self.items.clear()

    def spider_closed(self) -> None:
        # without JOBDIR nothing is committed: this stores all of it
        self.store()
        self.connection.close()
