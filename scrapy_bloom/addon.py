"""Sets the components of a crawl from one line in ADDONS."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from scrapy import signals
from scrapy.extensions.feedexport import FeedExporter
from scrapy.settings import SETTINGS_PRIORITIES
from scrapy.utils.python import global_object_name

from .crawl.delays import NOT_BEFORE
from .crawl.holds import HoldMiddleware
from .crawl.origins import AT_THE_ENGINES_END, ResponseOrigins
from .crawl.settings import DURABLE, DURABLE_FEEDS
from .dupefilter import BloomDupeFilter, FilterDupeFilter
from .early.middleware import DropEarlyMiddleware
from .jobdir import JobDirectory
from .settings import wants_delta
from .sqlite.rounds import feeds_of
from .sqlite.scheduler import DurableScheduler
from .startup import announce, fetches_one_page, is_component, is_shell
from .texts import feeds_named

if TYPE_CHECKING:
    from scrapy import Request, Spider
    from scrapy.crawler import Crawler
    from scrapy.settings import BaseSettings
    from typing_extensions import Self

logger = logging.getLogger(__name__)

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
        """Return the add-on of `crawler`; when the spider opens, it logs which parts are off."""
        self = cls()
        crawler.signals.connect(self._spider_opened, signals.spider_opened)
        return self

    def update_settings(self, settings: BaseSettings) -> None:
        """Set the components, unless the project has set them.

        DUPEFILTER_CLASS and SCHEDULER are those of Redis with BLOOM_REDIS_URL, else those of one
        process. SCHEDULER stays with BLOOM_DURABLE = False, and with a dupefilter of the project
        that is not a BloomDupeFilter. DurableFeedExporter replaces Scrapy's exporter where a
        page counts as failed when a feed refuses its item: in a job, in a crawl in Redis, and with
        BLOOM_DELTA. DropEarlyMiddleware stands next to the spider; DeltaMiddleware only with
        BLOOM_DELTA; HoldMiddleware only with a scheduler of this package.
        """
        if is_shell(settings):
            # Scrapy's scheduler would write the shell's requests into the job
            settings.set("JOBDIR", None, max(settings.getpriority("JOBDIR") or 0, _PRIORITY))
        is_free = settings.getpriority("DUPEFILTER_CLASS") == 0
        shares = is_free and (
            bool(settings.get("BLOOM_REDIS_URL"))
            or is_component(settings.get("SCHEDULER"), "RedisDurableScheduler")
        )
        if is_free:
            name = "RedisBloomDupeFilter" if shares else "BloomDupeFilter"
            settings.set("DUPEFILTER_CLASS", f"scrapy_bloom.{name}", "addon")
        if settings.getpriority("SCHEDULER") == 0 and DURABLE.read(settings):
            if shares:
                settings.set("SCHEDULER", "scrapy_bloom.RedisDurableScheduler", "addon")
            elif is_component(settings["DUPEFILTER_CLASS"], BloomDupeFilter):
                settings.set("SCHEDULER", "scrapy_bloom.DurableScheduler", "addon")
        add = settings.setdefault_in_component_priority_dict
        if _is_durable(settings):
            add("DOWNLOADER_MIDDLEWARES", HoldMiddleware, HoldMiddleware.order)
        has_durable_job = bool(settings.get("JOBDIR")) and _is_durable(settings)
        needs_origins = has_durable_job or wants_delta(settings)
        if needs_origins:
            add("DOWNLOADER_MIDDLEWARES", ResponseOrigins, AT_THE_ENGINES_END)
        if (needs_origins or _shares(settings)) and DURABLE_FEEDS.read(settings):
            _replace_feed_exporter(settings)
        add("SPIDER_MIDDLEWARES", DropEarlyMiddleware, DropEarlyMiddleware.order)
        if wants_delta(settings):
            from .delta.middleware import DeltaMiddleware

            add("SPIDER_MIDDLEWARES", DeltaMiddleware, DeltaMiddleware.order)

    def _spider_opened(self, spider: Spider) -> None:
        crawler = spider.crawler
        settings = crawler.settings
        is_filtered = is_component(settings["DUPEFILTER_CLASS"], FilterDupeFilter)
        # a command that fetches one page touches no job, so the warnings for crawls do not apply
        is_crawl = not fetches_one_page(crawler)
        if not is_filtered:
            off = f"off, DUPEFILTER_CLASS is {_name(settings['DUPEFILTER_CLASS'])}"
            is_in_the_way = is_crawl and "DUPEFILTER_CLASS" in _in_the_way(settings)
            announce(crawler, "filter", off, is_in_the_way * "remove DUPEFILTER_CLASS")
        if not is_crawl:
            if _is_durable(settings) or is_shell(settings):
                announce(crawler, "requests", "in memory")
            return
        if not _is_durable(settings):
            why, way_out = _why_not_durable(settings, is_filtered=is_filtered)
            announce(crawler, "requests", f"not durable, {why}", way_out)
            crawler.signals.connect(self._request_scheduled, signals.request_scheduled)
        elif not _shares(settings) and JobDirectory.of(settings.get("JOBDIR")) is None:
            announce(crawler, "requests", "in memory (there is no JOBDIR)")
        _tell_of_feeds(crawler, is_filtered=is_filtered)

    def _request_scheduled(self, request: Request, spider: Spider) -> None:
        """Warn of the first request that Scrapy's scheduler sends too early."""
        if NOT_BEFORE in request.meta:
            spider.crawler.signals.disconnect(self._request_scheduled, signals.request_scheduled)
            logger.warning(
                "%(request)s has %(key)s, which %(scheduler)s does not know: such requests are sent"
                " at once. Set SCHEDULER to 'scrapy_bloom.DurableScheduler'",
                {
                    "request": request,
                    "key": NOT_BEFORE,
                    "scheduler": _name(spider.crawler.settings["SCHEDULER"]),
                },
                extra={"spider": spider},
            )


