"""One line in ADDONS that turns everything on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from scrapy import signals
from scrapy.extensions.feedexport import FeedExporter
from scrapy.utils.python import global_object_name

from .delta.middleware import DeltaMiddleware
from .distributed.scheduler import RedisDurableScheduler
from .dupefilter import FilterDupeFilter
from .durable.feeds.exporter import warn_of_losses
from .durable.feeds.origins import AT_THE_ENGINES_END, ResponseOrigins
from .durable.scheduler import DurableScheduler
from .early.middleware import DropEarlyMiddleware
from .job_dupefilter import BloomDupeFilter
from .jobdir import JobDirectory
from .settings import wants_delta, wants_durable, wants_durable_feeds
from .shared.dupefilter import RedisBloomDupeFilter
from .startup import announce, fetches_one_page, is_component

if TYPE_CHECKING:
    from scrapy import Spider
    from scrapy.crawler import Crawler
    from scrapy.settings import BaseSettings
    from typing_extensions import Self


class Addon:
    """Add-on for `ADDONS = {"scrapy_bloom.Addon": 300}`.

    A setting that anybody has set, the Scrapy shell included, stays as it is.
    """

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Return the add-on of `crawler`, which says when the spider opens what it has
        left off."""
        self = cls()
        crawler.signals.connect(self._spider_opened, signals.spider_opened)
        return self

    def update_settings(self, settings: BaseSettings) -> None:
        """Set DUPEFILTER_CLASS and SCHEDULER, unless they have been set: with
        BLOOM_REDIS_URL those that share a crawl, else those of one process. SCHEDULER is not
        set for a dupefilter of somebody else's choice, but for BloomDupeFilter, nor with
        BLOOM_DURABLE = False. Put our feed exporter in the place of Scrapy's, where requests
        are durable in a job; and put the middleware that drops duplicates early next to the
        spider, unless it has a place; and with BLOOM_DELTA the one for the memory between crawls.
        """
        is_free = settings.getpriority("DUPEFILTER_CLASS") == 0
        shares = is_free and (
            bool(settings.get("BLOOM_REDIS_URL"))
            or is_component(settings.get("SCHEDULER"), RedisDurableScheduler)
        )
        if is_free:
            dupefilter = RedisBloomDupeFilter if shares else BloomDupeFilter
            settings.set("DUPEFILTER_CLASS", dupefilter, "addon")
        if settings.getpriority("SCHEDULER") == 0 and wants_durable(settings):
            if shares:
                settings.set("SCHEDULER", RedisDurableScheduler, "addon")
            elif is_component(settings["DUPEFILTER_CLASS"], BloomDupeFilter):
                settings.set("SCHEDULER", DurableScheduler, "addon")
        if _has_durable_job(settings):
            settings.setdefault_in_component_priority_dict(
                "DOWNLOADER_MIDDLEWARES", ResponseOrigins, AT_THE_ENGINES_END
            )
            if wants_durable_feeds(settings):
                _replace_feed_exporter(settings)
        settings.setdefault_in_component_priority_dict(
            "SPIDER_MIDDLEWARES", DropEarlyMiddleware, DropEarlyMiddleware.order
        )
        if wants_delta(settings):
            settings.setdefault_in_component_priority_dict(
                "SPIDER_MIDDLEWARES", DeltaMiddleware, DeltaMiddleware.order
            )
            settings.setdefault_in_component_priority_dict(
                "DOWNLOADER_MIDDLEWARES", ResponseOrigins, AT_THE_ENGINES_END
            )

    def _spider_opened(self, spider: Spider) -> None:
        crawler = spider.crawler
        settings = crawler.settings
        dupefilter, scheduler = settings["DUPEFILTER_CLASS"], settings["SCHEDULER"]
        job = JobDirectory.of(settings.get("JOBDIR"))
        reason = f"SCHEDULER is {_name(scheduler)}"
        if not wants_durable(settings):
            reason = "BLOOM_DURABLE is False"
        if not is_component(dupefilter, FilterDupeFilter):
            announce(crawler, "filter", f"off, DUPEFILTER_CLASS is {_name(dupefilter)}")
            reason = "without scrapy-bloom's filter"
        is_shared = is_component(scheduler, RedisDurableScheduler)
        is_durable = is_component(scheduler, DurableScheduler)
        if fetches_one_page(crawler) and (is_shared or is_durable):
            announce(crawler, "requests", "in memory")
            return
        if is_shared:
            return
        if is_durable:
            if job is None:
                announce(crawler, "requests", "in memory (there is no JOBDIR)")
            elif not wants_durable_feeds(settings):
                warn_of_losses(crawler, sorted(settings.getdict("FEEDS")))
            return
        announce(crawler, "requests", f"not durable, {reason}")


def _has_durable_job(settings: BaseSettings) -> bool:
    scheduler = settings["SCHEDULER"]
    is_durable = is_component(scheduler, DurableScheduler)
    is_durable = is_durable or is_component(scheduler, RedisDurableScheduler)
    return bool(settings.get("JOBDIR")) and is_durable


def _replace_feed_exporter(settings: BaseSettings) -> None:
    """Put ours in the place of Scrapy's, where that is and is not disabled."""
    orders: dict[Any, Any] = {**settings.getwithbase("EXTENSIONS")}
    keys = [key for key in (global_object_name(FeedExporter), FeedExporter) if key in orders]
    if not keys or any(orders[key] is None for key in keys):
        return
    extensions = settings.getdict("EXTENSIONS")
    # before Scrapy 2.15 or so, a class does not stand for its path
    extensions |= {**dict.fromkeys(keys), "scrapy_bloom.DurableFeedExporter": orders[keys[-1]]}
    settings.set("EXTENSIONS", extensions, settings.getpriority("EXTENSIONS") or 0)


def _name(setting: Any) -> str:
    return setting if isinstance(setting, str) else global_object_name(setting)
