"""Real crawls of a site that is down, in every way, and is mended later.

`python -m tests.crawl.failing_crawls kills` prints one line of JSON for each crawl of that
story (of all stories without a name): what failed for which reason in each run, what was
asked in it, and what the feed holds. With `--redis` they are crawls with
RedisDurableScheduler.
"""

import asyncio
import gzip
import json
import os
import random
import shutil
import socket
from collections import Counter
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import scrapy
from scrapy import Request
from scrapy.exceptions import IgnoreRequest
from scrapy.extensions.postprocessing import GzipPlugin

from scrapy_bloom import fail
from scrapy_bloom.crawl.ledger import Ledger
from scrapy_bloom.redis.client import RedisClient
from scrapy_bloom.redis.desk import RedisDesk
from scrapy_bloom.redis.layout import in_one_slot
from scrapy_bloom.sqlite.scheduler import DurableScheduler
from tests.crawl.harness import ASYNCIO, SELECT, Crawl, World, command_line, parsed, side_by_side
from tests.failures import Failed
from tests.redis.server import Server

REASONS = {
    # what is asked while the site is down: why it fails
    "status": "status/503",
    "moved": "status/503",  # its target is
    "quick": "status/503",
    "closed": "download/connection",
    "slow": "download/timeout",
    "dns": "download/dns",
    "refused": "download/refused",
    "stubborn": "download/connection",
    "worse": "download/connection",
    "late": "errback",
    "raising": "callback",
    "speechless": "callback",
    "miscounted": "status/503",
    "marked": "login page",
    "unfit": "feed",
}
OTHERS = ("plain", "allowed", "rescued", "handled", "missing", "robots", "dropped", "ignored")
NUMBERS = (1, 2)
REACTORS = (ASYNCIO, SELECT)


class Site:
    """Fails while there is a file of the crawl's name that says so; notes what is asked."""

    def __init__(self, folder):
        self._folder = folder

    async def answer(self, _method, path, _body):
        """Answer as `serve` of the tests' server wants it."""
        if path == "/robots.txt":
            return 200, {}, b"User-agent: *\nDisallow: /*/robots/\n"
        _, crawl, kind, number = path.split("/")
        with (self._folder / f"{crawl}.asked").open("a") as log:
            log.write(f"{kind}/{number}\n")
        is_down = (self._folder / f"{crawl}.down").exists()
        if kind == "moved":
            return 302, {"Location": f"/{crawl}/status/{number}7"}, b""
        if kind == "missing":
            return 404, {}, b""
        if is_down and kind in {"status", "quick", "miscounted", "allowed", "rescued"}:
            return 503, {}, b"down"
        if is_down and kind in {"closed", "stubborn", "worse", "late", "handled"}:
            return None
        if is_down and kind == "slow":
            await asyncio.sleep(5)
            return None
        return 200, {}, b"down" if is_down else b"up"


class FailingWorld(World):
    """A folder with that site, and with a server if the crawls are in Redis."""

    def __init__(self, folder, redis=None):
        super().__init__(folder)
        self.redis = redis

    def begin(self, crawl, before):
        """Start a run of a crawl."""
        if self.redis is not None:
            crawl.settings.update(
                SCHEDULER="scrapy_bloom.RedisDurableScheduler",
                DUPEFILTER_CLASS="scrapy_bloom.RedisBloomDupeFilter",
                BLOOM_REDIS_URL=self.redis.url,
                BLOOM_REDIS_KEY=crawl.name,
                BLOOM_REDIS_LEASE=1,
            )
            crawl = replace(crawl, spider=SharedFailingSpider)
        return self.start(crawl, before, job=self.redis is None)

    def of_failed(self, crawl, method):
        """Call this method of the store of what has failed of a crawl."""
        if self.redis is None:
            return getattr(Failed(self.folder / crawl.name / "job"), method)()
        with RedisClient(self.redis.url) as client:
            return getattr(Failed(RedisDesk(client, in_one_slot(crawl.name))), method)()

    def site(self, delay):
        """Return the site, which answers at once."""
        return Site(self.folder)


