"""Crawls that die in every way, are resumed, and must have lost nothing.

`python -m tests.crawl.torture --kills 1000` prints a line of JSON; its exit status is 1 if
a page was lost.
"""

import errno
import itertools
import json
import os
import random
import resource
import shutil
import sqlite3
import sys
import time
from collections import Counter
from dataclasses import replace

from scrapy_bloom.crawl.ledger import Ledger
from scrapy_bloom.sqlite.scheduler import DurableScheduler
from tests.crawl.harness import ASYNCIO, SELECT, Crawl, World, command_line, parsed, side_by_side
from tests.crawl.mutants import MUTANTS
from tests.crawl.points import OUTSIDE, Points, calls_of
from tests.crawl.powercut import Synced, cut_power
from tests.crawl.site import KINDS
from tests.stored import wrong_books

VARIANTS = list(itertools.product((ASYNCIO, SELECT), (False, True)))


def whole(world, pages, kinds=tuple(KINDS)):
    """Return what each variant of a crawl fetches if nobody stops it."""
    settings = {"BLOOM_DROP_EARLY": False}
    crawl = Crawl(f"whole{pages}", pages, kinds=kinds, settings=settings)
    run = world.start(crawl, job=False).wait()
    assert run.reason == "finished", run.log
    return world.pages(crawl)


def about(crawl, run, **more):
    """Return which crawl it is, and how its last run ended."""
    return {
        "crawl": crawl.name,
        "reactor": crawl.reactor.rpartition(".")[2],
        "slow": crawl.slow,
        **more,
        "status": run.status,
        "reason": run.reason,
    }


def report(world, crawl, run, expected, **more):
    """Return what became of a crawl that is over."""
    found = Counter(page for _, page in world.answers(crawl))
    early = world.folder / crawl.name / "job.early"
    return {
        **about(crawl, run, **more),
        "lost": sorted(expected - set(found)),
        "early": early.read_text().splitlines() if early.exists() else [],
        "repeated": sum(count - 1 for count in found.values() if count > 1),
    }


def stale(answers, kills, commits):
    """Return how many answers were repeated that came before the last commit."""
    last, count = {}, 0
    for at, page in answers:
        if page in last:
            kill = next((kill for kill in kills if last[page] < kill < at), None)
            count += kill is None or any(last[page] < commit < kill for commit in commits)
        last[page] = at
    return count


def note_commits(path, mutant=None):
    """Return what makes a process note in `path` when it has committed."""

    def before():
        if mutant:
            MUTANTS[mutant]()
        commit = Ledger.commit

        def commit_and_note(self):
            commit(self)
            with path.open("a") as file:
                file.write(f"{time.monotonic()}\n")

        Ledger.commit = commit_and_note

    return before


def order(chance):
    """Return settings that may change between two starts of a job."""
    kinds = [f"scrapy.squeues.Pickle{name}DiskQueue" for name in ("Lifo", "Fifo")]
    queues = "DownloaderAwarePriorityQueue", "ScrapyPriorityQueue"
    return {
        "SCHEDULER_DISK_QUEUE": chance.choice(kinds),
        "SCHEDULER_START_DISK_QUEUE": chance.choice([None, *kinds]),
        "SCHEDULER_PRIORITY_QUEUE": f"scrapy.pqueues.{chance.choice(queues)}",
        "BLOOM_BUDGET": chance.choice([{}, {"*": 10**6}]),
    }


def killed(world, crawl, chance, expected, kills, *, before=None, after_kill=None):
    """Kill a crawl `kills` times at random moments, then let it end; each start has an order and a
    budget of its own."""
    dead, books = [], []
    while True:
        run = world.start(replace(crawl, settings={**crawl.settings, **order(chance)}), before)
        kill_at = answers = float("inf")
        if len(dead) < kills:
            if chance.random() < 0.25:
                kill_at = time.monotonic() + chance.uniform(0, 0.6)
            else:
                share = chance.uniform(1, 1.3 * len(expected) / kills)
                answers = len(world.answers(crawl)) + share
        while not run.ended and time.monotonic() < kill_at:
            if len(world.answers(crawl)) > answers:
                # some while later, so that it falls on either side of a commit
                answers = float("inf")
                kill_at = time.monotonic() + chance.uniform(0, 0.15)
            yield
        if run.status is not None:
            noted = world.folder / f"{crawl.name}.commits"
            commits = [float(line) for line in noted.read_text().split()] if noted.exists() else []
            old = stale(world.answers(crawl), dead, commits)
            yield report(world, crawl, run, expected, kills=len(dead), stale=old, books=books)
        run.kill()
        run.wait()
        dead.append(time.monotonic())
        if after_kill is not None:
            after_kill()
        books += wrong_books(world.folder / crawl.name / "job")


