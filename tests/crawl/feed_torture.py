"""Crawls with feeds that die in every way, are resumed, and must have each item once.

`python -m tests.crawl.feed_torture --kills 1000` prints a line of JSON; its exit status is
1 if an item was missing or twice in a feed.
"""

import errno
import os
import random
import signal
import sqlite3
import time
from collections import Counter
from contextlib import closing
from itertools import product

from scrapy_bloom.sqlite.rounds import KEPT, OVER
from scrapy_bloom.sqlite.scheduler import DurableScheduler
from tests.crawl.feed_crawls import (
    FEEDS,
    SETTINGS,
    SMALL_BATCHES,
    ItemSpider,
    feeds_in,
    items_of,
)
from tests.crawl.harness import FORCED, RECEIVED, Crawl, side_by_side
from tests.crawl.mutants import MUTANTS
from tests.crawl.points import FEED_CALLS, Points, calls_of
from tests.crawl.torture import SIDES, VARIANTS, about, cut_crawls, parser_of, run_parts

STOPS = ("kill", "kill", "kill", "int", "term", "twice")
"""How a run ends before its end; the last is Ctrl-C two times."""


def crawl_of(world, name, variant, pages, feeds=FEEDS, **settings):
    """Return a crawl whose feeds are in its folder."""
    folder = world.folder / name
    return Crawl(
        name,
        pages,
        *variant,
        settings={**SETTINGS, "FEEDS": feeds_in(folder, feeds), **settings},
        spider=ItemSpider,
    )


def whole(world, pages, feeds=FEEDS):
    """Return the items of each feed of a crawl that is not stopped; each variant has them."""
    number = len([*world.folder.glob("whole*")])
    crawl = crawl_of(world, f"whole{number}", VARIANTS[0], pages, feeds)
    run = world.start(crawl, job=False).wait()
    assert run.reason == "finished", run.log
    return {name: items_of(run.folder, name) for name in feeds}


def difference(folder, expected):
    """Return what is wrong with the feeds in `folder`, by their names."""
    wrong = {}
    for name, items in expected.items():
        try:
            found = items_of(folder, name)
        except Exception as error:  # noqa: BLE001 - whatever makes a file unreadable
            wrong[name] = repr(error)
            continue
        missing, surplus = items - found, found - items
        if missing or surplus:
            wrong[name] = {"missing": missing.total(), "surplus": surplus.total()}
    return wrong


def report(crawl, run, expected, **more):
    """Return what became of a crawl that is over; after a power cut items may come again."""
    inside = "job" if all("/job/" in uri for uri in crawl.settings["FEEDS"]) else ""
    wrong = difference(run.folder / inside, expected)
    if inside:
        wrong = {
            name: what for name, what in wrong.items() if isinstance(what, str) or what["missing"]
        }
    ok = not wrong and is_over(run.folder / "job")
    return {**about(crawl, run, **more), "wrong": wrong, "ok": ok}


def is_over(job):
    """Return True if the round of a job is, with pages that have failed or without."""
    try:
        with closing(sqlite3.connect(f"file:{job}/requests.sqlite?mode=ro", uri=True)) as file:
            phases = file.execute("SELECT phase FROM rounds").fetchall()
            return phases in ([(OVER,)], [(KEPT,)])
    except sqlite3.Error:
        return False


def stop(run, how):
    """Stop a run in one of STOPS. Yields until the signals are sent."""
    if how == "kill":
        run.kill()
        return
    numbers = FORCED if how == "twice" else (signal.SIGTERM if how == "term" else signal.SIGINT,)
    received = run.log.count(RECEIVED)
    for sent, number in enumerate(numbers):
        # one that is sent before the last one is received may be taken for the same
        while not run.ended and not (
            run.handles_signals and run.log.count(RECEIVED) >= received + sent
        ):
            yield
        if run.ended:
            return
        time.sleep(random.random() * 0.02 if sent else 0)
        os.kill(run.pid, number)


def torn(folder, feeds=FEEDS):
    """Return the feeds that are not well-formed."""
    wrong = {}
    for name in feeds:
        try:
            items_of(folder, name)
        except Exception as error:  # noqa: BLE001, PERF203 - see difference
            wrong[name] = repr(error)
    return wrong


def stopped(world, crawl, chance, expected, stops, before=None, after_stop=None):
    """Stop a crawl at random moments in these ways; then let it end."""
    left, done, malformed = [*stops], [], []
    while True:
        run = world.start(crawl, before)
        stop_at, answers = float("inf"), float("inf")
        if left:
            if chance.random() < 0.2:
                stop_at = time.monotonic() + chance.uniform(0, 0.6)
            else:
                share = chance.uniform(1, 2.2 * crawl.pages / len(stops))
                answers = len(world.answers(crawl)) + share
        how = None
        while not run.ended:
            if how is None and time.monotonic() >= stop_at:
                how = left.pop(0)
                yield from stop(run, how)
            elif len(world.answers(crawl)) > answers:
                answers = float("inf")
                stop_at = time.monotonic() + chance.uniform(0, 0.15)
            yield
        if how is not None:
            done.append(how)
            if after_stop is not None:
                after_stop(how)
        if how is None or is_over(run.folder / "job"):
            kills = done.count("kill")
            yield report(crawl, run, expected, kills=kills, stops=done, malformed=malformed)
        # a second Ctrl-C ends a process as a kill does
        if how in ("int", "term") and run.reason == "shutdown" and (wrong := torn(run.folder)):
            malformed.append(wrong)


