"""Real crawls of a site that is down, in every way, and is mended later: what counts as failed, and
what is asked again.

Run as a module, this file crawls; with `--redis` its crawls are those of workers.
"""

import json
import re
import socket
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import scrapy
from scrapy import Request
from scrapy.exceptions import IgnoreRequest

from scrapy_bloom import fail
from scrapy_bloom.redis.client import RedisClient
from scrapy_bloom.redis.desk import RedisDesk
from scrapy_bloom.redis.layout import in_one_slot
from tests.failures import Failed
from tests.seeded import told
from tests.world.runner import ASYNCIO, SELECT, Crawl, Step, Teller, tell, tell_stories
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
    "upset": "callback",
    "raising": "callback",
    "marked": "login page",
    "unfit": "feed",
}
OTHERS = ("plain", "allowed", "rescued", "handled", "missing", "robots", "dropped", "ignored")
NUMBERS = (1, 2)
DOWN = {"status", "allowed", "rescued", "upset"}
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
    """Does not want one kind of request, and downloads the page of another one itself."""

    @classmethod
    def from_crawler(cls, crawler):
        cls.crawler = crawler
        return cls()

    async def process_request(self, request):
        if "/ignored/" in request.url:
            raise IgnoreRequest("not now")
        own = request.replace(meta=request.meta | {"own": True})
        is_own = "own" in request.meta or not request.url.endswith("/raising/2")
        return None if is_own else await self.crawler.engine.download_async(own)


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
            for each in sorted(pages(*REASONS, *OTHERS)):
                yield self.request(each)
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

    failed_upset = failed_worse

    def failed_late(self, failure):
        yield {"page": "late", "part": 0}
        raise KeyError("an errback that has yielded")


class FailingTeller(Teller):
    """Tells what fails in crawls."""

    def __call__(self, name, *steps, reactor=ASYNCIO, **settings):
        """Tell the story of a crawl."""
        failed, url = Failed(self.world.folder / name / "job"), self.options.redis
        if url:
            settings |= {"BLOOM_REDIS_URL": url, "BLOOM_REDIS_KEY": name, "BLOOM_REDIS_LEASE": 1}
            settings["BLOOM_REDIS_TIMEOUT"] = 30.0  # a loaded machine is no outage
            failed = Failed(RedisDesk(RedisClient(url), in_one_slot(name)))
        crawl = Crawl(name, reactor=reactor, settings=settings, spider=FailingSpider)
        given = [replace(each, before=prepared(each.state), job=not url) for each in steps]

        def look(run, _step, answers):
            found = {"/".join(each.url.split("/")[-2:]): each for each in failed.requests()}
            items = map(json.loads, (run.folder / "items.jsonl").open())
            return {
                "reason": run.reason,
                "asked": Counter(answer.page for answer in answers),
                "failed": {page: each.reason for page, each in found.items()},
                "attempts": {page: each.attempts for page, each in found.items()},
                "items": Counter(f"{item['page']}:{item['part']}" for item in items),
                "stat": run.stats.get("scheduler/failed"),
                "line": run.lines("failed and stay")[-1:],
            }

        yield {"crawl": name, "runs": (yield from tell(self.world, crawl, given, look))}


def prepared(state):
    """Return what is done first in each process of a crawl."""

    def gethostbyname(host):
        if state == "down" and host.endswith(".invalid"):
            raise socket.gaierror("no such name")
        return "127.0.0.1"

    return lambda: setattr(socket, "gethostbyname", gethostbyname)


# Stories

FIRST = Step(state="down")
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


STORIES = {function.__name__: function for function in (mended, all_kinds)}


def arguments(parser):
    """Add what only these stories know."""
    parser.add_argument("--redis", metavar="URL", help="share the crawls in Redis")


pytestmark = pytest.mark.slow


def crawl_of(story, *options):
    """Return what became of the runs of the crawl of a story."""
    module = "tests.crawl.test_failing_crawls"
    (report,) = told(module, story, *options, seed=0).values()
    return report["runs"]


def failing(**others):
    """Return the pages that fail while the site is down, and their reasons."""
    found = {page: reason for kind, reason in (REASONS | others).items() for page in pages(kind)}
    # what fails of a page that has moved is the one that it has moved to
    targets = {f"status/{number}7": found.pop(f"moved/{number}") for number in NUMBERS}
    return {"status/9": "status/503"} | found | targets


def children(pages):
    """Return what is behind these pages."""
    return {f"plain/{page.replace('/', '-')}" for page in pages}


def pages(*kinds):
    """Return the pages of these kinds."""
    return {f"{kind}/{number}" for kind in kinds for number in NUMBERS}


REFUSED = dict.fromkeys(pages("refused"), REASONS["refused"])
ASKED_AGAIN = {*failing()} - {*REFUSED}
BEHIND = children(ASKED_AGAIN) - children(pages("raising", "unfit"))
"""What is given only when they are asked again."""


@pytest.mark.parametrize("in_redis", [False, True])
def test_what_the_spider_has_not_handled_fails_and_is_asked_again(request, in_redis):
    """Takes as long as three crawls do: for reasons that say why, each page once, and the crawl is
    finished all the same; a retry asks just those, and a start without one is a new round."""
    options = ("--redis", request.getfixturevalue("redis_server").url) if in_redis else ()
    first, second, third = crawl_of("mended", *options)
    assert first["reason"] == "finished"
    assert first["failed"] == failing()
    assert first["stat"] == len(failing())
    (line,) = first["line"]
    assert f"{len(failing())} requests failed and stay in the " in line
    assert "5 status/503" in line
    where = r"redis://[\d.:]+/0 --key" if in_redis else r"\S*job"
    assert re.findall(rf"'scrapy bloom (\w+) {where}", line) == ["failed", "retry", "drop"]
    # one, and one retry, unless that was forbidden or is no matter of downloads
    attempts = [first["attempts"][f"{kind}/1"] for kind in ("closed", "dns", "stubborn", "raising")]
    assert attempts == [2, 2, 1, 1]

    assert second["asked"] == dict.fromkeys(ASKED_AGAIN | BEHIND, 1)
    assert second["failed"] == third["failed"] == REFUSED
    # all items of both runs are in the feed once, but what failed pages had given before
    whole = {"plain/0"} | ASKED_AGAIN | pages("plain", "allowed")
    whole |= children(ASKED_AGAIN | pages("allowed", "dropped"))
    items = [f"{page}:{part}" for page in whole for part in (1, 2)] + ["handled:0", "late:0"] * 2
    items += [f"{page}:1" for page in pages("raising", "marked", "unfit")]
    assert second["items"] == Counter(items)
    assert third["asked"] == {"plain/0": 1, "status/9": 1}


def test_items_and_ignored_requests_count_if_they_are_named():
    """Takes as long as two crawls: robots.txt is no failure; a cache gives no old error."""
    first, second = crawl_of("all_kinds")
    assert first["failed"] == failing(dropped="item", ignored="ignored")
    assert second["failed"] == REFUSED | dict.fromkeys(pages("ignored"), "ignored")
    assert {page for page in failing() if page.startswith("status/")} <= second["asked"].keys()


if __name__ == "__main__":
    tell_stories(__spec__.name, STORIES, answer, arguments, FailingTeller)
