"""The dupefilter for several processes, whose fingerprints are in a Bloom filter in Redis."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from contextlib import ExitStack
from itertools import islice
from typing import TYPE_CHECKING

from scrapy import Request, Spider, signals

from ..amounts import counted
from ..bloom.layers import Layered
from ..crawl.overlay import Overlay
from ..dupefilter import FilterDupeFilter
from ..errors import BloomError, JobDirectoryError, SharedFilterError
from ..full import ON_FULL
from ..seen import Seen
from ..startup import announce
from .client import RedisClient
from .filter import RedisBloomFilter, stored_header
from .layout import in_one_slot
from .lifecycle import require_no_eviction
from .settings import RedisSettings

if TYPE_CHECKING:
    from scrapy.crawler import Crawler
    from typing_extensions import Self


logger = logging.getLogger(__name__)

_REPLAYED_AT_ONCE = 100


class RedisBloomDupeFilter(FilterDupeFilter):
    """Duplicate filter for DUPEFILTER_CLASS that shares one growing Bloom filter with
    other processes, in Redis at BLOOM_REDIS_URL under BLOOM_REDIS_KEY.

    Works with Scrapy's scheduler and with scrapy-redis's. Cost of a new request: one round trip, in
    which the reactor waits; of a duplicate that this process has seen lately: none. When Redis has
    not answered for BLOOM_REDIS_TIMEOUT seconds, new fingerprints stay in memory until it answers,
    and the spider is closed with reason `bloom_error`. An outage never makes a new request count as
    seen.
    """

    _shared: RedisBloomFilter | None = None
    _outage = False
    _replays_at_close = True
    _beside_queue = False

    def __init__(self, crawler: Crawler) -> None:
        super().__init__(crawler)
        self._use_spider(crawler.spider)

    @classmethod
    def from_spider(cls, spider: Spider) -> Self:
        """Return the open dupefilter of `spider`, for scrapy-redis's scheduler, which
        never calls `open` and `close`. Refuses the start as `from_crawler` does."""
        crawler = spider.crawler
        self = cls(crawler)
        self._use_spider(spider)
        self._start()
        self.open()
        crawler.signals.connect(self.close, signals.spider_closed)
        if not crawler.settings.getbool("SCHEDULER_PERSIST"):
            self._log.warning(
                "SCHEDULER_PERSIST is not set: the first worker to finish will clear the shared"
                " filter (and scrapy-redis's queue), and the others will stop with an error. Set"
                " SCHEDULER_PERSIST to True for several workers."
            )
        # scrapy-redis could not queue the requests of an outage: let others find them
        self._replays_at_close = False
        return self

    @classmethod
    def beside_queue(cls, crawler: Crawler) -> Self:
        """Return the dupefilter for a scheduler whose requests are in the same Redis, in one hash
        slot with the filter. New fingerprints are uncommitted until the scheduler stores them with
        their requests. Refuses the start as `from_crawler` does."""
        self = cls(crawler)
        self._beside_queue = True
        self._start()
        return self

    def _use_spider(self, spider: Spider | None) -> None:
        self._spider = spider
        self._log = logging.LoggerAdapter(logger, {"spider": spider})

    @property
    def shared(self) -> RedisBloomFilter:
        """The open filter."""
        if self._shared is None:
            raise ValueError("the dupefilter is not open")
        return self._shared

    def release(self, fingerprints: Iterable[bytes]) -> None:
        """Do nothing: fingerprints enter the filter with their requests."""

    def settle(self, fingerprint: bytes) -> None:
        """Record that a fingerprint is in Redis: it is uncommitted no longer."""
        if self._seen is not None:
            self._seen.forget(fingerprint)
            self.shared.known.add(fingerprint)

    def forget_known(self, uncommitted: Iterable[bytes] = ()) -> None:
        """Clear the caches of seen requests, and remove these fingerprints from the overlay."""
        self.forget_recent()
        self.shared.known.clear()
        if self._seen is not None:
            for fingerprint in uncommitted:
                self._seen.forget(fingerprint)

    @property
    def uncommitted(self) -> Collection[bytes]:
        """The fingerprints that Redis does not have yet, oldest first."""
        return () if self._seen is None else self._seen.uncommitted

    def forget(self, request: Request) -> None:
        """Remove the uncommitted fingerprint of `request`, which could not be stored."""
        if self._seen is not None and self._seen.forget(self.fingerprint(request)):
            self.forget_recent()

    def request_seen(self, request: Request) -> bool:
        """Return True if any worker has seen `request`, else remember it. Never raises."""
        self.confirm_recent()
        return self._ask(request)

    def confirm_recent(self) -> None:
        """Clear the caches if Redis may have forgotten what they have."""
        if self._seen is not None and self._shared is not None and not self._beside_queue:
            self._shared.confirm()

    def close(self, reason: str) -> None:
        """Write the last stats and close the connection. The filter stays."""
        if self._seen is not None and self._shared is not None:
            if self._beside_queue:
                self.use(self._seen_in(self.shared))
            if self.uncommitted and self._replays_at_close:
                self._replay(len(self.uncommitted))
            if self.uncommitted:
                self._log.error(
                    "%(held)d requests are not in %(filter)s: they may be fetched again.",
                    {"held": len(self.uncommitted), "filter": self.shared.name},
                )
            elif not self.shared.deleted:
                self._refresh()
        super().close(reason)

    def clear(self) -> None:
        """Delete the shared filter, for all workers; the next request makes a new one.
        Called by scrapy-redis's scheduler."""
        if self._seen is None or self._shared is None:
            return
        self.forget_recent()
        self.use(self._seen_in(self.shared))
        self._refresh()
        try:
            self.shared.delete()
        except BloomError as error:
            self._log.error("Cannot clear the filter: %s", error)

    def _open_filter(self) -> RedisBloomFilter:
        assert self._spider is not None
        if self._settings.exact:
            raise ValueError(
                "BLOOM_EXACT is True, and a filter in Redis has no exact table: leave BLOOM_EXACT"
                " out, or set DUPEFILTER_CLASS to 'scrapy_bloom.BloomDupeFilter' for a filter of"
                " one process"
            )
        redis = RedisSettings.read(self.crawler.settings, self._spider.name)
        key = in_one_slot(redis.key) if self._beside_queue else redis.key
        with ExitStack() as undo:
            client = undo.enter_context(RedisClient(redis.url, redis.timeout, waits=True))
            self._shared = self._open_shared(client, key)
            undo.pop_all()
        return self._shared

    def _open_shared(self, client: RedisClient, key: str) -> RedisBloomFilter:
        is_new = stored_header(client, key) is None
        job, settings = self._job, self._settings
        for path in (job.filter, job.seen_file) if job is not None and is_new else ():
            if path.exists():
                raise JobDirectoryError(
                    f"{path.parent} holds {path.name}, which the new filter {key!r} in Redis would"
                    " know nothing of: what that job has seen would be fetched again. Load it with"
                    " scrapy_bloom.load_into_redis, or use a new JOBDIR"
                )
        if self._beside_queue:
            self._require_kept(client, is_new=is_new)
        shared = RedisBloomFilter(
            client, key, settings.capacity, settings.error_rate, identity=self._identity.to_text()
        )
        shared.growing = ON_FULL.read(self.crawler.settings) == "grow"
        shared.on_forget = self._forget_recent_urls
        stored, fresh = shared.header.identity, "another BLOOM_REDIS_KEY"
        self._identity.require_same(stored, shared.name, fresh)
        if not self._beside_queue and (policy := client.evicting()):
            self._log.warning(
                "Redis at %(name)s evicts keys when its memory is full (maxmemory-policy"
                " %(policy)s), and with them parts of the filter; the crawl would stop then. Set"
                " maxmemory-policy to noeviction or a volatile one.",
                {"name": client.name, "policy": policy},
            )
        known = counted(len(shared), "request")
        announce(self.crawler, "filter", f"{shared.name}, which knows {known}")
        return shared

    def _require_kept(self, client: RedisClient, *, is_new: bool) -> None:
        """Warn if Redis may lose requests. Raises SharedFilterError if it evicts keys and the crawl
        `is_new`."""
        try:
            require_no_eviction(client)
        except SharedFilterError as error:
            if is_new:
                raise
            self._log.error("%s", error)
        if client.is_volatile():
            self._log.warning(
                "Redis at %(name)s keeps nothing on a disk (appendonly no, no save): when it"
                " restarts, the crawl is lost. Set appendonly to yes.",
                {"name": client.name},
            )

    def _seen_in(self, opened: Layered) -> Seen:
        return BesideQueue(self.shared) if self._beside_queue else Seen(opened)

    def let_pass(self, fingerprint: bytes) -> None:
        """Settle `fingerprint`: another worker may have sent it, and a request bypasses the filter
        in Redis only if its own is not uncommitted."""
        if self._beside_queue:
            self.settle(fingerprint)

    def _forget_recent_urls(self) -> None:
        self.forget_recent()
        self._log.warning(
            "Redis was restarted, or another server has taken its place, and it may have"
            " forgotten requests: those that are remembered here will be asked about again."
        )

    def see_despite(self, error: Exception, fingerprint: bytes) -> bool:
        """Remember in memory a fingerprint that Redis did not take."""
        if self._seen is None:
            return False
        self._seen.add_unchecked(fingerprint)
        self.close_if_full()
        if not (self._outage or self.filter.growing is None):
            self._outage = self.watches_each_new = True
            self.crawler.stats.inc_value("bloom/outages")
            self._log.error(
                "%(error)s. New requests are remembered in memory until Redis answers again."
                " Closing the spider.",
                {"error": error},
            )
        self.close_spider("bloom_error")
        return False

    def do_what_is_due(self) -> None:
        """Replay a part of an outage that may be over, and do what is due at any dupefilter."""
        if self._outage:
            self._replay(_REPLAYED_AT_ONCE)
        super().do_what_is_due()

    def _replay(self, count: int) -> None:
        """Move up to `count` fingerprints from memory into the filter."""
        overlay = self._seen
        if overlay is None or self._shared is None:
            return
        try:
            for fingerprint in list(islice(overlay.uncommitted, count)):
                overlay.release(fingerprint)
        except Exception:  # noqa: BLE001 - the outage goes on
            return
        if not overlay.uncommitted:
            self._outage = False
            self._log.warning(
                "Redis answers again: %(filter)s has what was remembered in memory.",
                {"filter": self.shared.name},
            )

    def _refresh(self) -> None:
        try:
            self.shared.refresh()
        except BloomError as error:
            self._log.warning("The last stats are not up to date: %s", error)


class BesideQueue(Overlay):
    """The fingerprints that Redis is known to have, and those that wait for their requests."""

    filter: RedisBloomFilter

    def _knows(self, fingerprint: bytes) -> bool:
        return fingerprint in self.filter.known.urls
