"""Crawls that die in every way, are resumed, and must have each page, and each item once.

`python -m tests.world.torture kills --count 1000` prints a line of JSON for each crawl; its exit
status is 1 if a page or an item was lost, an item was twice in a feed, or a crawl has not ended.
"""

import errno
import itertools
import os
import resource
import signal
import sqlite3
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from random import Random

from scrapy_bloom.crawl.ledger import Ledger
from scrapy_bloom.sqlite.rounds import KEPT, OVER
from scrapy_bloom.sqlite.scheduler import DurableScheduler
from tests.stored import found_in, wrong_books
from tests.world.feeds import BOOKS, FEEDS, SETTINGS, SMALL_BATCHES, ItemSpider, feeds_in, items_of
from tests.world.points import OUTSIDE, Points, calls_of
from tests.world.powercut import Cut
from tests.world.runner import FORCED, REACTORS, Crawl, Step, Teller, World, take, tell_stories
from tests.world.tree import answer

VARIANTS = list(itertools.product(REACTORS, (False, True)))
STOPS = ((signal.SIGKILL,),) * 3 + ((signal.SIGINT,), (signal.SIGTERM,), FORCED)
"""How a run ends before its end; the last is Ctrl-C as often as it needs."""
IN_JOB = ("all.jl", "all.csv", "all.json", "all.json.gz")
"""Feeds in the job directory, which a power cut may do without what was not synced."""
FEW = ("all.jl", "over.json", "all.csv", "all.json.gz", "shelf:whole.json", SMALL_BATCHES)
"""Feeds that need each call there is."""
SIDES = ("before", "after")
FAULTS = {
    "sql": ("disk I/O error", "database or disk is full", "database is locked"),
    "os": (errno.EIO, errno.ENOSPC, errno.EACCES),
}
_INSIDE = {"bit", "release", "commit", "push", "done", "open", "close"}


