"""Seeds that others push into a list in Redis, as scrapy-redis has it (`start_urls`), moved
from there into the crawl.

An element that is taken from the list is noted beside it, for as long as a lease, until its
requests are in the crawl. So a worker that dies in between loses none: another one takes
what it has not finished, and pushes at most what was pushed already. The list may be in
another hash slot than the crawl, or on another server, where nothing goes back in time when
the crawl does. So an element stays noted for KEPT_SECONDS after the push, until a call shows
that the crawl knows it still.
"""

from __future__ import annotations

import json
import logging
import secrets
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from time import monotonic, time
from typing import TYPE_CHECKING, Any

from scrapy import FormRequest, Request

from ..errors import SharedFilterError, describe
from ..settings import scrapy_redis_url
from ..startup import announce
from .client import RedisClient
from .codec import RedisCodec
from .filter import RedisBloomFilter
from .layout import in_one_slot
from .push import Pusher, entry_of
from .scripts import TAKE_START_URLS

if TYPE_CHECKING:
    from scrapy.crawler import Crawler

    from ..settings import RedisSettings, WorkerSettings
    from .dupefilter import RedisBloomDupeFilter
    from .protocol import Entry

logger = logging.getLogger("scrapy_bloom.distributed.seed_list")

POLL_SECONDS = 0.5
"""The list is looked at so often; by a worker that has nothing to do and finds something, at
once again."""

KEPT_SECONDS = 3.0
"""A server with `appendfsync everysec` goes back by two at most."""

Element = tuple[bytes, bytes]
"""What an element that was taken is noted by, and itself."""
Made = tuple[list["Entry"], list[bytes]]


