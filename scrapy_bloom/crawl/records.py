"""A stored request is one record with a state. What the engine does with records is a Store, and
what an operator does a Desk; a job on the disk, the memory and a crawl in Redis have both."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from .choice import KEPT, UNFINISHED, WAITING, State

if TYPE_CHECKING:
    from .choice import By, Counts, Filter, Record
    from .failed_request import FailedRequest

__all__ = ["KEPT", "UNFINISHED", "WAITING", "Claimed", "Desk", "State", "Store", "rank_of"]


def rank_of(priority: int, *, start: bool) -> int:
    """Return where a priority of Scrapy's stands in its order, the first one lowest: start requests
    come behind the others of their priority."""
    return -2 * priority + start


class Claimed(NamedTuple):
    """A record that the engine gets."""

    id: int
    slot: str
    payload: Any


class Store(Protocol):
    """The records of a process. Changes are durable with the next `commit`, all of them or none.
    Any method may raise one of `failures`."""

    failures: tuple[type[Exception], ...]

    def push(self, slot: str, rank: int, payload: Any, due: float | None = None) -> int:
        """Add a record: `payload` is bytes, or the request itself in memory. It is delayed if it is
        `due` later, in seconds since 1970. Return its id, which never changes."""

    def next(self) -> Claimed | None:
        """Claim the next record in Scrapy's order of a slot that is not on hold, or return None."""

    def done(self, id_: int) -> None:
        """Delete a claimed record."""

    def fail(self, id_: int, failed: FailedRequest, payload: bytes | None = None) -> None:
        """Make a claimed record a failed one, with another `payload` for a retry."""

    def put_off(self, id_: int, due: float) -> None:
        """Make a claimed record a delayed one."""

    def take_due(self, now: float) -> bool:
        """Make delayed records pending that are due, as the newest of their rank. Return True if
        there are more: each call does a little only."""


Action = Literal["drop", "fail", "retry"]
"""The records go; they fail, for the reason `dropped`; they are pending again."""


PATIENCE = 30.0
"""Seconds that a running job has for the answer to an order."""


class Desk(Protocol):
    """The records of a job or a crawl, while engines are at work or not. Raises BloomError."""

    @property
    def taker(self) -> str:
        """The process that asks what is retried, in words."""

    def count(self, chosen: Filter, by: By = "slot") -> Counts:
        """Return how many are chosen."""

    def scan(self, chosen: Filter) -> Iterator[Record]:
        """Yield the chosen ones: pending ones, then others, of each state the oldest first."""

    def change(self, chosen: Filter, action: Action) -> Counts | None:
        """Do `action` with what is chosen; None if a running job has not answered in time."""

    def held(self) -> Mapping[str, float]:
        """Return the slots on hold, and for how many seconds, `inf` until the release."""

    def hold(self, slots: Sequence[str], seconds: float | None) -> int | None:
        """Hold `slots` for so many seconds, with None release them. Return how many are held now,
        or were; None as `change` does."""
