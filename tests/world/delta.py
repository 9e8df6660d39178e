"""Real crawls of a site of lists and details, day after day, killed now and then.

`python -m tests.world.delta days` prints a line of JSON for each crawl of that story, or of all
without a name: what each round of it has asked, what its feed holds and its stats say.
"""

import gzip
import json
import os
import random
import shutil
import signal
import time
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import sha1
from math import inf

import scrapy
from scrapy import Request
from scrapy.exceptions import DropItem
from scrapy.extensions.postprocessing import GzipPlugin

from scrapy_bloom import NewLinkExtractor, follow_new
from scrapy_bloom.amounts import DAY
from scrapy_bloom.crawl.ledger import Ledger
from scrapy_bloom.delta import crawl as delta_crawl
from scrapy_bloom.delta.crawl import DeltaCrawl
from scrapy_bloom.delta.middleware import DeltaMiddleware
from scrapy_bloom.feeds.durable_feeds import DurableFeeds
from scrapy_bloom.sqlite.scheduler import DurableScheduler
from tests.world.runner import ASYNCIO, REACTORS, SETTINGS, Crawl, Step, Teller, tell, tell_stories
from tests.world.site import Reply, moved
from tests.world.tree import OfCrawler

FAILING = ("status", "raising", "dropped", "error", "empty", "torn", "refused")
"""What gives no item on the first day, each in its way."""
SOUND = ("item", "moved", "keyed", "posted")
FIRST_DAY = 1_800_000_000 + DAY
LISTS = 2
REFUSED = set()
"""The crawls and days on which the site has refused a page once."""


def links(path, day):
    """Return the links of a list on a day."""
    kind, number = path.split("/")
    if kind == "once":
        failing = [f"status/{number}9"] if number == "2" else []
        return [f"item/{number}{n}" for n in (100, 101)] + failing
    number = int(number)
    found = [f"{kind}/{number}1" for kind in (*FAILING, *SOUND)]
    found += [f"item/{number}{n}" for n in range(20, 20 + day)]  # what is new
    found += [f"poll/{n + 1}" for n in range(day)]
    found += ["item/7", "always/1", f"list/{number % LISTS + 1}"]
    return found + (["once/1", "once/2"] if number == 1 else [])


def linked(crawl, number, day):
    """Return a page of links; those but the first have one more on later days."""
    found = ["item/1", "item/2", "item/3", "links/2", "links/3"]
    if number != "1" and day > 1:
        found.append(f"item/{number}9")
    text = "".join(f'<a href="/{crawl}/{page}">x</a>' for page in found)
    return Reply(200, f"<html><body>{text}</body></html>".encode(), {"Content-Type": "text/html"})


def details(day):
    """Return all details that can be found on a day."""
    found, left = set(), ["list/1"]
    while left:
        page = left.pop()
        for link in links(page, day):
            if link not in found:
                found.add(link)
                left += [link] if link.split("/")[0] in {"list", "once"} else []
    return {page for page in found if page.split("/")[0] not in {"list", "once"}}


async def answer(asked):
    """Answer as on the day that the state says."""
    day, kind, page = int(asked.state), asked.kind, asked.page
    if (kind == "status" and day == 1) or kind == "broken":
        return Reply(None if asked.number == "11" else 503)
    if kind == "soft" and day > 1 and (asked.crawl, day) not in REFUSED:
        REFUSED.add((asked.crawl, day))
        return Reply(body=b"later")
    if kind == "moved":
        return moved(asked.crawl, f"target/{asked.number}")
    if kind == "hop":
        return moved(asked.crawl, f"target/1?{random.random()}")
    if kind in {"front", "leaf", "child", "soft"}:
        return Reply(body=f"{day} {written(page, day)}".encode())
    if kind == "links":
        return linked(asked.crawl, asked.number, day)
    if kind in {"list", "once"}:
        return Reply(body=json.dumps(links(page, day)).encode())
    return Reply(body=str(day).encode())


COMPARED = (
    {f"leaf/{n}" for n in range(1, 9)}
    | {f"{kind}/1" for kind in ("front", "hop", "shaky", "quiet", "poll", "child", "soft")}
    | {"front/2"}
)
"""The pages that a crawl of DigestSpider compares, by what was asked for first."""
REWRITTEN = {3: "leaf/5", 4: "child/1"}
"""By day, of four."""


