"""Moves seeds from a list in Redis, such as scrapy-redis's `start_urls`, into the crawl.

A seed that is taken from the list is noted beside it, for the length of a lease, until its requests
are in the crawl. So a worker that dies in between loses none: another worker takes its seeds, and
pushes at most what was pushed already. The list may be in another hash slot than the crawl, or on
another server, which does not go back in time when the crawl does. So the note stays for
KEPT_SECONDS after the push, until a call proves that the crawl still has the requests.
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
"""The pause between looks at the list; none for an idle worker that has just found seeds."""

KEPT_SECONDS = 3.0
"""How long a note stays after the push. With `appendfsync everysec` a server goes back by two
seconds at most."""

Element = tuple[bytes, bytes]
"""A seed that was taken: the name of its note, and its bytes."""
Made = tuple[list["Entry"], list[bytes]]


class SeedList:
    """Moves seeds into the crawl at `key`, from a thread of its own.

    `redis_key` of the spider names their list, as with scrapy-redis's spiders, whose
    `make_request_from_data` makes the requests. The `fetch_data` of such a spider, which loses
    seeds with the process, is replaced.
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
        """Return the list for the spider of `crawler`, None if it has no `redis_key`. Raises
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
        self._codec = RedisCodec(crawler.settings, spider, stats=crawler.stats)
        concurrency = max(1, crawler.settings.getint("CONCURRENT_REQUESTS"))
        self._keeps = min(KEPT_SECONDS, settings.lease / 4)
        self._pusher: Pusher | None = None
        self._pushed: deque[tuple[float, list[bytes]]] = deque()
        """The time of each push, and its seeds that are still noted."""
        self._at_once = int(getattr(spider, "redis_batch_size", None) or concurrency)
        self._cursor: bytes | int = 0
        encoding = crawler.settings.get("REDIS_ENCODING") or "utf-8"
        self._encoding = getattr(spider, "redis_encoding", None) or encoding
        self._make = getattr(spider, "make_request_from_data", None) or self._request_from
        if hasattr(self._spider, "fetch_data"):
            self._spider.fetch_data = _nothing
        self.is_empty = False
        """True if the last look has found neither seeds nor notes."""
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
        """Take no more seeds. Those that are noted are taken again by another worker."""
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
        """Move some seeds; return True if there were any."""
        lease, name = int(self._settings.lease * 1000), secrets.token_hex(8)
        elements, left, self._cursor = self._client.run(
            TAKE_START_URLS, [self._list, self._taken], self._at_once, lease, name, self._cursor
        )
        self.is_empty = not left
        made = self._made_in_reactor(elements) if elements else None
        try:
            if made is not None:
                self._push(shared, elements, *made)
            self._strike_off()
        except SharedFilterError:
            # noted seeds are taken again when their notes expire
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
        """Push the requests of `elements`, always under the same worker's name."""
        self._pusher = self._pusher or Pusher(
            self._crawl_client, self._key, shared, self._settings, self._codec, "seeds"
        )
        self._pusher.push(entries)
        for element in unreadable:
            self._client.call("rpush", self._unreadable, element)
        self._pushed.append((monotonic(), [name for name, _ in elements]))

    def _strike_off(self) -> None:
        """Remove the notes of seeds whose push is older than `_keeps`, and was not lost."""
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
        """Return the result of `_make_all` in the reactor's thread; None if the reactor stops."""
        answers: SimpleQueue[Made] = SimpleQueue()
        with suppress(RuntimeError):  # the reactor or its loop has stopped
            self._in_reactor(lambda: answers.put(self._make_all(elements)))
            while not self._ending.is_set():
                with suppress(Empty):
                    return answers.get(timeout=POLL_SECONDS)
        return None

    def _make_all(self, elements: Sequence[Element]) -> Made:
        """Return the entries to push, and the seeds that make no request."""
        if hasattr(self._spider, "spider_idle_start_time"):
            # for scrapy-redis's MAX_IDLE_TIME_BEFORE_CLOSE: the list was not empty
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
        except Exception as error:  # noqa: BLE001 - the spider's code, and data of others
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
        """Return the request for a URL, or for a JSON object with url, method, meta and, in all
        other fields, a form, as scrapy-redis 0.9 reads it."""
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
