"""Crawls by several workers, forked from one process, that die in every way: run in a process of
its own without threads, prints one line of JSON for each crawl."""

import argparse
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
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from scrapy import Request
from scrapy.crawler import CrawlerProcess
from scrapy.utils.request import RequestFingerprinter
from scrapy.utils.test import get_crawler

import scrapy_bloom.redis.scheduler  # noqa: F401 - before the forks, not in each
from scrapy_bloom.redis.client import RedisClient
from scrapy_bloom.redis.layout import in_one_slot
from scrapy_bloom.redis.push import push
from tests.crawl.harness import ASYNCIO, SELECT, Crawl, Run, World, fork, side_by_side, write_stats
from tests.crawl.site import kind_of
from tests.crawl.spider import TreeSpider, pause
from tests.patience import PATIENCE
from tests.redis.server import Server

WORKERS = 3
LEASE = 1.0
CONCURRENCY = 4
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
        folder = self.world.folder / self.crawl.name / str(len(self.all))
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
            site=f"http://127.0.0.1:{self.world._port}/{self.crawl.name}",
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
        while not run.ended:
            time.sleep(0.002)
        self.workers.remove(run)

    @property
    def gate(self):
        """Where a file opens the gate of a GatedTree."""
        return self.world.folder / self.crawl.name / "gate"

    @property
    def running(self):
        return [run for run in self.workers if not run.ended]

    @property
    def are_open(self):
        """True when all have begun, and opened what they use."""
        return all(re.search("requests: +the queue ", run.log) or run.ended for run in self.workers)

    @property
    def answers(self):
        return Counter(page for _, page in self.world.answers(self.crawl))

    @property
    def items(self):
        """The numbers of the items in the feeds; a killed worker's last line may be torn."""
        numbers = set()
        for path in (self.world.folder / self.crawl.name).glob("*/items.jsonl"):
            for line in path.read_text().splitlines():
                with suppress(ValueError):
                    numbers.add(json.loads(line)["number"])
        return numbers

    def report(self, reference, **found):
        """Return what became of the crawl, against an undisturbed one."""
        answers = self.answers
        reasons = [run.reason for run in self.workers]
        return {
            "name": self.crawl.name,
            "lost": sorted(set(reference) - set(answers)),
            "items_lost": sorted(
                number
                for page in reference
                if page.startswith("item/") and (number := int(page[5:])) not in self.items
            ),
            "more": sorted(set(answers) - set(reference)),
            "repeated": sum((answers - Counter(reference)).values()),
            "reasons": reasons,
            "statuses": [run.status for run in self.workers],
            "errors": [
                line
                for run in self.all
                for line in run.log.splitlines()
                if ("ERROR" in line and "scrapy_bloom" in line) or UNHANDLED.search(line)
            ],
            "unanswered": sum("does not answer: what" in run.log for run in self.all),
            "stats": {
                name: sum(run.stats.get(f"scheduler/{name}", 0) for run in self.all)
                for name in ("reclaimed", "fenced", "calls")
            },
            **found,
        }

    def end(self, reference, **found):
        """Wait until all have ended, and yield the report."""
        yield from to_the_end(self)
        yield self.report(reference, **found)


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


def undisturbed(world, url, crawl):
    """Crawl with workers that nobody disturbs."""
    fleet = Fleet(world, crawl, url)
    fleet.start_all(WORKERS, BLOOM_REDIS_LEASE=60)
    yield from to_the_end(fleet)
    yield fleet.report(fleet.answers, answers=fleet.answers)


def random_kills(world, url, crawl, reference, seed, kills):
    """Kill workers at random moments, now and then all at once, and start others."""
    chance = random.Random(seed)
    fleet = Fleet(world, crawl, url)
    fleet.start_all(WORKERS)
    done = 0
    while done < kills:
        yield from pauses(chance.uniform(0.15, 0.9))
        running = fleet.running
        if not running:
            break
        victims = running if chance.random() < 0.2 else [chance.choice(running)]
        for run in victims:
            fleet.kill(run)
            fleet.start()
            done += 1
    yield from fleet.end(reference, kills=done, seed=seed)


def stops(world, url, crawl, reference, seed):
    """Stop workers for longer than their lease, and let them go on."""
    chance = random.Random(seed)
    fleet = Fleet(world, crawl, url)
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
    yield from fleet.end(reference, seed=seed)


def restarts(world, server, crawl, reference, seed, *, with_data):
    """Restart Redis under the workers, with what it had or without."""
    chance = random.Random(seed)
    fleet = Fleet(world, replace(crawl, spider=GatedTree), server.url)
    fleet.start_all(WORKERS)
    yield from until(lambda: fleet.are_open and fleet.answers.total() > 10)
    yield from pauses(chance.uniform(0, 0.4))
    server.stop()
    fleet.gate.touch()
    if not with_data:
        for path in {*server.folder.rglob("*.aof*"), *server.folder.rglob("*.rdb")}:
            path.unlink()
    yield from pauses(chance.uniform(0.1, 0.5))
    server.start()
    yield from fleet.end(reference, seed=seed)


def scene_clean_stop(world, server, crawl, reference):
    """A worker is stopped with SIGINT, and another goes on at once: nothing twice."""
    fleet = Fleet(world, replace(crawl, spider=GatedTree), server.url)
    first = fleet.start(BLOOM_REDIS_LEASE=60)
    yield from until(lambda: fleet.answers.total() > 30)
    os.kill(first.pid, signal.SIGINT)
    yield from until(lambda: "Closing spider (shutdown)" in first.log)
    fleet.gate.touch()
    while not first.ended:
        yield None
    fleet.start(BLOOM_REDIS_LEASE=60)
    yield from fleet.end(reference)


