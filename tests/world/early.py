"""Crawls of a site without a network, each with duplicates dropped early and without:
`python -m tests.world.early` prints as JSON what they fetched.
"""

import logging
import os
import random
import re
import signal
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import ClassVar

from scrapy import Request, Spider
from scrapy.http import HtmlResponse
from scrapy.linkextractors import LinkExtractor
from scrapy.spidermiddlewares.base import BaseSpiderMiddleware
from scrapy.spiders import CrawlSpider, Rule
from scrapy.utils.request import RequestFingerprinter
from scrapy.utils.request import fingerprint as scrapy_fingerprint

from scrapy_bloom import NewLinkExtractor, follow_new
from tests.world.runner import SELECT, Crawl, Step, tell, tell_stories
from tests.world.tree import answer

SITE = "http://site.example"
PAGES = 20


def links(number):
    """Return the links of page `number`: two of its own, and some known ones, in disguise."""
    chance = random.Random(number)
    linked = [2 * number + 1, 2 * number + 2, *(chance.randrange(PAGES) for _ in range(8))]
    found = ["#top", "/0", f"/outside/{number}", "http://elsewhere.example/", "/search?b=1&a=2"]
    for child in linked:
        if child < PAGES:
            url = f"/{child}" if child % 9 else f"/moved/{child}"
            query = chance.choice(["", "", "?", f"?sid={chance.randrange(2)}"])
            found.append(
                chance.choice(["", SITE]) + url + query + chance.choice(["", "#a", "#%C3%A9"])
            )
    return found


def without_fragment(url):
    """Return what of a URL tells pages apart."""
    return url.partition("#")[0]


def given():
    """Return the answers so far, in this and in earlier processes of a crawl."""
    path = Path("given")
    return path.read_text().splitlines() if path.exists() else []


class Answers:
    """Downloader middleware that answers in place of a site, notes what it has given in the
    file `given`, and kills the process after so many answers."""

    left: ClassVar[int | None] = None

    def process_request(self, request, spider=None):
        url = without_fragment(request.url)
        match = re.fullmatch(rf"{SITE}/(moved/)?(\d+)(\?.*)?", url)
        body, status, headers = b"<p>nothing</p>", 200, {}
        if match and match[1]:
            sid = "?sid=0" if int(match[2]) % 2 else ""
            status, headers = 302, {"Location": f"/{match[2]}{sid}"}
        elif match and int(match[2]) % 11 == 7 and given().count(f"503 GET {url} ") < 2:
            status = 503
        elif match:
            anchors = "".join(f'<a href="{link}">page</a> ' for link in links(int(match[2])))
            body = f"<html><title>{match[2]}</title><body>{anchors}</body></html>".encode()
        with open("given", "a") as file:
            file.write(f"{status} {request.method} {url} {request.body.decode()}\n")
        if self.left is not None:
            type(self).left -= 1
            if not self.left:
                os.kill(os.getpid(), signal.SIGKILL)
        return HtmlResponse(request.url, status=status, headers=headers, body=body, request=request)


class Rewriting(BaseSpiderMiddleware):
    """Spider middleware that leaves sessions out, and gives each tenth request a new one."""

    count = 0

    def get_processed_request(self, request, response):
        url = request.url.partition("?sid=")[0]
        if response is not None:
            type(self).count += 1
            if self.count % 10 == 0 and self.count < 200 and "?" not in url:
                url = f"{without_fragment(url)}?sid={self.count}"
        return request.replace(url=url)


class FragmentFingerprinter(RequestFingerprinter):
    """Tells fragments apart."""

    def fingerprint(self, request):
        return scrapy_fingerprint(request, keep_fragments=True)


class SiteSpider(Spider):
    """Follows links in the way of a variant, and yields items between them."""

    name = "site"
    allowed_domains = ("site.example",)
    way = "follow_all"

    async def start(self):
        yield Request(f"{SITE}/0")
        yield Request(f"{SITE}/1", dont_filter=True)

    def parse(self, response):
        page = without_fragment(response.url)
        items = [{"link": link, "of": page} for link in response.css("a::attr(href)").getall()[::5]]
        for request in getattr(self, self.way)(response):
            if items:
                yield items.pop()
            yield request
        yield from items
        if page.endswith("4"):
            raise RuntimeError("this callback always raises")

    def follow_all(self, response):
        return response.follow_all(css="a")

    def follow_new(self, response):
        return follow_new(response, css="a")

    def mixed(self, response):
        """Requests of all kinds."""
        number = len(response.url)
        for link in response.css("a::attr(href)").getall()[number % 2 :: 2]:
            number += 1
            options = {}
            if number % 7 == 0:
                options = {"method": "POST", "body": f"n={number % 3}"}
            elif number % 7 == 1:
                options = {"meta": {"verbatim_url": True}}
            elif number % 7 == 2:
                options = {"meta": dict(response.meta)}
            elif number % 7 == 3:
                options = {"headers": {"X-Id": str(number % 3)}, "meta": {"function": print}}
            yield response.follow(link, **options)
        if "/1" in response.url and "again" not in response.meta:
            yield response.request.replace(dont_filter=True, meta={"again": True})


class AsyncSpider(SiteSpider):
    """The same with an async callback, which downloads a page by itself."""

    async def parse(self, response):
        if "/2" in response.url:
            inline = Request(f"{SITE}/inline{len(without_fragment(response.url))}")
            yield {"inline": (await self.crawler.engine.download_async(inline)).status}
        for thing in super().parse(response):
            yield thing


class RuleSpider(CrawlSpider):
    """Follows links by rules."""

    name = "rules"
    allowed_domains = ("site.example",)

    async def start(self):
        yield Request(f"{SITE}/0")

    def parse_page(self, response):
        yield {"url": without_fragment(response.url)}


