"""Crawls that die in every way, are resumed, and must have each page, and each item once.

`python -m tests.world.torture --kills 1000` prints a line of JSON; its exit status is 1 if a page
or an item was lost, an item was twice in a feed, or a crawl has not ended.
"""

import errno
import itertools
import json
import os
import random
import resource
import shutil
import signal
import sqlite3
import sys
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from scrapy_bloom.crawl.ledger import Ledger
from scrapy_bloom.sqlite.rounds import KEPT, OVER
from scrapy_bloom.sqlite.scheduler import DurableScheduler
from tests.stored import found_in, wrong_books
from tests.world.feeds import BOOKS, FEEDS, SETTINGS, SMALL_BATCHES, ItemSpider, feeds_in, items_of
from tests.world.mutants import MUTANTS
from tests.world.points import OUTSIDE, Points, calls_of
from tests.world.powercut import Synced, cut_power
from tests.world.runner import (
    FORCED,
    REACTORS,
    Crawl,
    Run,
    Step,
    World,
    command_line,
    parsed,
    side_by_side,
    take,
)
from tests.world.tree import KINDS

VARIANTS = list(itertools.product(REACTORS, (False, True)))
STOPS = ((signal.SIGKILL,),) * 3 + ((signal.SIGINT,), (signal.SIGTERM,), FORCED)
"""How a run ends before its end; the last is Ctrl-C as often as it needs."""
FEW = ("all.jl", "over.json", "all.csv", "all.json.gz", "shelf:whole.json", SMALL_BATCHES, BOOKS)
"""Feeds that need each call there is."""
IN_JOB = ("all.jl", "all.csv", "all.json", "all.json.gz")
"""Those that a power cut may do without what was not synced."""
SIDES = ("before", "after")
FAULTS = {
    "sql": ("disk I/O error", "database or disk is full", "database is locked"),
    "os": (errno.EIO, errno.ENOSPC, errno.EACCES),
}
_INSIDE = {"bit", "release", "commit", "push", "done", "open", "close"}


@dataclass
class Tortured:
    """A crawl with feeds, and what it must have in the end."""

    world: World
    crawl: Crawl
    expected: tuple[set, dict]
    mutant: str | None = None
    point: str = ""

    def __post_init__(self):
        self.folder = self.world.folder / self.crawl.name
        self.feeds = Path(next(iter(self.crawl.settings["FEEDS"])).removeprefix("shelf:")).parent
        self.stopped, self.books, self.malformed = [], [], []
        self.first, self.kills = None, 0

    def prepared(self, does=lambda: None):
        """Return what is done first in each process."""

        def before():
            if self.mutant:
                MUTANTS[self.mutant]()
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
            return found_in(self.folder / "job").phase in (OVER, KEPT)
        return False

    def torn(self):
        """Return the feeds that are not well-formed, with their errors, and the others' items."""
        wrong, found = {}, {}
        for name in self.expected[1]:
            try:
                found[name] = items_of(self.feeds, name)
            except Exception as error:  # noqa: BLE001, PERF203 - whatever makes a file unreadable
                wrong[name] = repr(error)
        return wrong, found

    def wrong_feeds(self):
        """Return what is wrong with feeds, by name; after a power cut items may come again."""
        wrong, found = self.torn()
        for name, items in found.items():
            missing, surplus = self.expected[1][name] - items, items - self.expected[1][name]
            if missing or (surplus and self.feeds == self.folder):
                wrong[name] = {"missing": missing.total(), "surplus": surplus.total()}
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

    def report(self, run: Run):
        """Return what became of the crawl, which is over."""
        answers = Counter(page for _, page in self.answers)
        return {
            "crawl": self.crawl.name,
            "reactor": self.crawl.reactor.rpartition(".")[2],
            "slow": self.crawl.slow,
            "point": self.point,
            "first": self.first,
            "stops": len(self.stopped),
            "kills": self.kills,
            "status": run.status,
            "reason": run.reason,
            "is_over": self.is_over,
            "lost": sorted(self.expected[0] - {*answers}),
            "repeated": answers.total() - len(answers),
            "stale": self.stale(),
            "books": self.books,
            "feeds": self.wrong_feeds(),
            "malformed": self.malformed,
        }

    def random(self, chance, stops, does=lambda: None, after=lambda: None):
        """Stop the crawl at random moments in these ways, then let it end; each start has an order
        and a budget of its own."""
        for signals in [*stops, ()]:
            at, seconds = 0, chance.uniform(0, 0.6)
            if chance.random() > 0.25:
                # some while after an answer, so that it falls on either side of a commit
                at = chance.uniform(1, 1.3 * len(self.expected[0]) / max(1, len(stops)))
                seconds = chance.uniform(0, 0.15)
            settings = {**drawn_order(chance), **self.crawl.settings}
            step = Step(self.prepared(does), settings, signals=signals, at=at, seconds=seconds)
            run = yield from take(self.world, self.crawl, step)
            if run.status or run.reason != "finished":
                self.stopped.append(time.monotonic())
                self.kills += run.status == -signal.SIGKILL
                after()
                self.books += wrong_books(self.folder / "job")
            if run.reason == "shutdown" and len(signals) == 1 and (wrong := self.torn()[0]):
                self.malformed.append(wrong)
            if self.is_over:
                break
        yield self.report(run)

    def disturbed(self, disturb, *, second=False):
        """Call `disturb` in the crawl's first run, or its `second` after a kill; then resume it."""
        if second:
            kill = self.prepared(lambda: (often(), Points("sql COMMIT", 6, "after").lay()))
            yield from take(self.world, self.crawl, Step(kill))
        before = self.prepared(lambda: (often(), disturb()))
        run = yield from take(self.world, self.crawl, Step(before))
        self.first = run.status, run.reason
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


