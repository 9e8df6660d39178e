"""Failed requests: what is recorded of one, under names that no release of Scrapy changes."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, get_type_hints

from ..errors import encodable
from ..scrapy_private.progress import HELD

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
HOST = "host"
"""The reason of a request that waits for a dead host: it stays pending, and is listed as failed."""
LOST = "unserializable"
"""The reason of a request over BLOOM_BUDGET that cannot be serialized: its record is all that is
kept, and no retry asks it."""
RETRYING = "Retrying %(requests)s that had failed (BLOOM_RETRY_FAILED)"
ASKING_CAPPED = "Asking %(requests)s that BLOOM_BUDGET had kept"
UNREADABLE = "unreadable"
"""The reason of a stored request that cannot be read back."""
LONGEST = 500
"""Most characters of an exception in a record."""

_DOWNLOAD_REASONS = {
    # by an exception's class or its first base in this table: Scrapy's since 2.15, else Twisted's
    name: reason
    for reason, names in {
        "dns": "CannotResolveHostError DNSLookupError UnknownHostError",
        "timeout": "DownloadTimeoutError TimeoutError TCPTimedOutError",
        "refused": "DownloadConnectionRefusedError ConnectionRefusedError ConnectError",
        "data_loss": "ResponseDataLossError",
        "connection": "DownloadFailedError ResponseFailed ConnectionDone ConnectionLost"
        " TunnelError OSError",
        "cancelled": "DownloadCancelledError CancelledError StopDownload",
        "unsupported": "UnsupportedURLSchemeError NotSupported",
    }.items()
    for name in names.split()
}


class FailedRequest(NamedTuple):
    """The record of a failed request.

    `status` is that of its response, `exception` class and message; each None without one.
    `attempts` counts all dispatches, with retries and in all starts of the job. `time` is in
    seconds since the epoch, 0 if unknown.
    """

    url: str
    method: str
    reason: str
    status: int | None = None
    exception: str | None = None
    attempts: int = 0
    time: float = 0.0
    referer: str | None = None

    @classmethod
    def of(
        cls,
        request: Request,
        reason: str,
        *,
        status: int | None = None,
        exception: BaseException | None = None,
    ) -> FailedRequest:
        """Return the record of `request`, which fails now. Never raises."""
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
        return cls(url, method, UNREADABLE, None, encodable(why), 1, time.time())

    def encode(self) -> str:
        """Return it as a JSON object."""
        return json.dumps(self._asdict())

    @classmethod
    def decode(cls, text: str) -> FailedRequest:
        """Return what `encode` had. Raises ValueError, TypeError for a damaged one."""
        found = cls(**json.loads(text))
        if not all(isinstance(each, _TYPES[name]) for name, each in found._asdict().items()):
            raise ValueError("the record of a failed request is damaged")
        return found


_TYPES = get_type_hints(FailedRequest)


def is_first(stats: StatsCollector, name: str) -> bool:
    """Count a request in the stat `name`. Return True for the first one, to be logged."""
    stats.inc_value(name)
    return bool(stats.get_value(name, 1) == 1)


def download_reason(exception: BaseException) -> str:
    """Return the reason of a failed download, such as `download/timeout` or `download/other`."""
    known = (_DOWNLOAD_REASONS.get(base.__name__) for base in type(exception).__mro__)
    return f"download/{next(filter(None, known), 'other')}"


def count_of(value: object) -> int:
    """Return a count of a meta, 0 for a value that is no count, or too large for one."""
    return value if isinstance(value, int) and 0 <= value < 2**31 else 0


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
