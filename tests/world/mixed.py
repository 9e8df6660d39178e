"""Crawls that mix all there is: requests in every state, orders, a site with moods, and other
settings at each start, over kills or one power cut.

`python -m tests.world.mixed kills --count 1000` kills crawls so often at random moments, `cuts`
cuts the power at each sync of one. A line of JSON for each crawl says what was `wrong`; the exit
status is 1 if anything was.
"""

import asyncio
import gzip
import itertools
import random
import re
import signal
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from math import inf
from pathlib import Path

import scrapy
from scrapy import Request

from scrapy_bloom.crawl.choice import Filter
from scrapy_bloom.crawl.failed_request import LOST
from scrapy_bloom.crawl.ledger import Ledger
from scrapy_bloom.crawl.records import KEPT, State
from scrapy_bloom.jobdir import JobDirectory
from scrapy_bloom.sqlite import scheduler
from scrapy_bloom.sqlite.desk import HoldOrder, Order, SqliteDesk, give
from scrapy_bloom.sqlite.job_file import check_header
from scrapy_bloom.sqlite.rounds import KEPT as OVER_BUT_KEPT
from scrapy_bloom.sqlite.rounds import OVER, RUNNING
from tests.stored import found_in, wrong_books
from tests.world.feeds import feeds_in
from tests.world.powercut import Cut
from tests.world.runner import REACTORS, Crawl, Step, World, take, tell_stories
from tests.world.site import Reply, moved
from tests.world.torture import drawn_order as drawn_orders
from tests.world.tree import DELAY, OfCrawler

FEEDS = ("all.jl", "all.json", "all.json.gz")
KINDS = {"down": 7, "marked": 5, "late": 6, "unwanted": 9, "moved": 8, "flaky": 11}
"""Every how many numbers; of each page the first that fits."""
STARTS = 0, 1
SLOTS = 3
RETRIED = 429, 500, 503
FIVES = b"*/*[05]"
"""The pattern of every fifth page, as the file names it."""
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


class Asking(OfCrawler):
    """Notes what goes to the site, and what does so too early."""

    def process_request(self, request):
        early = request.meta.get("due", 0) > time.time()
        note(self.crawler.settings, "early" if early else "asked", request.url.rpartition("/")[2])

    def process_response(self, request, response):
        last = request.meta.get("retry_times", 0) >= MixedSpider.custom_settings["RETRY_TIMES"]
        if last and response.status in RETRIED:
            note(self.crawler.settings, "given_up", request.url.rpartition("/")[2])
        return response


