"""The site and the spider of crawls that mix all there is, and what their operator may do."""

import asyncio
import random
import time
from collections import Counter
from pathlib import Path

import scrapy
from scrapy import Request

from scrapy_bloom.crawl.choice import Filter
from scrapy_bloom.crawl.records import KEPT
from scrapy_bloom.sqlite.desk import HoldOrder, Order
from tests.crawl.harness import World
from tests.crawl.torture import order

KINDS = {"down": 7, "marked": 5, "late": 6, "unwanted": 9, "moved": 8, "flaky": 11}
"""Every how many numbers; of each page the first that fits."""
STARTS = 0, 1
SLOTS = 3
UNWANTED = ("*/unwanted/*",)
"""What an operator may drop."""


def kind_of(number):
    """Return what a page is to the site, the spider and the operator."""
    if number in STARTS:
        return "start"
    return next((kind for kind, each in KINDS.items() if number % each == each - 1), "plain")


def slot_of(number):
    """Return the download slot of a page."""
    return "start" if number in STARTS else f"slot{number % SLOTS}"


def links(number, pages):
    """Return what hangs on a page: two of its own, and known ones."""
    found = {2 * number + 2, 2 * number + 3, number // 2, number // 3, number * 7 % pages}
    return sorted(each for each in found if len(STARTS) <= each < pages)


class Mark:
    """What can be stored as a pickle only."""


class MixedSpider(scrapy.Spider):
    """Follows each link, and notes in a file what it asks and gets."""

    name = "mixed"
    custom_settings = {  # noqa: RUF012
        "DOWNLOADER_MIDDLEWARES": {f"{__name__}.Asking": 1000},
        "RETRY_TIMES": 1,
        "BLOOM_HOLD": True,
        "BLOOM_HOLD_MAX": 0.1,
    }

    async def start(self):
        for number in STARTS:
            yield self.request(number, dont_filter=True)

    def request(self, number, **options):
        kind, meta = kind_of(number), {"download_slot": slot_of(number)}
        if kind == "marked":
            meta["mark"] = Mark()
        if kind == "late":
            pause = random.uniform(0, 0.4)
            meta.update(bloom_not_before=pause, due=time.time() + pause)
        url = f"{self.site}/{kind}/{number}"
        return Request(url, priority=number % 4, meta=meta, **options)

    def parse(self, response):
        number = response.json()
        note(self.settings, "answered", number)
        yield {"page": number}
        for child in links(number, self.pages):
            yield self.request(child)


class Asking:
    """Notes what goes to the site, and what does so too early."""

    def __init__(self, crawler):
        self.settings = crawler.settings

    @classmethod
    def from_crawler(cls, crawler):
        return cls(crawler)

    def process_request(self, request):
        early = request.meta.get("due", 0) > time.time()
        note(self.settings, "early" if early else "asked", request.url.rpartition("/")[2])


def note(settings, what, number=0):
    """Write a line that outlives the process."""
    with Path(settings["NOTES"]).open("a") as file:
        file.write(f"{settings['RUN']} {what} {number}\n")


class MixedWorld(World):
    """A folder with a site that is `down` in parts, `rough`, or `up`, for each crawl."""

    def site(self, delay):
        """Return the site, in the process that serves it."""
        self._delay, self._asked = delay, Counter()
        return self

    async def answer(self, _method, path, _body):
        """Answer as `serve` of the tests' server wants it."""
        await asyncio.sleep(random.random() * self._delay)
        _, crawl, kind, number = path.split("/")
        self._asked[path] += 1
        mood = (self.folder / f"{crawl}.mood").read_text()
        if mood == "down" == kind or (kind == "flaky" and self._asked[path] == 1):
            return 500, {}, b""
        if mood != "up" and random.random() < 0.04:
            says = random.choice(({"Retry-After": 1}, {"Retry-After": 1}, {}))
            return random.choice((429, 503)), says, b""
        if kind == "moved":
            return 302, {"Location": f"/{crawl}/landed/{number}"}, b""
        return 200, {}, number.encode()


def drawn(chance, mood):
    """Return the settings of a start; while the site is up nothing limits a crawl."""
    found = {**order(chance), "BLOOM_BUDGET": {}, "BLOOM_PICKLE": True}
    if mood != "up":
        if (limit := chance.choice((0, 3, 8, 16, 1000))) > 0:
            found["BLOOM_BUDGET"] = {"*": limit, "start": 1000}
        found["BLOOM_PICKLE"] = chance.random() > 0.15
        found["BLOOM_RETRY_FAILED"] = chance.random() < 0.2
    return found


def drawn_order(chance):
    """Return what an operator may order while the job runs, or does not."""
    slot = f"slot{chance.randrange(SLOTS)}"
    return chance.choice(
        (
            Order(Filter(KEPT), "retry"),
            Order(Filter(KEPT, reasons=("status/*",)), "retry"),
            Order(Filter(KEPT, reasons=("capped",)), "retry"),
            Order(Filter(slots=(slot,)), "fail"),
            Order(Filter(urls=UNWANTED), "drop"),
            Order(Filter(KEPT, urls=UNWANTED), "drop"),
            HoldOrder([slot], time.time() + 0.3),
            HoldOrder([slot]),
        )
    )