class FailingSpider(scrapy.Spider):
    """Asks pages that fail, from `start()` and from a page, and one behind each."""

    name = "failing"
    custom_settings = {  # noqa: RUF012
        "BLOOM_HOLD": False,
        "RETRY_TIMES": 1,
        "DOWNLOAD_TIMEOUT": 30,
        "ROBOTSTXT_OBEY": True,
        "CONCURRENT_REQUESTS_PER_DOMAIN": 16,
        "CONCURRENT_REQUESTS": 16,
        "DNS_TIMEOUT": 2,
        "LOG_LEVEL": "INFO",
        "ITEM_PIPELINES": {f"{__name__}.Pipeline": 1},
        "DOWNLOADER_MIDDLEWARES": {f"{__name__}.Ignoring": 1},
        "FEEDS": {
            "items.jsonl": {"format": "jsonlines", "overwrite": True},
            "items.json": {"format": "json", "overwrite": True},
            "items.gz": {"format": "json", "overwrite": True, "postprocessing": [GzipPlugin]},
        },
        "SPIDER_MIDDLEWARES": {f"{__name__}.Rescuing": 900},
    }

    async def start(self):
        yield self.request("plain/0", dont_filter=True)
        yield self.request("status/9", dont_filter=True)

    def request(self, page, **options):
        """Return the request for a page, as its kind has it."""
        kind, number = page.split("/")
        site = self.site
        if kind == "dns":
            site = site.replace("127.0.0.1", f"host{number}.invalid")
        if kind == "refused":
            site = "http://127.0.0.1:1/refused"
        meta = {}
        if kind in {"quick", "stubborn"}:
            meta["dont_retry"] = True
        if kind == "slow":
            meta["download_timeout"] = 2
        if kind == "miscounted":
            meta["bloom_attempts"] = "twice"
        if kind == "allowed":
            meta["handle_httpstatus_list"] = [503]
        errback = getattr(self, f"failed_{kind}", None)
        return Request(f"{site}/{page}", meta=meta, errback=errback, **options)

    def parse(self, response):
        kind, number = response.url.split("/")[-2:]
        page = f"{kind}/{number}"
        if page == "plain/0":
            for each in [*REASONS, *OTHERS]:
                for number in NUMBERS:
                    yield self.request(f"{each}/{number}")
        is_down = response.body == b"down"
        yield {"page": page, "part": 1}
        if kind == "marked" and is_down:
            fail(response, "login page")
            return
        if kind != "plain":
            yield self.request(f"plain/{kind}-{number}")
        if kind == "raising" and is_down:
            raise LookupError("the page has changed")
        if kind == "speechless" and is_down:
            raise SpeechlessError
        # bytes are not JSON
        yield {"page": page, "part": b"2" if kind == "unfit" and is_down else 2}

    def failed_handled(self, failure):
        yield {"page": "handled", "part": 0}

    def failed_stubborn(self, failure):
        return failure

    def failed_worse(self, failure):
        raise KeyError("an errback")

    def failed_late(self, failure):
        yield {"page": "late", "part": 0}
        raise KeyError("an errback that has yielded")


class SharedFailingSpider(FailingSpider):
    """The same with a feed that each worker adds to."""

    feeds = {"items.jsonl": {"format": "jsonlines", "overwrite": False}}  # noqa: RUF012
    custom_settings = {**FailingSpider.custom_settings, "FEEDS": feeds}  # noqa: RUF012


class SpeechlessError(Exception):
    """Fails to say why."""

    def __str__(self):
        raise AttributeError("no message")


class Rescuing:
    """Does something about an error of one kind of page."""

    def process_spider_exception(self, response, exception):
        return [] if "/rescued/" in response.url else None


class Pipeline:
    """Cannot do with one kind of item."""

    def process_item(self, item):
        if item["page"].startswith("dropped/") and Path(f"../{Path.cwd().name}.down").exists():
            raise ConnectionError("no database")
        return item


class Ignoring:
    """Does not want one kind of request."""

    def process_request(self, request):
        if "/ignored/" in request.url:
            raise IgnoreRequest("not now")


@dataclass
class Step:
    """One start: whether the site is down, what is retried first, and when it is killed."""

    down: bool = True
    retry: bool = False
    kill: int | None = None
    settings: dict = field(default_factory=dict)


def story(world, crawl, steps):
    """Start a crawl once for each step; yield what became of it."""
    settings, runs = dict(crawl.settings), []
    folder = world.folder / crawl.name
    for step in steps:
        crawl.settings.clear()
        crawl.settings.update({**settings, **step.settings})
        flag = world.folder / f"{crawl.name}.down"
        flag.touch() if step.down else flag.unlink(missing_ok=True)
        retried = world.of_failed(crawl, "retry") if step.retry else 0
        began = len(world.asked(crawl))
        run = world.begin(crawl, prepared(folder, step.down))
        while not run.ended:
            if step.kill is not None and len(world.asked(crawl)) - began >= step.kill:
                run.kill()
            yield None
        asked = world.asked(crawl)[began:]
        runs.append(seen(folder, run, asked, retried, world.of_failed(crawl, "requests")))
    yield {"crawl": crawl.name, "runs": runs}


