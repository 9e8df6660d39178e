"""Real crawls that ask from day to day only for what has changed, by versions or validators."""

import json
import random
from contextlib import closing
from email.utils import formatdate
from pathlib import Path

import scrapy
from scrapy import Request, signals
from scrapy.utils.request import fingerprint

from scrapy_bloom import SitemapSpider
from scrapy_bloom.delta.file_store import FileDeltaStore
from scrapy_bloom.delta.redis_store import RedisDeltaStore
from scrapy_bloom.delta.settings import Lifetime
from tests.web_server import HEADERS
from tests.world.delta import DeltaTeller, each_day, in_redis, keyed, on, today
from tests.world.runner import tell_stories
from tests.world.site import Reply, moved

FILES = 2
SPECIAL = (
    *("index/2", "dated/1", "named/1", "keyed/1", "own/1", "always/1", "posted/1", "moved/1"),
    *("gone/1", "bare/1", "awaited/1"),
)
CONDITIONAL = {"BLOOM_DELTA_CONDITIONAL": True, "BLOOM_DELTA_DAYS": 0.5}


def since(page, day):
    """Return the day since which a page is as it is on `day`: one in a hundred changes a day, and
    each of the second hundred on the day after the one before it."""
    kind, number = page.split("/")
    changed = {int(number) % 100 + 2} if kind == "page" else {1}
    return max({1} | {each for each in changed if each <= day})


def item_of(page, day):
    """Return the item of a page on that day."""
    return f"{page} of {since(page, day)}"


def links(kind, number):
    """Return the pages that an index page or a file of a sitemap has."""
    if kind == "sitemap":
        return [f"map/{file}{number}" for file in range(1, FILES + 1)]
    if kind == "map":  # the first digit is that of the file
        file, pages = int(number[0]), int(number[1:])
        return [f"page/{each}" for each in range(pages) if each % FILES == file - 1]
    return [*SPECIAL, *(f"page/{each}" for each in range(60))] if number == "1" else ["page/1"]


async def answer(asked):
    """Answer as on the day that the state says, and with 304 to all that lets a server do so."""
    day, kind, page = int(asked.state), asked.kind, asked.page
    if kind in {"sitemap", "map"}:
        outer, inner = ("sitemapindex", "sitemap") if kind == "sitemap" else ("urlset", "url")
        entries = (
            f"<{inner}><loc>http://127.0.0.1:PORT/{asked.crawl}/{each}</loc>"
            f"<lastmod>2026-01-{since(each, day):02}</lastmod></{inner}>"
            for each in links(kind, asked.number)
        )
        body = f"<{outer}>{''.join(entries)}</{outer}>".encode()
        return Reply(body=body, headers={"Content-Type": "application/xml"})
    if kind == "moved" and day > 1:
        return moved(asked.crawl, "target/1")
    found = HEADERS.get()
    date = formatdate(since(page, day) * 86400, usegmt=True)
    tag = f'"{since(page, day)}"'
    validators = {"ETag": tag, "Last-Modified": date} if kind != "bare" else {}
    if kind == "dated":
        validators.pop("ETag")
    is_conditional = found.get("if-none-match") == tag or (
        "if-none-match" not in found and found.get("if-modified-since") == date
    )
    if is_conditional or (kind == "target" and "if-none-match" in found):
        return Reply(304, headers=validators)
    if kind == "index":
        found = links(kind, asked.number) + ["target/1"] * (day == 1)  # its mark is its own then
        return Reply(body=json.dumps(found).encode(), headers=validators)
    return Reply(body=b"x" * (8000 if kind == "page" else 1), headers=validators)


class ByVersion(SitemapSpider):
    """Has the versions of its pages from a sitemap."""

    name = "by_version"
    total = 100
    custom_settings = {"LOG_LEVEL": "INFO", "CONCURRENT_REQUESTS_PER_DOMAIN": 8}  # noqa: RUF012

    async def start(self):
        self.sitemap_urls = [f"{self.site}/sitemap/{self.total}"]
        async for request in super().start():
            yield request

    def sitemap_filter(self, entries):
        for entry in entries:
            path = entry["loc"].partition("PORT/")[2].partition("/")[2]
            yield {**entry, "loc": f"{self.site}/{path}"}

    def parse(self, response):
        page = "/".join(response.url.partition("?")[0].split("/")[-2:])
        yield {"page": item_of(page, today())}


