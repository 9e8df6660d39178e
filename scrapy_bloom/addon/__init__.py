"""Sets the components of a crawl from one line in ADDONS."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from scrapy import signals
from scrapy.extensions.feedexport import FeedExporter
from scrapy.settings import SETTINGS_PRIORITIES
from scrapy.utils.python import global_object_name

from ..crawl.holds import HoldMiddleware
from ..crawl.origins import AT_THE_ENGINES_END, ResponseOrigins
from ..crawl.settings import DURABLE, DURABLE_FEEDS, wants_delta
from ..early.middleware import DropEarlyMiddleware
from ..jobdir import feeds_of
from ..startup import fetches_one_page, is_component, is_shell, refuse

if TYPE_CHECKING:
    from scrapy import Spider
    from scrapy.crawler import Crawler
    from scrapy.settings import BaseSettings
    from typing_extensions import Self

_PRIORITY = SETTINGS_PRIORITIES["addon"]
OURS = "scrapy_bloom.DurableFeedExporter"
"""The feed exporter for EXTENSIONS."""


class Addon:
    """Add-on for `ADDONS = {"scrapy_bloom.Addon": 300}`.

    A setting that the project or a Scrapy command has set stays as it is, apart from JOBDIR in the
    shell, which is removed.
    """

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Return the add-on of `crawler`, which logs what is off, or refuse a bad setting."""
        try:
            _ = DURABLE.read(crawler.settings), DURABLE_FEEDS.read(crawler.settings)
        except ValueError as error:
            refuse(crawler, error)
        self = cls()
        crawler.signals.connect(self._spider_opened, signals.spider_opened)
        return self

    def update_settings(self, settings: BaseSettings) -> None:
        """Set the components, unless the project has set them.

        DurableFeedExporter replaces Scrapy's exporter where a page counts as failed when a feed
        refuses its item: in a job, in a crawl in Redis, and with BLOOM_DELTA.
        """
        if is_shell(settings):
            # Scrapy's scheduler would write the shell's requests into the job
            settings.set("JOBDIR", None, max(settings.getpriority("JOBDIR") or 0, _PRIORITY))
        is_free = settings.getpriority("DUPEFILTER_CLASS") == 0
        shares = is_free and (
            bool(settings.get("BLOOM_REDIS_URL"))
            or is_component(settings.get("SCHEDULER"), "RedisDurableScheduler")
        )
        prefix = f"scrapy_bloom.{'Redis' * shares}"
        if is_free:
            settings.set("DUPEFILTER_CLASS", f"{prefix}BloomDupeFilter", "addon")
        is_ours = shares or is_component(settings["DUPEFILTER_CLASS"], "BloomDupeFilter")
        if is_ours and settings.getpriority("SCHEDULER") == 0 and DURABLE.read(settings):
            settings.set("SCHEDULER", f"{prefix}DurableScheduler", "addon")
        add = settings.setdefault_in_component_priority_dict
        if _is_durable(settings):
            add("DOWNLOADER_MIDDLEWARES", HoldMiddleware, HoldMiddleware.order)
        has_durable_job = bool(settings.get("JOBDIR")) and _is_durable(settings)
        if has_durable_job or wants_delta(settings) or _shares(settings):
            add("DOWNLOADER_MIDDLEWARES", ResponseOrigins, AT_THE_ENGINES_END)
            if DURABLE_FEEDS.read(settings):
                _replace_feed_exporter(settings)
        add("SPIDER_MIDDLEWARES", DropEarlyMiddleware, DropEarlyMiddleware.order)
        if wants_delta(settings):
            from ..delta.middleware import DeltaMiddleware

            add("SPIDER_MIDDLEWARES", DeltaMiddleware, DeltaMiddleware.order)
        if settings.get("BLOOM_DELTA_CONDITIONAL"):
            from ..delta.conditional import ConditionalMiddleware

            add("DOWNLOADER_MIDDLEWARES", ConditionalMiddleware, ConditionalMiddleware.order)

    def _spider_opened(self, spider: Spider) -> None:
        crawler, settings = spider.crawler, spider.crawler.settings
        shares, is_durable = _shares(settings), _is_durable(settings)
        is_filtered = is_component(settings["DUPEFILTER_CLASS"], "FilterDupeFilter")
        has_job = shares or bool(settings.get("JOBDIR"))
        # a worker of a crawl in Redis tells of its feeds itself
        lacks_feeds = bool(settings.getdict("FEEDS")) and not (
            OURS in settings.getdict("EXTENSIONS") or feeds_of(crawler) is not None
        )
        is_whole = is_filtered and is_durable and has_job and not lacks_feeds
        if not is_whole or fetches_one_page(crawler):
            from .off import tell

            tell(crawler, OURS * lacks_feeds, is_durable=is_durable, shares=shares)


def _shares(settings: BaseSettings) -> bool:
    return is_component(settings["SCHEDULER"], "RedisDurableScheduler")


def _is_durable(settings: BaseSettings) -> bool:
    return is_component(settings["SCHEDULER"], "LedgerScheduler")


def _replace_feed_exporter(settings: BaseSettings) -> None:
    """Put OURS into EXTENSIONS instead of Scrapy's exporter, unless that is disabled."""
    orders: dict[Any, Any] = {**settings.getwithbase("EXTENSIONS")}
    keys = [key for key in (global_object_name(FeedExporter), FeedExporter) if key in orders]
    if not keys or any(orders[key] is None for key in keys):
        return
    extensions = settings.getdict("EXTENSIONS")
    # before Scrapy 2.15 or so a class and its path are two keys
    extensions |= {**dict.fromkeys(keys), OURS: orders[keys[-1]]}
    settings.set("EXTENSIONS", extensions, settings.getpriority("EXTENSIONS") or 0)
