"""The Scrapy component for one process: which requests a job has seen, in its directory."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from ..bloom.growing import ScalableBloomFilter, stored_identity
from ..bloom.header import Owner
from ..bloom.removal import remove_filter
from ..errors import describe
from ..fingerprints.identity import FingerprinterIdentity
from ..job.session import session_of
from ..reporting import counted
from ..startup import announce
from .base import FilterDupeFilter

if TYPE_CHECKING:
    from scrapy import Request

    from ..jobdir import JobDirectory
    from ..settings import BloomSettings
    from .overlay import FingerprintFilter, Seen

logger = logging.getLogger("scrapy_bloom.job_dupefilter")


class BloomDupeFilter(FilterDupeFilter):
    """Duplicate filter for DUPEFILTER_CLASS that keeps the fingerprints of requests
    in a growing Bloom filter, in memory or, with JOBDIR, in `JOBDIR/bloom`.

    A request that was seen is always recognised; a new one is taken for a seen one
    with a chance of at most BLOOM_ERROR_RATE, however many there are, or with BLOOM_EXACT
    not at all. `request_seen`
    never raises: if the filter fails it goes on in memory and closes the spider with
    reason `bloom_error`.

    A scheduler that stores requests durably can `hold_back` new fingerprints, and
    `release` them into the filter when their requests are safe: a bit that is set
    too early loses a page in a crash, a bit that is missing only repeats one.
    """

    _remedy_when_full = "Set a larger BLOOM_CAPACITY to resume the job"

    _was_killed = False
    _holds_back = False
    _requests_kept = False

    def open(self) -> None:
        """Begin: from now on requests are asked for."""
        job = self._settings.job
        if job is not None and not self._holds_back and job.has_stored_requests():
            logger.warning(
                "%(job)s holds requests of DurableScheduler, which another scheduler does not"
                " fetch: set SCHEDULER to 'scrapy_bloom.DurableScheduler' to get them.",
                {"job": job.path},
                extra={"spider": self._crawler.spider},
            )
        if job is not None and self._was_killed and not self._requests_kept:
            logger.warning(
                "The job in %(job)s was not stopped cleanly. The filter still knows its"
                " %(items)d requests, but Scrapy's scheduler has lost those that were pending,"
                " and they will not be fetched: to get them too, crawl again with a new JOBDIR.",
                {"job": job.path, "items": len(self._open_seen)},
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

    def hold_back(self, *, requests_kept: bool) -> None:
        """From now on keep new fingerprints in memory until they are released.

        Held ones count as seen. What is never released is never written, at close
        either. `requests_kept` says that a job that was killed still has its requests.
        """
        self._holds_back = True
        self._requests_kept = requests_kept
        self._see = self._open_seen.hold

    def start_afresh(self) -> None:
        """Forget what earlier rounds of the job have seen, before the first request. A crash
        leaves a filter or none, and what it knows is forgotten at the next start.

        Raises OSError, MemoryError or BloomError.
        """
        settings, seen = self._settings, self._open_seen
        if settings.job is None or not len(seen):
            return
        identity = FingerprinterIdentity.of(self._crawler.request_fingerprinter).to_text()
        seen.close()
        remove_filter(settings.job.filter)
        seen.filter = opened = ScalableBloomFilter(
            settings.capacity,
            settings.error_rate,
            settings.job.filter,
            identity=identity,
            exact=settings.exact,
        )
        self._see = seen.hold if self._holds_back else opened.add
        self._was_killed = False
        self._announce(opened)

    def note_commit(self, job: bytes, commit: int) -> None:
        """Note in the filter, before what that commit of the job has made safe is released,
        that it belongs to it."""
        if self._seen is not None and isinstance(self._seen.filter, ScalableBloomFilter):
            self._seen.filter.note_owner(Owner(job, commit))

    @property
    def filter(self) -> FingerprintFilter:
        """What the job has seen, without what is held back."""
        return self._open_seen.filter

    @property
    def held(self) -> Collection[bytes]:
        """The fingerprints held back, oldest first."""
        return self._open_seen.held

    def release(self, fingerprints: Iterable[bytes]) -> None:
        """Move `fingerprints` from memory into the filter. Never raises."""
        for fingerprint in list(fingerprints):
            self._release(fingerprint)
        self._close_if_full()

    def forget(self, request: Request) -> None:
        """Drop the held fingerprint of `request`, which could not be stored, so that
        the next request for it is taken as new, however its URL is written."""
        if self._open_seen.forget(self.fingerprint(request)):
            self._recent.clear()

    def _release(self, fingerprint: bytes) -> None:
        try:
            self._open_seen.release(fingerprint)
        except Exception as error:  # noqa: BLE001 - see request_seen
            self._see_despite(error, fingerprint)

    @property
    def _open_seen(self) -> Seen:
        if self._seen is None:
            raise ValueError("the dupefilter is not open")
        return self._seen

    def _open_filter(
        self, settings: BloomSettings, identity: FingerprinterIdentity
    ) -> FingerprintFilter:
        job = settings.job
        if job is None:
            return self._in_memory("there is no JOBDIR")
        warning = self._require_same_identity(job, identity)
        take_over = self._taking_over(job, settings, identity) if job.has_only_seen_file else None
        session_of(self._crawler).begin(self)
        if take_over is not None and job.has_only_seen_file:
            logger.info("%s", take_over(), extra={"spider": self._crawler.spider})
        opened = ScalableBloomFilter(
            settings.capacity,
            settings.error_rate,
            job.filter,
            identity=identity.to_text(),
            exact=settings.exact,
        )
        if warning:
            logger.warning("%s", warning, extra={"spider": self._crawler.spider})
        self._was_killed = not opened.clean
        self._announce(opened)
        return opened

    def _announce(self, opened: ScalableBloomFilter) -> None:
        known = counted(len(opened), "request")
        exactly = "exact, " if opened.exact else ""
        announce(self._crawler, "filter", f"{exactly}{opened.path}, which knows {known}")

    def _taking_over(
        self, job: JobDirectory, settings: BloomSettings, identity: FingerprinterIdentity
    ) -> Callable[[], object]:
        """Look at what Scrapy's dupefilter has left, and return what imports it."""
        from ..migration.clean_stop import why_unclean
        from ..migration.sources import import_job

        return partial(
            import_job,
            job,
            why_unclean(job),
            settings.capacity,
            settings.error_rate,
            identity.to_text(),
            exact=settings.exact,
        )

    def _require_same_identity(
        self, job: JobDirectory, identity: FingerprinterIdentity
    ) -> str | None:
        stored = stored_identity(job.filter)
        if not stored:
            return None
        return FingerprinterIdentity.from_text(stored).require_same(identity, str(job.filter))

    def _see_despite(self, error: Exception, fingerprint: bytes) -> bool:
        """Answer for a fingerprint that the filter failed on, and close the spider."""
        if not self._closing:
            logger.error(
                "The filter failed: %(error)s. Closing the spider; until then new requests are"
                " remembered as well as can be. Free some space or memory, then resume the job.",
                {"error": describe(error)},
                exc_info=error,
                extra={"spider": self._crawler.spider},
            )
            self.close_spider("bloom_error")
        seen = self._seen
        if seen is None:
            return False
        with suppress(Exception):
            # a filter that could not grow still takes keys beyond its capacity
            seen.filter.growing = False
            return self._see(fingerprint)
        self._hold_unasked(seen, fingerprint)
        return False
