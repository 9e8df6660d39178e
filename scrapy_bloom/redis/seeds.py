"""Moves seeds from a list in Redis, such as scrapy-redis's `start_urls`, into the crawl.

A seed that is taken from the list is noted beside it, and its requests have marks in the crawl as
start requests do. So a worker that dies loses none: after its lease another worker takes its seeds,
and pushes what the crawl does not have. The list may be in another hash slot than the crawl, or on
another server, which does not go back in time when the crawl does. So note and marks stay for
KEPT_SECONDS after the push, until a call proves that the crawl still has the requests, or until it
has nothing left.
"""

from __future__ import annotations

import json
import logging
import secrets
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from math import inf
from queue import Empty, SimpleQueue
from time import monotonic, time
from typing import TYPE_CHECKING, Any, cast

from scrapy import FormRequest, Request

from ..errors import SharedFilterError, message_of
from ..startup import announce
from .client import RedisClient, ScriptError
from .codec import RedisCodec
from .filter import RedisBloomFilter
from .layout import in_one_slot
from .push import Pusher, entry_of
from .request_store import MOST_CLAIMED
from .scripts import TAKE_START_URLS
from .settings import RedisSettings, WorkerSettings, scrapy_redis_url

if TYPE_CHECKING:
    from scrapy.crawler import Crawler

    from .call import Entry
    from .dupefilter import RedisBloomDupeFilter

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.5
"""The pause between looks at the list; none for an idle worker that has just found seeds."""

KEPT_SECONDS = 60.0
"""How long a note stays after the push: by so much the server of the crawl may go back."""

MOST_NOTED = 50_000
"""A worker with so many notes takes no seed."""

Element = tuple[bytes, bytes]
"""A seed that was taken: the name of its note, and its bytes."""
Made = list[tuple[bytes, bytes, "list[Entry] | None"]]
"""Seeds that were taken, each with what is to be pushed, None if it makes no request."""


