"""Real crawls of a site of lists and details, day after day, killed now and then.

`python -m tests.delta.delta_crawls days` prints a line of JSON for each crawl of that story, or of
all without a name: what each round of it has asked, what its feed holds and its stats say.
"""

import argparse
import gzip
import json
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import dataclass, field, replace
from datetime import datetime
from decimal import Decimal
from hashlib import sha1
from math import inf

import scrapy
from itemadapter import ItemAdapter
from scrapy import Request
from scrapy.exceptions import DropItem
from scrapy.exporters import JsonLinesItemExporter
from scrapy.extensions.postprocessing import GzipPlugin
from scrapy.settings import Settings
from scrapy.spiders import CrawlSpider, Rule, SitemapSpider
from scrapy.utils.request import fingerprint

from scrapy_bloom import NewLinkExtractor, follow_new
from scrapy_bloom.crawl.ledger import Ledger
from scrapy_bloom.delta import crawl as delta_crawl
from scrapy_bloom.delta.crawl import DeltaCrawl
from scrapy_bloom.delta.middleware import DeltaMiddleware
from scrapy_bloom.delta.settings import Lifetime, given_key
from scrapy_bloom.periods import DAY
from scrapy_bloom.sqlite.scheduler import DurableScheduler
from tests.crawl.harness import ASYNCIO, SELECT, SETTINGS, Crawl, World, side_by_side
from tests.crawl.spider import OfCrawler
from tests.delta.delta_mutants import MUTANTS

FAILING = ("status", "raising", "dropped", "error", "empty", "torn", "refused")
"""What gives no item on the first day, each in its way."""
SOUND = ("item", "moved", "keyed", "posted")
FIRST_DAY = 1_800_000_000 + DAY
LISTS = 2
EACH = (1,)
"""The details of each kind that a list has."""
THROWN_AWAY = 2


def links(path, day):
    """Return the links of a list on a day."""
    kind, number = path.split("/")
    if kind == "once":  # a list that 0.2.0 fetched once
        failing = [f"status/{number}9"] if number == "2" else []
        return [f"item/{number}{n}" for n in (100, 101)] + failing
    number = int(number)
    found = [f"{kind}/{number}{n}" for kind in (*FAILING, *SOUND) for n in EACH]
    found += [f"item/{number}{n}" for n in range(20, 20 + day)]  # what is new
    found += [f"poll/{n + 1}" for n in range(day)]
    found += ["item/7", "always/1", f"list/{number % LISTS + 1}"]
    return found + (["once/1", "once/2"] if number == 1 else [])


def linked(crawl, kind, number, day):
    """Return a page of links; the second has those of the first, and one more on later days."""
    found = ["item/1", "item/2", "item/3", "links/2"]
    if number == "2":
        found += ["item/9"] * (day > 1)
    paths = [f"/{crawl}/{page}" for page in found]
    if kind == "links":
        text = "".join(f'<a href="{path}">{path}</a>' for path in paths)
        return 200, {"Content-Type": "text/html"}, f"<html><body>{text}</body></html>".encode()
    text = "".join(f"<url><loc>http://127.0.0.1:PORT{path}</loc></url>" for path in paths)
    return 200, {"Content-Type": "application/xml"}, f"<urlset>{text}</urlset>".encode()


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


class Site:
    """Answers as on the day that a file of the crawl's name says; notes what is asked."""

    def __init__(self, folder):
        self._folder = folder
        self._refused = set()

    async def answer(self, method, path, _body):
        """Answer as `serve` of the tests' server wants it."""
        _, crawl, page = path.partition("?")[0].split("/", 2)
        day = int((self._folder / f"{crawl}.day").read_text())
        with (self._folder / f"{crawl}.asked").open("a") as log:
            log.write(f"{page}\n")
        kind, number = page.split("/")
        if (kind == "status" and day == 1) or kind == "broken":
            return 503, {}, b""
        if kind == "soft" and day > 1 and (crawl, day) not in self._refused:
            self._refused.add((crawl, day))
            return 200, {}, b"later"
        if kind == "moved":
            return 302, {"Location": f"/{crawl}/target/{number}"}, b""
        if kind == "hop":
            return 302, {"Location": f"/{crawl}/target/{random.random()}"}, b""
        if kind in {"front", "leaf", "child", "soft"}:
            return 200, {}, f"{day} {written(page, day)}".encode()
        if kind in {"links", "sitemap"}:
            return linked(crawl, kind, number, day)
        if kind in {"list", "once"}:
            return 200, {}, json.dumps(links(page, day)).encode()
        return 200, {}, str(day).encode()


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


