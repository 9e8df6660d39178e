"""All settings of this package."""

from __future__ import annotations

from itertools import chain

from . import audit, metrics, settings
from .crawl import settings as job
from .delta import settings as delta
from .early import settings as early
from .fingerprints import settings as fingerprints
from .redis import settings as redis
from .settings import Setting

_TABLES = (settings, fingerprints, early, audit, metrics, job, delta, redis)
SETTINGS = tuple(
    each
    for each in chain.from_iterable(vars(table).values() for table in _TABLES)
    if isinstance(each, Setting)
)
"""Those of each table, in its order."""
