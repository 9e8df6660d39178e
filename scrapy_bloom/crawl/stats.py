"""The figures of a crawl that go into its stats, and where others can read them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scrapy.crawler import Crawler

    from .ledger import Ledger

COUNTED = {
    "pages": "response_received_count",
    "items": "item_scraped_count",
    "duplicates": "dupefilter/filtered",
    "retries": "retry/count",
}
"""Figures that are stats of other components, in the order in which workers send them to Redis."""


def counts_of(crawler: Crawler) -> dict[str, int]:
    """Return the figures in COUNTED, from the stats of `crawler`."""
    return {name: crawler.stats.get_value(stat, 0) for name, stat in COUNTED.items()}


def set_stats(
    crawler: Crawler, ledger: Ledger, pending: int, *, in_commit: bool = False, slowest: float = 0.0
) -> dict[str, float]:
    """Set the stats that alerts are made of, and return them by their last names. `in_commit`
    counts the present commit; `slowest` is the longest call of a worker (seconds)."""
    values = {
        "pending": pending,
        "in_flight": ledger.in_flight,
        "failed": ledger.store.failed,
        "later": ledger.store.later,
        "commits": ledger.commits + in_commit,
        "commit_seconds_max": round(max(slowest, ledger.slowest_commit), 6),
        "bytes": ledger.store.nbytes,
    }
    for name, value in values.items():
        crawler.stats.set_value(f"scheduler/{name}", value)
    return values
