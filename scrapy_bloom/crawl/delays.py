"""What is not to be sent before a time: a request with `bloom_not_before`, a slot on hold."""

from __future__ import annotations

import logging
import math
import time
from contextlib import suppress
from datetime import datetime
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

from scrapy.utils.asyncio import call_later

if TYPE_CHECKING:
    from collections.abc import Callable

    from scrapy import Request
    from scrapy.utils.asyncio import CallLaterResult

logger = logging.getLogger(__name__)

NOT_BEFORE = "bloom_not_before"
"""The meta key."""
EPOCH_FROM = 1e9
"""Numbers below this one are seconds from now, the others seconds since 1970."""
MOST_SECONDS = 60.0
EARLY_SECONDS = 0.001
_FARTHEST = 1e12
"""No time is later: 31,000 years."""


class Hold(NamedTuple):
    """A download slot that is not asked before `until` by `monotonic`, infinite until its release.
    `times` counts the holds in a row, 0 for one by hand. `pause` is how many seconds it had when it
    began, or was extended last, if this process has begun it."""

    until: float
    times: int
    pause: float = 0.0

    def met(self, until: float, times: int) -> Hold:
        """Return what this hold and that one make together: by hand, while either is; with the end
        of that one, if it is over, or of a silent host, whose last probe has ended; or the later
        end."""
        by_hand = not times or (not self.times and self.until > monotonic())
        is_set = not by_hand and (times >= SILENT or until <= monotonic())
        times = 0 if by_hand else max(self.times, times)
        return self._replace(until=until if is_set else max(self.until, until), times=times)

    def lets_pass(self, request: Request) -> bool:
        """Return True for a request with a proxy: the hold of a silent host is not for it."""
        return self.times >= SILENT and bool(request.meta.get("proxy"))


NO_HOLD = Hold(0.0, 0)
SILENT = 1_500_000
"""Stands in `Hold.times`, plus their number, for holds in a row of a host that does not answer;
alone for a slot that gets one request at a time."""
DEAD = 2_000_000
"""Stands in `Hold.times` for a slot whose host is dead."""
TAKEN: WeakKeyDictionary[Request, Any] = WeakKeyDictionary()
"""What was taken out of each request, for when the same object is scheduled again."""


def take_delay(request: Request) -> float | None:
    """Take `bloom_not_before` out of the meta of `request`, so that no copy inherits it; return it,
    or what was taken before, in seconds from now, None for now. A value that is no time is logged
    as an ERROR, and is now."""
    if NOT_BEFORE in request.meta:
        TAKEN[request] = request.meta.pop(NOT_BEFORE)
    elif request not in TAKEN:
        return None
    value = when = TAKEN[request]
    if isinstance(value, datetime) and value.utcoffset() is not None:
        when = max(value.timestamp(), EPOCH_FROM)
    is_number = isinstance(when, (int, float)) and not isinstance(when, bool)
    if is_number and -_FARTHEST < when < _FARTHEST:  # NaN is neither
        seconds = when if when < EPOCH_FROM else when - time.time()
        return seconds if seconds > 0 else None
    times = "seconds from now, seconds since 1970 or an aware datetime"
    told = "%s is %r in %s, which is asked at once: it must be %s"
    logger.error(told, NOT_BEFORE, value, request, times)
    return None


class Alarm:
    """Calls `ring` when it is time, by a timer of the reactor."""

    def __init__(self, ring: Callable[[], None]) -> None:
        self._ring = ring
        self._at = math.inf
        self._timer: CallLaterResult | None = None

    @property
    def is_set(self) -> bool:
        """True if it will ring, or there is no reactor."""
        return self._at < math.inf

    def set(self, seconds: float) -> None:
        """Ring in so many seconds, in a minute at most, since clocks jump, or sooner if it was set
        so; without a reactor, never."""
        at = monotonic() + min(seconds, MOST_SECONDS)
        if at < self._at:
            self.cancel()
            self._at = -math.inf  # not to try again without a reactor
            with suppress(RuntimeError):
                # a timer of another clock may be a little early
                self._timer = call_later(max(0.0, at - monotonic()) + EARLY_SECONDS, self._now)
                self._at = at

    def cancel(self) -> None:
        """Do not ring."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._at = None, math.inf

    def _now(self) -> None:
        self._timer, self._at = None, math.inf
        self._ring()
