"""Hosts that do not answer: when their slot is held, when they are dead, and when the machine is
offline. All rules are here."""

from __future__ import annotations

from collections import OrderedDict
from math import inf
from time import monotonic
from typing import Literal, NamedTuple

from .delays import DEAD, SILENT, Hold
from .failed_request import download_reason

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

Kind = Literal["refused", "timeout", "broken"]
"""What an exception is: the host was not reached, it has not answered in time, or the connection
has broken, which says nothing of the host."""
_KINDS: dict[str, Kind] = {
    "download/timeout": "timeout",
    **dict.fromkeys(("download/dns", "download/refused"), "refused"),
    **dict.fromkeys(("download/connection", "download/data_loss"), "broken"),
}


def kind_of(exception: BaseException) -> Kind | None:
    """Return what a download has failed with, None for anything but the network."""
    return _KINDS.get(download_reason(exception))


def pause_after(holds: int) -> int:
    """Return the seconds of the next hold after so many in a row."""
    return PAUSES[min(holds, len(PAUSES) - 1)]


class Step(NamedTuple):
    """What a failed attempt leads to: its request `goes_back`, and uses no try; the slot is held
    for `seconds`, in a Hold with these `times`, which `is_next` in the row as far as this process
    has told; or for `pause` seconds nothing at all is sent."""

    goes_back: bool = False
    seconds: float | None = None
    times: int = 0
    pause: float | None = None
    is_next: bool = False


class _Run:
    """The failures in a row of a slot, from the time when the first of them `began`. `enough` is
    when there were ATTEMPTS of them; `times` those of the Hold that they have led to."""

    def __init__(self, began: float) -> None:
        self.began, self.enough = began, inf
        self.failures, self.times = 0, 0

    def held(self, seconds: float, times: int, pause: float | None = None) -> Step:
        """Return the step to a Hold with these `times`."""
        is_next, self.times = times > self.times, times
        return Step(True, seconds, times, pause, is_next)


class Hosts:
    """What this process knows of its hosts, by download slot. A dead one is asked again after
    `retry` seconds. Cost of an answer: 0.2 µs."""

    def __init__(self, retry: float) -> None:
        self._retry = retry
        self._runs: dict[str, _Run] = {}
        """By slot; that of all slots together under an empty name."""
        self._heard: OrderedDict[str, float] = OrderedDict()
        """When a byte of each slot came last."""
        self._answered = -inf
        """When the last request was sent that was answered."""
        self._silent: set[str] = set()
        """The slots that have failed since any slot has answered, but for those that have failed
        enough before that."""

    def hears(self, slot: str, latency: float = inf) -> None:
        """Note that `slot` answers, a request that was sent `latency` seconds ago."""
        self._heard[slot] = now = monotonic()
        self._heard.move_to_end(slot)
        if len(self._heard) > MOST_HEARD:
            self._heard.popitem(last=False)
        self._answered = max(self._answered, now - latency)
        self._runs.pop(slot, None)
        self._runs.pop("", None)
        self._silent.clear()

    @property
    def likely(self) -> set[str]:
        """The slots that have answered, and not failed since any has."""
        return self._heard.keys() - self._silent

    def fails(
        self, slot: str, hold: Hold, kind: Kind, *, timeout: float, is_probe: bool, may_pause: bool
    ) -> Step:
        """Note an attempt on `slot` that has failed, after `timeout` seconds if it is a timeout;
        `is_probe` if it was to find out whether `hold` may end, and `may_pause` unless there is a
        pause, and it was not to find out whether that may end. Return what follows."""
        now = monotonic()
        if kind == "timeout" and self._heard.get(slot, -inf) > now - timeout:
            return Step()  # the host is slow
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
                    return run.held(self._retry, DEAD, PAUSES[0])
                # another one finds out when it is over
                again = ONE_BY_ONE if is_probe and hold.times >= SILENT else None
                if not may_pause or of_all.failures < ATTEMPTS:
                    return Step(True, again, hold.times)
                pause = pause_after(of_all.times)
                of_all.times += not is_new  # the next one may answer
                return Step(True, again, hold.times, pause)
        if hold.until > now and not is_probe and hold.times != SILENT:  # it was sent before
            return Step(goes_back=True)
        if run.failures < ATTEMPTS:
            if (kind == "timeout" and hold.times <= 0) or (hold.times >= SILENT and is_probe):
                return Step(seconds=ONE_BY_ONE, times=SILENT)
            return Step()
        if kind == "broken" and not is_probe:
            return Step()
        rows = max(0, hold.times - SILENT)
        # others have answered since, or it never has, and others have: it is the host
        others = self._answered > run.began or (slot not in self._heard and bool(self._heard))
        # fewer failures may be those of a process that has begun offline
        most = ALONE_HOLDS if run.failures >= 2 * ATTEMPTS else ALONE_HOLDS + ATTEMPTS
        if rows >= (len(PAUSES) if others or now - run.began >= ALONE_SECONDS else most):
            return run.held(self._retry, DEAD)
        return run.held(pause_after(rows), SILENT + rows + 1)
