"""Each private name of Scrapy that this package uses, checked when it is first needed.

CONTRIBUTING.md says what each serves: no public signal or attribute tells when the engine is done
with a request. The start is refused without one only where a page could be lost; any other is
missed in one warning.
"""

from __future__ import annotations

import logging
from functools import cache
from typing import Any

import scrapy

from ..errors import JobDirectoryError

logger = logging.getLogger(__name__)

SLOT_KEY = "download_slot"
"""Meta key: the download slot that a request names, or was sent in."""


def require(
    name: str,
    is_there: bool,
    by: str = "DurableScheduler",
    way_out: str = "SCHEDULER to 'scrapy.core.scheduler.Scheduler'",
) -> None:
    """Raise JobDirectoryError that names what this release of Scrapy lacks, unless it is there."""
    if not is_there:
        raise JobDirectoryError(
            f"Scrapy {scrapy.__version__} has no {name}, which {by} requires: use another version"
            f" of Scrapy or of scrapy-bloom, or set {way_out}"
        )


@cache
def miss(name: str, without: str) -> None:
    """Say, once in a process, what a Scrapy without this name does not get from us."""
    logger.warning("Scrapy %s has no %s: %s", scrapy.__version__, name, without)


def get(thing: Any, *names: str) -> Any:
    """Return the attribute at the end of `names`, None if one is missing."""
    for name in names:
        thing = getattr(thing, name, None)
    return thing