class Thousand(ByVersion):
    """Has a thousand pages, of which ten change on the second day."""

    name = "thousand"
    total = 1000


class ByValidators(scrapy.Spider):
    """Asks for pages that the server may say not to have changed."""

    name = "by_validators"
    custom_settings = {**ByVersion.custom_settings, "RETRY_ENABLED": False}  # noqa: RUF012

    @classmethod
    def from_crawler(cls, crawler, *args, **options):
        self = super().from_crawler(crawler, *args, **options)
        crawler.signals.connect(self.sent, signals.request_reached_downloader)
        return self

    async def start(self):
        yield Request(f"{self.site}/first/1")
        yield Request(f"{self.site}/index/1", errback=self.failed)

    def request(self, page):
        """Return the request for a page, as its kind has it."""
        kind, _ = page.split("/")
        url, options = f"{self.site}/{page}", {"meta": {}, "errback": self.failed}
        if kind in {"named", "keyed"}:
            options["meta"]["bloom_delta_key"] = kind
            url += f"?session={random.random()}" if kind == "keyed" else ""
        if kind in {"always", "awaited"}:
            options["meta"]["bloom_delta"] = False
        if kind == "posted":
            options["method"] = "POST"
        if kind == "own":
            options["headers"] = {"If-None-Match": '"1"'}
            options["meta"]["handle_httpstatus_list"] = [304]
        return Request(url, **options)

    async def parse(self, response):
        page = "/".join(response.url.partition("?")[0].split("/")[-2:])
        if page.startswith("index"):
            for link in response.json():
                yield self.request(link)
            return
        if page == "awaited/1":
            other = await self.crawler.engine.download_async(response.follow("/" + self.path(3)))
            assert other.status == 200
        yield {"page": f"{item_of(page, today())}{' again' * (response.status == 304)}"}

    def path(self, number):
        """Return the path of a page."""
        return f"{self.site.rpartition('/')[2]}/page/{number}"

    def failed(self, failure):
        yield {"page": f"failed {failure.value}"}

    def sent(self, request):
        """Let the mark of a page be gone when its answer comes."""
        if not request.url.endswith("/gone/1"):
            return
        settings = self.crawler.settings
        name = settings["BLOOM_DELTA_DIR"]
        if url := settings.get("BLOOM_REDIS_URL"):
            store = RedisDeltaStore(url, name, Lifetime(), 10)
        else:
            store = FileDeltaStore(Path(name), Lifetime())
            store.look()
        with closing(store):
            store.forget([fingerprint(request)])


def days(tell):
    """From day to day, in jobs and on Redis."""
    eight = {"BLOOM_DELTA_DAYS": "8d"}
    yield tell("versions", each_day(1, 2, 30), spider=Thousand, **eight)
    steps = keyed("versions_redis", on(1), on(2), on(30))
    yield tell("versions_redis", steps, spider=ByVersion, **in_redis("versions_redis"), **eight)
    yield tell("validators", each_day(1, 2, 3), spider=ByValidators, **CONDITIONAL)
    steps = keyed("validators_redis", on(1), on(2), on(3))
    settings = {**in_redis("validators_redis"), **CONDITIONAL}
    yield tell("validators_redis", steps, spider=ByValidators, **settings)
    renewed = {**CONDITIONAL, **eight}
    yield tell("renewed", each_day(1, 12, 18), spider=ByValidators, **renewed)
    died = [on(1, dies_at=9, is_committed=True), on(2, dies_at=4), on(3, dies_at=4)]
    steps = [step for each in died for step in (each, on(each.day))]
    for spider in (ByVersion, ByValidators):
        yield tell(f"killed_{spider.name}", steps, spider=spider, **CONDITIONAL)


STORIES = {"days": days}


if __name__ == "__main__":
    tell_stories(__spec__.name, STORIES, answer, teller=DeltaTeller)
