"""The feeds that earlier starts of a job have left, at a start without FEEDS."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from scrapy.exceptions import NotConfigured
from scrapy.utils.misc import load_object

from ..errors import BloomError
from ..jobdir import session_of
from ..sqlite.job_file import DAMAGED, file_at
from ..startup import fetches_one_page, is_component

if TYPE_CHECKING:
    from scrapy.extensions.feedexport import FeedExporter


def goes_on_without_feeds(exporter: FeedExporter) -> bool:
    """Return True if the job of `exporter`, which has not found any FEEDS, has feeds to complete;
    then it is ready for them. Cost: reads a row of the job's file."""
    crawler = exporter.crawler
    job = session_of(crawler).directory
    if job is None or fetches_one_page(crawler):
        return False
    shares = is_component(crawler.settings["SCHEDULER"], "RedisDurableScheduler")
    found: list[object] = []
    # what is damaged, or in use, the scheduler refuses
    with suppress(BloomError, OSError, *DAMAGED):
        if not job.is_locked:
            with file_at(job.worker_feeds if shares else job.requests) as file:
                found += file.query("SELECT 1 FROM feeds LIMIT 1") if file is not None else ()
    if found:
        exporter.storages = _loaded(crawler.settings.getwithbase("FEED_STORAGES"))
        exporter.exporters = _loaded(crawler.settings.getwithbase("FEED_EXPORTERS"))
    return bool(found)


def _loaded(components: Any) -> dict[str, Any]:
    """Return the classes that a setting names, as Scrapy's exporter does."""
    found = {}
    for name, component in components.items():
        with suppress(NotConfigured):
            if component is not None:
                found[name] = load_object(component)
    return found
