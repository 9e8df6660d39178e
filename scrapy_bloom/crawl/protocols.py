"""What a ledger stands on: a store of requests, which makes records of them, a keeper of their
fingerprints, and the holds of slots."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence, Sized
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from scrapy import Request

    from .delays import Hold
    from .failed_request import FailedRequest


class FingerprintKeeper(Protocol):
    """A dupefilter whose new fingerprints enter its filter when their requests are stored."""

    @property
    def uncommitted(self) -> Collection[bytes]:
        """The fingerprints in the overlay, oldest first."""

    def fingerprint(self, request: Request) -> bytes:
        """Return the fingerprint of `request`."""

    def release(self, fingerprints: Iterable[bytes]) -> None:
        """Add `fingerprints`, whose requests are stored, to the filter. Never raises."""

    def forget(self, request: Request) -> None:
        """Remove the uncommitted fingerprint of `request`, which could not be stored."""

    def close_spider(self, reason: str) -> None:
        """Close the spider on the next reactor turn."""


class Holds(Protocol):
    """The slots of a crawl that are on hold."""

    @property
    def holds(self) -> Mapping[str, Hold]:
        """The holds by slot; one that is over may stay here until an answer of its slot ends it."""

    def hold(self, slot: str, seconds: float, times: int) -> None:
        """Dispatch no request of `slot` for so many seconds, or for those that are left, if these
        are more; `inf` is until its release, and 0 ends the wait but not the row. `times` is 0 for
        a hold by hand, which no request ends. Durable with the next commit."""

    def release(self, slot: str) -> None:
        """End the hold of `slot`, if there is one. Durable with the next commit."""


class HoldingScheduler(Holds, Protocol):
    """The scheduler, as the middleware that holds slots sees it."""

    probes: dict[str, Request]
    """By slot, empty for a pause: the request that asks whether that is over, until something is
    done to it. If the engine is done with it sooner, another one asks."""

    @property
    def is_paused(self) -> bool:
        """True from the first `pause` until the end of it."""

    def pause(self, seconds: float | None, likely: Collection[str] = ()) -> None:
        """Dispatch nothing for so many seconds, then one request until the next call, first of the
        slots that are `likely` to answer; with None end that."""

    def has_dispatched(self, request: Request) -> bool:
        """Return True if `request` came from this scheduler."""

    def is_probe(self, request: Request, slot: str) -> bool:
        """Return True if `request` was dispatched in this hold of `slot`, to find out its end."""

    def sent_back(self, request: Request) -> Request | None:
        """Return a copy of `request` if it was dispatched before its slot was held, as it is."""


class RequestStore(Protocol):
    """The pending and the dispatched requests of a crawl, which stay stored until they are `done`.
    Pushed, done and failed requests are durable with the next `commit`, in that order: a crash
    leaves a request, pending again, or its children, or both."""

    failures: tuple[type[Exception], ...]
    """The exceptions of a store that fails. Others of `push` are about its request."""

    @property
    def pending(self) -> Sized:
        """The requests that were not dispatched."""

    @property
    def later(self) -> int:
        """The number of delayed requests, which `pending` does not count."""

    @property
    def next_due(self) -> float | None:
        """Seconds until a request is due or a hold ends, 0 or less if it is past; or None."""

    @property
    def uncommitted(self) -> int:
        """Number of requests pushed or done since the last commit."""

    @property
    def failed(self) -> int:
        """Number of requests that are stored as failed."""

    @property
    def nbytes(self) -> int:
        """Bytes of the store."""

    def push(
        self, request: Request, sources: Sequence[Request], delay: float | None = None
    ) -> None:
        """Store `request`, as which the dispatched `sources` are sent again. With a `delay` it is
        pending so many seconds from now. Raises ValueError if it cannot be serialized."""

    def has_only(self, slots: Collection[str]) -> bool:
        """Return True if all requests that wait, due or not, are of these."""

    def next(self) -> Request | None:
        """Return the next request in Scrapy's order, or None; those that are due count."""

    def done(self, request: Request) -> None:
        """Delete a dispatched request. Does nothing for any other."""

    def fail(self, request: Request, failed: FailedRequest) -> bool:
        """Make a dispatched request a failed one. Return False, and do nothing, for any other."""

    def commit(self, fingerprints: Collection[bytes]) -> bool:
        """Make all changes durable, with the `fingerprints` that are released next. Return False
        if there were none."""

    def rollback(self) -> None:
        """Drop all changes since the last commit."""

    def close(self, *, clean: bool) -> None:
        """Close the store, marked as `clean` or not."""
