"""Crawls of a site without a network, each with duplicates dropped early and without:
`main` prints as JSON what they fetched, in a process each.
"""

import json
import logging
import os
import random
import re
import signal
import sys
import tempfile
import warnings
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from scrapy import Request, Spider, signals
from scrapy.crawler import CrawlerProcess
from scrapy.http import HtmlResponse
from scrapy.linkextractors import LinkExtractor
from scrapy.spidermiddlewares.base import BaseSpiderMiddleware
from scrapy.spiders import CrawlSpider, Rule
from scrapy.utils.request import RequestFingerprinter
from scrapy.utils.request import fingerprint as scrapy_fingerprint

import scrapy_bloom.addon  # noqa: F401 - before the forks, not in each
from scrapy_bloom import NewLinkExtractor, follow_new
from tests.crawl.harness import ASYNCIO, SELECT, fork, preload

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


class Passing(BaseSpiderMiddleware):
    """Spider middleware that changes nothing that matters."""

    def get_processed_request(self, request, response):
        request.meta["passed"] = True
        return request


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

    def extracted(self, response, extractor=LinkExtractor()):  # noqa: B008 - one for all
        return response.follow_all(extractor.extract_links(response))

    def extracted_new(self, response, extractor=NewLinkExtractor()):  # noqa: B008 - one for all
        return response.follow_all(extractor.extract_links(response))

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


class PlainRuleSpider(RuleSpider):
    rules = (
        Rule(LinkExtractor(allow=r"/\d*[02468]\b"), "parse_page", follow=True),
        Rule(LinkExtractor(deny="outside"), "parse_page", follow=True),
    )


class NewRuleSpider(RuleSpider):
    rules = (
        Rule(NewLinkExtractor(allow=r"/\d*[02468]\b"), "parse_page", follow=True),
        Rule(NewLinkExtractor(deny="outside"), "parse_page", follow=True),
    )


def heard(**_):
    pass


@dataclass(frozen=True)
class Variant:
    """A crawl: what its spider does, with duplicates dropped early and without."""

    spider: type = SiteSpider
    way: str = "follow_all"
    settings: dict = field(default_factory=dict)
    early_spider: type | None = None
    early_way: str = ""
    by_hand: bool = False
    handler: bool = False
    without: str = "stock"
    """Scrapy's own, or "late", with duplicates dropped by the scheduler: where the package
    takes redirects for new that Scrapy's dupefilter drops."""
    said: str = "dropped early"
    kills: tuple[int, ...] = ()
    """After so many answers each."""

    @property
    def reference(self):
        """What crawls without have in common."""
        kept = {k: v for k, v in self.settings.items() if k != "BLOOM_DROP_EARLY"}
        return self.spider, self.way, self.without, repr(kept)