class DeltaWorld(World):
    """A folder with that site."""

    def site(self, delay):
        """Return the site, which answers at once."""
        return Site(self.folder)


def with_pipeline(name):
    """Return the settings of a spider that has the pipeline of that name."""
    settings = {"RETRY_ENABLED": False, "CONCURRENT_REQUESTS_PER_DOMAIN": 8, "LOG_LEVEL": "INFO"}
    return {**settings, "ITEM_PIPELINES": {f"{__name__}.{name}": 1}}


class DeltaSpider(scrapy.Spider):
    """Follows lists to details, of which some fail on the first day."""

    name = "delta"
    custom_settings = with_pipeline("Pipeline")

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
        if kind == "keyed":
            meta["bloom_delta_key"] = page
            url += f"?session={random.random()}"
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
                yield self.request(page, dont_filter=page.startswith("poll"))
            return
        is_first = response.body == b"1"
        if kind == "torn" and is_first:
            yield {"page": f"{kind}/{number}", "part": 1}
        if kind in {"raising", "torn"} and is_first:
            raise LookupError("the page has changed")
        if not (kind == "empty" and is_first):
            day = response.body if kind == "refused" and is_first else int(response.body)
            yield {"page": f"{kind}/{number}", "day": day}  # bytes are not JSON


class FollowNewSpider(scrapy.Spider):
    """Does not make requests of links that are known."""

    name = "follow_new"
    custom_settings = {  # noqa: RUF012
        "LOG_LEVEL": "INFO",
        "BLOOM_DROP_EARLY": True,
        "SPIDER_MIDDLEWARES": {f"{__name__}.Paging": 500},
    }

    async def start(self):
        yield Request(f"{self.site}/links/1")

    def parse(self, response):
        yield from follow_new(response, css="a[href*=item]", callback=self.parse_item)
        if response.url.endswith("links/1"):
            yield from follow_new(response, css="a[href*=links]", priority=-1)

    def parse_item(self, response):
        yield {"page": "/".join(response.url.split("/")[-2:])}


class Paging(OfCrawler):
    """Leads from a detail to what only it knows of."""

    async def process_spider_output(self, response, result):
        async for thing in result:
            yield thing
        if response.url.endswith("item/3"):
            yield Request(response.urljoin("5"), self.crawler.spider.parse_item)


class RulesSpider(CrawlSpider):
    """Follows links by rules."""

    name = "rules"
    custom_settings = {"LOG_LEVEL": "INFO"}  # noqa: RUF012
    rules = (
        Rule(NewLinkExtractor(allow="/item/"), callback="parse_item"),
        Rule(NewLinkExtractor(allow="/links/"), process_request="later"),
    )

    async def start(self):
        yield Request(f"{self.site}/links/1")

    def later(self, request, response):
        return request.replace(priority=-1)

    parse_item = FollowNewSpider.parse_item


class OfSitemapSpider(SitemapSpider):
    """Has its links from a sitemap, and follows lists."""

    name = "of_sitemap"
    custom_settings = {"LOG_LEVEL": "INFO"}  # noqa: RUF012
    sitemap_rules = (("/item/", "parse_item"), ("/links/", "parse"))

    async def start(self):
        yield Request(f"{self.site}/sitemap/2", self._parse_sitemap)

    def sitemap_filter(self, entries):
        for entry in entries:
            path = entry["loc"].partition("PORT/")[2].partition("/")[2]
            yield {**entry, "loc": f"{self.site}/{path}"}

    parse = FollowNewSpider.parse
    parse_item = FollowNewSpider.parse_item