def written(page, day):
    """Return what a page says on a day."""
    return sum(day >= since for since, each in REWRITTEN.items() if page == each)


SPIDERS = {"RETRY_ENABLED": False, "CONCURRENT_REQUESTS_PER_DOMAIN": 8, "LOG_LEVEL": "INFO"}


class DeltaSpider(scrapy.Spider):
    """Follows lists to details, of which some fail on the first day."""

    name = "delta"
    custom_settings = SPIDERS | {"ITEM_PIPELINES": {f"{__name__}.Pipeline": 1}}

    async def start(self):
        yield self.request("list/1", dont_filter=True)

    def request(self, page, **options):
        """Return the request for a page, as its kind has it."""
        kind, _ = page.split("/")
        meta = {}
        url = f"{self.site}/{page}"
        if kind == "once":
            meta["bloom_delta"] = True
        if kind == "always":
            meta["bloom_delta"] = False
        if kind in {"keyed", "status", "once"}:
            meta["bloom_delta_key"] = f"{self.site} {page}"
        if kind == "keyed":
            url += f"?session={random.random()}"
        if kind == "status":
            options["errback"] = self.failed
        if kind == "posted":
            options |= {"method": "POST", "body": page}
            if self.settings.get("BLOOM_DELTA_DAYS"):
                meta["bloom_delta"] = "3d"
        return Request(url, meta=meta, **options)

    def parse(self, response):
        kind, number = response.url.partition("?")[0].split("/")[-2:]
        if kind in {"list", "once"}:
            yield {"page": f"{kind}/{number}"}  # a list may give items, too
            for page in response.json():
                request = self.request(page, dont_filter=page.startswith("poll"))
                if kind == "once":  # the keys of its own meta do not count for others
                    request.meta.update(response.meta)
                yield request
            return
        is_first = response.body == b"1"
        if kind == "torn" and is_first:
            yield {"page": f"{kind}/{number}", "part": 1}
        if kind in {"raising", "torn"} and is_first:
            raise LookupError("the page has changed")
        if not (kind == "empty" and is_first):
            day = response.body if kind == "refused" and is_first else int(response.body)
            yield {"page": f"{kind}/{number}", "day": day}  # bytes are not JSON

    def failed(self, failure):
        yield Request(failure.request.url.replace("status", "item"), meta=failure.request.meta)


class LinksSpider(scrapy.Spider):
    """Does not make requests of links that are known."""

    name = "links"
    custom_settings = {  # noqa: RUF012
        "LOG_LEVEL": "INFO",
        "BLOOM_DROP_EARLY": True,
        "SPIDER_MIDDLEWARES": {f"{__name__}.Paging": 500},
    }

    async def start(self):
        yield Request(f"{self.site}/links/1")

    def parse(self, response):
        if response.url.endswith("links/3"):
            known = NewLinkExtractor(allow="/item/").extract_links(response)
            yield from response.follow_all(known, self.parse_item)
            return
        yield from follow_new(response, css="a[href*=item]", callback=self.parse_item)
        if response.url.endswith("links/1"):
            yield from follow_new(response, css="a[href*=links]")

    def parse_item(self, response):
        yield {"page": "/".join(response.url.split("/")[-2:])}


class Paging(OfCrawler):
    """Leads from a detail to what only it knows of."""

    async def process_spider_output(self, response, result):
        async for thing in result:
            yield thing
        if response.url.endswith("item/3"):
            yield Request(response.urljoin("5"), self.crawler.spider.parse_item)


@dataclass
class Part:
    """An item, with a value that is no JSON."""

    page: str
    text: str = ""
    tags: set = field(default_factory=lambda: {"one", "two"})
    scraped: float = 0.0


