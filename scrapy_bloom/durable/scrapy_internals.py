"""What Scrapy's engine works on: the private parts that tell when a request is done."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import scrapy
from scrapy.core import scraper

from ..errors import JobDirectoryError

if TYPE_CHECKING:
    from scrapy import Request


def is_in_progress(engine: Any, request: Request) -> bool:
    """Return True while the engine downloads `request`, or its callback or errback
    runs, or what these have yielded is not all enqueued or through the pipelines."""
    return (
        request in engine._slot.inprogress
        # a callback that downloads its own request takes it out of the first
        or request in engine.scraper.slot.active
        or request in engine.downloader.active
    )


def check_engine(engine: Any) -> None:
    """Raise JobDirectoryError unless `engine` has what `is_in_progress` looks at."""
    # when the scheduler opens, the scraper has no slot yet
    scraper_slot = _get(engine, "scraper", "slot") or _new_scraper_slot()
    for name, found in (
        ("engine._slot.inprogress", _get(engine, "_slot", "inprogress")),
        ("engine.scraper.slot.active", _get(scraper_slot, "active")),
        ("engine.downloader.active", _get(engine, "downloader", "active")),
    ):
        if not hasattr(found, "__contains__"):
            raise JobDirectoryError(
                f"Scrapy {scrapy.__version__} has no {name}, from which DurableScheduler learns"
                " that a request is done: use another version of Scrapy or of scrapy-bloom, or"
                " set SCHEDULER to 'scrapy.core.scheduler.Scheduler'"
            )


def _get(thing: Any, *names: str) -> Any:
    for name in names:
        thing = getattr(thing, name, None)
    return thing


def _new_scraper_slot() -> object:
    slot_class = getattr(scraper, "Slot", None)
    return slot_class() if slot_class else None