class OddSpider(scrapy.Spider):
    """Copies a meta, of cached pages and in an errback."""

    name = "odd"
    custom_settings = {  # noqa: RUF012
        "RETRY_ENABLED": False,
        "LOG_LEVEL": "INFO",
        "HTTPCACHE_ENABLED": True,
        "HTTPCACHE_IGNORE_HTTP_CODES": [503],
        "DOWNLOADER_MIDDLEWARES": {f"{__name__}.Unreachable": 1},
    }

    async def start(self):
        yield Request(f"{self.site}/odd/1")

    def parse(self, response):
        page = "/".join(response.url.split("/")[-2:])
        if page == "odd/1":
            yield from self.parse_front(response)
        elif page == "odd/2":
            yield {"page": page}
            yield response.follow("../status/1")
            yield response.follow("../item/2")
        elif page == "odd/3":
            yield response.follow("../item/3")
        elif page == "odd/4":
            for number in range(4, 5 + today()):
                yield response.follow(f"../item/{number}", meta=response.meta)
        else:
            yield {"page": page}

    def parse_front(self, response):
        """Lead to the lists."""
        yield response.follow("2", meta={"bloom_delta": True})
        yield response.follow("3", meta={"bloom_delta_key": "three"}, errback=self.failed)
        yield response.follow("4", meta={"bloom_delta_key": "four"})

    def failed(self, failure):
        """Ask for another page."""
        yield Request(f"{self.site}/item/9", meta=failure.request.meta)


@dataclass
class Part:
    """An item, with values that are no JSON."""

    page: str
    text: str = ""
    tags: set = field(default_factory=lambda: {"one", "two", Decimal("3.50")})
    since: datetime = datetime(2026, 5, 1)
    scraped: float = 0.0
    parts: list = field(default_factory=list)


class DigestSpider(scrapy.Spider):
    """Fetches pages of which two are rewritten, one on the third day and one on the fourth."""

    name = "digests"
    custom_settings = with_pipeline("Stamps")

    async def start(self):
        yield Request(f"{self.site}/front/1", dont_filter=True)

    async def parse(self, response):
        page = "/".join(response.url.split("/")[-2:])
        if page.startswith("front"):
            yield Part(page)
            for link in FRONTS[page]:
                polls = link.startswith("poll")
                yield Request(f"{self.site}/{link}", dont_filter=polls)
        elif page == "shaky/1":
            yield Part(page)
            if response.body == b"2":
                raise LookupError("only today")
        elif response.text == "later":
            yield response.request.replace(dont_filter=True)
        elif page != "quiet/1":
            page = "hop/1" if page.startswith("target") else page
            text = response.text.split()[-1] if page in COMPARED - {"poll/1"} else ""
            text = "" if page == "hop/1" else text
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


class PageExporter(JsonLinesItemExporter):
    """Writes one field, and may be given items that cannot be pickled."""

    def export_item(self, item):
        super().export_item({"page": ItemAdapter(item)["page"]})


class Stamps:
    """Drops items, and writes into others what differs each time."""

    def process_item(self, item):
        if isinstance(item, dict) and item["page"] == "dropped":
            raise DropItem("by a pipeline")
        if isinstance(item, Part):
            item.scraped = random.random()
        return item


class Unreachable:
    """Lets a page be out of reach on the first day."""

    def process_request(self, request):
        if request.url.endswith("odd/3") and today() == 1:
            raise ConnectionError("no route")


class Pipeline:
    """Does not take two kinds of items on the first day."""

    def process_item(self, item):
        kind = item["page"].partition("/")[0]
        if kind == "dropped" and item["day"] == 1:
            raise DropItem("not complete")
        if kind == "error" and item["day"] == 1:
            raise ConnectionError("no database")
        return item