class Torture:
    """What the command line asks for: how often crawls are killed, and how large they are."""

    def __init__(self, world, options):
        self.world, self.options = world, options
        self.chance = random.Random(options.seed)
        self.number = itertools.count()
        self._whole = {}

    def crawl(self, name, pages, feeds, *, inside=False, **settings):
        """Return a crawl, the next variant, perhaps with feeds `inside` its job directory."""
        folder = self.world.folder / name / ("job" if inside else "")
        return Crawl(
            name,
            self.options.pages or pages,
            *VARIANTS[next(self.number) % len(VARIANTS)],
            tuple(self.options.kinds),
            {**SETTINGS, "FEEDS": feeds_in(folder, feeds), **settings},
            ItemSpider,
        )

    def whole(self, crawl, feeds):
        """Return what each variant of a crawl fetches and gives if nothing stops it."""
        if feeds not in self._whole:
            folder = self.world.folder / f"whole{len(self._whole)}"
            settings = {"FEEDS": feeds_in(folder, feeds), "BLOOM_DROP_EARLY": False}
            whole = replace(crawl, name=folder.name, settings={**crawl.settings, **settings})
            run = self.world.start(whole, job=False).wait()
            assert run.reason == "finished", run.log
            items = {name: items_of(folder, name) for name in feeds}
            self._whole[feeds] = {*self.world.pages(whole)}, items
        return self._whole[feeds]

    def tortured(self, name, pages, feeds, point="", **options):
        """Return a crawl that is to be stopped."""
        crawl = self.crawl(name, pages, feeds, **options)
        whole = self.whole(crawl, feeds)
        return Tortured(self.world, crawl, whole, self.options.mutant, point)

    def until(self, kills, begun):
        """Tell stories until crawls were killed so often; `begun(number)` returns crawl, story."""
        crawls = []
        while sum(each.kills for each in crawls) < kills:
            crawl, story = begun(len(crawls))
            crawls.append(crawl)
            yield story

    def each(self, name, pages, plans, **settings):
        """Disturb a small crawl for each (function, its name, whether in the second run)."""
        for number, (disturb, point, second) in enumerate(plans):
            tortured = self.tortured(f"{name}{number}", pages, FEW, point, **settings)
            yield tortured.disturbed(disturb, second=second)

    def calls(self, pages):
        """Return the names of the points of a small crawl, in the order of its calls."""
        crawl = self.crawl("calls", pages, FEW, BLOOM_CAPACITY=10)
        return calls_of(self.world, crawl, often)

    def kills(self):
        """Stop crawls, one to six times each, until they were killed so often."""

        def begun(number):
            tortured = self.tortured(f"killed{number}", 60, tuple(self.options.feeds))
            stops = self.chance.choices(STOPS, k=self.chance.randint(1, 6))
            chance = random.Random(f"{self.options.seed} {number}")
            return tortured, tortured.random(chance, stops)

        return self.until(self.options.kills, begun)

    def cuts(self):
        """Cut the power of crawls at random moments, up to twice each, so often."""

        def begun(number):
            tortured = self.tortured(f"cut{number}", 40, IN_JOB, inside=True, BLOOM_CAPACITY=30)
            chance, folder = random.Random(f"{self.options.seed} {number}"), tortured.folder
            kills, lay = [(signal.SIGKILL,)] * 2, Synced(folder).lay
            return tortured, tortured.random(chance, kills, lay, partial(cut_power, folder, chance))

        return self.until(self.options.cuts, begun)

    def points(self):
        """Die before and after the first call of each kind, and later ones."""
        plans, names = [], self.options.names
        for name, count in sorted(Counter(self.calls(14)).items()):
            if names and name not in names:
                continue
            later = self.chance.sample(range(1, count + 1), min(self.options.points, count))
            for number, side in itertools.product(sorted({1, *later}), self.options.sides):
                second = name == "recover" or self.chance.random() < 0.3 * (name not in _INSIDE)
                point = f"{side} {name} {number}{' of the second run' * second}"
                plans.append((Points(name, number, side).lay, point, second))
        return self.each("point", 14, plans, BLOOM_CAPACITY=10)

    def faults(self):
        """Let calls on the database and on files fail, once and from then on."""
        outside = [name for name in self.calls(12) if name.startswith(OUTSIDE)]
        all_ = [
            (number, what, always)
            for number, name in enumerate(outside, 1)
            for what in FAULTS["sql" if name.startswith("sql") else "os"]
            for always in (False, True)
        ]
        plans = []
        for number, what, always in self.chance.sample(all_, self.options.faults):
            error = sqlite3.OperationalError(what)
            if isinstance(what, int):
                error = OSError(what, os.strerror(what))
            point = f"{what!r} at call {number}{' and all later ones' * always}"
            lay = Points(None, number, error, always=always).lay
            plans.append((lay, point, False))
        return self.each("fault", 12, plans, BLOOM_CAPACITY=10)

    def short(self):
        """Let no file of a crawl's first run become larger than a random size."""
        sizes = [self.chance.randrange(10_000, 400_000) for _ in range(self.options.short)]
        plans = [(partial(limit, size), f"{size} bytes", False) for size in sizes]
        return self.each("short", 100, plans, BLOOM_CAPACITY=1000)