def prepared(folder, down):
    """Return what is done first in each process of a crawl."""

    def before():
        os.chdir(folder)
        DurableScheduler.commit_operations = 5
        Ledger.preparing_share = 1

        def gethostbyname(host):
            if down and host.endswith(".invalid"):
                raise socket.gaierror("no such name")
            return "127.0.0.1"

        socket.gethostbyname = gethostbyname

    return before


def seen(folder, run, asked, retried, found):
    """Return what a run has left."""
    items = []
    if run.reason == "finished":
        items = items_in(folder / "items.jsonl")
    if items and (folder / "items.json").exists():
        for others in (
            json.loads((folder / "items.json").read_text()),
            json.loads(gzip.decompress((folder / "items.gz").read_bytes())),
        ):
            assert Counter(items) == Counter(f"{i['page']}:{i['part']}" for i in others)
    return {
        "status": run.status,
        "reason": run.reason,
        "retried": retried,
        "asked": Counter(asked),
        "failed": {"/".join(each.url.split("/")[-2:]): each.reason for each in found},
        "attempts": {"/".join(each.url.split("/")[-2:]): each.attempts for each in found},
        "items": Counter(items),
        "stats": {k: v for k, v in run.stats.items() if k.startswith("scheduler/")},
        "line": [line for line in run.log.splitlines() if "failed and stay" in line][-1:],
    }


def items_in(path):
    """Return the items of a feed; what a kill has torn in one in Redis is there again."""
    items = []
    for line in path.read_text().splitlines():
        with suppress(ValueError):
            item = json.loads(line[line.rfind("{") :])
            items.append(f"{item['page']}:{item['part']}")
    return items


# Stories


def mended(world, options):
    """The site is down, then it is up, and what failed is asked again."""
    again = Step(down=False, settings={"BLOOM_REDIS_ROUND": "2"})
    steps = [Step(), Step(down=False, retry=True), again]
    return [story(world, Crawl("mended", spider=FailingSpider), steps)]


def unmended(world, options):
    """It stays down: what failed fails again, at each start that is told to ask again."""
    crawl = Crawl("unmended", spider=FailingSpider)
    again = Step(settings={"BLOOM_RETRY_FAILED": True})
    return [story(world, crawl, [Step(), again])]


def all_kinds(world, options):
    """Items and ignored requests count, and a cache is on."""
    crawl = Crawl("all", spider=FailingSpider, reactor=SELECT)
    crawl.settings.update(
        BLOOM_FAILED_KINDS="download,status,callback,feed,ignored,item",
        HTTPCACHE_ENABLED=True,
        HTTPCACHE_DIR=str(world.folder / "cache"),
    )
    steps = [Step(), Step(down=False, retry=True)]
    return [story(world, crawl, steps)]


def off(world, options):
    """Nothing is kept."""
    crawl = Crawl("off", spider=FailingSpider)
    crawl.settings["BLOOM_KEEP_FAILED"] = False
    return [story(world, crawl, [Step()])]


def kills(world, options):
    """SIGKILL at random moments, of the run that fails and of the one that asks again."""
    chance = random.Random(options.seed)
    stories = []
    # what is lost with two workers is asked alone, one page after the other
    most = 1 if options.redis else 2
    for number in range(options.count):
        crawl = Crawl(f"kill{number}", reactor=REACTORS[number % 2], spider=FailingSpider)
        steps = [
            *(Step(kill=chance.randrange(40)) for _ in range(chance.randint(1, most))),
            Step(),
            Step(down=False, retry=True, kill=chance.randrange(20)),
            Step(down=False),
        ]
        stories.append(story(world, crawl, steps))
    return stories


STORIES = {function.__name__: function for function in (mended, unmended, all_kinds, off, kills)}


def main():
    """Run from the command line."""
    parser = command_line("tests.crawl.failing_crawls")
    parser.add_argument("stories", nargs="*", choices=[[], *STORIES])
    parser.add_argument("--count", type=int, default=4, help="of killed crawls")
    parser.add_argument("--redis", action="store_true", help="share the crawls in Redis")
    options, folder = parsed(parser)
    with ExitStack() as stack:
        server = None
        if options.redis:
            (Path(folder) / "redis").mkdir()
            server = Server(Path(folder) / "redis")
            stack.callback(server.stop)
        world = stack.enter_context(FailingWorld(folder, server))
        stories = [
            each for name in options.stories or STORIES for each in STORIES[name](world, options)
        ]
        for report in side_by_side(stories, options.beside):
            print(json.dumps(report), flush=True)
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