def random_stops(world, *, kills, seed, beside=3, pages=60, mutant=None, feeds=FEEDS):
    """Stop crawls, one to six times each, until they were killed so often."""
    chance = random.Random(seed)
    expected = whole(world, pages, feeds)
    done = []

    def crawls():
        number = 0
        while done.count("kill") < kills:
            variant = VARIANTS[number % len(VARIANTS)]
            crawl = crawl_of(world, f"stopped{number}", variant, pages, feeds)
            own = random.Random(f"{seed} {number}")
            plan = chance.choices(STOPS, k=chance.randint(1, 6))
            before = mutant and MUTANTS[mutant]
            yield stopped(world, crawl, own, expected, plan, before, done.append)
            number += 1

    return side_by_side(crawls(), beside)


SMALL = {"BLOOM_CAPACITY": 10}
FEW = ("all.jl", "over.json", "all.csv", "all.json.gz", "shelf:whole.json", SMALL_BATCHES)
"""Feeds that need each call there is."""


def often():
    """Commit as often as can be."""
    DurableScheduler.commit_operations = 5
    DurableScheduler.commit_seconds = 0.005


def calls(world, pages):
    """Count the points of a small crawl by their names."""
    crawl = crawl_of(world, "calls", VARIANTS[0], pages, FEW, **SMALL)
    return Counter(calls_of(world, crawl, often))


def disturbed(world, crawl, expected, disturb, point, mutant=None, *, second=False):
    """Call `disturb` in a crawl's first run, or its `second` after a kill; then resume it."""

    def before(disturb=disturb):
        if mutant:
            MUTANTS[mutant]()
        often()
        disturb()

    if second:
        first = world.start(crawl, before=lambda: before(Points("sql COMMIT", 6, "after").lay))
        while not first.ended:
            yield
    first = world.start(crawl, before)
    while not first.ended:
        yield
    reason, last = first.reason, first
    is_whole = is_over(first.folder / "job") and not difference(first.folder, expected)
    if reason != "finished" or not is_whole:
        last = world.start(crawl, mutant and MUTANTS[mutant])
    while not last.ended:
        yield
    yield report(crawl, last, expected, point=point, first=(first.status, reason), malformed=[])


def kill_points(
    world, *, seed, beside=3, pages=14, mutant=None, numbers=1, names=None, sides=SIDES
):
    """Die before and after calls on the feeds, in a first run or in one after a kill."""
    chance = random.Random(seed)
    expected = whole(world, pages, FEW)
    jobs = []
    for name, count in sorted(calls(world, pages).items()):
        if name not in (names or FEED_POINTS):
            continue
        chosen = {1, *chance.sample(range(1, count + 1), min(numbers, count))}
        for number, action in product(sorted(chosen), sides):
            variant = VARIANTS[len(jobs) % len(VARIANTS)]
            crawl = crawl_of(world, f"point{len(jobs)}", variant, pages, FEW, **SMALL)
            lay = Points(name, number, action).lay
            second = name == "recover" or chance.random() < 0.3
            point = f"{action} {name} {number}{' of the second run' * second}"
            jobs.append(disturbed(world, crawl, expected, lay, point, mutant, second=second))
    return side_by_side(jobs, beside)


FEED_POINTS = (
    *("before_commit", "after_commit", "record", "recover", "append", "_write"),
    *("_replace", "Path.replace", "sql COMMIT"),
    *(f"feed {name}" for name in FEED_CALLS),
)


def full_disks(world, *, seed, beside=3, pages=14, count=12):
    """Let calls that write to feeds fail as on a full disk, once or from then on."""
    chance = random.Random(seed)
    expected = whole(world, pages, FEW)
    found = calls(world, pages)
    jobs = []
    for number in range(count):
        variant = VARIANTS[number % len(VARIANTS)]
        crawl = crawl_of(world, f"full{number}", variant, pages, FEW, **SMALL)
        name = ("feed write", "feed fsync", "_write")[number % 3]
        call = chance.randint(1, found[name])
        always = chance.random() < 0.5
        error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        lay = Points(name, call, error, always=always).lay
        point = f"{name} {call}{' and all later ones' * always}"
        jobs.append(disturbed(world, crawl, expected, lay, point))
    return side_by_side(jobs, beside)


def power_cuts(world, *, pages=30, **options):
    """Cut the power of crawls with the feeds in the job directory."""
    names = ("all.jl", "all.csv", "all.json", "all.json.gz")
    expected = whole(world, pages, names)

    def crawl_in_job(name, variant):
        crawl = crawl_of(world, name, variant, pages, names)
        crawl.settings["FEEDS"] = feeds_in(world.folder / name / "job", names)
        return crawl

    def story(crawl, chance, before, after):
        return stopped(world, crawl, chance, expected, ("kill", "kill"), before, after)

    return cut_crawls(world, crawl_in_job, story, **options)


def figures(reports):
    """Return the odd reports."""
    return {"odd": [each for each in reports if not each["ok"] or each["malformed"]]}


def parts(options, common, broken, points):
    """Return the parts with their names, whether they are wanted, and arguments."""
    stops = {"kills": options.kills, "feeds": options.feeds, **broken}
    return (
        ("random stops", options.kills, random_stops, stops),
        ("power cuts", options.cuts, power_cuts, {"cuts": options.cuts, **broken}),
        ("kill points", options.points + 1, kill_points, points),
        ("full disks", options.full, full_disks, {"count": options.full, **common}),
    )


def main():
    """Run from the command line."""
    parser = parser_of("tests.crawl.feed_torture")
    parser.add_argument("--full", type=int, default=0, help="disks")
    parser.add_argument("--feeds", nargs="*", choices=FEEDS, default=tuple(FEEDS))
    run_parts(parser, parts, figures)


if __name__ == "__main__":
    main()