CANONICAL = {
    "REQUEST_FINGERPRINTER_CLASS": "scrapy_bloom.CanonicalRequestFingerprinter",
    "BLOOM_IGNORE_QUERY_PARAMS": ["sid"],
}
BREADTH_FIRST = {"DEPTH_PRIORITY": 1, "SCHEDULER_MEMORY_QUEUE": "scrapy.squeues.FifoMemoryQueue"}
# what such a spider does depends on the order of its pages
ONE = {"CONCURRENT_REQUESTS": 1}
STOCK_SCHEDULER = "scrapy.core.scheduler.Scheduler"
VARIANTS = {
    "follow_all": Variant(),
    "follow_new": Variant(early_way="follow_new"),
    "follow_new, asynchronous": Variant(AsyncSpider, early_way="follow_new"),
    "another reactor": Variant(
        AsyncSpider, settings={"TWISTED_REACTOR": SELECT}, early_way="follow_new"
    ),
    "a tiny memory": Variant(settings={"BLOOM_URL_CACHE": 3}, early_way="follow_new"),
    "depth limit": Variant(settings={"DEPTH_LIMIT": 3, **BREADTH_FIRST}, early_way="follow_new"),
    "by hand": Variant(early_way="follow_new", by_hand=True),
    "a handler": Variant(
        early_way="follow_new",
        handler=True,
        said="not dropped early, tests.early_crawls.heard handles request_dropped",
    ),
    "False": Variant(
        settings={"BLOOM_DROP_EARLY": False},
        early_way="follow_new",
        said="not dropped early, BLOOM_DROP_EARLY is False",
    ),
    "requests of all kinds": Variant(way="mixed", settings=ONE),
    "requests of all kinds, asynchronous": Variant(AsyncSpider, "mixed", ONE),
    "requests of all kinds, in a job": Variant(way="mixed", settings={"JOBDIR": "job", **ONE}),
    "Scrapy's scheduler": Variant(
        way="mixed", settings={"SCHEDULER": STOCK_SCHEDULER, "JOBDIR": "job", **ONE}
    ),
    "another middleware, and True": Variant(
        way="mixed",
        settings={"SPIDER_MIDDLEWARES": {Passing: 543}, "BLOOM_DROP_EARLY": True, **ONE},
    ),
    "rewriting, between": Variant(
        settings={"SPIDER_MIDDLEWARES": {Rewriting: 543}, **ONE},
        early_way="follow_new",
        said="not dropped early, tests.early_crawls.Rewriting is between the spider and the engine",
    ),
    "rewriting, next to the spider": Variant(
        settings={"SPIDER_MIDDLEWARES": {Rewriting: 1200}, **ONE},
        early_way="follow_new",
        said="dropped early as requests, not as links:"
        " tests.early_crawls.Rewriting is next to the spider",
    ),
    "own fingerprints": Variant(
        way="mixed",
        settings={"REQUEST_FINGERPRINTER_CLASS": FragmentFingerprinter, **ONE},
        without="late",
        said="not dropped early, the fingerprinter is tests.early_crawls.FragmentFingerprinter",
    ),
    "wider identity": Variant(way="mixed", settings={**CANONICAL, **ONE}, without="late"),
    "wider identity, follow_new": Variant(
        settings=CANONICAL, early_way="follow_new", without="late"
    ),
    "killed": Variant(
        AsyncSpider, settings={"JOBDIR": "job"}, early_way="follow_new", kills=(7, 20, 1, 30)
    ),
    "link extractor": Variant(way="extracted"),
    "new link extractor": Variant(way="extracted", early_way="extracted_new"),
    "rules": Variant(PlainRuleSpider),
    "new rules": Variant(PlainRuleSpider, early_spider=NewRuleSpider),
}
BASE = {
    "DOWNLOADER_MIDDLEWARES": {Answers: 595},
    "TWISTED_REACTOR": ASYNCIO,
    "TELNETCONSOLE_ENABLED": False,
    "REMOTE_CONTROL_ENABLED": False,
    "LOG_LEVEL": "INFO",
    "FEEDS": {"items.jl": {"format": "jsonlines"}},
    "BLOOM_CAPACITY": 20_000,
    "BLOOM_HOLD": False,  # what is retried comes in the order of Scrapy
}
ADDON = {"ADDONS": {"scrapy_bloom.Addon": 300}}
BY_HAND = {
    "DUPEFILTER_CLASS": "scrapy_bloom.BloomDupeFilter",
    "SPIDER_MIDDLEWARES": {"scrapy_bloom.DropEarlyMiddleware": 1100},
}
STOCK = {"DUPEFILTER_CLASS": "scrapy.dupefilters.RFPDupeFilter", "SCHEDULER": STOCK_SCHEDULER}


def run(variant, whose, folder, dies_after):
    """Crawl in this process, and write into `folder` what came of it."""
    os.chdir(folder)
    Answers.left = dies_after
    logging.getLogger("scrapy.core.scraper").setLevel(logging.CRITICAL)  # callbacks that raise
    spider, way = variant.spider, variant.way
    settings = {**BASE, **variant.settings}
    if whose == "stock":
        settings |= STOCK
    elif whose == "late":
        settings |= {**ADDON, "BLOOM_DROP_EARLY": False}
    else:
        settings |= BY_HAND if variant.by_hand else ADDON
        spider, way = variant.early_spider or spider, variant.early_way or way
    process = CrawlerProcess(settings)
    crawler = process.create_crawler(spider)
    if variant.handler:
        crawler.signals.connect(heard, signals.request_dropped)
    process.crawl(crawler, way=way)
    process.start()
    stats = crawler.stats.get_stats()
    result = {
        "reason": stats.get("finish_reason"),
        "filtered": stats.get("dupefilter/filtered"),
    }
    (folder / "result.json").write_text(json.dumps(result))


def crawled(variant, whose, folder):
    """Crawl in processes of their own; return what came of it."""
    folder.mkdir()
    deaths = 0
    for dies_after in [*(variant.kills if whose == "early" else ()), None]:
        pid = fork(run, folder / "log", variant, whose, folder, dies_after)
        deaths += os.WIFSIGNALED(os.waitpid(pid, 0)[1])
    log = (folder / "log").read_text()
    try:
        result = json.loads((folder / "result.json").read_text())
    except FileNotFoundError:
        sys.exit(f"{variant}, {whose}:\n{log[-3000:]}")
    said = re.search("duplicates: ([^;\n]*)", log)
    result |= {"duplicates": said and said[1], "deaths": deaths}
    for name, file in (("given", "given"), ("items", "items.jl")):
        path = folder / file
        result[name] = Counter(path.read_text().splitlines() if path.exists() else ())
    return result


def main():
    """Run the variants named, or all; print what came of them."""
    warnings.simplefilter("ignore")
    preload()
    references, results = {}, {}
    with tempfile.TemporaryDirectory() as name:
        for number, title in enumerate(sys.argv[1:] or VARIANTS):
            variant, folder = VARIANTS[title], Path(name) / str(number)
            if variant.reference not in references:
                references[variant.reference] = crawled(
                    variant, variant.without, folder.with_suffix(".without")
                )
            without, early = references[variant.reference], crawled(variant, "early", folder)
            results[title] = {"without": without, "early": early}
    print(json.dumps(results))
