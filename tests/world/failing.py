"""Real crawls of a site that is down, in every way, and is mended later; with `--redis` those of
workers. Each is told as what failed for which reason in each run, what was asked, and what the feed
holds."""

import atexit
import json
import socket
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from signal import SIGKILL

import scrapy
from scrapy import Request
from scrapy.exceptions import IgnoreRequest

from scrapy_bloom import fail
from scrapy_bloom.crawl.ledger import Ledger
from scrapy_bloom.redis.client import RedisClient
from scrapy_bloom.redis.desk import RedisDesk
from scrapy_bloom.redis.layout import in_one_slot
from scrapy_bloom.sqlite.scheduler import DurableScheduler
from tests.failures import Failed
from tests.redis.server import Server
from tests.world.runner import ASYNCIO, REACTORS, SELECT, Crawl, Step, Teller, tell, tell_stories
from tests.world.site import Reply, moved

REASONS = {
    # what is asked while the site is down: why it fails
    "status": "status/503",
    "moved": "status/503",  # its target is
    "closed": "download/connection",
    "slow": "download/timeout",
    "dns": "download/dns",
    "refused": "download/refused",
    "stubborn": "download/connection",
    "worse": "download/connection",
    "late": "errback",
    "raising": "callback",
    "marked": "login page",
    "unfit": "feed",
}
OTHERS = ("plain", "allowed", "rescued", "handled", "missing", "robots", "dropped", "ignored")
NUMBERS = (1, 2)
IN_REDIS = {
    "SCHEDULER": "scrapy_bloom.RedisDurableScheduler",
    "DUPEFILTER_CLASS": "scrapy_bloom.RedisBloomDupeFilter",
    "BLOOM_REDIS_LEASE": 1,
    "BLOOM_REDIS_TIMEOUT": 30.0,  # a loaded machine is no outage
}


DOWN = {"status", "allowed", "rescued"}
CLOSED = {"closed", "stubborn", "worse", "late", "handled"}


async def answer(asked):
    """Answer as a site that is `down` for a crawl, or is not."""
    is_down = asked.state == "down"
    if asked.kind == "moved":
        return moved(asked.crawl, f"status/{asked.number}7")
    if asked.kind == "missing":
        return Reply(404)
    if is_down and asked.kind in DOWN:
        return Reply(503, b"down")
    if is_down and asked.kind in {*CLOSED, "slow"}:
        return Reply(None, after=5 * (asked.kind == "slow"))
    return Reply(body=b"down" if is_down else b"up")


class Rescuing:
    """Does something about an error of one kind of page."""

    def process_spider_exception(self, response, exception):
        return [] if "/rescued/" in response.url else None


class Pipeline:
    """Cannot do with one kind of item."""

    def process_item(self, item):
        state = Path(f"../{Path.cwd().name}.state")
        if item["page"].startswith("dropped/") and state.read_text() == "down":
            raise ConnectionError("no database")
        return item


class Ignoring:
    """Does not want one kind of request."""

    def process_request(self, request):
        if "/ignored/" in request.url:
            raise IgnoreRequest("not now")


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
        "ITEM_PIPELINES": {Pipeline: 1},
        "DOWNLOADER_MIDDLEWARES": {Ignoring: 1},
        "FEEDS": {"items.jsonl": {"format": "jsonlines", "overwrite": False}},
        "SPIDER_MIDDLEWARES": {Rescuing: 900},
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
        meta = {
            "stubborn": {"dont_retry": True},
            "slow": {"download_timeout": 2},
            "allowed": {"handle_httpstatus_list": [503]},
        }.get(kind)
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


@dataclass
class FailingTeller(Teller):
    """Tells what fails in crawls, with a server if they are in Redis."""

    redis: Server | None = None

    def __post_init__(self):
        super().__post_init__()
        if self.options.redis:
            folder = self.world.folder / "redis"
            folder.mkdir()
            self.redis = Server(folder)
            atexit.register(self.redis.stop)

    def failed(self, name):
        """Return what has failed of a crawl."""
        if self.redis is None:
            return Failed(self.world.folder / name / "job").requests()
        with RedisClient(self.redis.url) as client:
            return Failed(RedisDesk(client, in_one_slot(name))).requests()

    def __call__(self, name, *steps, reactor=ASYNCIO, **settings):
        """Tell the story of a crawl."""
        if self.redis is not None:
            settings |= {**IN_REDIS, "BLOOM_REDIS_URL": self.redis.url, "BLOOM_REDIS_KEY": name}
        crawl = Crawl(name, reactor=reactor, settings=settings, spider=FailingSpider)
        given = [
            replace(step, before=prepared(step.state == "down"), job=self.redis is None)
            for step in steps
        ]

        def look(run, _step, answers):
            return seen(run, [answer.page for answer in answers], self.failed(name))

        yield {"crawl": name, "runs": (yield from tell(self.world, crawl, given, look))}


def prepared(down):
    """Return what is done first in each process of a crawl."""

    def before():
        DurableScheduler.commit_operations = 5
        Ledger.preparing_share = 1

        def gethostbyname(host):
            if down and host.endswith(".invalid"):
                raise socket.gaierror("no such name")
            return "127.0.0.1"

        socket.gethostbyname = gethostbyname

    return before


def seen(run, asked, failed):
    """Return what a run has left."""
    items = items_in(run.folder / "items.jsonl") if run.reason == "finished" else []
    pages = ["/".join(each.url.split("/")[-2:]) for each in failed]
    return {
        "reason": run.reason,
        "asked": Counter(asked),
        "failed": dict(zip(pages, (each.reason for each in failed), strict=True)),
        "attempts": dict(zip(pages, (each.attempts for each in failed), strict=True)),
        "items": Counter(items),
        "stat": run.stats.get("scheduler/failed"),
        "line": run.lines("failed and stay")[-1:],
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

FIRST, UP = Step(state="down"), Step()
AGAIN = Step(settings={"BLOOM_RETRY_FAILED": True})


def mended(teller):
    """The site is down, then it is up, and what failed is asked again."""
    return [teller("mended", FIRST, AGAIN, Step(settings={"BLOOM_REDIS_ROUND": "2"}))]


def all_kinds(teller):
    """Items and ignored requests count, and a cache is on."""
    settings = {
        "BLOOM_FAILED_KINDS": "download,status,callback,feed,ignored,item",
        "HTTPCACHE_ENABLED": True,
        "HTTPCACHE_DIR": str(teller.world.folder / "cache"),
    }
    return [teller("all", FIRST, AGAIN, reactor=SELECT, **settings)]


def kills(teller):
    """SIGKILL at random moments, of the run that fails and of the one that asks again."""
    chance = teller.chance
    # what is lost with two workers is asked alone, one page after the other
    most = 1 if teller.redis else 2
    for number in range(teller.options.count):
        killed = [
            replace(FIRST, signals=(SIGKILL,), at=chance.randrange(40))
            for _ in range(chance.randint(1, most))
        ]
        again = replace(AGAIN, signals=(SIGKILL,), at=chance.randrange(20))
        yield teller(f"kill{number}", *killed, FIRST, again, UP, reactor=REACTORS[number % 2])


STORIES = {function.__name__: function for function in (mended, all_kinds, kills)}


def arguments(parser):
    """Add what only these stories know."""
    parser.add_argument("--redis", action="store_true", help="share the crawls in Redis")


if __name__ == "__main__":
    tell_stories(__spec__.name, STORIES, answer, arguments, FailingTeller)
