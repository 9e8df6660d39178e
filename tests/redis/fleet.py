"""Crawls by several workers, forked from one process, that die in every way: run in a process of
its own without threads, prints one line of JSON for each crawl."""

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
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from scrapy import Request, signals
from scrapy.crawler import CrawlerProcess
from scrapy.utils.request import RequestFingerprinter
from scrapy.utils.test import get_crawler

import scrapy_bloom.redis.scheduler  # noqa: F401 - before the forks, not in each
from scrapy_bloom.crawl import hosts
from scrapy_bloom.redis.client import RedisClient
from scrapy_bloom.redis.desk import RedisDesk
from scrapy_bloom.redis.layout import in_one_slot
from scrapy_bloom.redis.push import push
from scrapy_bloom.redis.status import CrawlReader
from scrapy_bloom.redis.verify import queue_findings
from tests.failures import Failed
from tests.patience import PATIENCE
from tests.redis.server import Cluster, Move, Server
from tests.world.runner import ASYNCIO, SELECT, Crawl, Run, World, fork, side_by_side, write_stats
from tests.world.tree import KINDS, DownloaderMiddleware, TreeSpider, kind_of, pause

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
BUDGET = {"slot-0": 20, "slot-1": 30, "slot-2": 40, "*": 12}
HOLDING = {
    "settings": {"ADDONS": {"scrapy_bloom.Addon": 300}, "BLOOM_HOLD": True},
    "kinds": ("moved", "gone", "item"),  # all hosts answer
}
_OTHERS = {"extra", "piped"}
"""Pages in the slot of their host, as are the two start pages."""
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


class LaterTree(TreeSpider):
    """Delays half of its pages, and logs each that is asked too early."""

    @classmethod
    def from_crawler(cls, crawler, *args, **kwargs):
        self = super().from_crawler(crawler, *args, **kwargs)
        crawler.signals.connect(self.reached, signals.request_reached_downloader)
        return self

    def request(self, number, **options):
        request = super().request(number, **options)
        if number % 2:
            due = time.time() + random.uniform(0.1, 1.5)
            request.meta.update(due=due, bloom_not_before=due)
        return request

    def reached(self, request):
        if (early := request.meta.get("due", 0) - time.time()) > 0:
            logging.getLogger("scrapy_bloom").error("%s is %s s early", request, early)


class TwiceGatedLaterTree(LaterTree, TwiceGatedTree):
    """Both."""


class DeadTree(TreeSpider):
    """Links each page to one of a host that refuses connections."""

    def children(self, number):
        yield Request(f"http://127.0.0.2:1/{number}", callback=self.parse_leaf)
        yield from super().children(number)


def cut_off():
    """Let no request to the three slots of the tree out of this process."""

    def process_request(_, request):
        if request.meta.get("download_slot", "").startswith("slot-"):
            raise ConnectionRefusedError

    DownloaderMiddleware.process_request = process_request


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
        return Counter(self.world.pages(self.crawl))

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


def budgets(world, url, crawl, seed, kills):
    """Kill workers of a tree with ten times the pages of its budgets, also as the last begins."""
    crawl = replace(
        crawl,
        pages=2000,
        kinds=("moved", "flaky", "gone", "raising", "item"),
        settings={**crawl.settings, "BLOOM_BUDGET": BUDGET, "RETRY_TIMES": 1},
    )
    for report in random_kills(world, url, crawl, {}, seed, kills):
        yield report and {**report, "more": [], **asked_and_capped(world, url, crawl)}


def dead_hosts(world, url, crawl, reference, seed, kills):
    """Kill workers of a tree with links to a dead host, and list what has become of these."""
    crawl = replace(crawl, spider=DeadTree, **HOLDING)
    # workers that begin late have heard of no other host, and wait an hour
    hosts.PAUSES, hosts.ALONE_SECONDS = (0.1,) * 5, 3.0
    for report in random_kills(world, url, crawl, reference, seed, kills):
        if report is None:
            yield None
            continue
        with RedisClient(url) as client:
            key = in_one_slot(crawl.name)
            reader = CrawlReader(client, key)
            # one that was killed without claims keeps no other from ending the round
            yield from until(lambda reader=reader: not reader.require().living)
            view = reader.require()
            kept = Failed(RedisDesk(client, key)).requests()
            odd = [each.text for each in queue_findings(client, key) if not each.sound]
        dead = [each for each in kept if "//127.0.0.2" in each.url]
        yield {
            **report,
            "dead": sorted(int(each.url.rpartition("/")[2]) for each in dead),
            "reasons_of_dead": Counter(each.reason for each in dead),
            "books": [
                view.state,
                # what is quarantined waits for the dead host, and is listed as failed
                view.waiting - view.quarantined,
                view.failed + view.quarantined - len(kept),
                *odd,
            ],
        }


