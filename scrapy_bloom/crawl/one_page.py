"""What a command for one page, such as `scrapy parse`, leaves alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scrapy.extensions.feedexport import FeedExporter
from scrapy.extensions.spiderstate import SpiderState
from scrapy.settings import SETTINGS_PRIORITIES

if TYPE_CHECKING:
    from scrapy.crawler import Crawler


def keep_off_the_job(crawler: Crawler) -> None:
    """Keep Scrapy's extensions from writing files of the job in a command for one page:
    `spider.state`, and feeds that the command line does not name."""
    state, exporter = crawler.get_extension(SpiderState), crawler.get_extension(FeedExporter)
    if state is not None:
        state.jobdir = None
    is_named = crawler.settings.getpriority("FEEDS") == SETTINGS_PRIORITIES["cmdline"]
    if exporter is not None and not is_named:
        exporter.feeds = {}
