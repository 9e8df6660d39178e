"""What is known of a request that has failed, under names that are the same over Scrapy's
releases, and how it is asked again."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from ..errors import encodable

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.statscollectors import StatsCollector

ATTEMPTS_KEY = "bloom_attempts"
"""The meta key of a request that has failed before: how often it was asked until then."""
IN_MEMORY = "scheduler/failed_in_memory"
"""The stat that counts those that could not be kept."""
UNREADABLE = "unreadable"
"""The reason of a stored request that cannot be read back."""
LONGEST = 500
"""Characters of an exception that are kept."""
_MOST = 2**31
"""A count of attempts in a meta from which on it is not taken for one."""

_DOWNLOAD_REASONS = {
    # an exception's own class, or the first of its bases that is here: in Scrapy's exceptions
    # of 2.15 and later, in Twisted's before
    "CannotResolveHostError": "dns",
    "DNSLookupError": "dns",
    "UnknownHostError": "dns",
    "DownloadTimeoutError": "timeout",
    "TimeoutError": "timeout",
    "TCPTimedOutError": "timeout",
    "DownloadConnectionRefusedError": "refused",
    "ConnectionRefusedError": "refused",
    "ResponseDataLossError": "data_loss",
    "_DataLoss": "data_loss",
    "DownloadFailedError": "connection",
    "ResponseFailed": "connection",
    "ConnectError": "connection",
    "ConnectionDone": "connection",
    "ConnectionLost": "connection",
    "TunnelError": "connection",
    "OSError": "connection",
    "DownloadCancelledError": "cancelled",
    "CancelledError": "cancelled",
    "StopDownload": "cancelled",
    "UnsupportedURLSchemeError": "unsupported",
    "NotSupported": "unsupported",
}


class FailedRequest(NamedTuple):
    """A request that has failed, and why.

    `status` is that of its response, `exception` the class and the message of what was
    raised; each None without one. `attempts` counts how often it was asked, with retries
    and in all starts of the job; `time` is in seconds since the epoch, 0 where it is not known.
    """

    url: str
    method: str
    reason: str
    status: int | None
    exception: str | None
    attempts: int
    time: float
    referer: str | None

    @classmethod
    def of(
        cls,
        request: Request,
        reason: str,
        *,
        status: int | None = None,
        exception: BaseException | None = None,
    ) -> FailedRequest:
        """Return the record of `request`, which fails now. Never raises, whatever a meta or an
        exception holds."""
        referer = request.headers.get("Referer")
        before = sum(_count(request.meta.get(key)) for key in (ATTEMPTS_KEY, "retry_times"))
        return cls(
            url=request.url,
            method=encodable(request.method),
            reason=encodable(reason),
            status=status if isinstance(status, int) and status in range(1000) else None,
            exception=None if exception is None else described(exception),
            attempts=before + 1,
            time=time.time(),
            referer=None if referer is None else referer.decode("utf-8", "backslashreplace"),
        )

    @classmethod
    def unreadable(cls, url: str, method: str, why: str) -> FailedRequest:
        """Return the record of a stored request that cannot be read back."""
        return cls(url, method, UNREADABLE, None, encodable(why), 1, time.time(), None)


def count_unreadable(stats: StatsCollector) -> None:
    """Count a request that could not be read back."""
    stats.inc_value("scheduler/unreadable")
    stats.inc_value("scheduler/set_aside")  # what it was called in 0.2.0


def download_reason(exception: BaseException) -> str:
    """Return the name of what ended a download: `download/timeout`, or `download/other`."""
    causes: list[object] = [exception]
    with suppress(Exception):  # an exception of any class
        causes += map(_value, exception.reasons)  # type: ignore[attr-defined]
    names = [_first_known(type(cause)) for cause in causes]
    name = "data_loss" if "data_loss" in names else names[0]
    return f"download/{name or 'other'}"


def _first_known(kind: type) -> str | None:
    known = (_DOWNLOAD_REASONS.get(base.__name__) for base in kind.__mro__)
    return next(filter(None, known), None)


def _value(cause: object) -> object:
    """Return the exception in a Failure of Twisted's, or itself."""
    return getattr(cause, "value", cause)


def _count(value: object) -> int:
    """Return a count from a meta, 0 for a value that is no count."""
    return value if isinstance(value, int) and 0 <= value < _MOST else 0


def described(exception: BaseException) -> str:
    """Return the class and the message of `exception`, as far as it gives one."""
    name = type(exception).__name__
    try:
        message = " ".join(str(exception).split())
    except Exception:  # noqa: BLE001 - a failure whose telling fails is one all the same
        message = ""
    return encodable((f"{name}: {message}" if message else name)[:LONGEST])
