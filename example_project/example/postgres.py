"""A pipeline for PostgreSQL in which each item is one row, however often its page is scraped:

CREATE TABLE books (url text PRIMARY KEY, title text NOT NULL);
"""

import psycopg
from scrapy import signals

from scrapy_bloom.signals import before_commit


class PostgresPipeline:
    """Stores items in the database of POSTGRES_URL, before their pages count as done."""

    def __init__(self, crawler):
        self.url = crawler.settings["POSTGRES_URL"]
        self.titles = {}
        crawler.signals.connect(self.store, before_commit)
        # not in `close_spider`, which Scrapy calls before the last commit
        crawler.signals.connect(self.spider_closed, signals.spider_closed)

    @classmethod
    def from_crawler(cls, crawler):
        return cls(crawler)

    def open_spider(self):
        self.connection = psycopg.connect(self.url, autocommit=True)

    def process_item(self, item):
        self.titles[item["url"]] = item["title"]
        return item

    def store(self):
        if self.titles:
            with self.connection.transaction(), self.connection.cursor() as cursor:
                cursor.executemany(
                    "INSERT INTO books VALUES (%s, %s)"
                    " ON CONFLICT (url) DO UPDATE SET title = excluded.title",
                    sorted(self.titles.items()),  # so that two workers do not block each other
                )
            self.titles.clear()

    def spider_closed(self):
        self.store()
        self.connection.close()