@dataclass
class Step:
    """One start: its day, for site and clock, and after how many requests it is killed."""

    day: int
    kill: int | None = None
    delay: float = 0.0  # seconds until it is
    dies_undelivered: bool = False  # when the round is over, with its marks in the job only
    dies_at: int | None = None  # by SIGKILL, in the commit that acknowledges so many requests
    is_committed: bool = False  # whether that commit comes about
    settings: dict = field(default_factory=dict)

    @property
    def feed(self):
        """The name of its feed."""
        return f"{self.settings.get('JOBDIR', 'job')}-{self.day}"


def story(world, crawl, steps, mutant):
    """Start a crawl once for each step; yield what became of it."""
    settings, runs = dict(crawl.settings), []
    folder = world.folder / crawl.name
    for step in steps:
        crawl.settings.clear()
        crawl.settings.update(
            {
                "BLOOM_DELTA": "item",
                "BLOOM_DELTA_DIR": str(folder / "memory"),
                "FEEDS": {str(folder / f"{step.feed}.jsonl"): {"format": "jsonlines"}},
                **settings,
                **step.settings,
            }
        )
        (world.folder / f"{crawl.name}.day").write_text(str(step.day))
        began = len(world.asked(crawl))
        has_job = crawl.settings.pop("_job", True) and "JOBDIR" not in crawl.settings
        run = world.start(crawl, prepared(folder, step, mutant), job=has_job)
        due = inf
        while not run.ended:
            if step.kill is not None and len(world.asked(crawl)) - began >= step.kill:
                due = min(due, time.monotonic() + step.delay)
            if time.monotonic() >= due:
                run.kill()
                while not run.ended:
                    yield None
            yield None
        runs.append(seen(world, crawl, run, began, step))
    yield {"crawl": crawl.name, "runs": runs}


def today():
    return int((DeltaMiddleware.clock() - FIRST_DAY) / DAY) + 1


def prepared(folder, step, mutant):
    """Return what is done first in each process of a crawl."""

    def before():
        os.chdir(folder)
        if mutant:
            MUTANTS[mutant]()
        DurableScheduler.commit_operations = 5
        DurableScheduler.commit_seconds = 0.02
        Ledger.preparing_share = 1
        DeltaCrawl.least_seconds = 0.0
        delta_crawl._IN_MEMORY = 7
        DeltaMiddleware.clock = staticmethod(lambda: FIRST_DAY + (step.day - 1) * DAY)
        if step.dies_at is not None:
            die_in_a_commit(step, folder)
        if step.dies_undelivered:
            DeltaCrawl._close = lambda self: os._exit(9)
            DeltaCrawl.least_seconds = inf

    return before


def die_in_a_commit(step, folder):
    """Let this process die as `step` says, and leave the marks that are in its memory only."""
    before, after, acknowledged = DeltaCrawl.before_commit, DeltaCrawl.after_commit, []

    def before_commit(self, requests):
        before(self, requests)
        acknowledged.extend(requests)
        if not step.is_committed and len(acknowledged) >= step.dies_at:
            os.kill(os.getpid(), signal.SIGKILL)

    def after_commit(self):
        after(self)
        if len(acknowledged) >= step.dies_at:
            (folder / "lost").write_text("\n".join(row.key.hex() for row in self._ready))
            os.kill(os.getpid(), signal.SIGKILL)

    DeltaCrawl.before_commit, DeltaCrawl.after_commit = before_commit, after_commit


def seen(world, crawl, run, began, step):
    """Return what a run has left."""
    folder = world.folder / crawl.name
    return {
        "status": run.status,
        "reason": run.reason,
        "asked": world.asked(crawl)[began:],
        "items": pages_in(folder / f"{step.feed}.jsonl") if run.reason else [],
        "feed": step.feed,
        "written": sorted({page for path in folder.glob("*.jsonl") for page in pages_in(path)}),
        "stats": {k: v for k, v in run.stats.items() if k.startswith("bloom/delta")},
        "line": [line for line in run.log.splitlines() if "Between crawls: skip" in line][-1:],
        "compared": [line for line in run.log.splitlines() if "Between crawls: comp" in line][-1:],
        "start": [line for line in run.log.splitlines() if "between crawls:" in line][-1:],
        "drops_early": bool(re.search("duplicates: +dropped early", run.log)),
        "warned": [line for line in run.log.splitlines() if "is an index page" in line],
        "memory": hashes_of(folder / "memory"),
        "lost": lost_pages(world, crawl),
        "errors": [line for line in run.log.splitlines() if "] ERROR" in line],
    }


