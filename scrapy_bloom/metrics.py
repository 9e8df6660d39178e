"""The stats of a crawl for Prometheus, over HTTP from this process (BLOOM_METRICS)."""

from __future__ import annotations

import re
import socket
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any

from scrapy import signals

from .errors import BloomError, encodable
from .settings import OFF, Setting, Values, require
from .startup import announce, fetches_one_page

if TYPE_CHECKING:
    from collections.abc import Iterator

    from scrapy.crawler import Crawler

    from .dupefilter import FilterDupeFilter


def _address(value: Any) -> tuple[str, range] | None:
    """Return host and ports of `9410`, `"9410-9419"` or `"0.0.0.0:9410"`, None for off."""
    if value in OFF:
        return None
    host, _, ports = str(value).rpartition(":")
    first, dash, last = ports.partition("-")
    found = range(int(first), int(last if dash else first) + 1)
    require(":" not in host and len(found) > 0 and found[0] > 0 and found[-1] < 65_536)
    return host or "127.0.0.1", found


METRICS: Setting[tuple[str, range] | None] = Setting(
    "BLOOM_METRICS",
    None,
    Values("a port such as 9410, or a range '9410-9419', also after an address and ':'", _address),
    "The port at which Prometheus reads the stats",
)
COUNTERS = re.compile(
    r"(bloom|downloader|dupefilter|httpcache|httpcompression|offsite|robotstxt|scheduler"
    r"|spider_exceptions)/|.*/max_reached$"
)
"""Beginnings of stats that only grow in a process, but for GAUGES. So do those with `count`."""
GAUGES = re.compile(
    r"bloom/(items|layers|.*bytes|fill_ratio|error_rate|expected_false_positives|.*_days)"
    r"|scheduler/(pending|later|in_flight|failed|capped|commit_seconds_max|bytes)"
)
FROM_ZERO: tuple[str, ...] = ("response_received_count", "item_scraped_count", "item_dropped_count")
FROM_ZERO += ("retry/count", "downloader/exception_count", "dupefilter/filtered", "log_count/ERROR")
"""Stats that are there from the start: Prometheus sees no increase from nothing to 1."""


def check(crawler: Crawler) -> None:
    """Raise ValueError for a bad setting, BloomError without the client library."""
    if METRICS.read(crawler.settings) is not None:
        try:
            import_module("prometheus_client")
        except ImportError:
            raise BloomError("BLOOM_METRICS needs pip install 'scrapy-bloom[metrics]'") from None


def attach(dupefilter: FilterDupeFilter) -> None:
    """Serve the stats of the crawl of `dupefilter`, if that is wanted, until it closes."""
    crawler = dupefilter.crawler
    address = METRICS.read(crawler.settings)
    if address is not None and not fetches_one_page(crawler):
        shared = getattr(dupefilter, "shared", None)  # in Redis
        crawl = crawler.settings.get("JOBDIR") or "" if shared is None else shared.key.strip("{}")
        spider = getattr(crawler.spider, "name", "")
        labels = {"spider": encodable(str(spider)), "crawl": encodable(str(crawl))}
        dupefilter._metrics = metrics = Metrics(crawler, *address, labels)
        crawler.signals.connect(metrics.open, signals.spider_opened)


class Metrics:
    """Answers from a thread, so also while the reactor waits for a disk or for Redis."""

    def __init__(self, crawler: Crawler, host: str, ports: range, labels: dict[str, str]) -> None:
        self._crawler, self._host, self._ports, self._labels = crawler, host, ports, labels
        self._client: Any = import_module("prometheus_client")
        self._server: Any = None

    def open(self) -> None:
        """Serve at the first free port; if there is none, log that, and let the crawl go on."""
        registry = self._client.CollectorRegistry()
        registry.register(self)
        self._client.ProcessCollector(registry=registry)
        told = "", ""
        for port in self._ports:
            place = f"{self._host}:{port}"
            try:
                socket.create_server((self._host, port)).close()  # the one below may share a port
                self._server, _ = self._client.start_http_server(port, self._host, registry)
                told = f"http://{place}/metrics", ""
                break
            except OSError as error:
                remedy = "give BLOOM_METRICS a free port, or a range such as '9410-9419'"
                told = f"off, {place}: {error.strerror}", remedy
        announce(self._crawler, "metrics", *told)

    def collect(self) -> Iterator[Any]:
        """Yield a metric for each stat that is a number; of `a_count/b`, `b` is a label."""
        found: dict[tuple[str, str], dict[str, float]] = {}
        stats = {**dict.fromkeys(FROM_ZERO, 0), **self._crawler.stats.get_stats()}
        for key, value in stats.items():
            stat = encodable(str(key))
            if isinstance(value, (int, float)) and not stat.startswith("scheduler/capped/"):
                name, count, of = re.split(r"[_/](count)(?:/|$)|$", stat, maxsplit=1)
                grows = count or (COUNTERS.match(stat) and not GAUGES.fullmatch(stat))
                name = "scrapy_" + re.sub(r"\W+", "_", name, flags=re.ASCII)
                with suppress(OverflowError):  # no other stat is hidden by it
                    found.setdefault((name, "counter" if grows else "gauge"), {})[of] = float(value)
        for (name, kind), values in found.items():
            metric = self._client.Metric(name, "a stat of the crawl", kind)
            for of, number in values.items():
                labels = {**self._labels, "of": of} if of else self._labels
                metric.add_sample(name + "_total" * (kind == "counter"), labels, number)
            yield metric

    def close(self) -> None:
        """Close the port."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