def asked_and_capped(world, url, crawl):
    """Return pages asked by slot, how many others, and which links are in neither or in both."""
    with RedisClient(url) as client:
        failed = Failed(RedisDesk(client, in_one_slot(crawl.name))).requests()
    pages = {*world.pages(crawl)}
    pages |= {each.url.split("/", 4)[4] for each in failed if each.reason != "capped"}
    over = {each.url.split("/", 4)[4] for each in failed if each.reason == "capped"}
    asked, capped = (
        {int(page.partition("/")[2]) for page in group if page[:5] not in _OTHERS}
        for group in (pages, over)
    )
    spider = TreeSpider(site="http://tree", pages=crawl.pages, slow=False, kinds=crawl.kinds)
    linked = {r.meta["number"] for number in asked for r in spider.children(number)}
    return {
        "asked": Counter(f"slot-{number % 3}" for number in asked - {0, 1}),
        "others": len(pages & {"plain/0", "plain/1"}) + sum(p[:5] in _OTHERS for p in pages),
        "capped": len(over),
        "failed": len(failed) - len(over),
        "odd": sorted((asked | capped) ^ (linked | {0, 1})) + sorted(asked & capped),
    }


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


def reshards(world, cluster, crawl, reference, seed):
    """Move the crawl's slot to another node, key by key, for longer than a lease, with a kill."""
    chance = random.Random(seed)
    fleet = Fleet(world, crawl, cluster.url)
    fleet.start_all(WORKERS)
    yield from until(lambda: fleet.are_open and fleet.answers.total() > 10)
    move = Move(cluster, in_one_slot(crawl.name))
    names = move.names()
    chance.shuffle(names)
    half = len(names) // 2
    move.carry(names[:half])
    yield from pauses(LEASE * 0.7)
    fleet.kill(fleet.workers[0])
    move.carry(names[half:])
    yield from pauses(LEASE * 0.7)
    move.finish()
    fleet.start()
    yield from fleet.end(reference, seed=seed, moved=half)


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


def scene_close_spider(world, server, crawl, reference):
    """Each worker closes itself after some pages, and two others go on; nothing is in memory."""
    kinds = tuple(kind for kind in KINDS if kind != "unserializable")
    reference = Counter(
        {
            re.sub(
                r"unserializable/(\d+)",
                lambda page: f"{kind_of(int(page[1]), kinds)}/{page[1]}",
                page,
            ): n
            for page, n in reference.items()
        }
    )
    fleet = Fleet(world, replace(crawl, kinds=kinds), server.url)
    options = {
        "ADDONS": {"scrapy_bloom.Addon": 300},
        "BLOOM_DROP_EARLY": True,
        "BLOOM_REDIS_LEASE": 60,
    }
    fleet.start_all(WORKERS, CLOSESPIDER_PAGECOUNT=12, **options)
    yield from to_the_end(fleet)
    with RedisClient(server.url) as client:
        left = CrawlReader(client, in_one_slot(crawl.name)).look()
    closed = [run.reason for run in fleet.workers]
    first = fleet.answers.total()
    fleet.workers.clear()
    fleet.start_all(2, **options)
    yield from to_the_end(fleet)
    yield fleet.report(
        reference,
        closed=closed,
        first=first,
        left=[left.state, left.in_flight, len(left.workers), left.waiting > 0],
        early=["duplicates: dropped early" in run.log for run in fleet.all],
    )


def scene_cut_off(world, server, crawl, reference):
    """One of the workers does not reach the hosts that others do."""
    fleet = Fleet(world, replace(crawl, spider=GatedTree, pages=400, **HOLDING), server.url)
    hosts.PAUSES = (0.1,) * 5
    fleet.prepare = cut_off
    odd = fleet.start()
    fleet.prepare = None
    fleet.start_all(2)
    yield from until(lambda: odd.ended)
    fleet.gate.touch()
    told = [line for line in odd.log.splitlines() if "do not answer this worker" in line]
    yield from to_the_end(fleet)
    asked = {int(page.partition("/")[2]) for page in fleet.answers}
    yield fleet.report({}, told=told, missing=sorted({*range(400)} - asked))


