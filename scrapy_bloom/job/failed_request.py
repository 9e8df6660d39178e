"""Failed requests: what is recorded of one, under names that are the same over Scrapy's
releases, and which of them a command is about."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from ..errors import encodable
from ..scrapy_private import HELD

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.statscollectors import StatsCollector

item_refused = object()
"""Signal of a feed exporter that cannot take an item, with the `response` of its page, or the
failure of its errback, and the `error`."""
ATTEMPTS_KEY = "bloom_attempts"
"""The meta key of a retried request: its number of attempts so far."""
TIMES_KEYS = ("retry_times", HELD)
"""The meta keys that count how often a request was sent again as itself."""
IN_MEMORY = "scheduler/failed_in_memory"
"""The stat that counts failed requests that cannot be serialized, and so are not kept."""
CAPPED = "capped"
"""The reason of a request that is over BLOOM_BUDGET."""
LOST = "unserializable"
"""The reason of a request over BLOOM_BUDGET that cannot be serialized: its record is all that is
kept, and no retry asks it."""
ASKING_CAPPED = "Asking %(requests)s that BLOOM_BUDGET had kept"
UNREADABLE = "unreadable"
"""The reason of a stored request that cannot be read back."""
DROPPED = "dropped"
"""The reason of failed requests that an operator has dropped, and kept."""
LONGEST = 500
"""Most characters of an exception in a record."""
_MOST = 2**31
"""A value in a meta that is as large as this is no count of attempts."""

_DOWNLOAD_REASONS = {
    # by an exception's class or its first base in this table: Scrapy's since 2.15, else Twisted's
    name: reason
    for reason, names in {
        "dns": "CannotResolveHostError DNSLookupError UnknownHostError",
        "timeout": "DownloadTimeoutError TimeoutError TCPTimedOutError",
        "refused": "DownloadConnectionRefusedError ConnectionRefusedError",
        "data_loss": "ResponseDataLossError _DataLoss",
        "connection": "DownloadFailedError ResponseFailed ConnectError ConnectionDone"
        " ConnectionLost TunnelError OSError",
        "cancelled": "DownloadCancelledError CancelledError StopDownload",
        "unsupported": "UnsupportedURLSchemeError NotSupported",
    }.items()
    for name in names.split()
}


class FailedRequest(NamedTuple):
    """The record of a failed request.

    `status` is that of its response, `exception` the class and message of the exception; each None
    without one. `attempts` counts all dispatches, with retries and in all starts of the job. `time`
    is in seconds since the epoch, 0 if unknown.
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
        """Return the record of `request`, which fails now. Never raises, for any meta or
        exception."""
        referer = request.headers.get("Referer")
        return cls(
            url=request.url,
            method=encodable(request.method),
            reason=encodable(reason),
            status=status if isinstance(status, int) and status in range(1000) else None,
            exception=None if exception is None else class_and_message(exception),
            attempts=attempts_of(request.meta) + 1,
            time=time.time(),
            referer=None if referer is None else referer.decode("utf-8", "backslashreplace"),
        )

    @classmethod
    def unreadable(cls, url: str, method: str, why: str) -> FailedRequest:
        """Return the record of a stored request that cannot be read back."""
        return cls(url, method, UNREADABLE, None, encodable(why), 1, time.time(), None)

    @classmethod
    def dropped(cls, url: str, method: str, fields: Mapping[str, Any]) -> FailedRequest:
        """Return the record of a request of these `fields`, which is dropped and kept."""
        values = (fields.get("headers") or {}).get(b"Referer")
        referer = values[0] if isinstance(values, list) and values else None
        before = referer.decode("utf-8", "backslashreplace") if isinstance(referer, bytes) else None
        attempts = attempts_of(fields.get("meta") or {})
        return cls(url, method, DROPPED, None, None, attempts, time.time(), before)

    @classmethod
    def capped(cls, url: str, method: str) -> FailedRequest:
        """Return the record of a request over its budget."""
        return cls(url, method, CAPPED, None, None, 0, 0.0, None)


def lost(request: Request, slot: str) -> FailedRequest:
    """Return the record of a request of `slot` that is over the budget and cannot be serialized."""
    callback = getattr(request.callback, "__qualname__", "parse")
    what = f"callback {callback}, slot {slot!r}"
    return FailedRequest.of(request, LOST)._replace(attempts=0, exception=encodable(what))


class Choice(NamedTuple):
    """The failed requests whose reason matches one of these globs, and whose URL one of
    those; all, if there are none."""

    reasons: Sequence[str] = ()
    urls: Sequence[str] = ()

    def includes(self, reason: str, url: str) -> bool:
        """Return True if a request that has failed for `reason` is chosen."""
        return matches(self.reasons, reason) and matches(self.urls, url)

    def has_reason(self, reason: str) -> bool:
        """Return True if some request that has failed for `reason` may be chosen."""
        return matches(self.reasons, reason)


ALL = Choice()


def count_unreadable(stats: StatsCollector) -> bool:
    """Count a request that could not be read back. Return True for the first one, which the log
    shows for all."""
    stats.inc_value("scheduler/unreadable")
    return bool(stats.get_value("scheduler/unreadable", 1) == 1)


def download_reason(exception: BaseException) -> str:
    """Return the reason of a failed download, such as `download/timeout` or `download/other`."""
    causes: list[object] = [exception]
    with suppress(Exception):  # an exception of any class; Twisted's have failures
        causes += (getattr(each, "value", each) for each in exception.reasons)  # type: ignore[attr-defined]
    names = [_first_known(type(cause)) for cause in causes]
    name = "data_loss" if "data_loss" in names else names[0]
    return f"download/{name or 'other'}"


def _first_known(kind: type) -> str | None:
    known = (_DOWNLOAD_REASONS.get(base.__name__) for base in kind.__mro__)
    return next(filter(None, known), None)


def count_of(value: object) -> int:
    """Return a count of a meta, 0 for a value that is no count."""
    return value if isinstance(value, int) and 0 <= value < _MOST else 0


def attempts_of(meta: Mapping[str, Any]) -> int:
    """Return how often a request with this `meta` was sent before."""
    return sum(count_of(meta.get(key)) for key in (ATTEMPTS_KEY, *TIMES_KEYS))


def class_and_message(exception: BaseException) -> str:
    """Return the class and the message of `exception`, or the class if it has no message."""
    name = type(exception).__name__
    try:
        message = " ".join(str(exception).split())
    except Exception:  # noqa: BLE001 - `str` of any class
        message = ""
    return encodable((f"{name}: {message}" if message else name)[:LONGEST])


@lru_cache(1)
def _database() -> sqlite3.Connection:
    return sqlite3.connect(":memory:", check_same_thread=False)


def matches(globs: Sequence[str], text: str) -> bool:
    """Return True if `text` matches one of the `globs` to SQLite, or if there are none. Raises
    ValueError for a longer glob than SQLite takes. Source: https://sqlite.org/lang_expr.html#glob.
    Cost: 2 µs for each glob."""
    ask = _database().execute
    shown = _one_by_one(text)
    try:
        return not globs or any(
            ask("SELECT ? GLOB ?", (shown, _one_by_one(glob))).fetchone()[0] for glob in globs
        )
    except sqlite3.OperationalError as error:
        raise ValueError(f"a glob is too long: {error}") from error


def _one_by_one(text: str) -> str:
    """Return `text` with one character that UTF-8 has for each lone surrogate."""
    if text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