@dataclass
class Tortured:
    """A crawl with feeds, and the pages and the items by feed that it must have in the end."""

    world: World
    crawl: Crawl
    pages: set
    items: dict
    point: str
    cut: Cut | None = None

    def __post_init__(self):
        self.folder = self.world.folder / self.crawl.name
        self.feeds = Path(next(iter(self.crawl.settings["FEEDS"])).removeprefix("shelf:")).parent
        self.stopped, self.books, self.malformed = [], [], []
        self.first, self.kills, self.is_told = None, 0, False

    def prepared(self, does=lambda: None):
        """Return what is done first in each process."""

        def before():
            does()
            commit = Ledger.commit

            def commit_and_note(ledger):
                commit(ledger)
                with (self.folder / "commits").open("a") as file:
                    file.write(f"{time.monotonic()}\n")

            Ledger.commit = commit_and_note

        return before

    @property
    def answers(self):
        """When the site has answered which pages, but for errors."""
        return [(each.at, each.page) for each in self.world.answers(self.crawl) if each.is_good]

    @property
    def is_over(self):
        """True if the round is, with pages that have failed or without."""
        with suppress(sqlite3.Error):
            return found_in(self.folder / "job")[0] in (OVER, KEPT)
        return False

    def torn(self):
        """Return the feeds that are not well-formed, with their errors, and the others' items."""
        wrong, found = {}, {}
        for name in self.items:
            try:
                found[name] = items_of(self.feeds, name)
            except Exception as error:  # noqa: BLE001, PERF203 - whatever makes a file unreadable
                wrong[name] = repr(error)
        return wrong, found

    def wrong_feeds(self):
        """Return what is wrong with feeds, by name; after a power cut items may come again."""
        wrong, found = self.torn()
        for name, items in found.items():
            missing, surplus = self.items[name] - items, items - self.items[name]
            if missing or (surplus and self.cut is None):
                wrong[name] = f"{missing.total()} are missing, {surplus.total()} are too much"
        return wrong

    def stale(self):
        """Return how many answers were repeated that came before the last commit."""
        noted = self.folder / "commits"
        commits = [float(line) for line in noted.read_text().split()] if noted.exists() else []
        last, count = {}, 0
        for at, page in self.answers:
            if page in last:
                stop = next((stop for stop in self.stopped if last[page] < stop < at), None)
                count += stop is None or any(last[page] < commit < stop for commit in commits)
            last[page] = at
        return count

    def report(self, run):
        """Return what became of the crawl, which is over. The run that was disturbed, or killed,
        may have ended when all was done."""
        answers = Counter(page for _, page in self.answers)
        end = run.status, run.reason
        is_sound = end in ((0, "finished"), self.first)
        is_sound |= bool(self.stopped) and run.reason is None
        wrong = {
            "end": None if is_sound and self.is_over else (*end, self.is_over),
            "lost": sorted(self.pages - {*answers}),
            "books": self.books,
            "feeds": self.wrong_feeds(),
            "malformed": self.malformed,
        }
        return {
            "crawl": self.crawl.name,
            "point": self.point,
            "stops": len(self.stopped),
            "kills": self.kills,
            "repeated": answers.total() - len(answers),
            "stale": self.stale(),
            "wrong": {name: what for name, what in wrong.items() if what},
        }

    def stop(self, chance, stops=((),)):
        """Stop the crawl at random moments in these ways, then let it end; each start has an order
        and a budget of its own."""
        for signals in [*stops, ()]:
            at, seconds = 0, chance.uniform(0, 0.6)
            if chance.random() > 0.25:
                # some while after an answer, so that it falls on either side of a commit
                at = chance.uniform(1, 1.3 * len(self.pages) / len(stops))
                seconds = chance.uniform(0, 0.15)
            settings = {**drawn_order(chance), **self.crawl.settings}
            before = self.prepared(self.cut.lay) if self.cut else self.prepared()
            step = Step(before, settings, signals=signals, at=at, seconds=seconds)
            run = yield from take(self.world, self.crawl, step)
            if run.status or run.reason != "finished":
                self.stopped.append(time.monotonic())
                self.kills += run.status == -signal.SIGKILL
                self.books += [*self.cut.power(chance)] if self.cut else []
                self.books += wrong_books(self.folder / "job")
            if run.reason == "shutdown" and len(signals) == 1 and (wrong := self.torn()[0]):
                self.malformed.append(wrong)
            if self.is_over:
                break
        self.is_told = True
        yield self.report(run)

    def disturb(self, disturb, *, second=False):
        """Call `disturb` in the crawl's first run, or its `second` after a kill; then resume it."""
        if second:
            kill = self.prepared(lambda: (often(), Points("sql COMMIT", 6, "after").lay()))
            yield from take(self.world, self.crawl, Step(kill))
        before = self.prepared(lambda: (often(), disturb()))
        run = yield from take(self.world, self.crawl, Step(before))
        self.first, self.kills = (run.status, run.reason), int(run.status == -signal.SIGKILL)
        if not self.is_over or self.wrong_feeds():  # else another start is of the next round
            run = yield from take(self.world, self.crawl, Step(self.prepared()))
        yield self.report(run)


def often():
    """Commit every few operations."""
    DurableScheduler.commit_operations = 5


def drawn_order(chance):
    """Return settings that may change between two starts of a job."""
    kinds = [f"scrapy.squeues.Pickle{name}DiskQueue" for name in ("Lifo", "Fifo")]
    queues = "DownloaderAwarePriorityQueue", "ScrapyPriorityQueue"
    return {
        "SCHEDULER_DISK_QUEUE": chance.choice(kinds),
        "SCHEDULER_START_DISK_QUEUE": chance.choice([None, *kinds]),
        "SCHEDULER_PRIORITY_QUEUE": f"scrapy.pqueues.{chance.choice(queues)}",
        "BLOOM_BUDGET": chance.choice([{}, {"*": 10**6}]),
    }


class Torturer(Teller):
    """Makes crawls that are to be stopped, each the next variant."""

    def __post_init__(self):
        super().__post_init__()
        self._number, self._whole = itertools.count(), {}

    def crawl(self, name, pages, feeds, **settings):
        """Return a crawl with these feeds."""
        folder = self.world.folder / name / ("job" if feeds is IN_JOB else "")
        settings = {**SETTINGS, "FEEDS": feeds_in(folder, feeds), **settings}
        variant = VARIANTS[next(self._number) % len(VARIANTS)]
        pages = self.options.pages or pages
        return Crawl(name, pages, *variant, settings=settings, spider=ItemSpider)

    def __call__(self, name, pages, feeds, point="", **settings):
        """Return a crawl, with what each variant of it fetches and gives if nothing stops it."""
        crawl = self.crawl(name, pages, feeds, **settings)
        key = crawl.pages, feeds
        if key not in self._whole:
            folder = self.world.folder / f"whole{len(self._whole)}"
            settings = {"FEEDS": feeds_in(folder, feeds), "BLOOM_DROP_EARLY": False}
            whole = replace(crawl, name=folder.name, settings={**crawl.settings, **settings})
            run = self.world.start(whole, job=False).wait()
            assert run.reason == "finished", run.log
            checked = feeds if feeds is IN_JOB else (*feeds, BOOKS)
            items = {name: items_of(folder, name) for name in checked}
            self._whole[key] = {*self.world.pages(whole)}, items
        return Tortured(self.world, crawl, *self._whole[key], point)

    def calls(self, pages):
        """Return the names of the points of a small crawl, in the order of its calls."""
        crawl = self.crawl(f"calls{pages}", pages, FEW, BLOOM_CAPACITY=10)
        return calls_of(self.world, crawl, often)