def random_kills(
    world, *, kills, seed, beside=3, pages=100, mutant=None, kinds=tuple(KINDS), later=0
):
    """Kill crawls, one to eight times each, until `kills` were; half of the pages are `later`."""
    chance = random.Random(seed)
    expected = whole(world, pages, kinds)
    dead = []

    def crawls():
        number = 0
        while len(dead) < kills:
            crawl = Crawl(
                f"killed{number}",
                pages,
                *VARIANTS[number % len(VARIANTS)],
                kinds,
                attributes={"later": later},
            )
            yield killed(
                world,
                crawl,
                random.Random(f"{seed} {crawl.name}"),
                expected,
                chance.randint(1, 8),
                before=note_commits(world.folder / f"{crawl.name}.commits", mutant),
                after_kill=lambda: dead.append(None),
            )
            number += 1

    return side_by_side(crawls(), beside)


def cut_crawls(world, crawl_of, story, *, cuts, seed, beside=3, mutant=None):
    """Cut the power of crawls at random moments, up to twice each, so often."""
    done = []

    def crawls():
        for number in itertools.count():
            if len(done) >= cuts:
                return
            crawl = crawl_of(f"cut{number}", VARIANTS[number % len(VARIANTS)])
            chance, folder = random.Random(f"{seed} {number}"), world.folder / crawl.name

            def before(folder=folder):
                if mutant:
                    MUTANTS[mutant]()
                Synced(folder).lay()

            def after(*_, folder=folder, chance=chance):
                cut_power(folder, chance)
                done.append("cut")

            yield story(crawl, chance, before, after)

    return side_by_side(crawls(), min(beside, (cuts + 1) // 2))


def power_cuts(world, *, pages=60, later=0, **options):
    """Cut the power of crawls."""
    expected = whole(world, pages)
    more = {"settings": {"BLOOM_CAPACITY": 30}, "attributes": {"later": later}}

    def story(crawl, chance, before, after):
        return killed(world, crawl, chance, expected, 2, before=before, after_kill=after)

    return cut_crawls(
        world, lambda name, variant: Crawl(name, pages, *variant, **more), story, **options
    )


SMALL = {"BLOOM_CAPACITY": 10}
"""Makes the filter of a small crawl grow."""


def calls(world, pages, mutant=None):
    """Return the names of the points of a small crawl, in the order of its calls."""

    def prepare():
        DurableScheduler.commit_operations = 5
        if mutant:
            MUTANTS[mutant]()

    return calls_of(world, Crawl("calls", pages, settings=SMALL), prepare)


def disturbed(world, crawl, expected, disturb, point, mutant=None):
    """Call `disturb` in the process of a crawl's first run, and then resume it."""

    def before():
        if mutant:
            MUTANTS[mutant]()
        DurableScheduler.commit_operations = 5
        disturb()

    first = world.start(crawl, before)
    while not first.ended:
        yield
    ended = first.reason
    second = world.start(crawl, mutant and MUTANTS[mutant])
    while not second.ended:
        yield
    yield report(world, crawl, second, expected, point=point, first=(first.status, ended))


SIDES = ("before", "after")


def kill_points(
    world, *, seed, beside=3, pages=20, mutant=None, numbers=1, names=None, sides=SIDES
):
    """Die before and after the first call of each kind, and `numbers` later ones."""
    chance = random.Random(seed)
    expected = whole(world, pages)
    jobs = []
    for name, count in sorted(Counter(calls(world, pages, mutant)).items()):
        if names and name not in names:
            continue
        chosen = {1, *chance.sample(range(1, count + 1), min(numbers, count))}
        for number, action in itertools.product(sorted(chosen), sides):
            variant = VARIANTS[len(jobs) % len(VARIANTS)]
            crawl = Crawl(f"point{len(jobs)}", pages, *variant, settings=SMALL)
            lay = Points(name, number, action).lay
            point = f"{action} {name} {number}"
            jobs.append(disturbed(world, crawl, expected, lay, point, mutant))
    return side_by_side(jobs, beside)


FAULTS = {
    "sql": ("disk I/O error", "database or disk is full", "database is locked"),
    "os": (errno.EIO, errno.ENOSPC, errno.EACCES),
}


def failure(what):
    """Return the exception that a call fails with."""
    if isinstance(what, int):
        return OSError(what, os.strerror(what))
    return sqlite3.OperationalError(what)


def faults(world, *, seed, beside=3, pages=12, sample=None):
    """Let each call on the database and on files fail, once and from then on."""
    chance = random.Random(seed)
    expected = whole(world, pages)
    outside = [name for name in calls(world, pages) if name.startswith(OUTSIDE)]
    plans = [
        (number, what, always)
        for number, name in enumerate(outside, 1)
        for what in FAULTS["sql" if name.startswith("sql") else "os"]
        for always in (False, True)
    ]
    jobs = []
    for number, what, always in chance.sample(plans, sample) if sample else plans:
        variant = VARIANTS[len(jobs) % len(VARIANTS)]
        crawl = Crawl(f"fault{len(jobs)}", pages, *variant, settings=SMALL)
        lay = Points(None, number, failure(what), always=always).lay
        point = f"{what!r} at call {number}{' and all later ones' * always}"
        jobs.append(disturbed(world, crawl, expected, lay, point))
    return side_by_side(jobs, beside)


def short_disks(world, *, seed, beside=3, pages=100, count=6):
    """Let no file of a crawl's first run become larger than a random size."""
    chance = random.Random(seed)
    expected = whole(world, pages)
    jobs = []
    for number in range(count):
        variant = VARIANTS[number % len(VARIANTS)]
        crawl = Crawl(f"short{number}", pages, *variant, settings={"BLOOM_CAPACITY": 1000})
        size = chance.randrange(10_000, 400_000)

        def limit(size=size):
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

        jobs.append(disturbed(world, crawl, expected, limit, f"{size} bytes"))
    return side_by_side(jobs, beside)


def parser_of(module):
    """Return a parser of what any torture takes."""
    parser = command_line(module, MUTANTS)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--cuts", type=int, default=0, help="of power")
    parser.add_argument("--points", type=int, default=-1, help="kill points beyond the first")
    parser.add_argument("--names", nargs="*", help="of kill points")
    parser.add_argument("--sides", nargs="*", choices=SIDES, default=SIDES, help="of them")
    parser.add_argument("--pages", type=int, help="of each crawl")
    return parser


def run_parts(parser, parts_of, figures):
    """Print a line of JSON for each part; the exit status is 1 if its `figures` are odd."""
    options, folder = parsed(parser)
    common = {"seed": options.seed, "beside": options.beside}
    if options.pages:
        common["pages"] = options.pages
    broken = {**common, "mutant": options.mutant}
    points = {"numbers": options.points, "names": options.names, "sides": options.sides, **broken}
    strange = []
    with World(folder) as world:
        for what, wanted, run, arguments in parts_of(options, common, broken, points):
            if not wanted:
                continue
            began = time.monotonic()
            reports = run(world, **arguments)
            line = {
                "what": what,
                "crawls": len(reports),
                "kills": sum(r.get("kills", 1) for r in reports),
                **figures(reports),
                "killed": sum(r.get("first", (0,))[0] == -9 for r in reports),
                "seconds": round(time.monotonic() - began, 1),
            }
            strange += line["odd"]
            print(json.dumps(line), flush=True)
    if not strange:
        shutil.rmtree(folder)
    sys.exit(bool(strange))


def figures(reports):
    """Return what has become of crawls in numbers, and those with a loss or no end."""
    odd = [
        r
        for r in reports
        if r["lost"] or r["early"] or r["reason"] != "finished" or r["status"] or r.get("books")
    ]
    return {
        "lost": sum(len(r["lost"]) for r in reports),
        "early": sum(len(r["early"]) for r in reports),
        "repeated": sum(r["repeated"] for r in reports),
        "stale": sum(r.get("stale", 0) for r in reports),
        "odd": odd,
    }


def parts(options, common, broken, points):
    """Return the parts with their names, whether they are wanted, and arguments."""
    delayed = {**broken, "later": options.later}
    kills = {"kills": options.kills, "kinds": tuple(options.kinds), **delayed}
    return (
        ("random kills", options.kills, random_kills, kills),
        ("power cuts", options.cuts, power_cuts, {"cuts": options.cuts, **delayed}),
        ("kill points", options.points + 1, kill_points, points),
        ("short disks", options.short, short_disks, {"count": options.short, **common}),
        ("faults", options.faults, faults, {"sample": options.faults, **common}),
    )


def main():
    """Run from the command line."""
    parser = parser_of("tests.crawl.torture")
    parser.add_argument("--faults", type=int, default=0)
    parser.add_argument("--short", type=int, default=0, help="disks")
    parser.add_argument("--kinds", nargs="*", choices=KINDS, default=tuple(KINDS))
    parser.add_argument("--later", type=float, default=0, help="seconds of delays")
    run_parts(parser, parts, figures)


if __name__ == "__main__":
    main()