class DigestSpider(scrapy.Spider):
    """Fetches pages of which two are rewritten, one on the third day and one on the fourth."""

    name = "digests"
    custom_settings = SPIDERS | {"ITEM_PIPELINES": {f"{__name__}.Stamps": 1}}

    async def start(self):
        yield Request(f"{self.site}/front/1", dont_filter=True)

    async def parse(self, response):
        page = "/".join(response.url.partition("?")[0].split("/")[-2:]).replace("target", "hop")
        if page in FRONTS:
            yield Part(page)
            for link in FRONTS[page]:
                yield Request(f"{self.site}/{link}", dont_filter=link.startswith("poll"))
        elif page == "shaky/1":
            yield Part(page)
            if response.body == b"2":
                raise LookupError("only today")
        elif response.text == "later":
            yield response.request.replace(dont_filter=True)
        elif page != "quiet/1":
            text = "" if page in {"poll/1", "hop/1"} else response.text.split()[-1]
            yield Part(page, text)
            yield {"page": "dropped", "noise": random.random()}
            yield {"page": page, "parts": [Part(page, text)], "scraped": random.random()}
            if page == "leaf/1":
                yield response.follow("../child/1")


FRONTS = {
    "front/1": [*(f"leaf/{n}" for n in range(1, 6)), "front/2", "poll/1", "hop/1", "broken/1"],
    "front/2": [
        *(f"leaf/{n}" for n in range(5, 9)),
        *(f"{kind}/1" for kind in ("poll", "quiet", "shaky", "soft", "front")),
    ],
}


class Stamps:
    """Drops items, and writes into others what differs each time."""

    def process_item(self, item):
        if isinstance(item, dict) and item["page"] == "dropped":
            raise DropItem("by a pipeline")
        if isinstance(item, Part):
            item.scraped = random.random()
        return item


class Pipeline:
    """Does not take two kinds of items on the first day."""

    def process_item(self, item):
        kind = item["page"].partition("/")[0]
        if kind == "dropped" and item["day"] == 1:
            raise DropItem("not complete")
        if kind == "error" and item["day"] == 1:
            raise ConnectionError("no database")
        return item


@dataclass(frozen=True)
class Day(Step):
    """A start on a day, for site and clock."""

    day: int = 1
    dies_in: tuple = ()  # a method and its class; what was marked is in the job only
    dies_at: int | None = None  # by SIGKILL, in the commit that acknowledges so many requests
    is_committed: bool = False  # whether that commit comes about

    @property
    def feed(self):
        """The name of its feed."""
        return f"{self.settings.get('JOBDIR', 'job')}-{self.day}"


def on(day, kill=None, seconds=0.0, **more):
    """Return a start on that day, perhaps one that is killed after so many requests."""
    killed = {} if kill is None else {"signals": (signal.SIGKILL,), "at": kill, "seconds": seconds}
    return Day(day=day, state=str(day), **killed, **more)


@dataclass
class DeltaTeller(Teller):
    """Tells what crawls fetch from day to day."""

    def __call__(self, name, steps, spider=DeltaSpider, reactor=ASYNCIO, job=True, **settings):
        """Tell the story of a crawl."""
        crawl = Crawl(name, reactor=reactor, spider=spider, settings=settings)
        folder = self.world.folder / name
        given = [
            replace(
                step,
                before=self.prepared(step),
                job=job,
                settings={
                    "BLOOM_DELTA": "item",
                    "BLOOM_DELTA_DIR": str(folder / "memory"),
                    "FEEDS": {str(folder / f"{step.feed}.jsonl"): {"format": "jsonlines"}},
                    **settings,
                    **step.settings,
                },
            )
            for step in steps
        ]

        yield {"crawl": name, "runs": (yield from tell(self.world, crawl, given, seen))}

    def prepared(self, step):
        """Return what is done first in each process of a crawl."""

        def before():
            DurableScheduler.commit_operations = 5
            DurableScheduler.commit_seconds = 0.02
            Ledger.preparing_share = 1
            DeltaCrawl.least_seconds = 0.0
            delta_crawl._IN_MEMORY = 7
            DeltaMiddleware.clock = staticmethod(lambda: FIRST_DAY + (step.day - 1) * DAY)
            if step.dies_at is not None:
                die_in_a_commit(step)
            if step.dies_in:
                setattr(*step.dies_in, lambda *_: os._exit(9))
                DeltaCrawl.least_seconds = inf

        return before


def today():
    return int((DeltaMiddleware.clock() - FIRST_DAY) / DAY) + 1