class SeedList:
    """Moves seeds into the crawl at `key`, from a thread of its own.

    `redis_key` of the spider names their list, as with scrapy-redis's spiders, whose
    `make_request_from_data` makes the requests. The `fetch_data` of such a spider, which loses
    seeds with the process, is replaced.
    """

    @classmethod
    def of(cls, crawler: Crawler, *others: Any) -> SeedList | None:
        """Return the list for the spider of `crawler`, None if it has no `redis_key`. Raises
        SharedFilterError, ValueError."""
        return cls(crawler, *others) if getattr(crawler.spider, "redis_key", None) else None

    def __init__(
        self,
        crawler: Crawler,
        redis: RedisSettings,
        key: str,
        dupefilter: RedisBloomDupeFilter,
        settings: WorkerSettings,
    ) -> None:
        self._spider = spider = cast("Any", crawler.spider)
        self._log = logging.LoggerAdapter(logger, {"spider": spider})
        self._list = str(spider.redis_key).replace("%(name)s", spider.name)
        slot = self._list if "{" in self._list else in_one_slot(self._list)
        self._keys = [self._list, f"{slot}:taken", f"{slot}:workers"]
        self._unreadable = f"{slot}:unreadable"
        self._key = key
        self._dupefilter = dupefilter
        self._settings = settings
        self._codec = RedisCodec(crawler.settings, spider, stats=crawler.stats)
        concurrency = crawler.settings.getint("CONCURRENT_REQUESTS") or MOST_CLAIMED
        self._keeps = KEPT_SECONDS
        self._name = secrets.token_hex(8)
        """Under which this worker has a lease beside the list."""
        self._pusher: Pusher | None = None
        self._pushed: deque[tuple[float, dict[bytes, list[bytes]]]] = deque()
        """The time of each push, and the marks of its seeds that are still noted."""
        self._at_once = int(getattr(spider, "redis_batch_size", None) or concurrency)
        url = scrapy_redis_url(crawler.settings) or redis.url
        with ExitStack() as undo:
            connect = partial(RedisClient, patience=redis.timeout, waits=True)
            self._client = undo.enter_context(connect(url))
            self._crawl_client = undo.enter_context(connect(redis.url))
            undo.pop_all()
        self._cursor: bytes | int = 0
        encoding = crawler.settings.get("REDIS_ENCODING") or "utf-8"
        self._encoding = getattr(spider, "redis_encoding", None) or encoding
        self._make = getattr(spider, "make_request_from_data", None) or self._request_from
        if hasattr(self._spider, "fetch_data"):
            self._spider.fetch_data = lambda *_: []
        self.is_empty = False
        """True if the last look has found neither seeds nor notes."""
        self.is_moved = False
        """True if it has found no more than notes of what this worker has pushed."""
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None
        announce(crawler, "seeds", f"from {self._list!r} in Redis at {self._client.name}")

    def open(
        self,
        in_reactor: Callable[..., object],
        is_hungry: Callable[[], bool],
        on_broken: Callable[[ScriptError], None],
    ) -> None:
        """Begin to move seeds. `on_broken` is called where that cannot be."""
        self._on_broken = on_broken
        self._in_reactor = in_reactor
        self._is_hungry = is_hungry
        self._thread = threading.Thread(target=self._work, name="scrapy-bloom seeds", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Take no more seeds. Those that are noted are taken again by another worker at once."""
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
            except ScriptError as error:
                with suppress(RuntimeError):
                    self._in_reactor(self._on_broken, error)
                break
            except (SharedFilterError, KeyError) as error:
                if not is_down and not self._ending.is_set():
                    self._log.warning(
                        "Seeds of %(list)s wait: %(error)s", {"list": self._list, "error": error}
                    )
                is_down = True
        with suppress(SharedFilterError):
            self._client.call("hdel", self._keys[-1], self._name)
            if self._pusher is not None:
                self._pusher.leave()

    def _move(self, shared: RedisBloomFilter) -> bool:
        """Move some seeds; return True if there were any."""
        try:
            elements = self._look()
            made = self._made_in_reactor(elements) if elements else None
            if made is not None:
                self._push(shared, made)
        except SharedFilterError:
            # noted seeds are taken again when the lease of this name has run out
            self._name, self._pusher = secrets.token_hex(8), None
            self._pushed.clear()
            raise
        return made is not None

    def _look(self) -> Sequence[Element]:
        """Return some seeds that are noted now, and strike off what need not be noted longer."""
        settled = self._settled()
        noted = sum(len(names) for _, names in self._pushed)
        wanted = max(0, min(self._at_once, MOST_NOTED - noted))
        arguments = wanted, int(self._settings.lease * 1000), self._name, self._cursor
        (elements, left, self._cursor, struck), again = self._client.insist(
            TAKE_START_URLS, self._keys, *arguments, *settled
        )
        self.is_empty, self.is_moved = not left, left <= noted
        if again:  # the lease of what a lost answer named has to run out
            self._name = secrets.token_hex(8)
        if marks := [mark for name in struck for mark in settled[name]]:
            self._crawl_client.call("srem", f"{self._key}:start", *marks)
        return elements  # type: ignore[no-any-return]

    def _push(self, shared: RedisBloomFilter, made: Made) -> None:
        """Push the requests of seeds, always under the same worker's name."""
        self._pusher = self._pusher or Pusher(shared, self._settings, self._codec, "seeds")
        self._pusher.push(entry for *_, entries in made for entry in entries or ())
        marks = {
            name: [e.mark for e in entries] for name, _, entries in made if entries is not None
        }
        self._pushed.append((monotonic(), marks))
        for name, element, entries in made:
            if entries is None:
                self._client.call("rpush", self._unreadable, element)
                self._pushed.appendleft((-inf, {name: []}))

    def _settled(self) -> dict[bytes, list[bytes]]:
        """Return the notes, with the marks, of seeds whose push is older than `_keeps` and was not
        lost, or of all if the crawl has nothing left."""
        settled: dict[bytes, list[bytes]] = {}
        if self._pusher is None:
            return settled
        pushed_before = inf if self._pusher.beat() else monotonic() - self._keeps
        while self._pushed and self._pushed[0][0] <= pushed_before:
            settled |= self._pushed.popleft()[1]
        if not self._pushed:
            self._pusher.leave()
            self._pusher = None
        return settled

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
        """Return what each seed makes."""
        if hasattr(self._spider, "spider_idle_start_time"):
            # for scrapy-redis's MAX_IDLE_TIME_BEFORE_CLOSE: the list was not empty
            self._spider.spider_idle_start_time = int(time())
        return [(*each, self._make_entries(*each)) for each in elements]

    def _make_entries(self, name: bytes, element: bytes) -> list[Entry] | None:
        try:
            made = self._make(element)
            requests = [made] if isinstance(made, Request) else list(made or ())
            entries = [entry_of(r, self._codec, self._dupefilter) for r in requests]
        except Exception as error:  # noqa: BLE001 - the spider's code, and data of others
            self._log.error(
                "The seed %r of %s makes no request (%s): it is kept in %s.",
                *(element, self._list, message_of(error), self._unreadable),
            )
            return None
        for number, entry in enumerate(entries):
            entry.mark = b"%s:%d" % (name, number)
        return entries

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
