"""Crawls by several workers, forked from one process, that die in every way: run in a process of
its own without threads with what to tell, `kills=4 stops`, prints a line of JSON for each crawl."""

import argparse
import gzip
import json
import logging
import os
import random
import re
import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from scrapy import Request
from scrapy.crawler import CrawlerProcess
from scrapy.utils.request import RequestFingerprinter
from scrapy.utils.test import get_crawler

import scrapy_bloom.redis.scheduler  # noqa: F401 - before the forks, not in each
from scrapy_bloom.crawl import hosts
from scrapy_bloom.redis.client import RedisClient
from scrapy_bloom.redis.layout import in_one_slot
from scrapy_bloom.redis.push import push
from scrapy_bloom.redis.status import CrawlReader
from tests.patience import PATIENCE
from tests.redis.server import Cluster, Server
from tests.world.runner import ASYNCIO, SELECT, Crawl, Run, World, fork, side_by_side, write_stats
from tests.world.tree import KINDS, DownloaderMiddleware, TreeSpider, kind_of, pause

WORKERS = 3
LEASE = 1.0
CONCURRENCY = 4
ADDON = {"ADDONS": {"scrapy_bloom.Addon": 300}}
SETTINGS = {
    "DUPEFILTER_CLASS": "scrapy_bloom.RedisBloomDupeFilter",
    "SCHEDULER": "scrapy_bloom.RedisDurableScheduler",
    "BLOOM_CAPACITY": 20_000,
    "BLOOM_HOLD": False,  # some sites fail all the time
    "BLOOM_REDIS_LEASE": LEASE,
    "BLOOM_REDIS_TIMEOUT": 10.0,  # a loaded machine is no outage
    "CONCURRENT_REQUESTS": CONCURRENCY,
    "CONCURRENT_REQUESTS_PER_DOMAIN": CONCURRENCY,
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
        await self.opening(self.gate)
        for request in self.children(response.json()):
            yield request

    async def opening(self, gate):
        """Wait until there is a file `gate`."""
        while not Path(gate).exists():
            await pause(0.02)


class TwiceGatedTree(GatedTree):
    """Is not done with its start pages before there is a file `gate`.first."""

    async def parse(self, response):
        await self.opening(f"{self.gate}.first")
        for thing in super().parse(response):
            yield thing


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
    prepare: object = None

    def start(self, **settings):
        """Start one more worker; return its run."""
        folder = self.folder / str(len(self.all))
        folder.mkdir(parents=True)
        (folder / "log").touch()
        run = Run(fork(self._work, folder / "log", folder, settings), folder)
        self.workers.append(run)
        self.all.append(run)
        return run

    def start_all(self, count, **settings):
        for _ in range(count):
            self.start(**settings)

    def _work(self, folder, more):
        random.seed()
        if self.prepare is not None:
            self.prepare()
        settings = {
            **SETTINGS,
            "TWISTED_REACTOR": self.crawl.reactor,
            "BLOOM_REDIS_URL": self.url,
            "BLOOM_REDIS_KEY": self.crawl.name,
            "FEEDS": {str(folder / "items.jsonl"): {"format": "jsonlines"}},
            **self.crawl.settings,
            **more,
        }
        process = CrawlerProcess(settings, install_root_handler=True)
        crawler = process.create_crawler(self.crawl.spider)
        crawling = process.crawl(
            crawler,
            site=self.world.url(self.crawl),
            pages=self.crawl.pages,
            slow=self.crawl.slow,
            kinds=self.crawl.kinds,
            gate=str(self.gate),
        )
        crawling.addErrback(lambda failure: failure.printTraceback())
        process.start()
        write_stats(folder, crawler.stats.get_stats() if crawler.stats else {})
        logging.shutdown()

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
        """The numbers of the items in the feeds; a killed worker's last line may be torn."""
        numbers = set()
        for path in self.folder.glob("*/items.jsonl"):
            for line in path.read_text().splitlines():
                with suppress(ValueError):
                    numbers.add(json.loads(line)["number"])
        return numbers

    def report(self, reference, **found):
        """Return what became of the crawl, against an undisturbed one."""
        answers, logs = self.answers, [run.log for run in self.all]
        return {
            "name": self.crawl.name,
            "lost": sorted(set(reference) - set(answers)),
            "items_lost": sorted(items_of(reference) - self.items),
            "more": sorted(set(answers) - set(reference)),
            "repeated": sum((answers - Counter(reference)).values()),
            "reasons": [run.reason for run in self.workers],
            "statuses": [run.status for run in self.workers],
            "errors": [
                line
                for log in logs
                for line in log.splitlines()
                if ("ERROR" in line and "scrapy_bloom" in line) or UNHANDLED.search(line)
            ],
            "stats": {
                name: sum(run.stats.get(f"scheduler/{name}", 0) for run in self.all)
                for name in ("reclaimed", "fenced")
            },
            **found,
        }

    def end(self, reference, **found):
        """Wait until all have ended, and yield the report."""
        yield from to_the_end(self)
        yield self.report(reference, **found)


def items_of(reference):
    """Return the numbers of the items of these pages."""
    return {int(page[5:]) for page in reference if page.startswith("item/")}


def pauses(seconds):
    """Yield None for so long."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        yield None


def to_the_end(fleet, seconds=PATIENCE):
    """Yield None until all workers have ended; kill those who never do."""
    until = time.monotonic() + seconds
    while fleet.running:
        if time.monotonic() > until:
            for run in fleet.running:
                run.kill()
        yield None


def until(condition):
    """Yield None until `condition()` is true."""
    deadline = time.monotonic() + PATIENCE
    while not condition() and time.monotonic() < deadline:
        yield None


@dataclass
class Teller:
    """What stories need: the world, servers, chance, and the pages of an undisturbed crawl."""

    world: World
    stack: ExitStack
    seed: int
    each: int
    reference: Counter = field(default_factory=Counter)

    def serve(self, kind=Server, **options):
        """Return a new server."""
        folder = self.world.folder / f"server{random.randrange(1 << 60)}"
        folder.mkdir()
        server = kind(folder, **options)
        self.stack.callback(server.stop)
        return server

    @cached_property
    def server(self):
        return self.serve()

    @cached_property
    def cluster(self):
        return self.serve(Cluster)

    def fleet(self, crawl, server=None, **changes):
        return Fleet(self.world, replace(crawl, **changes), (server or self.server).url)


def undisturbed(teller, crawl):
    """Return the pages of a crawl with workers that nobody disturbs."""
    fleet = teller.fleet(crawl)
    fleet.start_all(WORKERS, BLOOM_REDIS_LEASE=60)
    yield from to_the_end(fleet)
    return fleet.answers


def story_kills(teller, crawl, chance, server=None):
    """Kill workers at random moments, now and then all at once, and start others."""
    fleet = teller.fleet(crawl, server)
    fleet.start_all(WORKERS)
    done = 0
    while done < teller.each:
        yield from pauses(chance.uniform(0.15, 0.9))
        running = fleet.running
        if not running:
            break
        victims = running if chance.random() < 0.2 else [chance.choice(running)]
        for run in victims:
            fleet.kill(run)
            fleet.start()
            done += 1
    yield from fleet.end(teller.reference, kills=done)


def story_cluster(teller, crawl, chance):
    """The same on a Cluster."""
    return story_kills(teller, crawl, chance, teller.cluster)


def story_stops(teller, crawl, chance):
    """Stop workers for longer than their lease, and let them go on."""
    fleet = teller.fleet(crawl)
    fleet.start_all(WORKERS)
    for _ in range(2):
        yield from pauses(chance.uniform(0.6, 1.0))
        running = fleet.running
        if len(running) < 2:
            break
        run = chance.choice(running)
        os.kill(run.pid, signal.SIGSTOP)
        yield from pauses(LEASE * chance.uniform(1.3, 1.8))
        os.kill(run.pid, signal.SIGCONT)
    yield from fleet.end(teller.reference)


def story_restarts(teller, crawl, chance, *, with_data=True):
    """Restart Redis under the workers, with what it had or without."""
    server = teller.serve(appendonly="yes", appendfsync="always")
    fleet = teller.fleet(crawl, server, spider=GatedTree)
    fleet.start_all(WORKERS)
    yield from until(lambda: fleet.has_begun(10))
    yield from pauses(chance.uniform(0, 0.4))
    server.stop()
    fleet.gate.touch()
    if not with_data:
        for path in {*server.folder.rglob("*.aof*"), *server.folder.rglob("*.rdb")}:
            path.unlink()
    yield from pauses(chance.uniform(0.1, 0.5))
    server.start()
    yield from fleet.end(teller.reference)


def story_wipes(teller, crawl, chance):
    """The same without."""
    return story_restarts(teller, crawl, chance, with_data=False)


def story_close_spider(teller, crawl, _):
    """Two workers close themselves after some pages, one is stopped with SIGINT, and two others go
    on at once; nothing is in memory."""
    kinds = tuple(kind for kind in KINDS if kind != "unserializable")
    fleet = teller.fleet(crawl, kinds=kinds, pages=150)
    reference = yield from undisturbed(teller, replace(fleet.crawl, name="undisturbed"))
    options = {**ADDON, "BLOOM_DROP_EARLY": True, "BLOOM_REDIS_LEASE": 60}
    fleet.start_all(2, CLOSESPIDER_PAGECOUNT=12, **options)
    last = fleet.start(**options)
    yield from until(lambda: fleet.answers.total() > 20)
    os.kill(last.pid, signal.SIGINT)
    yield from to_the_end(fleet)
    with RedisClient(teller.server.url) as client:
        left = CrawlReader(client, in_one_slot(crawl.name)).look()
    closed = [run.reason for run in fleet.workers]
    rest = sum(reference.values()) - fleet.answers.total()
    fleet.workers.clear()
    fleet.start_all(2, **options)
    yield from to_the_end(fleet)
    yield fleet.report(
        reference,
        closed=closed,
        rest=rest,
        left=[left.state, left.in_flight, len(left.workers), left.waiting > 0],
        early=[bool(run.lines("duplicates: dropped early")) for run in fleet.all],
    )


def cut_off():
    """Let no request to the three slots of the tree out of this process."""

    def process_request(_, request):
        if request.meta.get("download_slot", "").startswith("slot-"):
            raise ConnectionRefusedError

    DownloaderMiddleware.process_request = process_request


def story_cut_off(teller, crawl, _):
    """One of the workers does not reach the hosts that others do."""
    kinds, holding = ("moved", "gone", "item"), {**ADDON, "BLOOM_HOLD": True}  # all hosts answer
    fleet = teller.fleet(crawl, spider=GatedTree, pages=400, kinds=kinds, settings=holding)
    hosts.PAUSES = (0.1,) * 5
    fleet.prepare = cut_off
    odd = fleet.start()
    fleet.prepare = None
    fleet.start_all(2)
    yield from until(lambda: odd.ended)
    fleet.gate.touch()
    yield from to_the_end(fleet)
    asked = {int(page.partition("/")[2]) for page in fleet.answers}
    told = odd.lines("do not answer this worker")
    yield fleet.report({}, told=told, missing=sorted({*range(400)} - asked))


def story_seeds(teller, crawl, _):
    """Workers wait for what is pushed; one that waits for a second ends, others are stopped."""
    fleet = teller.fleet(crawl)
    fleet.start_all(2, BLOOM_REDIS_IDLE=600)
    yield from until(lambda: not set(teller.reference) - set(fleet.answers))
    yield from pauses(1)
    still_there = len(fleet.running)
    settings, seed = get_crawler().settings, Request(f"{teller.world.url(crawl)}/pushed/0")
    others = {"settings": settings, "fingerprinter": RequestFingerprinter()}
    with RedisClient(teller.server.url) as client:
        pushed = push(client, in_one_slot(crawl.name), [seed], callback="parse_leaf", **others)
    yield from until(lambda: "pushed/0" in fleet.answers)
    last = fleet.start(BLOOM_REDIS_IDLE=1)
    yield from until(lambda: last.ended)
    for run in fleet.running:
        os.kill(run.pid, signal.SIGINT)
    yield from fleet.end(teller.reference, still_there=still_there, pushed=pushed)


def seeded_spider():
    """Return the spider of the crawls as one of scrapy-redis's."""
    from scrapy_redis.spiders import RedisMixin

    class SeededSpider(RedisMixin, TreeSpider):
        @classmethod
        def from_crawler(cls, crawler, *args, **kwargs):
            self = super().from_crawler(crawler, *args, **kwargs)
            self.setup_redis(crawler)
            return self

        def parse(self, response):
            return () if "/pushed/" in response.url else super().parse(response)

    return SeededSpider


def story_start_urls(teller, crawl, _):
    """A spider of scrapy-redis takes seeds from its list, whoever of the workers lives."""
    fleet = teller.fleet(crawl, spider=seeded_spider())
    settings = {"REDIS_URL": teller.server.url, "MAX_IDLE_TIME_BEFORE_CLOSE": 3}
    first, _ = fleet.start(**settings), fleet.start(**settings)
    url = f"{teller.world.url(crawl)}/pushed"
    yield from until(lambda: fleet.has_begun(0))
    with teller.server.client() as client:
        for number in range(1000, 1060):
            seed = json.dumps({"url": f"{url}/{number}", "meta": {"seed": number}})
            client.rpush("tree:start_urls", seed if number % 2 else f"{url}/{number}")
            if number % 20 == 0:
                yield from pauses(0.4)
        fleet.kill(first)
        fleet.start(**settings)
        yield from to_the_end(fleet)
        left = client.keys("*tree:start_urls*")
    yield fleet.report(teller.reference, left=len(left))


def story_parts(teller, crawl, _):
    """Workers with a JOBDIR are killed and started again, also when the crawl is over."""
    fleet = teller.fleet(crawl, spider=GatedTree)
    folder, reference = fleet.folder, teller.reference
    gzipped = {"postprocessing": ["scrapy.extensions.postprocessing.GzipPlugin"]}

    def start(name):
        feeds = {
            str(folder / f"{name}.jsonl.gz"): {"format": "jsonlines", **gzipped},
            str(folder / f"{name}.json"): {"format": "json"},
        }
        return fleet.start(**ADDON, JOBDIR=str(folder / f"job-{name}"), FEEDS=feeds)

    names = {name: start(name) for name in "ab"}
    for share in (0.2, 0.5, 0.8):
        yield from until(lambda share=share: len(fleet.answers) > share * len(reference))
        for name, run in names.items():
            fleet.kill(run)
            names[name] = start(name)
    yield from until(lambda: fleet.has_begun(0))
    fleet.kill(names["a"])
    # the other one has its JOBDIR as long as the gate is shut
    second = start("b")
    yield from until(lambda: second.ended)
    fleet.workers.remove(second)
    fleet.gate.touch()
    yield from to_the_end(fleet)
    for name in names:
        start(name)
    yield from to_the_end(fleet)
    zipped = [gzip.decompress((folder / f"{name}.jsonl.gz").read_bytes()) for name in names]
    lines = [json.loads(line) for text in zipped for line in text.splitlines()]
    plain = [item for name in names for item in json.loads((folder / f"{name}.json").read_text())]
    yield fleet.report(
        reference,
        items_lost=[
            sorted(items_of(reference) - {item["number"] for item in items})
            for items in (lines, plain)
        ],
        refused=len(second.lines("is in use by process")),
        told=sum("2 feeds with each item at least once" in run.log for run in fleet.all),
    )


def story_close_on_error(teller, crawl, _):
    """With BLOOM_REDIS_ON_ERROR "close" an outage closes the workers; others go on later."""
    server = teller.serve(appendonly="yes")
    fleet = teller.fleet(crawl, server, spider=GatedTree)
    fleet.start_all(2, BLOOM_REDIS_ON_ERROR="close", BLOOM_REDIS_TIMEOUT=2)
    yield from until(lambda: fleet.has_begun(10))
    server.stop()
    fleet.gate.touch()
    yield from to_the_end(fleet)
    closed = [run.reason for run in fleet.workers]
    server.start()
    fleet.workers.clear()
    fleet.start()
    yield from fleet.end(teller.reference, closed=closed)


def story_failing_start(teller, crawl, _):
    """start() raises in one worker: the crawl is not over before another has run it."""
    fleet = teller.fleet(crawl, spider=FailingStart)
    fleet.start()
    yield from to_the_end(fleet)
    fleet.crawl = crawl
    fleet.start()
    yield from fleet.end(teller.reference)


def story_back_in_time(teller, crawl, _):
    """Redis restarts from a snapshot of the start of the crawl."""
    server = teller.serve()
    fleet = teller.fleet(crawl, server, spider=TwiceGatedTree)
    fleet.start_all(2)
    yield from until(lambda: fleet.has_begun(1))
    server.command("SAVE")
    fleet.gate.with_suffix(".first").touch()
    yield from until(lambda: fleet.answers.total() > 40)
    server.stop()
    fleet.gate.touch()
    server.start()
    yield from fleet.end(teller.reference)


STORIES = {
    name.removeprefix("story_"): each for name, each in {**vars()}.items() if "story_" in name
}


def jobs(teller, pages, wanted):
    """Yield the crawls of a first one that nobody disturbs, and of those that are wanted."""
    for name, count in wanted.items():
        for number in range(count):
            crawl = Crawl(
                f"{name}{number}" if count > 1 else name,
                pages=pages,
                reactor=(ASYNCIO, SELECT)[number % 2],
                slow=number % 3 == 1,
            )
            yield printed(STORIES[name](teller, crawl, random.Random(teller.seed + number)))


def printed(job):
    """Print the report that a job yields in the end."""
    for report in job:
        if report is not None:
            print(json.dumps(report), flush=True)
        yield report


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("wanted", nargs="+", help="NAME or NAME=COUNT")
    parser.add_argument("--kills-each", type=int, default=8)
    parser.add_argument("--pages", type=int, default=120)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    options = parser.parse_args()
    wanted = {}
    for each in options.wanted:
        name, _, count = each.partition("=")
        wanted[name] = int(count or 1)
    with (
        tempfile.TemporaryDirectory(prefix="fleet-") as folder,
        World(folder) as world,
        ExitStack() as stack,
    ):
        teller = Teller(world, stack, options.seed, options.kills_each)
        first = undisturbed(teller, Crawl("reference", pages=options.pages))
        (teller.reference,) = side_by_side([returned(first)])
        side_by_side(jobs(teller, options.pages, wanted))


def returned(job):
    """Yield what a job returns."""
    yield (yield from job)


if __name__ == "__main__":
    sys.exit(main())
