"""The dupefilter of one process, whose filter is in the job directory or in memory."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from ..amounts import counted
from ..bloom.growing import ScalableBloomFilter, stored_identity
from ..bloom.header import Owner
from ..errors import message_of, unforeseen
from ..fingerprints.recorded import FingerprinterIdentity
from ..job.session import session_of
from ..startup import announce
from .base import FilterDupeFilter

if TYPE_CHECKING:
    from ..settings import BloomSettings
    from .overlay import FingerprintFilter, Overlay

logger = logging.getLogger("scrapy_bloom.job_dupefilter")


class BloomDupeFilter(FilterDupeFilter):
    """Duplicate filter for DUPEFILTER_CLASS with the fingerprints of requests in a growing Bloom
    filter, in memory or, with JOBDIR, in `JOBDIR/bloom`.

    A seen request is always recognised. A new one is taken for a seen one with a probability of at
    most BLOOM_ERROR_RATE, for any number of requests, or never with BLOOM_EXACT. `request_seen`
    never raises: if the filter fails, new fingerprints stay in memory and the spider is closed with
    reason `bloom_error`.
    """

    _remedy_when_full = "Set a larger BLOOM_CAPACITY to resume the job"

    _loses_requests = False
    """True if the job was killed, and its pending requests were in memory only."""
    _uses_overlay = False

    def open(self) -> None:
        """Write the first stats, and warn of pending requests that will not be fetched."""
        job = self._settings.job
        if job is not None and not self._uses_overlay:
            announce(
                self._crawler,
                "requests",
                "not durable, a kill -9 may lose the pages in flight: ADDONS ="
                " {'scrapy_bloom.Addon': 300} keeps them",
            )
            if job.has_stored_requests():
                logger.warning(
                    "%(job)s holds requests of DurableScheduler, which another scheduler does not"
                    " fetch: set SCHEDULER to 'scrapy_bloom.DurableScheduler' to get them.",
                    {"job": job.path},
                    extra={"spider": self._crawler.spider},
                )
        if job is not None and self._loses_requests:
            logger.warning(
                "The job in %(job)s was not stopped cleanly. The filter still knows its"
                " %(items)d requests, but Scrapy's scheduler has lost those that were pending,"
                " and they will not be fetched: to get them too, crawl again with a new JOBDIR.",
                {"job": job.path, "items": len(self._open_overlay)},
                extra={"spider": self._crawler.spider},
            )
        super().open()

    def close(self, reason: str) -> None:
        """Write the last stats, close the filter, and end the dupefilter's use of the job."""
        try:
            super().close(reason)
        finally:
            session_of(self._crawler).end(self)

    def abandon(self) -> None:
        """Close the filter of a crawl whose start is refused, and abandon the job."""
        try:
            super().abandon()
        finally:
            session_of(self._crawler).abandon()

    def use_overlay(self, *, requests_survive: bool) -> None:
        """Leave new fingerprints uncommitted until they are released, from now on. Fingerprints
        that are never released are never written. With `requests_survive` a killed job still has
        its requests."""
        self._uses_overlay = True
        self._loses_requests &= not requests_survive
        self._see = self._open_overlay.add_uncommitted

    def reset_filter(self) -> None:
        """Replace the filter of earlier rounds by an empty one, before the first request. A crash
        leaves a filter or none, which the next start replaces again.

        Raises OSError, MemoryError or BloomError.
        """
        settings, overlay = self._settings, self._open_overlay
        if settings.job is None or not len(overlay):
            return
        identity = FingerprinterIdentity.of(self._crawler.request_fingerprinter).to_text()
        from ..bloom.removal import remove_filter

        overlay.close()
        remove_filter(settings.job.filter)
        overlay.filter = opened = settings.open_filter(settings.job.filter, identity)
        self._see = overlay.add_uncommitted if self._uses_overlay else opened.add
        self._loses_requests = False
        self._announce(opened)

    def note_commit(self, job: bytes, commit: int) -> None:
        """Record the job and its commit in the filter, before the fingerprints of that commit are
        released."""
        if self._overlay is not None and isinstance(self._overlay.filter, ScalableBloomFilter):
            self._overlay.filter.note_owner(Owner(job, commit))

    @property
    def filter(self) -> FingerprintFilter:
        """The filter of the job, without uncommitted fingerprints."""
        return self._open_overlay.filter

    def release(self, fingerprints: Iterable[bytes]) -> None:
        """Add `fingerprints`, uncommitted until now, to the filter. Never raises."""
        for fingerprint in list(fingerprints):
            self._release(fingerprint)
        self._close_if_full()

    def _release(self, fingerprint: bytes) -> None:
        try:
            self._open_overlay.release(fingerprint)
        except Exception as error:  # noqa: BLE001 - see request_seen
            self._see_despite(error, fingerprint)

    @property
    def _open_overlay(self) -> Overlay:
        if self._overlay is None:
            raise ValueError("the dupefilter is not open")
        return self._overlay

    def _open_filter(
        self, settings: BloomSettings, identity: FingerprinterIdentity
    ) -> FingerprintFilter:
        job = settings.job
        if job is None:
            return self._in_memory("there is no JOBDIR")
        warning = identity.require_same(stored_identity(job.filter), str(job.filter))
        take_over = None
        if job.has_only_seen_file:
            from ..migration.clean_stop import why_unclean
            from ..migration.sources import import_job

            take_over = partial(import_job, job, why_unclean(job), settings, identity.to_text())
        session_of(self._crawler).begin(self)
        if take_over is not None and job.has_only_seen_file:
            logger.info("%s", take_over(), extra={"spider": self._crawler.spider})
        opened = settings.open_filter(job.filter, identity.to_text())
        if warning:
            logger.warning("%s", warning, extra={"spider": self._crawler.spider})
        self._loses_requests = not opened.clean
        self._announce(opened)
        return opened

    def _announce(self, opened: ScalableBloomFilter) -> None:
        known = counted(len(opened), "request")
        exactly = "exact, " if opened.exact else ""
        announce(self._crawler, "filter", f"{exactly}{opened.path}, which knows {known}")

    def _see_despite(self, error: Exception, fingerprint: bytes) -> bool:
        """Return the answer for a fingerprint on which the filter failed, and close the spider."""
        if not self._closing:
            logger.error(
                "The filter failed: %(error)s. Closing the spider; until then new requests are"
                " remembered as well as can be. Free some space or memory, then resume the job.",
                {"error": message_of(error)},
                exc_info=unforeseen(error),
                extra={"spider": self._crawler.spider},
            )
            self.close_spider("bloom_error")
        overlay = self._overlay
        if overlay is None:
            return False
        with suppress(Exception):
            # a filter that could not grow still takes keys beyond its capacity
            overlay.filter.growing = False
            return self._see(fingerprint)
        self._add_unchecked(overlay, fingerprint)
        return False