class SeedList:
    """Moves seeds into the crawl at `key`, from a thread of its own, while it is open.

    A spider says by `redis_key` where they are; those of scrapy-redis do, and their
    `make_request_from_data` makes requests of them. Their own way of taking seeds, which
    loses them with the process, is put out of use.
    """

    @classmethod
    def of(
        cls,
        crawler: Crawler,
        redis: RedisSettings,
        key: str,
        dupefilter: RedisBloomDupeFilter,
        settings: WorkerSettings,
    ) -> SeedList | None:
        """Return the seeds of the spider of `crawler`, None if it has no `redis_key`. Raises
        SharedFilterError, ValueError."""
        name = getattr(crawler.spider, "redis_key", None)
        if not name:
            return None
        url = scrapy_redis_url(crawler.settings) or redis.url
        client, crawl_client = (RedisClient(each, redis.timeout) for each in (url, redis.url))
        return cls(crawler, client, crawl_client, str(name), key, dupefilter, settings)

    def __init__(
        self,
        crawler: Crawler,
        client: RedisClient,
        crawl_client: RedisClient,
        name: str,
        key: str,
        dupefilter: RedisBloomDupeFilter,
        settings: WorkerSettings,
    ) -> None:
        spider = crawler.spider
        assert spider is not None
        self._spider: Any = spider
        self._list = name.replace("%(name)s", spider.name)
        slot = self._list if "{" in self._list else in_one_slot(self._list)
        self._taken, self._unreadable = f"{slot}:taken", f"{slot}:unreadable"
        self._client = client
        self._crawl_client = crawl_client
        self._key = key
        self._dupefilter = dupefilter
        self._settings = settings
        self._codec = RedisCodec(crawler.settings, spider)
        concurrency = max(1, crawler.settings.getint("CONCURRENT_REQUESTS"))
        self._keeps = min(KEPT_SECONDS, settings.lease / 4)
        self._pusher: Pusher | None = None
        self._pushed: deque[tuple[float, list[bytes]]] = deque()
        """The time of each push, and the elements that it still has noted."""
        self._at_once = int(getattr(spider, "redis_batch_size", None) or concurrency)
        self._place: bytes | int = 0
        encoding = crawler.settings.get("REDIS_ENCODING") or "utf-8"
        self._encoding = getattr(spider, "redis_encoding", None) or encoding
        self._make = getattr(spider, "make_request_from_data", None) or self._request_from
        if hasattr(self._spider, "fetch_data"):
            self._spider.fetch_data = _nothing
        self.is_empty = False
        """True if the last look has found nothing, nor anything that is under way."""
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None
        announce(crawler, "seeds", f"from {self._list!r} in Redis at {client.name}")

    def open(self, in_reactor: Callable[..., object], is_hungry: Callable[[], bool]) -> None:
        """Begin to move seeds."""
        self._in_reactor = in_reactor
        self._is_hungry = is_hungry
        self._thread = threading.Thread(target=self._work, name="scrapy-bloom seeds", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Take no more. What is under way, or was pushed a moment ago, is taken again by
        others."""
        self._ending.set()
        if self._thread is not None:
            self._thread.join(POLL_SECONDS)
        self._crawl_client.close()
        self._client.close()

    def _work(self) -> None:
        shared: RedisBloomFilter | None = None
        pause = 0.0
        is_down = False
        while not self._ending.wait(pause):
            pause = POLL_SECONDS
            try:
                shared = shared or RedisBloomFilter.open(self._crawl_client, self._key)
                if self._move(shared) and self._is_hungry():
                    pause = 0.0
                is_down = False
            except (SharedFilterError, KeyError) as error:
                if not is_down and not self._ending.is_set():
                    logger.warning(
                        "Seeds of %(list)s wait: %(error)s",
                        {"list": self._list, "error": error},
                        extra={"spider": self._spider},
                    )
                is_down = True
        if self._pusher is not None:
            with suppress(SharedFilterError):
                self._pusher.leave()

    def _move(self, shared: RedisBloomFilter) -> bool:
        """Move what is there, so many at a time at most; return whether there was anything."""
        lease, name = int(self._settings.lease * 1000), secrets.token_hex(8)
        elements, left, self._place = self._client.run(
            TAKE_START_URLS, [self._list, self._taken], self._at_once, lease, name, self._place
        )
        self.is_empty = not left
        made = self._made_in_reactor(elements) if elements else None
        try:
            if made is not None:
                self._push(shared, elements, *made)
            self._strike_off()
        except SharedFilterError:
            # what is noted is taken again when its time has run out
            self._pusher = None
            self._pushed.clear()
            raise
        return made is not None

    def _push(
        self,
        shared: RedisBloomFilter,
        elements: Sequence[Element],
        entries: list[Entry],
        unreadable: list[bytes],
    ) -> None:
        """Push what was made of `elements`, always under the same name."""
        self._pusher = self._pusher or Pusher(
            self._crawl_client, self._key, shared, self._settings, self._codec.queues, "seeds"
        )
        self._pusher.push(entries)
        for element in unreadable:
            self._client.call("rpush", self._unreadable, element)
        self._pushed.append((monotonic(), [name for name, _ in elements]))

    def _strike_off(self) -> None:
        """Remove the notes of elements whose push is older than `_keeps`, and was kept."""
        if self._pusher is None or monotonic() - self._pushed[0][0] < self._keeps:
            return
        self._pusher.beat()
        while self._pushed and monotonic() - self._pushed[0][0] >= self._keeps:
            _, names = self._pushed.popleft()
            self._client.call("hdel", self._taken, *names)
        if not self._pushed:
            self._pusher.leave()
            self._pusher = None

    def _made_in_reactor(self, elements: Sequence[Element]) -> Made | None:
        """Return what `_make_all` does, called where the spider lives; None if that has ended."""
        answers: SimpleQueue[Made] = SimpleQueue()
        with suppress(RuntimeError):  # the reactor or its loop has stopped
            self._in_reactor(lambda: answers.put(self._make_all(elements)))
            while not self._ending.is_set():
                with suppress(Empty):
                    return answers.get(timeout=POLL_SECONDS)
        return None

    def _make_all(self, elements: Sequence[Element]) -> Made:
        """Return what is to be pushed, and the elements of which nothing can be made."""
        if hasattr(self._spider, "spider_idle_start_time"):
            # for scrapy-redis's MAX_IDLE_TIME_BEFORE_CLOSE: there was something in the list
            self._spider.spider_idle_start_time = int(time())
        made = [(element, self._make_entries(element)) for _, element in elements]
        return (
            [entry for _, entries in made for entry in entries or ()],
            [element for element, entries in made if entries is None],
        )

    def _make_entries(self, element: bytes) -> list[Entry] | None:
        try:
            made = self._make(element)
            requests = [made] if isinstance(made, Request) else list(made or ())
            return [entry_of(r, self._codec, self._dupefilter) for r in requests]
        except Exception as error:  # noqa: BLE001 - the spider's, and what others have pushed
            logger.error(
                "The seed %(seed)r of %(list)s makes no request (%(error)s): it is kept in"
                " %(kept)s.",
                {
                    "seed": element,
                    "list": self._list,
                    "error": describe(error),
                    "kept": self._unreadable,
                },
                extra={"spider": self._spider},
            )
            return None

    def _request_from(self, data: bytes) -> Request:
        """Return the request for a URL, or for an object in JSON with url, method, meta, and
        a form in all else, as scrapy-redis 0.9 reads it."""
        text = data.decode(self._encoding)
        try:
            fields = json.loads(text)
        except ValueError:
            fields = None
        if not isinstance(fields, dict):
            return FormRequest(text, dont_filter=True)
        url, method = fields.pop("url"), fields.pop("method", "GET").upper()
        meta = fields.pop("meta", {})
        return FormRequest(url, dont_filter=True, method=method, meta=meta, formdata=fields)


def _nothing(*_: object) -> list[bytes]:
    return []
