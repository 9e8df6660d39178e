"""The settings of crawls whose requests are stored, in a job or in Redis."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from scrapy.settings import BaseSettings
from scrapy.utils.misc import load_object

from ..amounts import seconds
from ..settings import OFF, Setting, Values, in_words, switch, whole


def _words(value: Any) -> frozenset[str]:
    given = BaseSettings({"value": value}).getlist("value")
    return frozenset(str(word).strip() for word in given)


def times(allowed: str, is_allowed: Callable[[float], bool], unit: float = 1.0) -> Values:
    """Return times in seconds, of which some are allowed. A number without a unit has this one."""
    return Values(f"a number of {allowed}", partial(seconds, unit=unit), is_allowed)


_KINDS = ("download", "status", "callback", "feed", "ignored", "item")
_SOME_TIME = times(
    "seconds above 0 and at most 31536000, or text such as '90s' or '12h'",
    lambda n: 0 < n <= 31_536_000,
)
DURABLE = switch("BLOOM_DURABLE", True, "Whether the add-on sets `SCHEDULER`")
DURABLE_FEEDS = switch(
    "BLOOM_DURABLE_FEEDS",
    True,
    "Whether [`DurableFeedExporter`](feeds.md) replaces Scrapy's feed exporter",
)
REPEAT_START = switch(
    "BLOOM_REPEAT_START", False, "Whether each start of an unfinished job sends all start requests"
)
ANY_SPIDER = switch("BLOOM_ANY_SPIDER", False, "Whether a spider may go on with a job")
KEEP_FAILED = switch("BLOOM_KEEP_FAILED", True, "Whether [failed requests](failed.md) stay")
FAILED_KINDS = Setting(
    "BLOOM_FAILED_KINDS",
    frozenset(("download", "status", "callback", "feed")),
    Values(f"a list of some of {in_words(_KINDS)}", _words, frozenset(_KINDS).issuperset),
    "What [counts as failed](failed.md#what-has-failed)",
)
RETRY_FAILED = switch(
    "BLOOM_RETRY_FAILED", False, "Whether each start of the job retries failed requests"
)
DELAY_WAIT: Setting[float | None] = Setting(
    "BLOOM_DELAY_WAIT",
    None,
    times("seconds from 0, or text such as '90s' or '12h'; None is for ever", lambda n: n >= 0),
    "How long a spider with nothing else to do waits for a delayed request",
)
HOLD = switch(
    "BLOOM_HOLD", True, "Whether a host that answers 429 or 503 is left alone for a while"
)
HOLD_MAX: Setting[float] = Setting(
    "BLOOM_HOLD_MAX", 3600.0, _SOME_TIME, "The longest hold, whatever `Retry-After` says"
)
HOLD_TIMES = Setting(
    "BLOOM_HOLD_TIMES",
    10,
    whole(1, 1000, "the holds in a row"),
    "How many holds in a row are waited out",
)
HOST_RETRY: Setting[float] = Setting(
    "BLOOM_HOST_RETRY",
    3600.0,
    _SOME_TIME,
    "How long a [dead host](dead-hosts.md) is left alone before one request asks it again",
)


def wants_delta(settings: BaseSettings) -> bool:
    """Return whether BLOOM_DELTA or BLOOM_DELTA_DIGEST is on, also for a bad value, which
    DeltaMiddleware refuses."""
    return any(settings.get(name) not in OFF for name in ("BLOOM_DELTA", "BLOOM_DELTA_DIGEST"))


def budget_of(settings: BaseSettings, kind: str = "crawl.budget.Budget", *about: object) -> Any:
    """Return the Budget in `settings`, None without one. Raises ValueError."""
    is_on = settings.get("BLOOM_BUDGET") not in (None, "", "None", {})
    return load_object(f"scrapy_bloom.{kind}").of(settings, *about) if is_on else None