def die_in_a_commit(step):
    """Let this process die as `step` says, and leave the marks that are in its memory only."""
    before, after, left = DeltaCrawl.before_commit, DeltaCrawl.after_commit, [step.dies_at]

    def before_commit(self, requests):
        before(self, requests)
        left[0] -= len(requests)
        die(not step.is_committed)

    def after_commit(self):
        after(self)
        die(step.is_committed)

    def die(is_due):
        if is_due and left[0] <= 0:
            os.kill(os.getpid(), signal.SIGKILL)

    DeltaCrawl.before_commit, DeltaCrawl.after_commit = before_commit, after_commit


def seen(run, step, answers):
    """Return what a run was answered, and what it has left."""
    folder = run.folder
    return {
        "status": run.status,
        "reason": run.reason,
        "asked": [answer.page for answer in answers],
        "answers": [[answer.page, answer.status] for answer in answers],
        "items": pages_in(folder / f"{step.feed}.jsonl") if run.reason else [],
        "feed": step.feed,
        "written": written_in(folder),
        "stats": {
            k: v for k, v in run.stats.items() if k.startswith(("bloom/delta", "downloader"))
        },
        "line": run.lines("Between crawls: skip")[-1:],
        "compared": run.lines("Between crawls: comp")[-1:],
        "start": run.lines("between crawls:")[-1:],
        "warned": run.lines("is an index page"),
        "errors": run.lines("] ERROR"),
        "memory": {
            path.name: sha1(path.read_bytes()).hexdigest() for path in folder.glob("memory/*.*")
        },
    }


def written_in(folder):
    """Return the pages that any feed in a folder holds."""
    return sorted({page for path in folder.glob("*.jsonl*") for page in pages_in(path)})


def pages_in(feed):
    """Return the pages whose items a feed holds, without what a kill has torn."""
    data = feed.read_bytes() if feed.exists() else b""
    if feed.suffix == ".gz":
        try:
            data = gzip.decompress(data)
        except (EOFError, OSError):
            data = b""
    lines = data.decode().splitlines(keepends=True)
    return [json.loads(line)["page"] for line in lines if line.endswith("\n")]


# Stories


def each_day(*days, **settings):
    """Return a start on each of these days, in a job of its own."""
    return [on(day, settings={"JOBDIR": f"job{day}", **settings}) for day in days]


def days(tell):
    """What is fetched from day to day, wherever the jobs are and whatever counts as done."""
    two, three = [on(1), on(2)], [on(1), on(2), on(3)]
    yield tell("onejob", three)
    yield tell("manyjobs", each_day(1, 2))
    yield tell("scrapys", two, SCHEDULER="scrapy.core.scheduler.Scheduler")
    for mode in ("success", "response"):
        yield tell(mode, two, BLOOM_DELTA=mode)
    yield tell("reset", [on(1), on(2, settings={"BLOOM_DELTA_RESET": True}), on(3)])
    lost = {"FEEDS": {"ftp://127.0.0.1:1/items.jsonl": {"format": "jsonlines"}}}
    yield tell("lost", [on(1, settings=lost), *two], job=False)
    # two crawls at once that share a store; one is killed twice
    shared = str(tell.world.folder / "shared")
    yield tell("one", two, BLOOM_DELTA_DIR=shared)
    yield tell("other", [on(1, 9), on(1, 5), *two], BLOOM_DELTA_DIR=shared)
    # a test crawl in between, killed and gone on with
    test = {"BLOOM_DELTA_READ_ONLY": True, "JOBDIR": "job2"}
    yield tell("ro", [on(1), on(2, 9, settings=test), on(2, settings=test), on(2)])
    yield tell("links", two, spider=LinksSpider, BLOOM_DELTA="success")
    # a process dies when the round is over, before its marks are in the store
    died = [on(1, dies_in=(DeltaCrawl, "_close")), on(2)]
    gzipped = {"items.gz": {"format": "json", "postprocessing": [GzipPlugin], "overwrite": True}}
    yield tell("undelivered", died)
    # another dies when the new round is in the job, before its first request
    yield tell("opening", [on(1), on(2, dies_in=(DurableFeeds, "_close")), on(2)])
    yield tell("gzipped", [replace(day, settings={"FEEDS": gzipped}) for day in (on(1, 20), *died)])


