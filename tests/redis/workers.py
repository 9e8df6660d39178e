"""Workers without Scrapy's engine, who talk to a real server one call after the other."""

import random
from collections import Counter, deque
from functools import partial
from hashlib import sha1
from itertools import islice

from scrapy import Request, Spider
from scrapy.settings import Settings
from scrapy.utils.request import RequestFingerprinter
from scrapy.utils.test import get_crawler

from scrapy_bloom.crawl.budget import BUDGET
from scrapy_bloom.crawl.failed_request import FailedRequest
from scrapy_bloom.redis.call import Policy
from scrapy_bloom.redis.client import RedisClient
from scrapy_bloom.redis.codec import RedisCodec
from scrapy_bloom.redis.desk import RedisDesk
from scrapy_bloom.redis.dupefilter import RedisBloomDupeFilter
from scrapy_bloom.redis.layout import in_one_slot
from scrapy_bloom.redis.lifecycle import open_crawl
from scrapy_bloom.redis.push import push
from scrapy_bloom.redis.request_store import Observers, RedisStore
from scrapy_bloom.redis.scripts import CHANGE, COMMIT, NEW
from scrapy_bloom.redis.settings import WorkerSettings
from scrapy_bloom.redis.status import CrawlReader
from scrapy_bloom.redis.verify import queue_findings
from scrapy_bloom.redis.worker import budget_text, require_budget
from tests.crawl.engine import name_of
from tests.failures import Failed
from tests.fakes import Engine

LEASE = 60_000
FIFO = {"SCHEDULER_DISK_QUEUE": "scrapy.squeues.PickleFifoDiskQueue"}
LIFO = {"SCHEDULER_DISK_QUEUE": "scrapy.squeues.PickleLifoDiskQueue"}
ABORTING = """
local left, real = tonumber(KEYS[2]), redis
local redis = {pcall = redis.pcall, sha1hex = redis.sha1hex, call = function(...)
  left = left - 1
  if left == 0 then error('aborted') end
  return real.call(...)
end}
"""
WRITES = (
    " BITFIELD DEL EXPIRE HDEL HINCRBY HSET LPOP LPUSH LREM LTRIM RPOP RPOPLPUSH RPUSH SADD SETBIT"
    " SREM UNLINK ZADD ZINCRBY ZREM "
)
PASS = """
for _, name in ipairs({'later', 'parked'}) do
  local found = redis.call('ZRANGE', KEYS[1] .. ':' .. name, 0, -1, 'WITHSCORES')
  for at = 1, #found, 2 do
    -- those of dead slots are below 0
    local more = tonumber(found[at + 1]) < 0 and ARGV[1] or -ARGV[1]
    redis.call('ZINCRBY', KEYS[1] .. ':' .. name, more, found[at])
  end
end
local holds = redis.call('HGETALL', KEYS[1] .. ':holds')
for at = 1, #holds, 2 do
  local hold = cmsgpack.unpack(holds[at + 1])
  hold[1] = hold[1] - ARGV[1]
  redis.call('HSET', KEYS[1] .. ':holds', holds[at], cmsgpack.pack(hold))
end
"""


def let_pass(worker, seconds):
    """Let so much time pass for all that waits for a time in the crawl of `worker`."""
    worker.client._redis.eval(PASS, 1, worker.key, int(1000 * seconds))


class InlineSender:
    """Makes a call at once, in the way of `attempt`, until that returns an answer."""

    busy = False

    def __init__(self, attempt):
        self._attempt = attempt
        self._answers = deque()

    def send(self, arguments, on_answer):
        assert not self.busy
        self.busy = True
        while (answer := self._attempt(arguments)) is None:
            pass
        self._answers.append((on_answer, answer))

    def wait(self, _seconds):
        while self._answers:
            on_answer, answer = self._answers.popleft()
            self.busy = False
            on_answer(answer)
        return not self.busy


def waiting(client, key):
    """Return how many requests of the crawl `key` wait, by priority and slot."""
    found = CrawlReader(client, key).pending().counts
    return Counter({(number, slot): each[slot] for number, each in found.items() for slot in each})


