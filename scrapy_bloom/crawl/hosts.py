"""Hosts that do not answer: when their slot is held, when they are dead, and when the machine is
offline. All rules are here."""

from __future__ import annotations

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
MOST_HEARD = 10_000
"""So many slots that have answered are remembered, or those of the last ten minutes."""

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
        self._heard: dict[str, float] = {}
        """When a byte of each slot came last."""
        self._most_heard = MOST_HEARD
        self._answered = -inf
        """When the last request was sent that was answered."""
        self._silent: set[str] = set()
        """The slots that have failed since any slot has answered, but for those that have failed
        enough before that."""
        self._failures, self._silent_since = 0, 0.0  # of these, and when the first of them was
        self._pauses, self._paused_until = 0, 0.0

    def hears(self, slot: str, latency: float = inf) -> bool:
        """Note that `slot` answers, a request that was sent `latency` seconds ago. Return True if
        the machine was offline up to now."""
        self._heard[slot] = now = monotonic()
        self._answered = max(self._answered, now - latency)
        if len(self._heard) > self._most_heard:
            self._heard = {each: at for each, at in self._heard.items() if at > now - 600}
            self._most_heard = max(MOST_HEARD, 2 * len(self._heard))
        self._runs.pop(slot, None)
        self._silent.clear()
        was_offline = self._paused_until > 0
        self._failures, self._pauses, self._paused_until = 0, 0, 0.0
        return was_offline

    @property
    def likely(self) -> set[str]:
        """The slots that have answered, and not failed since any has."""
        return self._heard.keys() - self._silent

    def fails(
        self, slot: str, hold: Hold, kind: Kind, *, timeout: float, is_probe: bool = False
    ) -> Step:
        """Note an attempt on `slot` that has failed, after `timeout` seconds if it is a timeout;
        `is_probe` if it was to find out whether `hold` may end. Return what follows."""
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
            self._silent_since = self._silent_since if self._failures else now
            self._silent.add(slot)
            self._failures += 1
            if len(self._silent) > 1:
                # else a crawl would never end whose last hosts are all dead
                if slot not in self._heard and now - self._silent_since >= ALONE_SECONDS:
                    self._paused_until = now + PAUSES[0]
                    return run.held(self._retry, DEAD, PAUSES[0])
                # another one finds out when it is over
                again = ONE_BY_ONE if is_probe and hold.times >= SILENT else None
                return Step(True, again, hold.times, self._pause(now, is_new=is_new))
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
        return run.held(PAUSES[min(rows, len(PAUSES) - 1)], SILENT + rows + 1)

    def _pause(self, now: float, *, is_new: bool) -> float | None:
        """Return for how many seconds nothing is sent, None if that is so already, or too little
        has failed. It is no longer than the last for a slot that `is_new`: the next may answer."""
        if self._failures < ATTEMPTS or now < self._paused_until:
            return None
        pause = PAUSES[min(self._pauses, len(PAUSES) - 1)]
        self._pauses += not is_new
        self._paused_until = now + pause
        return pause
