"""Crawls by workers forked from one process that die in every way: stories of world/runner.py."""

import atexit
import gzip
import json
import os
import re
import signal
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path

from scrapy import Request
from scrapy.utils.request import RequestFingerprinter
from scrapy.utils.test import get_crawler

import scrapy_bloom.redis.scheduler  # noqa: F401 - before the forks, not in each
from scrapy_bloom.crawl import hosts
from scrapy_bloom.redis.client import RedisClient
from scrapy_bloom.redis.layout import in_one_slot
from scrapy_bloom.redis.push import push
from scrapy_bloom.redis.status import CrawlReader
from tests.patience import PATIENCE
from tests.redis.server import Cluster, Move, Server
from tests.world.runner import REACTORS, Crawl, Run, Teller, World, tell_stories
from tests.world.tree import KINDS, DownloaderMiddleware, TreeSpider, answer, kind_of, pause

WORKERS = 3
ACCIDENTS = 8
LEASE = 1.0
ADDON = {"ADDONS": {"scrapy_bloom.Addon": 300}}
SETTINGS = {
    "DUPEFILTER_CLASS": "scrapy_bloom.RedisBloomDupeFilter",
    "SCHEDULER": "scrapy_bloom.RedisDurableScheduler",
    "BLOOM_CAPACITY": 20_000,
    "BLOOM_HOLD": False,  # some sites fail all the time
    "BLOOM_REDIS_LEASE": LEASE,
    "BLOOM_REDIS_TIMEOUT": 10.0,  # a loaded machine is no outage
    "CONCURRENT_REQUESTS": 4,
    "CONCURRENT_REQUESTS_PER_DOMAIN": 4,
    "TELNETCONSOLE_ENABLED": False,
    "REMOTE_CONTROL_ENABLED": False,
}
UNHANDLED = re.compile("Unhandled|never retrieved|Traceback.*scrapy_bloom")


class GatedTree(TreeSpider):
    """Is not done with its last plain page, nor the crawl over, before its gate is open."""

    def request(self, number, **options):
        plain = (n for n in range(self.pages) if kind_of(n, self.kinds) == "plain")
        if number == max(plain):
            options["callback"] = self.parse_at_gate
        return super().request(number, **options)

    async def parse_at_gate(self, response):
        while not Path(self.gate).exists():
            await pause(0.02)
        for request in self.children(response.json()):
            yield request


class FailingStart(TreeSpider):
    """Raises before its last start request."""

    async def start(self):
        yield Request(f"{self.site}/plain/0", dont_filter=True)
        raise RuntimeError("this start always raises")


@dataclass
class Fleet:
    """The workers of one crawl."""

    world: World
    crawl: Crawl
    url: str
    workers: list[Run] = field(default_factory=list)
    all: list[Run] = field(default_factory=list)
    reference: Counter = field(default_factory=Counter)
    """The pages of an undisturbed crawl."""
    prepare: object = None

    def start(self, **settings):
        folder = self.folder / str(len(self.all))
        base = {
            **SETTINGS,
            "BLOOM_REDIS_URL": self.url,
            "BLOOM_REDIS_KEY": self.crawl.name,
            "FEEDS": {str(folder / "items.jsonl"): {"format": "jsonlines"}},
        }
        crawl = replace(self.crawl, base=base, settings={**self.crawl.settings, **settings})
        options = {"job": False, "folder": folder, "gate": str(self.gate)}
        run = self.world.start(crawl, self.prepare, **options)
        self.workers.append(run)
        self.all.append(run)
        return run

    def start_all(self, count, **settings):
        for _ in range(count):
            self.start(**settings)

    def kill(self, run):
        run.kill()
        run.wait()
        self.workers.remove(run)

    @property
    def folder(self):
        return self.world.folder / self.crawl.name

    @property
    def gate(self):
        """Where a file opens the gate of a GatedTree."""
        return self.folder / "gate"

    @property
    def running(self):
        return [run for run in self.workers if not run.ended]

    @property
    def answers(self):
        return Counter(self.world.pages(self.crawl))

    def has_begun(self, answers):
        """Return True if all have opened what they use, and there were more answers."""
        opened = (re.search("requests: +the queue ", run.log) or run.ended for run in self.workers)
        return self.answers.total() > answers and all(opened)

    @property
    def items(self):
        """The numbers of the items in each kind of feed; the last line may be torn."""
        found = defaultdict(set)
        for path in self.folder.glob("*/items.*"):
            text = path.read_bytes()
            if path.suffix == ".gz":
                text = gzip.decompress(text)
            assert path.suffix != ".json" or isinstance(json.loads(text), list)
            found[path.suffix].update(map(int, re.findall(rb'"number": (\d+)[,}]', text)))
        return set.intersection(*found.values()) if found else set()

    def report(self, **found):
        """Return what became of the crawl, against an undisturbed one."""
        answers, reference, logs = self.answers, self.reference, [run.log for run in self.all]
        return {
            "crawl": self.crawl.name,
            "lost": sorted(set(reference) - set(answers)),
            "items_lost": sorted(items_of(reference) - self.items),
            "more": sorted(set(answers) - set(reference)),
            "repeated": (answers - reference).total(),
            "reasons": [run.reason for run in self.workers],
            "statuses": [run.status for run in self.workers],
            "errors": [
                line
                for log in logs
                for line in log.splitlines()
                if ("ERROR" in line and "scrapy_bloom" in line) or UNHANDLED.search(line)
            ],
            "reclaimed": sum(run.stats.get("scheduler/reclaimed", 0) for run in self.all),
            **found,
        }

    def end(self, **found):
        """Wait until all have ended, and yield the report."""
        yield from to_the_end(self)
        yield self.report(**found)