def limit(size):
    """Let no file of this process become larger than so many bytes."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def is_odd(report):
    """Return True for a report of a loss, or of no end: the run that was disturbed, or stopped, may
    have ended when all was done."""
    wrong = any(report[name] for name in ("lost", "books", "feeds", "malformed"))
    is_sound = (report["status"], report["reason"]) in ((0, "finished"), report["first"])
    is_sound |= report["stops"] > 0 and report["reason"] in ("shutdown", None)
    return wrong or not is_sound or not report["is_over"]


def main():
    """Print a line of JSON for each kind of torture."""
    parser = command_line("tests.world.torture")
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--cuts", type=int, default=0, help="of power")
    parser.add_argument("--points", type=int, default=-1, help="kill points beyond the first")
    parser.add_argument("--faults", type=int, default=0, help="calls that fail")
    parser.add_argument("--short", type=int, default=0, help="disks")
    parser.add_argument("--names", nargs="*", help="of kill points")
    parser.add_argument("--sides", nargs="*", choices=SIDES, default=SIDES, help="of them")
    parser.add_argument("--kinds", nargs="*", choices=KINDS, default=tuple(KINDS))
    parser.add_argument("--feeds", nargs="*", choices=FEEDS, default=tuple(FEEDS))
    parser.add_argument("--pages", type=int, help="of each crawl")
    options, folder = parsed(parser)
    strange = []
    with World(folder) as world:
        for what in ("kills", "cuts", "points", "faults", "short"):
            if getattr(options, what) + (what == "points") <= 0:
                continue
            began, torture = time.monotonic(), Torture(world, options)
            reports = side_by_side(getattr(torture, what)(), options.beside)
            odd = [each for each in reports if is_odd(each)]
            strange += odd
            line = {
                "what": what,
                "crawls": len(reports),
                "stops": sum(each["stops"] for each in reports),
                "kills": sum(each["kills"] for each in reports),
                "killed": sum((each["first"] or (0,))[0] == -signal.SIGKILL for each in reports),
                "lost": sum(len(each["lost"]) for each in reports),
                "repeated": sum(each["repeated"] for each in reports),
                "stale": sum(each["stale"] for each in reports),
                "odd": odd,
                "seconds": round(time.monotonic() - began, 1),
            }
            print(json.dumps(line), flush=True)
    if not strange:
        shutil.rmtree(folder)
    sys.exit(bool(strange))


if __name__ == "__main__":
    main()