def kills(torturer):
    """Stop crawls, one to six times each, until so many were killed."""
    crawls, options = [], torturer.options
    while sum(each.kills for each in crawls) < options.count:
        crawls.append(torturer(f"killed{len(crawls)}", 60, tuple(options.feeds)))
        chance = Random(f"{options.seed} {len(crawls)}")
        yield crawls[-1].stop(chance, chance.choices(STOPS, k=chance.randint(1, 6)))


def cuts(torturer):
    """Cut the power before and after each sync of a crawl, or only at each `count`-th of these
    moments, until one has no more of them."""
    crawls, seed = [], torturer.options.seed
    for half in itertools.count(2, torturer.options.count):
        if any(each.is_told and not each.kills for each in crawls):
            return
        crawl = torturer(f"cut{half / 2}", 40, IN_JOB, BLOOM_CAPACITY=30)
        crawl.cut = Cut(crawl.folder, half // 2, is_synced=bool(half % 2))
        crawls.append(crawl)
        yield crawl.stop(Random(f"{seed} {half}"))


def points(torturer):
    """Die before and after the first call of each kind, and `count` later ones."""
    number, options, chance = itertools.count(), torturer.options, torturer.chance
    for name, count in sorted(Counter(torturer.calls(14)).items()):
        if options.names and name not in options.names:
            continue
        later = chance.sample(range(1, count + 1), min(options.count, count))
        for call, side in itertools.product(sorted({1, *later}), options.sides):
            second = name == "recover" or chance.random() < 0.3 * (name not in _INSIDE)
            point = f"{side} {name} {call}{' of the second run' * second}"
            crawl = torturer(f"point{next(number)}", 14, FEW, point, BLOOM_CAPACITY=10)
            yield crawl.disturb(Points(name, call, side).lay, second=second)


def faults(torturer):
    """Let `count` calls on the database and on files fail, once and from then on."""
    outside = [name for name in torturer.calls(12) if name.startswith(OUTSIDE)]
    all_ = [
        (number, what, always)
        for number, name in enumerate(outside, 1)
        for what in FAULTS["sql" if name.startswith("sql") else "os"]
        for always in (False, True)
    ]
    chosen = torturer.chance.sample(all_, torturer.options.count)
    for number, (call, what, always) in enumerate(chosen):
        error = sqlite3.OperationalError(what)
        if isinstance(what, int):
            error = OSError(what, os.strerror(what))
        point = f"{what!r} at call {call}{' and all later ones' * always}"
        crawl = torturer(f"fault{number}", 12, FEW, point, BLOOM_CAPACITY=10)
        yield crawl.disturb(Points(None, call, error, always=always).lay)


def short(torturer):
    """Let no file of the first run of `count` crawls become larger than a random size."""
    for number in range(torturer.options.count):
        size = torturer.chance.randrange(10_000, 400_000)
        crawl = torturer(f"short{number}", 100, FEW, f"{size} bytes", BLOOM_CAPACITY=1000)
        yield crawl.disturb(partial(resource.setrlimit, resource.RLIMIT_FSIZE, (size, size)))


STORIES = {story.__name__: story for story in (kills, cuts, points, faults, short)}


def arguments(parser):
    parser.add_argument("--names", nargs="*", help="of kill points")
    parser.add_argument("--sides", nargs="*", choices=SIDES, default=SIDES, help="of them")
    parser.add_argument("--feeds", nargs="+", choices=FEEDS, default=tuple(FEEDS))
    parser.add_argument("--pages", type=int, help="of each crawl")


if __name__ == "__main__":
    tell_stories(__spec__.name, STORIES, answer, arguments, Torturer)
