"""Tells, when the spider opens, which parts of the add-on are off or in memory, and why."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from scrapy import signals
from scrapy.extensions.feedexport import FeedExporter
from scrapy.settings import SETTINGS_PRIORITIES
from scrapy.utils.python import global_object_name

from ..crawl.delays import NOT_BEFORE
from ..crawl.settings import DURABLE, DURABLE_FEEDS, wants_delta
from ..startup import announce, fetches_one_page, is_component
from ..texts import feeds_named

if TYPE_CHECKING:
    from scrapy import Request, Spider
    from scrapy.crawler import Crawler
    from scrapy.settings import BaseSettings

logger = logging.getLogger(__name__)


def tell(crawler: Crawler, exporter: str, *, is_durable: bool, shares: bool) -> None:
    """Log what is off. Requests are durable or not, and the crawl `shares` them in Redis or not;
    feeds are without `exporter`, if that is not empty."""
    settings = crawler.settings
    is_filtered = is_component(settings["DUPEFILTER_CLASS"], "FilterDupeFilter")
    # a command that fetches one page touches no job, so the warnings for crawls do not apply
    is_crawl = not fetches_one_page(crawler)
    own = _in_the_way(settings, is_durable=is_durable)
    if not is_filtered:
        is_in_the_way = is_crawl and "DUPEFILTER_CLASS" in own
        off = f"off, DUPEFILTER_CLASS is {_name(settings['DUPEFILTER_CLASS'])}"
        announce(crawler, "filter", off, is_in_the_way * "remove DUPEFILTER_CLASS")
    if not is_crawl:
        if is_durable:
            announce(crawler, "requests", "in memory")
        return
    why, way_out = "", ""
    if not is_durable:
        why, way_out = _why_not_durable(settings, own, is_filtered=is_filtered)
        announce(crawler, "requests", f"not durable, {why}", way_out)
        crawler.signals.connect(_tell_of_delay, signals.request_scheduled)
    elif not shares and not settings.get("JOBDIR"):
        announce(crawler, "requests", "in memory (there is no JOBDIR)")
    if not exporter:
        return
    if not DURABLE_FEEDS.read(settings):
        why, way_out = "BLOOM_DURABLE_FEEDS is False", ""
    elif is_durable and (found := crawler.get_extension(FeedExporter)) is not None:
        why, way_out = f"{_name(type(found))} is no subclass of {exporter}", "make it one"
    elif is_durable:
        why = f"EXTENSIONS has no subclass of {exporter} in the place of Scrapy's FeedExporter"
        way_out = "put one there"
    if settings.get("JOBDIR") and DURABLE.read(settings) and not shares:
        uris = feeds_named(settings.getdict("FEEDS"))
        announce(crawler, "items", f"not durable in {uris}: {why}", way_out)
    if wants_delta(settings):
        logger.warning(
            "BLOOM_DELTA marks pages as done of which a feed has refused an item, since %(why)s",
            {"why": f"{why}{way_out and '; '}{way_out}"},
            extra={"spider": crawler.spider},
        )


def _tell_of_delay(request: Request, spider: Spider) -> None:
    """Warn of the first request that Scrapy's scheduler sends too early."""
    if NOT_BEFORE not in request.meta:
        return
    spider.crawler.signals.disconnect(_tell_of_delay, signals.request_scheduled)
    logger.warning(
        "%(request)s has %(key)s, which %(scheduler)s does not know: such requests are sent at"
        " once. Set SCHEDULER to 'scrapy_bloom.DurableScheduler'",
        {
            "request": request,
            "key": NOT_BEFORE,
            "scheduler": _name(spider.crawler.settings["SCHEDULER"]),
        },
        extra={"spider": spider},
    )


def _in_the_way(settings: BaseSettings, *, is_durable: bool) -> list[str]:
    """Return the settings of the project that keep the add-on from setting a part. Those of a
    Scrapy command, such as the shell, are none."""
    dupefilter = settings["DUPEFILTER_CLASS"]
    is_free = settings.getpriority("DUPEFILTER_CLASS") == SETTINGS_PRIORITIES["addon"]
    # that of Redis is in the way of both schedulers, unless the add-on has set it for one
    is_bloom = is_component(dupefilter, "FilterDupeFilter" if is_free else "BloomDupeFilter")
    return [
        name
        for name, is_ours in (("SCHEDULER", is_durable), ("DUPEFILTER_CLASS", is_bloom))
        if not is_ours and (settings.getpriority(name) or 0) > SETTINGS_PRIORITIES["command"]
    ]


def _why_not_durable(
    settings: BaseSettings, own: list[str], *, is_filtered: bool
) -> tuple[str, str]:
    """Return why requests are not durable, and the way out. There is none where the user
    does not expect them to be: without JOBDIR and Redis, and with BLOOM_DURABLE = False."""
    if not DURABLE.read(settings):
        return "BLOOM_DURABLE is False", ""
    why = f"SCHEDULER is {_name(settings['SCHEDULER'])}"
    if "SCHEDULER" not in own:
        why = f"DUPEFILTER_CLASS is {_name(settings['DUPEFILTER_CLASS'])}"
        if not is_filtered:
            why = "without scrapy-bloom's filter"
    is_redis = any(_name(settings[name]).startswith("scrapy_redis.") for name in own)
    if not own or not (is_redis or settings.get("JOBDIR") or settings.get("BLOOM_REDIS_URL")):
        return why, ""
    return why, f"remove {' and '.join(own)}" + is_redis * ", and set BLOOM_REDIS_URL"


def _name(setting: Any) -> str:
    return setting if isinstance(setting, str) else global_object_name(setting)
