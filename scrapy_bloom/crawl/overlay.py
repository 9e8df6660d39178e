"""Fingerprints that enter the filter when their requests are stored, and not before.

A bit that is set before its request is stored loses a page in a crash; a missing bit only repeats
one.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

from ..bloom import GrowingFilter
from ..bloom.owner import Owner, note_owner
from ..seen import Seen

if TYPE_CHECKING:
    from scrapy import Request

    from ..dupefilter import BloomDupeFilter


class Overlay(Seen):
    """Fingerprints that are new are uncommitted: in memory until they are released or forgotten."""

    def add(self, fingerprint: bytes) -> bool:
        """Return True if `fingerprint` was seen, else keep it in memory, and False."""
        if fingerprint in self._in_memory or self._knows(fingerprint):
            return True
        self._in_memory[fingerprint] = None
        return False

    def _knows(self, fingerprint: bytes) -> bool:
        return fingerprint in self.filter


class Keeper:
    """Lets the fingerprints of `dupefilter` wait for the commit that stores their requests, from
    now on. With `requests_survive` a killed job still has its requests."""

    def __init__(self, dupefilter: BloomDupeFilter, *, requests_survive: bool) -> None:
        self._dupefilter = dupefilter
        dupefilter.keeps_requests = True
        dupefilter.loses_requests &= not requests_survive
        self.fingerprint = dupefilter.fingerprint
        self.close_spider = dupefilter.close_spider
        self._overlay = overlay = Overlay(dupefilter.filter)
        self.uncommitted = overlay.uncommitted
        audit = dupefilter._audit
        self._release = overlay.release if audit is None else audit.watched(overlay.release)
        dupefilter.use(overlay)

    def release(self, fingerprints: Iterable[bytes]) -> None:
        """Add `fingerprints`, uncommitted until now, to the filter. Never raises."""
        for fingerprint in list(fingerprints):
            try:
                self._release(fingerprint)
            except Exception as error:  # noqa: BLE001 - as in request_seen
                self._dupefilter.see_despite(error, fingerprint)
                with suppress(Exception):  # it does not grow any more, and takes it
                    self._release(fingerprint)
            if self._dupefilter.watches_each_new:
                self._dupefilter.close_if_full()

    def forget(self, request: Request) -> None:
        """Remove the uncommitted fingerprint of `request`, which could not be stored."""
        if self._overlay.forget(self.fingerprint(request)):
            self._dupefilter.forget_recent()

    def note_commit(self, job: bytes, commit: int) -> None:
        """Record the job and its commit in the filter, before its fingerprints are released."""
        opened = self._overlay.filter
        if isinstance(opened, GrowingFilter):
            note_owner(opened, Owner(job, commit))