def items_of(reference):
    """Return the numbers of the items of these pages."""
    return {int(page[5:]) for page in reference if page.startswith("item/")}


def pauses(seconds):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        yield None


def to_the_end(fleet):
    """Yield None until all workers have ended; kill those who never do."""
    for _ in range(2):
        yield from until(lambda: not fleet.running)
        for run in fleet.running:
            run.kill()


def until(condition):
    deadline = time.monotonic() + PATIENCE
    while not condition() and time.monotonic() < deadline:
        yield None


class FleetTeller(Teller):
    """Also has servers, and the pages of an undisturbed crawl."""

    def __post_init__(self):
        super().__post_init__()
        self._reference = Counter()
        for _ in self.undisturbed(reference := self.fleet("reference")):
            time.sleep(0.01)
        self._reference = reference.reference

    def undisturbed(self, fleet):
        """Let workers crawl that nobody disturbs, and note the pages."""
        fleet.start_all(WORKERS, BLOOM_REDIS_LEASE=60)
        yield from to_the_end(fleet)
        fleet.reference = fleet.answers

    def serve(self, kind=Server, **options):
        """Return a new server, which ends with this process."""
        folder = self.world.folder / f"server{self.chance.randrange(1 << 60)}"
        folder.mkdir()
        server = kind(folder, **options)
        atexit.register(server.stop)
        return server

    @cached_property
    def server(self):
        return self.serve()

    @cached_property
    def cluster(self):
        return self.serve(Cluster)

    def fleet(self, name, server=None, **crawl):
        """Return the fleet of a crawl, without workers yet."""
        more = {"pages": self.options.pages, "slow": self.chance.random() < 0.3}
        crawl = Crawl(name, **{**more, "reactor": self.chance.choice(REACTORS), **crawl})
        url = (server or self.server).url
        return Fleet(self.world, crawl, url, reference=self._reference)


def accidents(kinds, server, teller):
    """Yield crawls in which a worker is killed at random moments, or all are, or one is stopped
    for longer than its lease, or while the crawl moves to another node of a Cluster, or Redis is
    restarted, with all it has or from an earlier state. Who is killed and has a JOBDIR is started
    again with that. No crawl ends before it had them all."""
    for number in range(teller.options.count):
        yield with_accidents(teller, f"{kinds.replace(' ', '-')}{number}", kinds.split(), server)


def with_accidents(teller, name, kinds, server):
    chance, happened = teller.chance, Counter()
    server, often = server(teller), {"BLOOM_REDIS_MAX_ATTEMPTS": 1000}
    fleet = teller.fleet(name, server, spider=GatedTree, settings=often)
    jobs = [fleet.folder / f"job{n}" for n in range(WORKERS)] if kinds == ["kill"] else ()
    places = [in_a_job(folder) for folder in jobs] or [{}] * WORKERS
    place_of = {fleet.start(**place): place for place in places}
    if "back" in kinds:
        yield from until(lambda: fleet.has_begun(1))
        server.command("SAVE")
    for number in range(ACCIDENTS):
        yield from pauses(chance.uniform(0.15, 0.9))
        if not (running := fleet.running):
            break
        run, kind = chance.choice(running), kinds[number % len(kinds)]
        happened[kind] += 1
        if kind == "kill":
            for each in running if chance.random() < 0.2 else [run]:
                fleet.kill(each)
                place = place_of.pop(each)
                place_of[fleet.start(**place)] = place
        elif kind == "stop":
            os.kill(run.pid, signal.SIGSTOP)
            yield from pauses(LEASE * chance.uniform(1.3, 1.8))
            os.kill(run.pid, signal.SIGCONT)
        elif kind == "move":
            yield from until(lambda: fleet.has_begun(1))  # a start would be refused
            move = Move(server, in_one_slot(name))
            move.carry(move.names()[::2])
            fleet.kill(run)
            yield from pauses(chance.uniform(0.1, 1.5))
            move.finish()
            place_of[fleet.start()] = place_of.pop(run)
        else:
            yield from until(lambda: fleet.has_begun(1))  # a start needs Redis
            server.stop()
            yield from pauses(chance.uniform(0.1, 0.5))
            server.start()
    fleet.gate.touch()
    kills = len(fleet.all) - len(fleet.workers)
    yield from fleet.end(accidents=happened, kills=kills)