def _in_the_way(settings: BaseSettings) -> list[str]:
    """Return the settings of the project that keep the add-on from setting a part. Those of a
    Scrapy command, such as the shell, are none."""
    dupefilter = settings["DUPEFILTER_CLASS"]
    is_free = settings.getpriority("DUPEFILTER_CLASS") == _PRIORITY
    # that of Redis is in the way of both schedulers, unless the add-on has set it for one
    is_bloom = is_component(dupefilter, FilterDupeFilter if is_free else BloomDupeFilter)
    return [
        name
        for name, is_ours in (("SCHEDULER", _is_durable(settings)), ("DUPEFILTER_CLASS", is_bloom))
        if not is_ours and (settings.getpriority(name) or 0) > SETTINGS_PRIORITIES["command"]
    ]


def _why_not_durable(settings: BaseSettings, *, is_filtered: bool) -> tuple[str, str]:
    """Return why requests are not durable, and the way out. There is none where the user
    does not expect them to be: without JOBDIR and Redis, and with BLOOM_DURABLE = False."""
    if not DURABLE.read(settings):
        return "BLOOM_DURABLE is False", ""
    own = _in_the_way(settings)
    why = f"SCHEDULER is {_name(settings['SCHEDULER'])}"
    if "SCHEDULER" not in own:
        why = f"DUPEFILTER_CLASS is {_name(settings['DUPEFILTER_CLASS'])}"
        if not is_filtered:
            why = "without scrapy-bloom's filter"
    is_redis = any(_name(settings[name]).startswith("scrapy_redis.") for name in own)
    if not own or not (is_redis or settings.get("JOBDIR") or settings.get("BLOOM_REDIS_URL")):
        return why, ""
    return why, f"remove {' and '.join(own)}" + is_redis * ", and set BLOOM_REDIS_URL"


def _tell_of_feeds(crawler: Crawler, *, is_filtered: bool) -> None:
    """Tell which feeds may lose items, where Scrapy has not built a DurableFeedExporter. A worker
    of a crawl in Redis tells that itself."""
    settings = crawler.settings
    uris = settings.getdict("FEEDS")
    if not uris or OURS in settings.getdict("EXTENSIONS") or feeds_of(crawler) is not None:
        return
    if not DURABLE_FEEDS.read(settings):
        why, way_out = "BLOOM_DURABLE_FEEDS is False", ""
    elif not _is_durable(settings):
        why, way_out = _why_not_durable(settings, is_filtered=is_filtered)
    elif (exporter := crawler.get_extension(FeedExporter)) is not None:
        why, way_out = f"{_name(type(exporter))} is no subclass of {OURS}", "make it one"
    else:
        why = f"EXTENSIONS has no subclass of {OURS} in the place of Scrapy's FeedExporter"
        way_out = "put one there"
    if settings.get("JOBDIR") and DURABLE.read(settings) and not _shares(settings):
        announce(crawler, "items", f"not durable in {feeds_named(uris)}: {why}", way_out)
    if wants_delta(settings):
        logger.warning(
            "BLOOM_DELTA marks pages as done of which a feed has refused an item, since %(why)s",
            {"why": f"{why}{way_out and '; '}{way_out}"},
            extra={"spider": crawler.spider},
        )


def _shares(settings: BaseSettings) -> bool:
    return is_component(settings["SCHEDULER"], "RedisDurableScheduler")


def _is_durable(settings: BaseSettings) -> bool:
    return _shares(settings) or is_component(settings["SCHEDULER"], DurableScheduler)


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


def _name(setting: Any) -> str:
    return setting if isinstance(setting, str) else global_object_name(setting)
