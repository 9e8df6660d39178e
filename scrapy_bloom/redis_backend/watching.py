"""How far a crawl in Redis is, read while its workers run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..errors import SharedFilterError
from ..sqlite_backend.progress import FILTER_FIGURES
from ..sqlite_backend.watching import RATED, SLOTS, Costly, rates_of, seconds_to
from .failed_store import RedisFailedStore
from .filter import RedisBloomFilter
from .filter_status import RedisPlace
from .status import CrawlView, PendingView, look_at, pending_of

if TYPE_CHECKING:
    from .client import RedisClient


class RedisWatch:
    """Reads how far the crawl beside the filter at `key` is, as often as it is asked. Changes
    nothing. Raises SharedFilterError if there is no crawl."""

    def __init__(self, client: RedisClient, key: str) -> None:
        self._client = client
        self._key = key
        self._look()
        self._filter = RedisPlace(client, key[1:-1]).filter
        self._refreshed: Costly[RedisBloomFilter, None] = Costly(RedisBloomFilter.refresh)
        self._pending: Costly[RedisClient, PendingView] = Costly(lambda it: pending_of(it, key))
        self._reasons: Costly[RedisFailedStore, dict[str, int]] = Costly(RedisFailedStore.by_reason)
        self._failed = RedisFailedStore(client, key)

    def figures(self) -> dict[str, Any]:
        """Return the figures of now, of all workers and all of the crawl, and what follows
        from them. What is not known is None. Raises SharedFilterError."""
        crawl = self._look()
        pending = self._pending.of(self._client)
        self._refreshed.of(self._filter)
        slots = pending.by_slot
        growth = rates_of(crawl.samples) if crawl.state == "running" else {}
        return {
            "time": crawl.time,
            "state": crawl.state,
            "round": crawl.round or None,
            "seconds": crawl.seconds,
            **crawl.counted,
            "pending": crawl.waiting,
            "in_flight": crawl.in_flight,
            "failed": crawl.failed,
            **{f"{name}_per_second": growth.get(name) for name in RATED},
            "seconds_left": seconds_to(crawl.waiting, growth.get("pending"), -1),
            "pending_by_slot": dict(slots.most_common(SLOTS)),
            "slots": len(slots),
            "failed_by_reason": self._reasons.of(self._failed),
            **self._of_filter(),
            "seconds_to_growth": seconds_to(self._room(), growth.get("filter_items"), 1),
            "memory_bytes": self._memory(crawl, pending),
            "workers": [
                {
                    "name": worker.name,
                    "in_flight": worker.claimed,
                    "oldest_seconds": worker.oldest,
                    "lease_seconds": worker.lease_left,
                }
                for worker in crawl.workers
            ],
        }

    def _look(self) -> CrawlView:
        crawl = look_at(self._client, self._key)
        if crawl is None:
            raise SharedFilterError(
                f"there is no crawl {self._key[1:-1]!r} in Redis at {self._client.name}: --key"
                " must be the BLOOM_REDIS_KEY of its workers"
            )
        return crawl

    def _capacity(self) -> int:
        """Return what the layers take that the shards have: each grows by itself."""
        found, shards = self._filter, self._filter.shards
        return sum(
            layer.capacity * sum(len(shard.counts) > number for shard in shards) // len(shards)
            for number, layer in enumerate(found.layers)
        )

    def _of_filter(self) -> dict[str, int]:
        found = self._filter
        figures = (len(found), self._capacity(), len(found.layers), found.nbytes)
        return dict(zip(FILTER_FIGURES, figures, strict=True))

    def _room(self) -> float:
        return float(max(0, self._capacity() - len(self._filter)))

    def _memory(self, crawl: CrawlView, pending: PendingView) -> int | None:
        if crawl.nbytes is None or pending.nbytes is None:
            return None
        return self._filter.nbytes + crawl.nbytes + pending.nbytes