class MixedSpider(scrapy.Spider):
    """Follows each link, and notes in a file what it asks and gets."""

    name = "mixed"
    custom_settings = {  # noqa: RUF012
        "DOWNLOADER_MIDDLEWARES": {Asking: 1000},
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


def note(settings, what, number=0):
    """Write a line that outlives the process."""
    with Path(settings["NOTES"]).open("a") as file:
        file.write(f"{settings['RUN']} {what} {number}\n")


async def answer(asked):
    """Answer after a short while: parts of the site are `down`, it is `rough`, or `up`."""
    await asyncio.sleep(random.random() * DELAY)
    if asked.state == "down" == asked.kind or (asked.kind == "flaky" and not asked.times):
        return Reply(500)
    if asked.state != "up" and random.random() < 0.04:
        says = random.choice(({"Retry-After": 1}, {"Retry-After": 1}, {}))
        return Reply(random.choice((429, 503)), headers=says)
    if asked.kind == "moved":
        return moved(asked.crawl, f"landed/{asked.number}")
    return Reply(body=asked.number.encode())


def drawn(chance, mood):
    """Return the settings of a start; while the site is up nothing limits a crawl."""
    found = {**drawn_orders(chance), "BLOOM_BUDGET": {}, "BLOOM_PICKLE": True}
    if mood != "up":
        if (limit := chance.choice((0, 3, 8, 16, 1000))) > 0:
            fives = {FIVES.decode(): chance.choice((2, 5, 1000))}
            found["BLOOM_BUDGET"] = {"*": limit, "start": 1000, **fives}
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


MOODS = "down", "rough", "up"
"""Of the site, one after the other; when it is `up` all is retried that was kept."""
WAITING = State.PENDING, State.CLAIMED, State.DELAYED


@dataclass
class Tale:
    """A crawl, what it has met, and what was `wrong` in it."""

    world: World
    crawl: Crawl
    chance: random.Random
    cut: Cut | None = None
    wrong: list = field(default_factory=list)
    kills: int = 0
    is_told: bool = False
    ends: list = field(default_factory=list)
    """What the file had after each run, and whether that one has pickled."""
    asked: set | None = None
    """The pages that were asked since the budget counts; None while it does not."""
    ordered: set = field(default_factory=set)
    """What was done with requests by orders."""

    def __post_init__(self):
        self.folder = self.world.folder / self.crawl.name
        self.folder.mkdir()
        self.job, self.notes = self.folder / "job", self.folder / "notes"
        self.crawl.settings.update(
            BLOOM_CAPACITY=30,  # the filter grows
            FEEDS=feeds_in(self.job, FEEDS),
            NOTES=str(self.notes),
        )

    def tell(self, kills):
        """Crawl in each mood of the site, with so many kills in each; yield nothing, then what was
        wrong."""
        for mood, left in zip(MOODS, kills, strict=True):
            goes_on = True
            while goes_on:
                self.order(mood)
                goes_on = yield from self.run(drawn(self.chance, mood), mood, is_killed=left > 0)
                left -= 1
        self.look_back()
        self.is_told = True
        yield {"crawl": self.crawl.name, "kills": self.kills, "wrong": self.wrong}

    def order(self, mood):
        """Change the job that does not run, or leave it an order, at times; in the end retry all
        that was kept."""
        if not check_header(self.job / "requests.sqlite"):
            return
        desk = SqliteDesk(self.job)
        if mood == "up":
            desk.change(Filter(KEPT), "retry")
            desk.hold([f"slot{number}" for number in range(SLOTS)], None)
        elif self.chance.random() < 0.5:
            self.give_order()
            if self.chance.random() < 0.6:
                desk.hold([], None)  # carries out what stands

    def give_order(self):
        """Leave the job an order, and remember what it does."""
        given = drawn_order(self.chance)
        if isinstance(given, Order):
            self.ordered.add(given.action)
        answer = give(JobDirectory(self.job), given)
        if self.cut is not None:
            self.cut.note_order(answer.with_suffix(".json"))

    def run(self, settings, mood, *, is_killed):
        """Run the process to its end or to a kill, and look at what it has left; return True if the
        round goes on."""
        chance, before, number = self.chance, found_in(self.job), len(self.ends)
        settings = {**self.crawl.settings, **settings, "RUN": number}
        order_at = chance.uniform(0, 80) if mood != "up" else inf
        began, signals, at, seconds = self.world.count(self.crawl), (), 0, chance.uniform(0, 0.4)
        if is_killed:
            signals = (signal.SIGKILL,)
            if chance.random() > 0.3:
                # some while after an answer, so that it falls on either side of a commit
                at, seconds = chance.uniform(0, 40), chance.uniform(0, 0.15)

        def meanwhile():
            nonlocal order_at
            if self.world.count(self.crawl) - began > order_at:
                order_at = inf
                self.give_order()

        prepared = self.prepared(settings, chance.choice((3, 20, 200)))
        step = Step(prepared, settings, mood, signals, at, seconds)
        run = yield from take(self.world, self.crawl, step, meanwhile)
        is_dead = run.status == -signal.SIGKILL
        if is_dead and self.cut is not None:
            self.wrong += self.cut.power(chance)
        after = found_in(self.job)
        self.kills += is_dead
        self.ends.append((after, settings["BLOOM_PICKLE"]))
        self.wrong += [(number, each) for each in self.wrong_file(before, after, settings)]
        # an order may come at the last moment
        is_over = after.phase in (OVER, OVER_BUT_KEPT) or bool(after.pages(*WAITING))
        if not is_dead and (run.reason != "finished" or not is_over):
            self.wrong.append((number, run.reason, after.phase))
        return is_dead or (run.reason == "finished" and after.phase == RUNNING)

    def prepared(self, settings, operations):
        """Return what is done first in each process."""

        def before():
            scheduler.ORDERS_SECONDS = 0.02
            scheduler.DurableScheduler.commit_operations = operations
            commit = Ledger.commit

            def commit_and_note(ledger):
                commit(ledger)
                note(settings, "commit")

            Ledger.commit = commit_and_note
            if self.cut is not None:
                self.cut.lay()

        return before

    def noted(self, what):
        """Return run and page of each such note, and whether a commit of the run came behind."""
        found, last = [], {}
        lines = self.notes.read_text().splitlines() if self.notes.exists() else ()
        for at, (run, kind, page) in enumerate(map(str.split, lines)):
            if kind == "commit":
                last[int(run)] = at
            elif kind == what:
                found.append((int(run), int(page), at))
        return [(run, page, at < last.get(run, -1)) for run, page, at in found]

    def wrong_file(self, before, after, settings):
        """Yield what is wrong in the file after a run."""
        yield from wrong_books(self.job)
        stored = Counter(row.page for row in after.rows if row.page not in STARTS)
        if self.cut is None:
            yield from (f"{page} is stored twice" for page in stored if stored[page] > 1)
        limits, is_new = settings["BLOOM_BUDGET"], after.round != before.round
        if not after.counted:
            self.asked = None
        if not limits or not after.counted:
            return
        if self.asked is None or not before.counted or is_new:
            self.asked, self.is_exact = set(), self.cut is None
            # what had failed was counted if it could not be read
            self.unclear = set() if is_new else before.pages(State.FAILED)
        self.is_exact &= settings["BLOOM_PICKLE"] and "drop" not in self.ordered
        noted = [*self.noted("asked"), *self.noted("early")]
        self.asked |= {page for of, page, _ in noted if of == settings["RUN"]}
        there = self.asked | after.pages(*WAITING) | after.failed_in(after.round)
        least, most = by_slot(there - self.unclear), by_slot(there | self.unclear)
        stored = by_slot(before.pages(*WAITING, State.FAILED))

        def limit_of(name):
            return limits.get(name if isinstance(name, str) else name.decode(), limits["*"])

        for slot in {*most, *after.counted}:
            limit, count = limit_of(slot), after.counted[slot]
            if count < least[slot] or (self.is_exact and count > most[slot]):
                yield f"{slot}: {count} counted, {least[slot]} to {most[slot]} are there"
            if count > max(limit, before.counted[slot], stored[slot]):
                yield f"{slot}: {count} of {limit}"
        for page in () if is_new else after.pages(State.CAPPED) - before.pages(State.CAPPED):
            if all(after.counted[name] < limit_of(name) for name in names_of(page)):
                yield f"{page} is capped, and {after.counted} have room in {limits}"

    def look_back(self):
        """Note what was wrong in a crawl that is over."""
        last, answers = self.ends[-1][0], defaultdict(list)
        for run, page, is_committed in self.noted("answered"):
            answers[page].append((run, is_committed))
        reached = {*STARTS}.union(*(links(page, self.crawl.pages) for page in answers))
        gone = {row.page for row in last.rows if row.reason == LOST}
        # what cannot be serialized cannot be kept as failed
        gone |= {
            page
            for run, page, _ in self.noted("given_up")
            if kind_of(page) == "marked" and not self.ends[run][1]
        }
        # what a kill has undone may be over the budget when it comes again, and is not asked then
        undone = {page for page in gone if not any(is_safe for _, is_safe in answers[page])}
        due = {*STARTS}.union(*(links(page, self.crawl.pages) for page in {*answers} - undone))
        if "drop" in self.ordered:
            gone |= {page for page in reached if kind_of(page) == "unwanted"}
        items = {name: self.items_of(name) for name in FEEDS}
        # what is retried is asked at once
        kept = {page for end, _ in self.ends for page in end.pages(*KEPT)}
        early = {page for _, page, _ in self.noted("early")} - kept
        wrong = {
            "lost": due - {*answers} - gone,
            "from nowhere": {*answers}.union(*items.values()) - reached,
            "kept": [row for row in last.rows if row.reason != LOST],
            "early": early if "fail" not in self.ordered else (),
            **{f"not in {name}": {*answers} - {*items[name]} - gone for name in FEEDS},
        }
        if self.cut is None:  # after a cut pages that the filter has forgotten come again
            wrong["twice"] = [page for page in answers if self.is_twice(page, answers[page])]
            most = Counter(dict.fromkeys(reached, 1) | dict.fromkeys(STARTS, last.round))
            wrong |= {f"twice in {name}": items[name] - most for name in FEEDS}
        self.wrong += [(name, sorted(what)) for name, what in wrong.items() if what]

    def items_of(self, name):
        """Return how often a feed has each page."""
        data = path.read_bytes() if (path := self.job / name).exists() else b""
        data = gzip.decompress(data) if name.endswith(".gz") else data
        return Counter(map(int, re.findall(rb'"page": (\d+)', data)))

    def is_twice(self, page, answers):
        """Return True if a page has come again that the file had finished."""
        for (run, is_committed), (again, _) in itertools.pairwise(answers):
            end, has_pickled = self.ends[run]
            may_come = (
                not is_committed
                or page in end.pages(*State)
                or (kind_of(page) == "marked" and not has_pickled)
                or (page in STARTS and end.round != self.ends[again][0].round)
            )
            if run == again or not may_come:
                return True
        return False


def names_of(number):
    """Return the names under which a page counts."""
    return [slot_of(number), *([FIVES] if number % 5 == 0 else [])]


def by_slot(pages):
    """Return how many of the pages count under each name."""
    return Counter(itertools.chain.from_iterable(map(names_of, pages)))


def kills(teller):
    """Kill crawls until so many processes have died."""
    tales, options = [], teller.options
    while sum(tale.kills for tale in tales) < options.count:
        number = len(tales)
        chance = random.Random(f"{options.seed} {number}")
        crawl = Crawl(f"mixed{number}", options.pages, REACTORS[number % 2], spider=MixedSpider)
        tales.append(Tale(teller.world, crawl, chance))
        yield tales[-1].tell([chance.randint(2, 5), chance.randint(1, 4), chance.randint(0, 2)])


def cuts(teller):
    """Cut the power before and after each sync of a crawl, or only at each `count`-th of these
    moments, until one has no more of them."""
    tales, options = [], teller.options
    for half in itertools.count(2, options.count):
        if any(tale.is_told and not tale.kills for tale in tales):
            return
        crawl = Crawl(f"cut{half / 2}", options.pages, spider=MixedSpider)
        cut = Cut(teller.world.folder / crawl.name, half // 2, is_synced=bool(half % 2))
        tales.append(Tale(teller.world, crawl, random.Random(options.seed), cut))
        yield tales[-1].tell([0, 0, 0])


def arguments(parser):
    parser.add_argument("--pages", type=int, default=90, help="of each crawl")


if __name__ == "__main__":
    tell_stories(__spec__.name, {"kills": kills, "cuts": cuts}, answer, arguments)