def hashes_of(folder):
    """Return the files of a directory with their hashes."""
    return {path.name: sha1(path.read_bytes()).hexdigest() for path in folder.glob("*.*")}


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


class Teller:
    """What the command line asks for: a world, how many crawls are killed, and what is broken."""

    def __init__(self, world, options):
        self.world, self.count, self.mutant = world, options.count, options.mutant
        self.chance = random.Random(options.seed)

    def __call__(self, name, steps, spider=DeltaSpider, reactor=ASYNCIO, **settings):
        """Return the story of a crawl."""
        crawl = Crawl(name, reactor=reactor, spider=spider, settings=settings)
        return story(self.world, crawl, steps, self.mutant)


def days(tell):
    """Three rounds in one job, two in jobs of their own, and without any."""
    steps = [Step(1), Step(2)]
    fresh = [Step(day, settings={"JOBDIR": f"job{day}"}) for day in (1, 2)]
    return [
        tell("onejob", [*steps, Step(3)]),
        tell("manyjobs", fresh),
        tell("nojob", steps, _job=False),
        tell("scrapys", steps, SCHEDULER="scrapy.core.scheduler.Scheduler"),
    ]


def modes(tell):
    """What counts as done in the other modes."""
    steps = [Step(1), Step(2)]
    return [tell(mode, steps, BLOOM_DELTA=mode) for mode in ("success", "response")]


def periods(tell):
    """What is done is fetched again after eight days."""
    return [tell("period", [Step(1), Step(9), Step(11)], BLOOM_DELTA_DAYS="8d")]


def unsound(tell):
    """A feed that cannot be stored, in a crawl without a job; and a memory that is reset."""
    lost = {"FEEDS": {"ftp://127.0.0.1:1/items.jsonl": {"format": "jsonlines"}}}
    reset = {"BLOOM_DELTA_RESET": True}
    return [
        tell("lost", [Step(1, settings=lost), Step(1), Step(2)], _job=False),
        tell("reset", [Step(1), Step(2, settings=reset), Step(3)]),
    ]


def beside(tell):
    """Two crawls at once that share a store; one is killed twice."""
    return [
        tell(name, [*killed, Step(1), Step(2)], BLOOM_DELTA_DIR=str(tell.world.folder / "shared"))
        for name, killed in (("one", []), ("other", [Step(1, 9), Step(1, 5)]))
    ]


def read_only(tell):
    """A test crawl in between, with a job, killed and gone on with, and without."""
    stories = []
    for name, has_job in (("ro", True), ("ro_nojob", False)):
        test = Step(2, settings={"BLOOM_DELTA_READ_ONLY": True, "JOBDIR": has_job and "job2"})
        steps = [Step(1), *([replace(test, kill=9)] if has_job else []), test, Step(2)]
        stories.append(tell(name, steps, **({} if has_job else {"_job": False})))
    return stories


def kills(tell):
    """SIGKILL at random moments of each of three rounds, and in between."""
    chance, stories = tell.chance, []
    for number in range(tell.count):
        steps = []
        for day in (1, 2, 3):
            settings = {"JOBDIR": f"job{day}"} if number % 3 == 1 else {}
            killed = [
                Step(day, kill=chance.randrange(1, 35 if day == 1 else 16), settings=settings)
                for _ in range(chance.randrange(3))
            ]
            steps += [*killed, Step(day, settings=settings)]
        stories.append(tell(f"kill{number}", steps, reactor=(ASYNCIO, SELECT)[number % 2]))
    return stories


def undelivered(tell):
    """A process dies when the round is over, before its marks are in the store."""
    gzipped = {"items.gz": {"format": "json", "postprocessing": [GzipPlugin], "overwrite": True}}
    steps = [Step(1, dies_undelivered=True), Step(2)]
    stored = [replace(step, settings={"FEEDS": gzipped}) for step in (Step(1, 20), *steps)]
    return [tell("undelivered", steps), tell("gzipped", stored)]