def in_a_job(folder):
    """Return the settings of a worker with a JOBDIR, whose feeds are stored at the end."""
    zipped = {"postprocessing": ["scrapy.extensions.postprocessing.GzipPlugin"]}
    feeds = {"items.json": {"format": "json"}, "items.gz": {"format": "jsonlines", **zipped}}
    paths = {str(folder / name): options for name, options in feeds.items()}
    return {**ADDON, "JOBDIR": str(folder / "job"), "FEEDS": paths}


def durable_server(teller):
    return teller.serve(appendonly="yes", appendfsync="always")


def outage(teller, name, **settings):
    """Stop Redis under workers that need it; return fleet and server."""
    server = durable_server(teller)
    fleet = teller.fleet(name, server, spider=GatedTree)
    fleet.start_all(WORKERS, **settings)
    yield from until(lambda: fleet.has_begun(10))
    server.stop()
    fleet.gate.touch()
    return fleet, server


def wiped(teller):
    """Redis restarts without its data."""
    fleet, server = yield from outage(teller, "wiped")
    for path in {*server.folder.rglob("*.aof*"), *server.folder.rglob("*.rdb")}:
        path.unlink()
    server.start()
    yield from fleet.end()


def close_on_error(teller):
    """With BLOOM_REDIS_ON_ERROR "close" an outage closes the workers; others go on later."""
    settings = {"BLOOM_REDIS_ON_ERROR": "close", "BLOOM_REDIS_TIMEOUT": 2}
    fleet, server = yield from outage(teller, "close_on_error", **settings)
    yield from to_the_end(fleet)
    closed = [run.reason for run in fleet.workers]
    server.start()
    fleet.workers.clear()
    fleet.start()
    yield from fleet.end(closed=closed)


def stopped(teller):
    """Two workers close themselves, one gets SIGINT, two others go on; nothing is in memory."""
    kinds = {"kinds": tuple(kind for kind in KINDS if kind != "unserializable"), "pages": 150}
    first, fleet = (teller.fleet(name, **kinds) for name in ("undisturbed", "stopped"))
    yield from teller.undisturbed(first)
    fleet.reference = first.reference
    options = {**ADDON, "BLOOM_DROP_EARLY": True, "BLOOM_REDIS_LEASE": 60}
    fleet.start_all(2, CLOSESPIDER_PAGECOUNT=12, **options)
    last = fleet.start(**options)
    yield from until(lambda: fleet.answers.total() > 20)
    os.kill(last.pid, signal.SIGINT)
    yield from to_the_end(fleet)
    with RedisClient(teller.server.url) as client:
        left = CrawlReader(client, in_one_slot("stopped")).look()
    told = {
        "closed": [run.reason for run in fleet.workers],
        "rest": fleet.reference.total() - fleet.answers.total(),
        "left": [left.state, left.in_flight, len(left.workers), left.waiting > 0],
    }
    fleet.workers.clear()
    fleet.start_all(2, **options)
    yield from to_the_end(fleet)
    early = [bool(run.lines("duplicates: dropped early")) for run in fleet.all]
    yield fleet.report(early=early, **told)


def reaches_nothing():
    """Let no request to the three slots of the tree out of this process."""

    def process_request(_, request):
        if request.meta.get("download_slot", "").startswith("slot-"):
            raise ConnectionRefusedError

    DownloaderMiddleware.process_request = process_request