class StoreWorker:
    """A worker of a crawl at `key`; its calls are made by `attempt`, if there is one."""

    def __init__(self, url, key, attempt=None, capacity=4, **settings):
        settings = {
            "DUPEFILTER_CLASS": "scrapy_bloom.RedisBloomDupeFilter",
            "BLOOM_CAPACITY": 1000,
            "BLOOM_REDIS_URL": url,
            "BLOOM_REDIS_KEY": key,
            "BLOOM_REDIS_TIMEOUT": 10,
            **settings,
        }
        crawler = get_crawler(Spider, settings_dict=settings)
        crawler.engine = Engine()
        crawler.spider = Spider.from_crawler(crawler, "spider")
        self.settings = WorkerSettings.read(crawler.settings)
        self.client = RedisClient(url, 10)
        self.key = in_one_slot(key)
        self.dupefilter = RedisBloomDupeFilter.beside_queue(crawler)
        self.codec = RedisCodec(
            crawler.settings, crawler.spider, crawler.engine.downloader.get_slot_key
        )
        self.sender = InlineSender(attempt or self.call)
        self.heard, self.full, self.held = [], Counter(), []
        self.fences, self.capped, self.is_gone = 0, 0, False
        self.policy = Policy(
            int(self.settings.lease * 1000),
            8,
            self.codec.queues.newest_first,
            5000 * self.settings.slot_workers,
            self.settings.max_attempts,
        )
        budget = budget_text(BUDGET.read(crawler.settings))
        join = partial(
            open_crawl,
            *(self.client, self.key, self.dupefilter.shared.header.generation, self.settings),
            budget=budget,
        )
        self.state = require_budget(self.client, self.key, join(), budget, join)
        nothing = lambda *_: None  # noqa: E731
        heard = nothing, self._fenced, self._answered, nothing, self._unreadable, self._gone
        self.store = RedisStore(
            self.sender,
            self.dupefilter,
            self.codec,
            self.policy,
            capacity=capacity,
            observers=Observers(*heard, self.held.append),
            round_=self.state.round,
        )
        self.store.start_done = True

    def _fenced(self):
        self.fences += 1

    def _gone(self):
        self.is_gone = True

    def _answered(self, entry, answer, full):
        self.capped += full is not None
        self.full.update([full] * (full is not None))
        if full is None:
            self.heard.append((entry, answer == NEW))

    def _unreadable(self, claim, error):
        self.heard.append((claim, error))

    def call(self, arguments):
        return self.client.run(COMMIT, [self.key], *arguments)

    def abort(self, arguments, at, script=COMMIT):
        """Run a script, once, that fails before its write `at`; return whether it had so many."""
        import redis

        is_write = f"('{WRITES}'):find(' ' .. (...) .. ' ', 1, true)"
        text = ABORTING.replace("left - 1", f"left - ({is_write} and 1 or 0)") + script.text
        try:
            self.client._redis.eval(text, 2, self.key, at, *arguments)
        except redis.ResponseError:
            return True
        return False

    def die(self):
        self.client.call("zadd", f"{self.key}:workers", {self.store.worker: 1})

    def enqueue(self, name, delay=None, slot=None, **options):
        """Do what the scheduler does with a request; return whether it may be new."""
        if slot is not None:
            options["meta"] = {"download_slot": slot}
        request = Request(f"http://example.com/{name}", **options)
        if not request.dont_filter and self.dupefilter.request_seen(request):
            return False
        self.store.push(request, (), delay)
        return True

    def enqueue_all(self, names, **options):
        """Do so with several, which differ in nothing else."""
        for name in names:
            self.enqueue(name, **options)

    def send(self, names, **options):
        """Push several requests that differ in nothing else, and tell the server."""
        self.enqueue_all(names, **options)
        self.exchange()

    def hold(self, slot, seconds, times):
        self.store.hold(slot, seconds, times)
        self.exchange()

    def start(self, name, mark):
        self.enqueue(name, dont_filter=True)
        self.store.mark(mark)

    def push_from_outside(self, *urls, **options):
        """Push as the command does; return how many were pushed, seen and capped."""
        settings = Settings({"BLOOM_REDIS_LEASE": self.settings.lease})
        requests = (Request(url, **options) for url in urls)
        others = {"settings": settings, "fingerprinter": RequestFingerprinter()}
        return push(self.client, self.key, requests, **others)

    def fail(self, request, reason="callback", **what):
        """Let a request fail that this worker was handed; return whether it was kept."""
        return self.store.fail(request, FailedRequest.of(request, reason, **what))

    @property
    def desk(self):
        return RedisDesk(self.client, self.key)

    @property
    def failed(self):
        return Failed(self.desk)

    def teach(self):
        """Store twenty pages, which make the crawl's first dictionary."""
        store_pages(self, 0)
        self.exchange()
        assert len(self.codec.dictionaries.texts) == 1

    def exchange(self, times=1):
        """Make a call, and take its answer, so many times."""
        for _ in range(times):
            self.store.commit(())
            if not self.sender.busy:
                self.store._call()
            self.wait()

    def send_all(self):
        while self.store.unsent:
            self.exchange()

    def wait(self):
        """Take all answers, also to calls that come of them."""
        while not self.sender.wait(1):
            pass

    def next(self):
        """Return the next request, asking for it if need be."""
        for _ in range(3):
            if (request := self.store.next()) is not None:
                return request
            self.wait()
            self.exchange()
        return None

    def take(self, most=100):
        """Return the names of the next requests, and these."""
        requests = [*islice(iter(self.next, None), most)]
        return [name_of(request) for request in requests], requests

    def drain(self):
        """Fetch all that is left; return the names of the pages, as they came."""
        names = []
        for request in iter(self.next, None):
            names.append(name_of(request))
            self.store.done(request)
        self.exchange()
        return names

    def leave(self, over=False):
        self.store.leave(over=over, seconds=1)
        self.close()

    def close(self):
        """Let go of the connections, as a process does that is killed."""
        self.dupefilter.abandon()
        self.client.close()


