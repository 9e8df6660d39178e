"""Closes the spider when the filter is full (BLOOM_ON_FULL)."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from .settings import Setting, Values, in_words

if TYPE_CHECKING:
    from scrapy.crawler import Crawler

    from .dupefilter import FilterDupeFilter

logger = logging.getLogger(__name__)

WAYS = "grow", "close"
ON_FULL = Setting(
    "BLOOM_ON_FULL",
    "grow",
    Values(in_words(WAYS), str, WAYS.__contains__),
    "What happens at `BLOOM_CAPACITY`",
)


def check(crawler: Crawler) -> None:
    """Raise ValueError for a bad setting."""
    ON_FULL.read(crawler.settings)


def attach(df: FilterDupeFilter) -> None:
    """Have `df` close the spider at BLOOM_CAPACITY, and not let the filter grow, if that is
    wanted."""
    if ON_FULL.read(df.crawler.settings) == "grow":
        return
    capacity = df._settings.capacity

    def close_if_full() -> None:
        if df._closing or df._seen is None or len(df.filter) < capacity:
            return
        logger.error(
            "The filter holds the %(capacity)d requests of BLOOM_CAPACITY: closing the spider"
            " (BLOOM_ON_FULL is 'close'). Set BLOOM_ON_FULL to 'grow', or for a job a larger"
            " BLOOM_CAPACITY, to go on.",
            {"capacity": capacity},
            extra={"spider": df.crawler.spider},
        )
        df.filter.growing = None
        df.close_spider("bloom_full")

    if len(df.filter) >= capacity:
        df.filter.growing = None
    df.watches_each_new = True
    vars(df)["close_if_full"] = close_if_full