def scene_rounds(world, server, crawl, reference):
    """A crawl that is over stays over, and begins again in another round."""
    fleet = Fleet(world, crawl, server.url)
    for settings in ({}, {}, {"BLOOM_REDIS_ROUND": "2"}, {"BLOOM_REDIS_ROUND": "2"}):
        fleet.start(BLOOM_REDIS_LEASE=60, **settings)
        yield from to_the_end(fleet)
    yield fleet.report(reference, twice=sorted((fleet.answers - Counter(reference)).elements()))


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


class SeededTree(TreeSpider):
    """Has seeds in a list."""

    redis_key = "seeds"

    def parse(self, response):
        return () if "/pushed/" in response.url else super().parse(response)


def scene_seeds_elsewhere(world, server, crawl, reference):
    """The crawl's server goes back to before the seeds of another one were pushed."""
    fleet = Fleet(world, replace(crawl, spider=SeededTree), server.url)
    folder = world.folder / "elsewhere"
    folder.mkdir()
    other = Server(folder)
    url = f"http://127.0.0.1:{world._port}/{crawl.name}/pushed"
    run = fleet.start(REDIS_URL=other.url, DOWNLOAD_DELAY=2, BLOOM_REDIS_LEASE=5)
    yield from until(lambda: "Spider opened" in run.log and fleet.answers)
    server.command("SAVE")
    other.command("RPUSH", "seeds", *(f"{url}/{number}" for number in range(1000, 1006)))
    yield from until(lambda: not other.command("EXISTS", "seeds"))
    yield from pauses(5)
    server.restart()
    yield from to_the_end(fleet)
    other.stop()
    yield fleet.report(reference)


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


def scene_parts(world, server, crawl, reference):
    """Workers with a JOBDIR are killed and started again, also when the crawl is over."""
    fleet = Fleet(world, replace(crawl, spider=GatedTree), server.url)
    folder = world.folder / crawl.name

    def start(name):
        return fleet.start(
            ADDONS={"scrapy_bloom.Addon": 300},
            JOBDIR=str(folder / f"job-{name}"),
            FEEDS={
                str(folder / f"{name}.jsonl.gz"): {
                    "format": "jsonlines",
                    "postprocessing": ["scrapy.extensions.postprocessing.GzipPlugin"],
                },
                str(folder / f"{name}.json"): {"format": "json"},
            },
        )

    names = {name: start(name) for name in "ab"}
    for share in (0.2, 0.5, 0.8):
        yield from until(lambda share=share: len(fleet.answers) > share * len(reference))
        for name, run in names.items():
            fleet.kill(run)
            names[name] = start(name)
    yield from until(lambda: fleet.are_open)
    fleet.kill(names["a"])
    # the other one has its JOBDIR as long as the gate is shut
    second = start("b")
    while not second.ended:
        yield None
    fleet.workers.remove(second)
    refused = [line for line in second.log.splitlines() if "is in use by process" in line]
    fleet.gate.touch()
    yield from to_the_end(fleet)
    for name in names:
        start(name)
    yield from to_the_end(fleet)
    zipped = [json.loads(line) for name in names for line in unzip(folder / f"{name}.jsonl.gz")]
    plain = [item for name in names for item in json.loads((folder / f"{name}.json").read_text())]
    wanted = {int(page[5:]) for page in reference if page.startswith("item/")}
    yield fleet.report(
        reference,
        items_lost=[
            sorted(wanted - {item["number"] for item in items}) for items in (zipped, plain)
        ],
        items=len(zipped),
        refused=len(refused),
        told=sum("2 feeds with each item at least once" in run.log for run in fleet.all),
    )


