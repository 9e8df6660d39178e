"""Protocols of the stores of requests, which each backend implements."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sized
from typing import TYPE_CHECKING, Protocol

from .failure import ALL, Choice

if TYPE_CHECKING:
    from scrapy import Request

    from .failure import FailedRequest


class FingerprintKeeper(Protocol):
    """A dupefilter that holds back new fingerprints until their requests are safe."""

    @property
    def held(self) -> Collection[bytes]:
        """The fingerprints held back."""

    def fingerprint(self, request: Request) -> bytes:
        """Return the fingerprint of `request`."""

    def release(self, fingerprints: Iterable[bytes]) -> None:
        """Take note that the requests of `fingerprints` are safe. Never raises."""

    def forget(self, request: Request) -> None:
        """Drop the held fingerprint of `request`, which could not be stored."""

    def close_spider(self, reason: str) -> None:
        """Close the spider on the next reactor turn."""


class RequestStore(Protocol):
    """The requests of a crawl that are not done: pending, or handed out.

    A request that was handed out stays stored until it is `done`, so a crash brings it
    back. What is pushed, done and failed is durable with the next `commit`, in that order: a
    crash leaves a request or what came of it, or both.
    """

    failures: tuple[type[Exception], ...]
    """What any method raises if the store itself fails. Anything else that `push`
    raises is about its request."""

    @property
    def pending(self) -> Sized:
        """The requests that were not handed out."""

    @property
    def uncommitted(self) -> int:
        """How many requests were pushed or done since the last commit."""

    @property
    def failed(self) -> int:
        """How many requests are kept as failed."""

    @property
    def nbytes(self) -> int:
        """How many bytes the store takes."""

    def push(self, request: Request) -> None:
        """Store `request`. Raises ValueError if it cannot be serialized."""

    def next(self) -> Request | None:
        """Return the next request in Scrapy's order, or None."""

    def done(self, request: Request) -> None:
        """Forget a request that was handed out. Does nothing for any other."""

    def fail(self, request: Request, failed: FailedRequest) -> bool:
        """Keep a request that was handed out as one that has failed, and is neither pending
        nor handed out any more. Return False, and do nothing, for any other."""

    def commit(self, fingerprints: Collection[bytes]) -> bool:
        """Make everything durable, with the `fingerprints` that the filter gets next. Return
        False if there was nothing to do."""

    def rollback(self) -> None:
        """Drop everything since the last commit."""

    def close(self, *, clean: bool) -> None:
        """Close the store, marked as `clean` or not."""


class FailedStore(Protocol):
    """The failed requests of a job or a crawl."""

    def requests(self, choice: Choice = ALL) -> list[FailedRequest]:
        """Return the chosen ones, oldest first."""

    def by_reason(self) -> dict[str, int]:
        """Return how many there are for each reason, most first."""

    def retry(self, choice: Choice = ALL) -> int:
        """Make the chosen ones pending again; return how many."""

    def drop(self, choice: Choice = ALL) -> int:
        """Forget the chosen ones; return how many."""