def by_rules(extractor):
    """Return the spider whose rules have such extractors."""
    extractors = extractor(allow=r"/\d*[02468]\b"), extractor(deny="outside")
    rules = tuple(Rule(each, "parse_page", follow=True) for each in extractors)
    return type("RuleSpider", (RuleSpider,), {"rules": rules})


@dataclass(frozen=True)
class Variant:
    """A crawl: what its spider does, with duplicates dropped early and without."""

    spider: type = SiteSpider
    way: str = "follow_all"
    settings: dict = field(default_factory=dict)
    early_spider: type | None = None
    early_way: str = "follow_new"
    is_late: bool = False
    """Without is with duplicates dropped by the scheduler, and not Scrapy's own: where the package
    takes redirects for new that Scrapy's dupefilter drops."""
    said: str = "dropped early"
    kills: tuple[int, ...] = ()
    """After so many answers each."""


CANONICAL = {
    "REQUEST_FINGERPRINTER_CLASS": "scrapy_bloom.CanonicalRequestFingerprinter",
    "BLOOM_IGNORE_QUERY_PARAMS": ["sid"],
}
BREADTH_FIRST = {"DEPTH_PRIORITY": 1, "SCHEDULER_MEMORY_QUEUE": "scrapy.squeues.FifoMemoryQueue"}
# what such a spider does depends on the order of its pages
ONE = {"CONCURRENT_REQUESTS": 1}
JOB = {"JOBDIR": "job"}
STOCK_SCHEDULER = "scrapy.core.scheduler.Scheduler"
MIXED = {"way": "mixed", "early_way": "mixed"}
VARIANTS = {
    "follow_new, asynchronous": Variant(AsyncSpider),
    "another reactor, a tiny memory": Variant(
        settings={"TWISTED_REACTOR": SELECT, "BLOOM_URL_CACHE": 3}
    ),
    "depth limit": Variant(settings={"DEPTH_LIMIT": 3, **BREADTH_FIRST}),
    "requests of all kinds, in a job": Variant(**MIXED, settings={**JOB, **ONE}),
    "rewriting, next to the spider": Variant(
        settings={"SPIDER_MIDDLEWARES": {Rewriting: 1200}, **ONE},
        said="not dropped early, tests.world.early.Rewriting is between the spider and the engine",
    ),
    "own fingerprints": Variant(
        **MIXED,
        settings={"REQUEST_FINGERPRINTER_CLASS": FragmentFingerprinter, **ONE},
        is_late=True,
        said="not dropped early, the fingerprinter is tests.world.early.FragmentFingerprinter",
    ),
    "wider identity": Variant(**MIXED, settings={**CANONICAL, **ONE}, is_late=True),
    "killed": Variant(AsyncSpider, settings=JOB, kills=(7, 20, 1, 30)),
    "new rules": Variant(by_rules(LinkExtractor), early_spider=by_rules(NewLinkExtractor)),
}
BASE = {
    "DOWNLOADER_MIDDLEWARES": {Answers: 595},
    "TELNETCONSOLE_ENABLED": False,
    "REMOTE_CONTROL_ENABLED": False,
    "LOG_LEVEL": "INFO",
    "FEEDS": {"items.jl": {"format": "jsonlines"}},
    "BLOOM_CAPACITY": 20_000,
    "BLOOM_HOLD": False,  # what is retried comes in the order of Scrapy
}
ADDON = {"ADDONS": {"scrapy_bloom.Addon": 300}}
STOCK = {"DUPEFILTER_CLASS": "scrapy.dupefilters.RFPDupeFilter", "SCHEDULER": STOCK_SCHEDULER}


def prepare(dies_after=None):
    """Be done in each process first."""
    Answers.left = dies_after
    logging.getLogger("scrapy.core.scraper").setLevel(logging.CRITICAL)  # callbacks that raise


def told(name, teller):
    """Tell the story of a variant: a crawl without, and one with duplicates dropped early."""
    variant, number = VARIANTS[name], [*VARIANTS].index(name)
    without = {**ADDON, "BLOOM_DROP_EARLY": False} if variant.is_late else STOCK
    spider, way = variant.early_spider or variant.spider, variant.early_way
    yield {
        "crawl": name,
        "without": (yield from crawled(teller, f"{number}", variant, without)),
        "early": (yield from crawled(teller, f"early{number}", variant, ADDON, spider, way)),
    }


def crawled(teller, name, variant, settings, spider=None, way=None):
    """Return what came of a crawl."""
    kills = variant.kills if spider else ()
    spider, own = spider or variant.spider, {"way": way or variant.way, "__module__": __name__}
    settings = {**BASE, **variant.settings, **settings}
    crawl = Crawl(name, base={}, settings=settings, spider=type(spider.__name__, (spider,), own))
    steps = [Step(partial(prepare, kill), job=False) for kill in (*kills, None)]
    runs = yield from tell(teller.world, crawl, steps, lambda run, *_: run)
    last, said = runs[-1], re.search("duplicates: ([^;\n]*)", runs[-1].log)
    return {
        "reason": last.reason,
        "filtered": last.stats.get("dupefilter/filtered"),
        "duplicates": said and said[1].replace("__main__", "tests.world.early"),
        "deaths": sum(run.status == -signal.SIGKILL for run in runs),
        "given": Counter((last.folder / "given").read_text().splitlines()),
        "items": Counter((last.folder / "items.jl").read_text().splitlines()),
    }


if __name__ == "__main__":
    stories = {name: lambda teller, name=name: [told(name, teller)] for name in VARIANTS}
    tell_stories(__spec__.name, stories, answer)
