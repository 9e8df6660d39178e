"""Hosts that do not answer: when their slot is held, when they are dead, and when the machine is
offline. All rules are here."""

from __future__ import annotations

import logging
from collections import OrderedDict
from math import inf
from time import monotonic
from typing import TYPE_CHECKING

from .delays import DEAD, NO_HOLD, SILENT
from .failed_request import class_and_message, download_reason
from .settings import HOST_RETRY

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.crawler import Crawler

    from .protocols import HoldingScheduler

PAUSES = (5, 10, 20, 40, 60)
"""Seconds of the holds in a row, without Retry-After; the last is that of all others. After so many
a host that does not answer is dead."""
ATTEMPTS = 5
"""So many attempts in a row without any answer begin a hold."""
ALONE_SECONDS = 3600.0
"""So long after its first failure a host is dead if no other one has answered."""
ALONE_HOLDS = 65
"""Or after so many holds in a row, which take as long, begun by any processes."""
ONE_BY_ONE = 0.05
"""Seconds of the hold by which a slot gets one request at a time."""
MOST_HEARD = 100_000
"""So many slots are remembered that have answered last."""

_KINDS = {
    "download/timeout": "timeout",
    **dict.fromkeys(("download/dns", "download/refused"), "refused"),
    **dict.fromkeys(("download/connection", "download/data_loss"), "broken"),
}
"""By the reason of a failed download: the host was not reached, it has not answered in time, or the
connection has broken, which says nothing of the host."""


def pause_after(holds: int) -> int:
    """Return the seconds of the next hold after so many in a row."""
    return PAUSES[min(holds, len(PAUSES) - 1)]


class _Run:
    """The failures in a row of a slot, from the time when the first of them `began`. `enough` is
    when there were ATTEMPTS of them; `times` those of the Hold that they have led to."""

    def __init__(self, began: float) -> None:
        self.began, self.enough = began, inf
        self.failures, self.times = 0, 0