def scene_seeds(world, server, crawl, reference):
    """Workers wait for what is pushed; one that waits for a second ends, others are stopped."""
    fleet = Fleet(world, crawl, server.url)
    fleet.start_all(2, BLOOM_REDIS_IDLE=600)
    yield from until(lambda: not set(reference) - set(fleet.answers))
    yield from pauses(1)
    still_there = len(fleet.running)
    crawler = get_crawler()
    with RedisClient(server.url) as client:
        seed = Request(f"http://127.0.0.1:{world._port}/{crawl.name}/pushed/0")
        pushed = push(
            client,
            in_one_slot(crawl.name),
            [seed],
            settings=crawler.settings,
            fingerprinter=RequestFingerprinter(crawler),
            callback="parse_leaf",
        )
    yield from until(lambda: "pushed/0" in fleet.answers)
    last = fleet.start(BLOOM_REDIS_IDLE=1)
    yield from until(lambda: last.ended)
    for run in fleet.running:
        os.kill(run.pid, signal.SIGINT)
    yield from fleet.end(reference, still_there=still_there, pushed=pushed)


def scene_start_urls(world, server, crawl, reference):
    """A spider of scrapy-redis takes seeds from its list, whoever of the workers lives."""
    fleet = Fleet(world, replace(crawl, spider=seeded_spider()), server.url)
    settings = {"REDIS_URL": server.url, "MAX_IDLE_TIME_BEFORE_CLOSE": 3}
    first, _ = fleet.start(**settings), fleet.start(**settings)
    url = f"http://127.0.0.1:{world._port}/{crawl.name}/pushed"
    yield from until(lambda: fleet.are_open)
    with server.client() as client:
        for number in range(1000, 1060):
            seed = json.dumps({"url": f"{url}/{number}", "meta": {"seed": number}})
            client.rpush("tree:start_urls", seed if number % 2 else f"{url}/{number}")
            if number % 20 == 0:
                yield from pauses(0.4)
        fleet.kill(first)
        fleet.start(**settings)
        yield from to_the_end(fleet)
        left = client.keys("*tree:start_urls*")
    yield fleet.report(reference, left=len(left))


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


def scene_close_on_error(world, server, crawl, reference):
    """With BLOOM_REDIS_ON_ERROR "close" an outage closes the workers; others go on later."""
    fleet = Fleet(world, replace(crawl, spider=GatedTree), server.url)
    fleet.start_all(2, BLOOM_REDIS_ON_ERROR="close", BLOOM_REDIS_TIMEOUT=2)
    yield from until(lambda: fleet.are_open and fleet.answers.total() > 10)
    server.stop()
    fleet.gate.touch()
    yield from to_the_end(fleet)
    closed = [run.reason for run in fleet.workers]
    server.start()
    fleet.workers.clear()
    fleet.start()
    yield from fleet.end(reference, closed=closed)


def until(condition, seconds=PATIENCE):
    """Yield None until `condition()` is true."""
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        yield None


SCENES = {
    name.removeprefix("scene_"): scene for name, scene in {**vars()}.items() if "scene_" in name
}


def main():
    parser = argparse.ArgumentParser()
    for kind in ("kills", "stops", "restarts", "wipes"):
        parser.add_argument(f"--{kind}", type=int, default=0)
    parser.add_argument("--kills-each", type=int, default=8)
    parser.add_argument("--scenes", nargs="*", default=[])
    parser.add_argument("--pages", type=int, default=120)
    parser.add_argument("--beside", type=int, default=3)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fleet-") as name:
        folder = Path(name)
        servers = []
        with World(folder) as world:
            try:
                for report in run_all(world, folder, servers, options):
                    print(json.dumps(report), flush=True)
            finally:
                for server in servers:
                    server.stop()


def run_all(world, folder, servers, options):
    """Yield the reports."""

    def serve(**more):
        servers.append(Server(folder, **more))
        return servers[-1]

    main_server = serve()

    def crawl(name, number=0):
        return Crawl(
            name, pages=options.pages, reactor=(ASYNCIO, SELECT)[number % 2], slow=number % 3 == 1
        )

    (first,) = side_by_side([undisturbed(world, main_server.url, crawl("reference"))])
    reference = first.pop("answers")
    yield first
    seed, each = options.seed, options.kills_each
    url = main_server.url
    jobs = [
        stops(world, url, crawl(f"stops{n}", n), reference, seed + n) for n in range(options.stops)
    ]
    for n in range(options.restarts + options.wipes):
        keeps = n < options.restarts
        server = serve(appendonly="yes", appendfsync="always")
        kept = crawl(f"{'restart' if keeps else 'wipe'}{n}", n)
        jobs.append(restarts(world, server, kept, reference, seed + n, with_data=keeps))
    for name in options.scenes:
        server = serve(appendonly="yes")
        jobs.append(SCENES[name](world, server, crawl(name), reference))
    killed = []

    def crawls_with_kills():
        while sum(killed) < options.kills:
            killed.append(0)
            yield counting(len(killed) - 1)
        yield from jobs

    def counting(n):
        for report in random_kills(world, url, crawl(f"kills{n}", n), reference, seed + n, each):
            if report is not None:
                killed[n] = report["kills"]
            yield report

    yield from side_by_side(crawls_with_kills(), options.beside)


if __name__ == "__main__":
    sys.exit(main())