def kills(tell):
    """SIGKILL at random moments of each of three rounds, and in between."""
    for number in range(tell.options.count):
        steps = []
        for day in (1, 2, 3):
            settings = {"JOBDIR": f"job{day}"} if number % 3 == 1 else {}
            for _ in range(tell.chance.randrange(3)):
                at = tell.chance.randrange(1, 35 if day == 1 else 16)
                steps.append(on(day, at, settings=settings))
            steps.append(on(day, settings=settings))
        yield tell(f"kill{number}", steps, reactor=REACTORS[number % 2])


COMPARE = {"BLOOM_DELTA": None, "BLOOM_DELTA_DIGEST": "scraped"}
LEAVE_OUT = {"BLOOM_DELTA": None, "BLOOM_DELTA_DIGEST": "skip: scraped"}


def digests(tell):
    """What has changed from day to day: with skipping or not, in one job or many."""
    expired = {**COMPARE, "BLOOM_DELTA": "item", "BLOOM_DELTA_DAYS": 0.5}
    test = each_day(3, JOBDIR="test", BLOOM_DELTA_READ_ONLY=True)
    retried = each_day(1, BLOOM_RETRY_FAILED=True)
    for name, days, settings in (
        ("compared", [on(day) for day in (1, 2, 3, 4)], {**COMPARE, "job": False}),
        ("expired", each_day(1, 2, 3, 4, FEEDS={}), expired),
        ("skipped", [*each_day(1), *retried, *each_day(2)], {**COMPARE, "BLOOM_DELTA": "item"}),
        ("left_out", [*each_day(1, 2), *test, *each_day(3, 4)], LEAVE_OUT),
    ):
        yield tell(name, days, spider=DigestSpider, **settings)


