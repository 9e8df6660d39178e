"""The Scrapy component for several processes: which requests any of them has seen, in
a Bloom filter in Redis."""

from __future__ import annotations

import logging
from itertools import islice
from typing import TYPE_CHECKING, Any, cast

from scrapy import signals

from ..dupefilter import BloomDupeFilter
from ..errors import BloomError, JobDirectoryError
from ..fingerprints.identity import FingerprinterIdentity
from ..settings import RedisSettings, scrapy_redis_clears
from .client import RedisClient
from .filter import RedisBloomFilter, stored_header

if TYPE_CHECKING:
    from pathlib import Path

    from scrapy import Spider
    from typing_extensions import Self

    from ..bloom.growing import ScalableBloomFilter

logger = logging.getLogger(__name__)

MOST_HELD = 100_000
"""Fingerprints remembered in an outage before the spider is closed: about 10 MB."""

_REPLAYED_AT_ONCE = 100


class RedisBloomDupeFilter(BloomDupeFilter):
    """Duplicate filter for DUPEFILTER_CLASS that shares one growing Bloom filter with
    other processes, in Redis at BLOOM_REDIS_URL under BLOOM_REDIS_KEY.

    Works with Scrapy's scheduler and with scrapy-redis's. Cost of a new request: one
    round trip, in which the reactor waits; of a duplicate seen in this process lately:
    none. When Redis has not answered for BLOOM_REDIS_TIMEOUT seconds, new fingerprints
    are kept in memory and the spider is closed with reason `bloom_error`, at once or,
    with BLOOM_REDIS_ON_ERROR "local", when there are 100,000 of them; they go into the
    filter as soon as Redis answers. A new request is never taken for a seen one because
    of an outage.
    """

    can_hold_back = False
    _remedy_when_full = "Set BLOOM_ON_FULL to 'grow' to go on"
    _outage = False
    _replay_at_close = True

    @classmethod
    def from_spider(cls, spider: Spider) -> Self:
        """Return the open dupefilter of `spider`, for scrapy-redis's scheduler, which
        never calls `open` and `close`. Raises as `open` does."""
        crawler = spider.crawler
        self = cls.from_crawler(crawler)
        self.open()
        crawler.signals.connect(self._spider_closed, signals.spider_closed)
        if scrapy_redis_clears(crawler.settings):
            logger.warning(
                "SCHEDULER_PERSIST is not set: the first worker to finish will clear the shared"
                " filter (and scrapy-redis's queue), and the others will stop with an error. Set"
                " SCHEDULER_PERSIST to True for several workers.",
                extra={"spider": spider},
            )
        # scrapy-redis could not queue the requests of an outage: let others find them
        self._replay_at_close = self._redis.on_error == "local"
        return self

    def close(self, reason: str) -> None:
        """Write the last stats and close the connection. The filter stays in Redis."""
        if self._filter is not None:
            if self._held and self._replay_at_close:
                self._replay(len(self._held))
            if self._held:
                logger.error(
                    "%(held)d requests of the outage are not in %(filter)s: they may be fetched"
                    " again.",
                    {"held": len(self._held), "filter": self._shared.name},
                    extra={"spider": self._crawler.spider},
                )
            elif not self._shared.deleted:
                self._refresh()
        super().close(reason)

    def clear(self) -> None:
        """Delete the shared filter, for all workers; the next request makes a new one.
        Called by scrapy-redis's scheduler."""
        self._recent.clear()
        self._held.clear()
        self._refresh()
        try:
            self._shared.delete()
        except BloomError as error:
            logger.error(
                "Cannot clear the filter: %s", error, extra={"spider": self._crawler.spider}
            )

    def hold_back(self) -> None:
        """Raise BloomError: other workers must learn of a request at once."""
        raise BloomError(
            f"{type(self).__name__} does not go with DurableScheduler: a fingerprint that is held"
            " back is unknown to the other workers. Set SCHEDULER to"
            " 'scrapy.core.scheduler.Scheduler' or 'scrapy_redis.scheduler.Scheduler', or"
            " DUPEFILTER_CLASS to 'scrapy_bloom.BloomDupeFilter'"
        )

    @property
    def _shared(self) -> RedisBloomFilter:
        return cast("RedisBloomFilter", self._filter)

    def _open_filter(self, identity: FingerprinterIdentity) -> ScalableBloomFilter:
        spider = cast("Spider", self._crawler.spider)
        self._redis = redis = RedisSettings.read(self._crawler.settings, spider.name)
        client = RedisClient(redis.url, redis.timeout)
        try:
            return cast("ScalableBloomFilter", self._open_shared(client, identity))
        except BaseException:
            client.close()
            raise

    def _open_shared(
        self, client: RedisClient, identity: FingerprinterIdentity
    ) -> RedisBloomFilter:
        settings, key, extra = self._settings, self._redis.key, {"spider": self._crawler.spider}
        if settings.job_directory and stored_header(client, key) is None:
            _refuse_local_job(settings.job_directory, key)
        shared = RedisBloomFilter(
            client, key, settings.capacity, settings.error_rate, identity=identity.to_text()
        )
        shared.growing = settings.on_full == "grow"
        if shared.header.identity:
            then = FingerprinterIdentity.from_text(shared.header.identity)
            if warning := then.require_same(identity, shared.name, "another BLOOM_REDIS_KEY"):
                logger.warning("%s", warning, extra=extra)
        if policy := client.evicting():
            logger.warning(
                "Redis at %(name)s evicts keys when its memory is full (maxmemory-policy"
                " %(policy)s), and with them parts of the filter; the crawl would stop then. Set"
                " maxmemory-policy to noeviction or a volatile one.",
                {"name": client.name, "policy": policy},
                extra=extra,
            )
        logger.info(
            "Sharing %(filter)s, which knows %(items)d requests.",
            {"filter": shared.name, "items": len(shared)},
            extra=extra,
        )
        return shared

    def _add_after(self, error: Exception, fingerprint: bytes) -> bool:
        """Remember in memory a fingerprint that Redis did not take."""
        self._held[fingerprint] = None
        extra: dict[str, Any] = {"spider": self._crawler.spider}
        closing = self._redis.on_error == "close" or len(self._held) >= MOST_HELD
        if not self._outage:
            self._outage = self._limited = True
            self._crawler.stats.inc_value("bloom/outages")
            then = "Closing the spider" if closing else f"Closing the spider at {MOST_HELD:,}"
            logger.error(
                "%(error)s. New requests are remembered in memory until Redis answers again."
                " %(then)s.",
                {"error": error, "then": then},
                extra=extra,
            )
        if closing:
            self.close_spider("bloom_error")
        return False

    def _after_new(self) -> None:
        if self._outage:
            self._replay(_REPLAYED_AT_ONCE)
        super()._after_new()

    def _replay(self, count: int) -> None:
        """Move `count` fingerprints from memory into the filter, as far as it can be."""
        for fingerprint in list(islice(self._held, count)):
            try:
                self._shared.add(fingerprint)
            except Exception:  # noqa: BLE001 - the outage goes on
                return
            del self._held[fingerprint]
        if not self._held:
            self._outage = False
            self._limited = self._settings.on_full == "close"
            logger.warning(
                "Redis answers again: %(filter)s has what was remembered in memory.",
                {"filter": self._shared.name},
                extra={"spider": self._crawler.spider},
            )

    def _refresh(self) -> None:
        try:
            self._shared.refresh()
        except BloomError as error:
            logger.warning(
                "The last stats are not up to date: %s",
                error,
                extra={"spider": self._crawler.spider},
            )

    def _spider_closed(self, reason: str) -> None:
        self.close(reason)


def _refuse_local_job(job: Path, key: str) -> None:
    for name in ("bloom", "requests.seen"):
        if (job / name).exists():
            raise JobDirectoryError(
                f"{job} holds {name}, which the new filter {key!r} in Redis would know nothing of:"
                " what that job has seen would be fetched again. Load it with"
                " scrapy_bloom.load_into_redis, or use a new JOBDIR"
            )