def scene_returns(world, server, crawl, reference):
    """A worker with the first one's JOBDIR retries what was over the budget; others come late."""
    fleet = Fleet(world, crawl, server.url)
    folder = world.folder / crawl.name
    names = ("over.jsonl", "over.json", "behind.jsonl")
    feeds = {
        str(folder / name): {
            "format": "json" if name.endswith("json") else "jsonlines",
            "overwrite": name.startswith("over"),
        }
        for name in names
    }
    found = []
    for step, settings in {
        "capped": {"BLOOM_BUDGET": {"*": 12}},
        "late": {"BLOOM_BUDGET": {"*": 12}},
        "retried": {},
        "late again": {},
        "killed": {"BLOOM_REDIS_IDLE": 600},
        "late at last": {},
        "next round": {"BLOOM_REDIS_ROUND": "next"},
    }.items():
        if step == "retried":
            with RedisClient(server.url) as client:
                failed = Failed(RedisDesk(client, in_one_slot(crawl.name)))
                # what was over the budget and cannot be stored does not come back, and is told
                gone = failed.requests(reasons=["unserializable"])
                failed.retry(reasons=["capped"])
        run = fleet.start(
            ADDONS={"scrapy_bloom.Addon": 300}, JOBDIR=str(folder / "job"), FEEDS=feeds, **settings
        )
        if step == "killed":
            yield from until(lambda run=run: "Spider opened" in run.log)
            fleet.kill(run)
        yield from to_the_end(fleet)
        # the lines of both formats
        texts = [(folder / name).read_text() for name in names]
        found.append([sorted(map(int, re.findall(r'"number": (\d+)', text))) for text in texts])
    yield fleet.report(
        reference,
        wanted=sorted(int(page[5:]) for page in reference if page.startswith("item/")),
        found=found,
        told=[each.url.partition(f"/{crawl.name}/")[2] for each in gone],
    )


def unzip(path):
    """Return the lines of a compressed feed."""
    return gzip.decompress(path.read_bytes()).splitlines()


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


def scene_failing_start(world, server, crawl, reference):
    """start() raises in one worker: the crawl is not over before another has run it."""
    fleet = Fleet(world, replace(crawl, spider=FailingStart), server.url)
    fleet.start()
    yield from to_the_end(fleet)
    fleet.crawl = crawl
    fleet.start()
    yield from fleet.end(reference)


def scene_back_in_time(world, server, crawl, reference, spider=TwiceGatedTree):
    """Redis restarts from a snapshot of the start of the crawl."""
    fleet = Fleet(world, replace(crawl, spider=spider), server.url)
    fleet.start_all(2)
    yield from until(lambda: fleet.are_open and fleet.answers.total() > 1)
    server.command("SAVE")
    fleet.gate.with_suffix(".first").touch()
    yield from until(lambda: fleet.answers.total() > 40)
    server.stop()
    fleet.gate.touch()
    server.start()
    yield from fleet.end(reference)


def scene_delayed_back_in_time(world, server, crawl, reference):
    """As `back_in_time`, with half of the requests delayed."""
    return scene_back_in_time(world, server, crawl, reference, TwiceGatedLaterTree)


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
    kinds = "kills kills-delayed dead-hosts budgets stops restarts wipes cluster"
    for kind in kinds.split():
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

    def serve(kind=Server, **more):
        place = folder / f"server{len(servers)}"
        place.mkdir()
        servers.append(kind(place, **more))
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
    jobs += [
        budgets(world, url, crawl(f"budget{n}", n), seed + n, each) for n in range(options.budgets)
    ]
    jobs += [
        dead_hosts(world, url, crawl(f"dead{n}", n), reference, seed + n, each)
        for n in range(options.dead_hosts)
    ]
    for n in range(options.restarts + options.wipes):
        keeps = n < options.restarts
        server = serve(appendonly="yes", appendfsync="always")
        kept = crawl(f"{'restart' if keeps else 'wipe'}{n}", n)
        jobs.append(restarts(world, server, kept, reference, seed + n, with_data=keeps))
    for name in options.scenes:
        goes_back = name.endswith("back_in_time") or name == "seeds_elsewhere"
        server = serve(save="", appendonly="no" if goes_back else "yes")
        jobs.append(SCENES[name](world, server, crawl(name), reference))
    if options.cluster:
        cluster = serve(Cluster)
        for n in range(options.cluster):
            reshard = reshards(world, cluster, crawl(f"reshard{n}", n), reference, seed + n)
            killing = crawl(f"cluster{n}", n)
            jobs += [reshard, random_kills(world, cluster.url, killing, reference, seed + n, 3)]
    killed = []

    def crawls_with_kills():
        while sum(killed) < options.kills + options.kills_delayed:
            n = len(killed)
            killed.append(0)
            yield counting(n, delayed=sum(killed) >= options.kills)
        yield from jobs

    def counting(n, delayed):
        killing = crawl(f"kills{n}", n)
        if delayed:
            killing = replace(killing, spider=LaterTree)
        for report in random_kills(world, main_server.url, killing, reference, seed + n, each):
            if report is not None:
                killed[n] = report["kills"]
            yield report

    yield from side_by_side(crawls_with_kills(), options.beside)


if __name__ == "__main__":
    sys.exit(main())