def digest_kills(tell):
    """The same with SIGKILLs on each day: in commits, and from the third crawl on at any time."""
    chance = tell.chance
    for number in range(tell.options.count):
        steps = []
        for last in [on(day) for day in (1, 2, 3, 4)] if number % 2 else each_day(1, 2, 3, 4):
            for _ in range(chance.randrange(1, 3)):
                if number < 2:  # so that no kill comes when the round is over
                    dies_at, is_committed = chance.randrange(1, 7), chance.random() < 0.5
                    steps.append(replace(last, dies_at=dies_at, is_committed=is_committed))
                else:
                    killed = on(last.day, chance.randrange(16), chance.random() / 9)
                    steps.append(replace(killed, settings=last.settings))
            steps.append(last)
        reactor = REACTORS[number // 2 % 2]
        yield tell(f"digest{number}", steps, spider=DigestSpider, reactor=reactor, **LEAVE_OUT)


def thrown_away(tell):
    """The first crawl is killed, and its job thrown away, once with items for the end of it."""
    for number in range(tell.options.count):
        at, seconds = tell.chance.randrange(15, 30), tell.chance.random() / 5
        first = {"JOBDIR": "job1", **({"FEEDS": FEEDS["zipped"]} if number % 2 else {})}
        killed, again = on(1, at, seconds, settings=first), {"JOBDIR": "job2"}
        yield tell(f"thrown{number}", [killed, on(1, settings=again), *each_day(2, JOBDIR="job3")])


def in_redis(name):
    """Return the settings of a crawl and its store in Redis."""
    return {
        "SCHEDULER": "scrapy_bloom.RedisDurableScheduler",
        "BLOOM_REDIS_URL": os.environ["DELTA_REDIS"],
        "BLOOM_REDIS_TIMEOUT": 30.0,  # a loaded machine is no outage
        "BLOOM_DELTA_DIR": f"memory of {name}",
        "job": False,
    }


def keyed(name, *steps, job=False):
    """Return steps with a key in Redis for each day, and perhaps a JOBDIR."""
    return [
        replace(
            step,
            settings={"BLOOM_REDIS_KEY": f"{name}{step.day}", **step.settings}
            | ({"JOBDIR": f"job{step.day}"} if job else {}),
        )
        for step in steps
    ]


def redis(tell):
    """The store is in Redis, and so is the crawl, or its filter only; and what has changed there,
    for a worker with a JOBDIR, and one without."""
    two, name = [on(1), on(2)], "RedisDurableScheduler"
    stock = {**in_redis("stock"), "SCHEDULER": "scrapy.core.scheduler.Scheduler"}
    yield tell("Scheduler", keyed("stock", *two), **stock)
    reset = on(2, settings={"BLOOM_REDIS_KEY": "reset", "BLOOM_DELTA_RESET": True})
    # the second of those with a reset comes too late
    yield tell(name, keyed(name, *two, reset, reset, on(3)), **in_redis(name))
    for name, settings in (("redis_compared", COMPARE), ("redis_left_out", LEAVE_OUT)):
        days = keyed(name, on(1), on(2), on(3), job=settings is LEAVE_OUT)
        yield tell(name, days, spider=DigestSpider, **in_redis(name), **settings)


FEEDS = {
    "plain": {"plain.jsonl": {"format": "jsonlines"}},
    "job": {"job.jsonl": {"format": "jsonlines"}},
    "zipped": {"zipped.jsonl.gz": {"format": "jsonlines", "postprocessing": [GzipPlugin]}},
}
"""The workers of a fleet, of which one has a JOBDIR, with their feeds."""


def fleet_job(tell):
    """A worker on Redis is killed and goes on: with a JOBDIR, and without in a commit."""
    slow = {"BLOOM_REDIS_LEASE": 1.0, "DOWNLOAD_DELAY": 0.02}
    days = keyed("jobbed", on(1, 20), on(1), on(2), job=True)
    yield tell("jobbed", days, **in_redis("jobbed"), **slow, FEEDS=FEEDS["zipped"])
    days = keyed("jobless", on(1, dies_at=20, is_committed=True), on(1), on(2))
    yield tell("jobless", days, **in_redis("jobless"), **slow)


def fleet(tell):
    """Three workers on Redis are killed, and their JOBDIR thrown away; then the crawl goes on."""
    return map(partial(killed_fleet, tell), range(tell.options.count))


def killed_fleet(tell, number):
    """Tell that story once."""
    from tests.redis.fleet import Fleet, to_the_end

    name, world, chance = f"fleet{number}", tell.world, tell.chance
    folder = world.folder / name
    folder.mkdir()
    settings = {
        **SETTINGS,
        "BLOOM_DELTA": "item",
        "BLOOM_DELTA_DIR": name,
        "BLOOM_REDIS_LEASE": 1.0,
        "DOWNLOAD_DELAY": 0.03,  # all workers have some pages
    }
    crawl = Crawl(name, reactor=REACTORS[number % 2], spider=DeltaSpider, settings=settings)
    workers, told = Fleet(world, crawl, os.environ["DELTA_REDIS"]), {}

    def start(day, feed, **more):
        world.say(crawl, str(day))
        workers.prepare = tell.prepared(on(day))
        feeds = {str(folder / f"{len(workers.all)}-{uri}"): how for uri, how in FEEDS[feed].items()}
        return workers.start(FEEDS=feeds, BLOOM_REDIS_KEY=f"{name}-{day}", **more)

    for feed in FEEDS:
        start(1, feed, **({"JOBDIR": str(folder / "thrown away")} if feed == "job" else {}))
    for run in chance.sample(workers.workers, len(FEEDS)):
        enough = len(world.asked(crawl)) + chance.randrange(6, 20)
        due = None
        while not run.ended and (due is None or time.monotonic() < due):
            if due is None and len(world.asked(crawl)) >= enough:
                due = time.monotonic() + chance.random() / 5
            yield None
        workers.kill(run)
    shutil.rmtree(folder / "thrown away", ignore_errors=True)
    for which, day in (("again", 1), ("next", 2)):
        began = len(world.asked(crawl))
        start(day, "plain")
        yield from to_the_end(workers)
        told[which] = world.asked(crawl)[began:]
    told["written"] = written_in(folder)
    told["reasons"] = [run.reason for run in workers.workers]
    yield {"crawl": name, "runs": told}


_STORIES = (days, kills, digests, digest_kills, thrown_away, redis, fleet_job, fleet)
STORIES = {story.__name__: story for story in _STORIES}


if __name__ == "__main__":
    tell_stories(__spec__.name, STORIES, answer, teller=DeltaTeller)