def cut_off(teller):
    """One of the workers does not reach the hosts that others do."""
    kinds, holding = ("moved", "gone", "item"), {**ADDON, "BLOOM_HOLD": True}  # all hosts answer
    crawl = {"spider": GatedTree, "pages": 400, "kinds": kinds, "settings": holding}
    fleet = teller.fleet("cut_off", **crawl)
    hosts.PAUSES = (0.1,) * 5
    fleet.reference, fleet.prepare = Counter(), reaches_nothing
    odd = fleet.start()
    fleet.prepare = None
    fleet.start_all(2)
    yield from until(lambda: odd.ended)
    fleet.gate.touch()
    yield from to_the_end(fleet)
    asked = {int(page.partition("/")[2]) for page in fleet.answers}
    told = odd.lines("do not answer this worker")
    yield fleet.report(told=told, missing=sorted({*range(400)} - asked))


def idle(teller):
    """start() raises in one worker. Others run it, and wait for what is pushed; one that waits for
    a second ends, they are stopped."""
    fleet = teller.fleet("idle", spider=FailingStart)
    first = fleet.start()
    yield from to_the_end(fleet)
    fleet.crawl = replace(fleet.crawl, spider=TreeSpider)
    fleet.start_all(2, BLOOM_REDIS_IDLE=600)
    yield from until(lambda: fleet.answers.keys() >= fleet.reference.keys())
    yield from pauses(1)
    still_there = len(fleet.running)
    settings, seed = get_crawler().settings, Request(f"{teller.world.url(fleet.crawl)}/pushed/0")
    others = {"settings": settings, "fingerprinter": RequestFingerprinter()}
    with RedisClient(teller.server.url) as client:
        pushed = push(client, in_one_slot("idle"), [seed], callback="parse_leaf", **others)
    yield from until(lambda: "pushed/0" in fleet.answers)
    last = fleet.start(BLOOM_REDIS_IDLE=1)
    yield from until(lambda: last.ended)
    for run in fleet.running:
        os.kill(run.pid, signal.SIGINT)
    yield from fleet.end(failed=len(first.lines("always raises")), there=still_there, pushed=pushed)


def seeded_spider():
    """Return the spider of the crawls as one of scrapy-redis's."""
    from scrapy_redis.spiders import RedisMixin

    inherited = TreeSpider.custom_settings
    pipelines = inherited["ITEM_PIPELINES"] | {"scrapy_redis.pipelines.RedisPipeline": 2}

    class SeededSpider(RedisMixin, TreeSpider):
        custom_settings = inherited | {"ITEM_PIPELINES": pipelines}

        @classmethod
        def from_crawler(cls, crawler, *args, **kwargs):
            self = super().from_crawler(crawler, *args, **kwargs)
            self.setup_redis(crawler)
            return self

        def parse(self, response):
            return () if "/pushed/" in response.url else super().parse(response)

    return SeededSpider


def start_urls(teller):
    """A spider of scrapy-redis takes seeds from its list, whoever of the workers lives, and the
    pipeline of scrapy-redis stores what it finds."""
    fleet = teller.fleet("start_urls", spider=seeded_spider())
    settings = {"REDIS_URL": teller.server.url, "MAX_IDLE_TIME_BEFORE_CLOSE": 3}
    first, _ = fleet.start(**settings), fleet.start(**settings)
    url = f"{teller.world.url(fleet.crawl)}/pushed"
    yield from until(lambda: fleet.has_begun(0))
    for number in range(1000, 1060):
        seed = json.dumps({"url": f"{url}/{number}", "meta": {"seed": number}})
        teller.server.command("RPUSH", "tree:start_urls", seed if number % 2 else f"{url}/{number}")
        if number % 20 == 0:
            yield from pauses(0.4)
    fleet.kill(first)
    fleet.start(**settings)
    yield from to_the_end(fleet)
    stored = map(json.loads, teller.server.command("LRANGE", "tree:items", 0, -1))
    missing = items_of(fleet.reference) - {item["number"] for item in stored}
    yield fleet.report(left=teller.server.names("tree:start_urls"), not_stored=sorted(missing))


def once(story, teller):
    yield story(teller)


_ONCE = (wiped, close_on_error, stopped, cut_off, idle, start_urls)
STORIES = {
    "kills": partial(accidents, "kill", lambda teller: teller.server),
    "cluster": partial(accidents, "kill stop move", lambda teller: teller.cluster),
    "restarts": partial(accidents, "stop restart", durable_server),
    "goes_back": partial(accidents, "back kill", lambda teller: teller.serve()),
    **{story.__name__: partial(once, story) for story in _ONCE},
}


def arguments(parser):
    parser.add_argument("--pages", type=int, default=120)


if __name__ == "__main__":
    tell_stories(__spec__.name, STORIES, answer, arguments, FleetTeller)
