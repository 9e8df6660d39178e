"""All settings of this package."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from itertools import chain

from . import audit, full, metrics, settings
from .crawl import budget
from .crawl import settings as job
from .delta import settings as delta
from .early import settings as early
from .fingerprints import settings as fingerprints
from .redis import settings as redis
from .settings import Setting

_TABLES = (settings, full, fingerprints, early, audit, metrics, job, budget, delta, redis)
SETTINGS = tuple(
    each
    for each in chain.from_iterable(vars(table).values() for table in _TABLES)
    if isinstance(each, Setting)
)
"""Those of each table, in its order."""


def lines_for(names: Iterable[str]) -> list[str]:
    """Return a line for each of `names` that is no setting, with the nearest one that is."""
    ours = [each.name for each in SETTINGS]
    return [
        f"{name} is no setting of scrapy-bloom: did you mean"
        f" {get_close_matches(name, ours, n=1, cutoff=0)[0]}?"
        for name in sorted(names)
        if name not in ours
    ]