def digest_days(each=(1, 2, 3, 4), **settings):
    """Return steps in jobs of their own, or in none."""
    return [Step(day, settings={"JOBDIR": f"job{day}", **settings}) for day in each]


def digests(tell):
    """What has changed from day to day: with skipping or not, in one job, many or none."""
    all_ = {"BLOOM_DELTA": None, "BLOOM_DELTA_DIGEST": "scraped"}
    skip = {"BLOOM_DELTA": None, "BLOOM_DELTA_DIGEST": "skip: scraped"}
    one = [Step(day) for day in (1, 2, 3, 4)]
    test = digest_days([3], JOBDIR="test", BLOOM_DELTA_READ_ONLY=True)
    ways = {
        "compared": (all_, digest_days()),
        "compared_nojob": ({**all_, "_job": False}, one),
        "compared_expired": (
            {**all_, "BLOOM_DELTA": "item", "BLOOM_DELTA_DAYS": 0.5},
            digest_days(FEEDS={}),
        ),
        "compared_skipped": ({**all_, "BLOOM_DELTA": "item"}, digest_days([1, 2])),
        "compared_test": (skip, [*digest_days([1, 2]), *test, *test, *digest_days([3])]),
        "left_out": (skip, one),
        "left_out_own": (
            {**skip, "FEED_EXPORTERS": {"own": PageExporter}},
            [
                replace(step, settings={"FEEDS": {f"{step.feed}.jsonl": {"format": "own"}}})
                for step in one[:3]
            ],
        ),
        "all_fields": ({**all_, "BLOOM_DELTA_DIGEST": True}, digest_days([1, 2])),
    }
    return [
        tell(name, steps, spider=DigestSpider, **settings)
        for name, (settings, steps) in ways.items()
    ]