def store_pages(worker, first, count=20):
    """Have `worker` store so many requests, whose pages are numbered from `first`."""
    worker.enqueue_all(f"catalogue/part/item-{first + number}.html" for number in range(count))


def capped(worker):
    """Return the names of the requests that are over a budget."""
    return worker.failed.names(reasons=["capped"])


def fill(worker, slots, each=1, **options):
    """Push so many requests of each slot, one slot after the other in turns; claim none."""
    for number in range(each):
        for slot in range(slots):
            worker.enqueue(f"{slot}-{number}", slot=f"s{slot}", **options)
    worker.store._leaving = True
    worker.exchange()
    worker.send_all()
    worker.store._leaving = False


def failing_desk(worker, fail):
    """Return a desk that calls `fail` with each script and its arguments before it runs it."""
    desk = worker.desk
    run = desk._run

    def run_again(script, *arguments):
        fail(script, arguments)
        return run(script, *arguments)

    desk._run = run_again
    return desk


def anywhere(chance):
    """Return the number of a write, of which calls have some or some dozens."""
    return chance.randrange(1, chance.choice([10, 20, 40]))


def talk(scheduler):
    """Let a scheduler whose reactor stands still send all it has, and have the answers."""
    transport = scheduler.worker._transport
    for _ in range(3):
        while not transport.wait(5):
            pass
        scheduler.ledger.commit()
        if not transport.busy:
            scheduler.worker.store._call()
    while not transport.wait(5):
        pass


def findings_of(worker):
    return [each.text for each in queue_findings(worker.client, worker.key) if not each.sound]


def crawl(worker, links):
    """Let `worker` fetch what can be reached from page 0; return the pages."""
    worker.enqueue("0")
    fetched = set()
    for _ in range(2000):
        if (request := worker.next()) is not None:
            fetched.add(page := int(name_of(request)))
            worker.enqueue_all(links(page))
            worker.store.done(request)
        elif worker.store.is_quiet:
            return fetched
    raise AssertionError("this crawl has no end")


def tree(pages):
    """Return the links of a binary tree with a link home on each page."""
    return lambda page: [n for n in (2 * page + 1, 2 * page + 2, 0) if n < pages]


def seeded(number):
    print("seed", number)
    return random.Random(number)


def lobby_from(monkeypatch, slots):
    """Let slots share a lobby from `slots` a priority, not 256, with three in it, not 15."""
    for script in (COMMIT, CHANGE):
        from_slots = "has_few = 256,", f"has_few = {slots},"
        change_script(monkeypatch, script, from_slots, ("'u4'", "'u2'"))


def change_script(monkeypatch, script, *changes):
    """Let a script have another text, with each old part in it as the new one."""
    for old, new in changes:
        assert old in script.text
        monkeypatch.setitem(vars(script), "text", script.text.replace(old, new))
    digest = sha1(script.text.encode(), usedforsecurity=False).hexdigest()
    monkeypatch.setitem(vars(script), "digest", digest)