class Hosts:
    """What this process knows of its hosts, by download slot: holds those that do not answer in its
    scheduler. Cost of an answer: 0.2 µs."""

    def __init__(self, crawler: Crawler, log: logging.LoggerAdapter[logging.Logger]) -> None:
        """Raise ValueError for a setting."""
        self._retry = HOST_RETRY.read(crawler.settings)
        self._timeout = crawler.settings.getfloat("DOWNLOAD_TIMEOUT") or 180.0
        self._stats, self._log = crawler.stats, log
        self._runs: dict[str, _Run] = {}
        """By slot; that of all slots together under an empty name."""
        self._heard: OrderedDict[str, float] = OrderedDict()
        """When a byte of each slot came last."""
        self._answered = -inf
        """When the last request was sent that was answered."""
        self._silent: set[str] = set()
        """The slots that have failed since any slot has answered, but for those that have failed
        enough before that."""

    def hears(self, scheduler: HoldingScheduler, slot: str, latency: float) -> None:
        """Note that `slot` answers, a request that was sent `latency` seconds ago."""
        if not slot:
            return  # a file
        self._heard[slot] = now = monotonic()
        self._heard.move_to_end(slot)
        if len(self._heard) > MOST_HEARD:
            self._heard.popitem(last=False)
        self._answered = max(self._answered, now - latency)
        self._runs.pop(slot, None)
        self._runs.pop("", None)
        self._silent.clear()
        if scheduler.is_paused:
            self._log.info("%s answers: the crawl goes on", slot)
            scheduler.pause(None)
        if scheduler.holds and (times := scheduler.holds.get(slot, NO_HOLD).times) >= SILENT:
            if times > SILENT:
                self._log.info("%s answers again", slot)
            scheduler.release(slot)

    @property
    def likely(self) -> set[str]:
        """The slots that have answered, and not failed since any has."""
        return self._heard.keys() - self._silent

    def fails(
        self, scheduler: HoldingScheduler, request: Request, slot: str, why: Exception
    ) -> bool:
        """Note that an attempt on `slot` has failed. Return True if `request` is to go back to the
        scheduler without a try."""
        kind = _KINDS.get(download_reason(why))
        may_pause = not scheduler.is_paused or scheduler.probes.get("") is request
        if kind is None or request.meta.get("proxy"):
            if kind is not None and scheduler.is_paused and may_pause:
                scheduler.pause(PAUSES[-1], self.likely - {slot})
            return False
        scheduler.probes.pop(slot, None)
        now, hold = monotonic(), scheduler.holds.get(slot, NO_HOLD)
        if not slot or (not hold.times and hold.until > now):
            return False  # a file, or by hand
        timeout, is_probe = request.meta.get("download_timeout"), scheduler.is_probe(request, slot)
        timeout = timeout if isinstance(timeout, (int, float)) else self._timeout
        if kind == "timeout" and self._heard.get(slot, -inf) > now - timeout:
            return False  # the host is slow
        run = self._runs.get(slot)
        if run is None or (run.times and hold.times < SILENT):  # it was released
            run = self._runs[slot] = _Run(now)
        if hold.times > SILENT and not run.times:  # by an earlier process
            run.failures, run.enough, run.times = ATTEMPTS, now, hold.times
        if kind != "broken" or is_probe:
            run.failures += 1
        if run.enough == inf and run.failures >= ATTEMPTS:
            run.enough = now
        if self._answered < run.enough:
            is_new = slot not in self._silent
            self._silent.add(slot)
            of_all = self._runs.setdefault("", _Run(now))
            of_all.failures += 1
            if len(self._silent) > 1:
                # else a crawl would never end whose last hosts are all dead
                if slot not in self._heard and now - of_all.began >= ALONE_SECONDS:
                    self._pause(scheduler, PAUSES[0])
                    self._hold(scheduler, slot, DEAD, why)
                    return True
                if may_pause and of_all.failures >= ATTEMPTS:
                    self._pause(scheduler, pause_after(of_all.times))
                    of_all.times += not is_new  # the next one may answer
                if is_probe and hold.times >= SILENT:  # another one finds out when it is over
                    scheduler.hold(slot, ONE_BY_ONE, hold.times)
                return True
        if hold.until > now and not is_probe and hold.times != SILENT:  # it was sent before
            return True
        if run.failures < ATTEMPTS:
            if (kind == "timeout" and hold.times <= 0) or (hold.times >= SILENT and is_probe):
                scheduler.hold(slot, ONE_BY_ONE, SILENT)
            return False
        if kind == "broken" and not is_probe:
            return False
        rows = max(0, hold.times - SILENT)
        # others have answered since, or it never has, and others have: it is the host
        others = self._answered > run.began or (slot not in self._heard and bool(self._heard))
        # fewer failures may be those of a process that has begun offline
        most = ALONE_HOLDS if run.failures >= 2 * ATTEMPTS else ALONE_HOLDS + ATTEMPTS
        is_dead = rows >= (len(PAUSES) if others or now - run.began >= ALONE_SECONDS else most)
        self._hold(scheduler, slot, DEAD if is_dead else SILENT + rows + 1, why)
        return True

    def _hold(self, scheduler: HoldingScheduler, slot: str, times: int, why: Exception) -> None:
        """Hold a slot whose host does not answer, and tell of it once."""
        row, run = times - SILENT, self._runs[slot]
        before = max(0, scheduler.holds.get(slot, NO_HOLD).times - SILENT)
        seconds = self._retry if times == DEAD else pause_after(row - 1)
        scheduler.hold(slot, seconds, times)
        is_next, run.times = times > run.times, times
        if is_next and times == DEAD:
            self._stats.inc_value("scheduler/dead_hosts")
            self._log.warning(
                "%s is dead: it has not answered after %d holds in a row (%s). What waits for it"
                " counts as failed, for the reason host, unless it answers. One request asks it"
                " every %.3g s (BLOOM_HOST_RETRY), 'scrapy bloom queue release' asks at once.",
                *(slot, before, class_and_message(why), seconds),
            )
        elif is_next:
            self._stats.inc_value("scheduler/holds")
            what = "%s does not answer (%s): it is not asked for %.3g s (hold %d in a row)"
            self._log.info(what, slot, class_and_message(why), seconds, row)

    def _pause(self, scheduler: HoldingScheduler, seconds: float) -> None:
        """Send nothing for so many seconds, then one request to find out if a host is there."""
        if not scheduler.is_paused:
            self._stats.inc_value("scheduler/offline")
            self._log.warning(
                "No host answers any more: this machine seems to be offline. Nothing fails, and"
                " one request at a time asks whether that is over, once a minute at last.",
            )
        scheduler.pause(seconds, self.likely)