def digest_kills(tell):
    """The same with SIGKILLs on each day: in commits, and from the third crawl on at any time."""
    chance, stories = tell.chance, []
    settings = {"BLOOM_DELTA": None, "BLOOM_DELTA_DIGEST": "skip: scraped"}
    for number in range(max(2, tell.count)):
        steps = []
        for last in [Step(day) for day in (1, 2, 3, 4)] if number % 2 else digest_days():
            for _ in range(chance.randrange(1, 3)):
                if number < 2:  # so that no kill comes when the round is over
                    dies_at, is_committed = chance.randrange(1, 7), chance.random() < 0.5
                    steps.append(replace(last, dies_at=dies_at, is_committed=is_committed))
                else:
                    steps.append(
                        replace(last, kill=chance.randrange(16), delay=chance.random() / 9)
                    )
            steps.append(last)
        reactor = (ASYNCIO, SELECT)[number // 2 % 2]
        stories.append(
            tell(f"digest{number}", steps, spider=DigestSpider, reactor=reactor, **settings)
        )
    return stories


def spiders(tell):
    """Spiders of all kinds, for which a page without new links is a list all the same."""
    return [
        tell(spider.name, [Step(1), Step(2)], spider=spider, BLOOM_DELTA="success")
        for spider in (FollowNewSpider, RulesSpider, OfSitemapSpider)
    ]


def odd(tell):
    """A spider that copies a meta."""
    return [tell("odd", [Step(1), Step(2), Step(3)], spider=OddSpider)]


def thrown_away(tell):
    """The first crawl is killed, and its job thrown away."""
    chance, stories = tell.chance, []
    for number in range(max(THROWN_AWAY, tell.count)):
        steps = [
            Step(1, chance.randrange(5, 30), chance.random() / 5, {"JOBDIR": "job1"}),
            Step(1, settings={"JOBDIR": "job2"}),
            Step(2, settings={"JOBDIR": "job3"}),
        ]
        stories.append(tell(f"thrown{number}", steps))
    return stories


def in_redis(name):
    """Return the settings of a crawl and its store in Redis."""
    return {
        "SCHEDULER": "scrapy_bloom.RedisDurableScheduler",
        "BLOOM_REDIS_URL": os.environ["DELTA_REDIS"],
        "BLOOM_DELTA_DIR": f"memory of {name}",
        "_job": False,
    }


def redis(tell):
    """The store is in Redis, and so is the crawl, or its filter only."""
    stories = []
    for name in ("scrapy.core.scheduler.Scheduler", "scrapy_bloom.RedisDurableScheduler"):
        steps = [Step(day, settings={"BLOOM_REDIS_KEY": f"{name}{day}"}) for day in (1, 2)]
        if "Durable" in name:  # the second of those with a reset comes too late
            reset = {"BLOOM_REDIS_KEY": "reset", "BLOOM_DELTA_RESET": True}
            steps += [Step(2, settings=reset), Step(2, settings=reset)]
            steps.append(Step(3, settings={"BLOOM_REDIS_KEY": "after"}))
        settings = {**in_redis(name), "SCHEDULER": name}
        stories.append(tell(name.rpartition(".")[2], steps, **settings))
    return stories


def redis_digests(tell):
    """What has changed, with store and crawl in Redis: a worker with a JOBDIR, and one without."""
    stories = []
    for name, digest in (("redis_compared", "scraped"), ("redis_left_out", "skip: scraped")):
        settings = {**in_redis(name), "BLOOM_DELTA": None, "BLOOM_DELTA_DIGEST": digest}
        steps = [
            Step(
                day,
                settings={"BLOOM_REDIS_KEY": f"{name}{day}"}
                | ({"JOBDIR": f"job{day}"} if "skip" in digest else {}),
            )
            for day in (1, 2, 3)
        ]
        stories.append(tell(name, steps, spider=DigestSpider, **settings))
    return stories


FEEDS = {
    "plain": {"plain.jsonl": {"format": "jsonlines"}},
    "job": {"job.jsonl": {"format": "jsonlines"}},
    "zipped": {"zipped.jsonl.gz": {"format": "jsonlines", "postprocessing": [GzipPlugin]}},
}
"""The workers of a fleet, of which one has a JOBDIR, with their feeds."""


def fleet_job(tell):
    """A worker on Redis is killed and goes on: with a JOBDIR, and without in a commit."""
    zipped = {"items.jsonl.gz": {"format": "jsonlines", "postprocessing": [GzipPlugin]}}
    stories = []
    for name, how, job in (
        ("jobbed", {"kill": 20}, {"FEEDS": zipped}),
        ("jobless", {"dies_at": 20, "is_committed": True}, {}),
    ):
        steps = [Step(1, **how), Step(1), Step(2)]
        for step in steps:
            step.settings |= {"BLOOM_REDIS_KEY": f"{name}{step.day}"}
            step.settings |= {"JOBDIR": f"job{step.day}"} if job else {}
        slow = {"BLOOM_REDIS_LEASE": 1.0, "DOWNLOAD_DELAY": 0.02}
        stories.append(tell(name, steps, **in_redis(name), **slow, **job))
    return stories


def fleet(tell):
    """Three workers on Redis are killed, and their JOBDIR thrown away; then the crawl goes on."""
    return [killed_fleet(tell, os.environ["DELTA_REDIS"], number) for number in range(tell.count)]


def killed_fleet(tell, url, number):
    """Tell that story once."""
    from tests.redis.fleet import Fleet, to_the_end

    name, world, chance = f"fleet{number}", tell.world, tell.chance
    folder = world.folder / name
    folder.mkdir()
    settings = {
        **SETTINGS,
        "BLOOM_DELTA": "item",
        "BLOOM_DELTA_DIR": name,
        "BLOOM_DELTA_DIGEST": True,
        "BLOOM_REDIS_LEASE": 1.0,
        "DOWNLOAD_DELAY": 0.03,  # all workers have some pages
    }
    crawl = Crawl(
        name, reactor=(ASYNCIO, SELECT)[number % 2], spider=DeltaSpider, settings=settings
    )
    workers = Fleet(world, crawl, url)

    def start(day, feed, **more):
        (world.folder / f"{name}.day").write_text(str(day))
        workers.prepare = prepared(folder, Step(day), tell.mutant)
        feeds = {str(folder / f"{len(workers.all)}-{uri}"): how for uri, how in FEEDS[feed].items()}
        return workers.start(FEEDS=feeds, BLOOM_REDIS_KEY=f"{name}-{day}", **more)

    for feed in FEEDS:
        start(1, feed, **({"JOBDIR": str(folder / "thrown away")} if feed == "job" else {}))
    for run in chance.sample(workers.workers, len(FEEDS)):
        enough = len(world.asked(crawl)) + chance.randrange(6, 20)
        while not run.ended and len(world.asked(crawl)) < enough:
            yield None
        due = time.monotonic() + chance.random() / 5
        while time.monotonic() < due:
            yield None
        workers.kill(run)
    shutil.rmtree(folder / "thrown away", ignore_errors=True)
    told = {"killed": world.asked(crawl)}
    told["marked"], told["digests"] = marked_pages(world, url, crawl)
    told["kept"] = {path.name[2:]: pages_in(path) for path in folder.glob("*.jsonl*")}
    for which, day in (("again", 1), ("next", 2)):
        began = len(world.asked(crawl))
        start(day, "plain")
        yield from to_the_end(workers)
        told[which] = world.asked(crawl)[began:]
    told["written"] = sorted({page for path in folder.glob("*.jsonl*") for page in pages_in(path)})
    told["reasons"] = [run.reason for run in workers.workers]
    yield {"crawl": name, "runs": told}


def marked_pages(world, url, crawl):
    """Return the details that the delta store of `crawl` has marks of, and its digests."""
    from scrapy_bloom.delta.redis_store import RedisDeltaStore

    store = RedisDeltaStore(url, crawl.name, Lifetime(), 10)
    digests = {row.key: row.digest.hex() for row in store.marks(None) if row.digest}
    done = {*store.client.call("smembers", f"{{{crawl.name}}}:delta:0:0")}
    store.close()
    keys = keys_of_pages(world, crawl)
    marked = sorted(page for page in details(1) if keys[page] in done)
    return marked, {page: digests[key] for page, key in keys.items() if key in digests}


def lost_pages(world, crawl):
    """Return the pages whose marks a process had in memory when it died in a commit."""
    path = world.folder / crawl.name / "lost"
    lost = path.read_text().split() if path.exists() else []
    return [page for page, key in keys_of_pages(world, crawl).items() if key.hex() in lost]


def keys_of_pages(world, crawl):
    """Return the keys of the details and lists of the first day."""
    spider = DeltaSpider(site=f"http://127.0.0.1:{world._port}/{crawl.name}")
    spider.settings = Settings()
    requests = {
        page: spider.request(page)
        for page in [*details(1), *(f"list/{number + 1}" for number in range(LISTS))]
    }
    return {page: given_key(each.meta) or fingerprint(each) for page, each in requests.items()}


_STORIES = (days, modes, periods, unsound, beside, read_only, kills, digests, digest_kills)
_STORIES += (spiders, odd, undelivered, thrown_away, redis, redis_digests, fleet_job, fleet)
STORIES = {story.__name__: story for story in _STORIES}
DEFAULT = [name for name in STORIES if not name.startswith(("redis", "fleet"))]


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.delta.delta_crawls")
    parser.add_argument("stories", nargs="*", choices=[[], *STORIES])
    parser.add_argument("--count", type=int, default=1, help="of killed crawls")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    parser.add_argument("--beside", type=int, default=2, help="crawls that run at once")
    parser.add_argument("--mutant", choices=MUTANTS, help="break something on purpose")
    options = parser.parse_args()
    folder = tempfile.mkdtemp(prefix="delta-")
    print(f"seed {options.seed}, in {folder}", file=sys.stderr, flush=True)
    with DeltaWorld(folder) as world:
        names = options.stories or DEFAULT
        stories = [each for name in names for each in STORIES[name](Teller(world, options))]
        for report in side_by_side(stories, options.beside):
            print(json.dumps(report), flush=True)
    if not options.mutant:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
