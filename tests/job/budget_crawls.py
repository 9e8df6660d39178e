"""Real crawls with BLOOM_BUDGET of a site without an end, killed and resumed over two rounds.

`python -m tests.job.budget_crawls --kills 40` prints one line of JSON for each crawl: what each
round has asked of each slot, and what was lost, or was one thing and another.
"""

import asyncio
import json
import random
import time
from collections import Counter

import scrapy
from scrapy import Request
from scrapy.pqueues import DownloaderAwarePriorityQueue, ScrapyPriorityQueue

from scrapy_bloom.job.failed_request import CAPPED
from scrapy_bloom.sqlite_backend.job_file import check_header, reading
from scrapy_bloom.sqlite_backend.rounds import RUNNING
from tests.failures import Failed
from tests.job.harness import ASYNCIO, SELECT, Crawl, World, command_line, parsed, side_by_side
from tests.job.stored import wrong_books

BUDGET = {"*": 40, "small": 6}
SLOTS = {"small": 400, "big": 400, "finite": 20}
"""The slots of the site, and how many pages a round adds to each."""
UNFILTERED = 8
"""Pages whose number ends so are asked past the filter, which does not learn of them."""
VARIANTS = (
    (ASYNCIO, DownloaderAwarePriorityQueue),
    (SELECT, DownloaderAwarePriorityQueue),
    (ASYNCIO, ScrapyPriorityQueue),
)


def links(slot, page, today):
    """Return what hangs on a page: two of its own, one of the next slot or a known one at times."""
    if page == "start":
        return [(slot, f"{today}-0")]
    day, number = map(int, page.split("-"))
    slots = [*SLOTS]
    found = [(slot, child) for child in (2 * number + 1, 2 * number + 2)]
    others = [(slot, number // 2)]
    if number % 4 == 0:
        others.append((slots[(slots.index(slot) + 1) % len(slots)], number))
    found += [(slot, number) for slot, number in others if number % 10 != UNFILTERED]
    return [(slot, f"{day}-{number}") for slot, number in found if number < SLOTS[slot]]


class Site:
    """Notes what it is asked for and answers with 200; some pages are down for a while."""

    def __init__(self, folder, delay):
        self._folder = folder
        self._delay = delay
        self._asked = Counter()

    async def answer(self, _method, path, _body):
        """Answer as `serve` of the tests' server wants it."""
        await asyncio.sleep(random.random() * self._delay)
        _, crawl, kind, slot, page = path.split("/")
        today = 1 if (is_down := (self._folder / f"{crawl}.down").exists()) else 2
        number = 0 if page == "start" else int(page.split("-")[1])
        self._asked[path] += 1
        if kind == "page":
            self._note(crawl, "asked", slot, page, today)
            if number % 7 == 6:
                return 302, {"Location": f"/{crawl}/landed/{slot}/{page}"}, b""
            if (is_down and number % 5 == 4) or (number % 11 == 10 and self._asked[path] == 1):
                return 503, {}, b""
        self._note(crawl, "answered", slot, page, today)
        return 200, {}, json.dumps(links(slot, page, today)).encode()

    def _note(self, crawl, what, *found):
        with (self._folder / f"{crawl}.{what}").open("a") as log:
            log.write(" ".join(map(str, found)) + "\n")


class TrapWorld(World):
    """A folder with that site."""

    def site(self, delay):
        """Return the site, in the process that serves it."""
        return Site(self.folder, delay)

    def noted(self, crawl, what):
        """Return what the site has noted so far: slot, page and day of each."""
        try:
            whole, _, _ = (self.folder / f"{crawl.name}.{what}").read_text().rpartition("\n")
        except FileNotFoundError:
            return []
        return [tuple(line.split()) for line in whole.splitlines()]


class TrapSpider(scrapy.Spider):
    """Follows each link; some of them without the filter."""

    name = "trap"
    custom_settings = {"RETRY_TIMES": 1, "LOG_LEVEL": "INFO", "BLOOM_BUDGET": BUDGET}  # noqa: RUF012

    async def start(self):
        for slot in SLOTS:
            yield self.request(slot, "start", dont_filter=True)

    def request(self, slot, page, **options):
        meta = {"download_slot": slot}
        return Request(f"{self.site}/page/{slot}/{page}", meta=meta, **options)

    def parse(self, response):
        for slot, page in response.json():
            yield self.request(slot, page, dont_filter=page.endswith(f"{UNFILTERED}"))


def story(world, crawl, chance, kills, after_kill):
    """Kill a crawl so often in each of two rounds; yield what became of it and its retries."""
    folder, dead, books = world.folder / crawl.name / "job", [], []
    store, down = Failed(folder), world.folder / f"{crawl.name}.down"
    down.touch()
    for number in (1, 2):
        for left in range(kills, -1, -1):
            run = yield from one_run(world, crawl, chance, is_last=left == 0)
            if run.reason is None:
                dead.append(run)
                after_kill(run)
            books += wrong_books(folder) + uncounted(world, crawl, folder)
            # a kill may come before the round is stored, and after its end
            found, phase = round_of(folder)
            if found == number and phase != RUNNING:
                break
            if found == number == 2:
                store.retry(reasons=chance.choice([["status/*"], []]))
        down.unlink(missing_ok=True)
    yield told(world, crawl, store, len(dead)) | {"books": books}


def uncounted(world, crawl, job):
    """Return the slots of which more was asked in the round than is counted."""
    number, _ = round_of(job)
    asked = {
        (slot, page) for slot, page, today in world.noted(crawl, "asked") if today == f"{number}"
    }
    if not asked:
        return []
    with reading(job / "requests.sqlite") as connection:
        counted = dict(connection.execute("SELECT name, counted FROM slot"))
    pages = Counter(slot for slot, _ in asked)
    return [
        f"{slot}: {pages[slot]} asked, {counted}" for slot in pages if pages[slot] > counted[slot]
    ]


def one_run(world, crawl, chance, *, is_last):
    """Run the process once, to its end or to a kill; return the run."""
    run = world.start(crawl)
    kill_at = answers = float("inf")
    if not is_last:
        if chance.random() < 0.3:
            kill_at = time.monotonic() + chance.uniform(0, 0.6)
        else:
            answers = len(world.noted(crawl, "asked")) + chance.uniform(1, 40)
    while not run.ended and time.monotonic() < kill_at:
        if len(world.noted(crawl, "asked")) > answers:
            # some while later, so that it falls on either side of a commit
            answers, kill_at = float("inf"), time.monotonic() + chance.uniform(0, 0.15)
        yield
    run.kill()
    return run.wait()


def round_of(job):
    """Return number and phase of the last round of a job, zeros without one."""
    if not check_header(job / "requests.sqlite"):
        return 0, 0
    with reading(job / "requests.sqlite") as connection:
        return connection.execute("SELECT number, phase FROM rounds").fetchone() or (0, 0)


def told(world, crawl, store, kills):
    """Return what became of a crawl that is over."""
    asked = {(today, slot, page) for slot, page, today in world.noted(crawl, "asked")}
    answered = {(slot, page) for slot, page, _ in world.noted(crawl, "answered")}
    starts = {(slot, "start") for slot in SLOTS}
    reached = {*starts}
    for slot, page, today in world.noted(crawl, "answered"):
        reached.update(links(slot, page, today))
    kept = [(each.reason, tuple(each.url.split("/")[-2:])) for each in store.requests()]
    capped = {page for reason, page in kept if reason == CAPPED}
    failed = {page for reason, page in kept if reason != CAPPED}
    return {
        "crawl": crawl.name,
        "kills": kills,
        "round": round_of(world.folder / crawl.name / "job"),
        "pages": [Counter(slot for day, slot, _ in asked if day == today) for today in "12"],
        "capped": len(capped),
        "lost": sorted(reached - answered - capped - failed),
        "from nowhere": sorted((answered | capped | failed) - reached),
        "twice": sorted((answered & (capped | failed) | capped & failed) - starts)
        + sorted(page for page, count in Counter(kept).items() if count > 1),
    }


def crawls(world, options):
    """Yield the stories, until so many processes were killed."""
    chance, dead = random.Random(options.seed), []

    def after_kill(run):
        dead.extend([run] * (run.reason is None))

    number = 0
    while len(dead) < options.kills:
        reactor, queue = VARIANTS[number % len(VARIANTS)]
        crawl = Crawl(f"trap{number}", reactor=reactor, spider=TrapSpider)
        crawl.settings["SCHEDULER_PRIORITY_QUEUE"] = queue
        of_crawl = random.Random(f"{options.seed} {number}")
        yield story(world, crawl, of_crawl, chance.randint(1, 4), after_kill)
        number += 1


def main():
    """Run from the command line."""
    parser = command_line("tests.job.budget_crawls")
    parser.add_argument("--kills", type=int, default=40)
    options, folder = parsed(parser)
    with TrapWorld(folder) as world:
        for report in side_by_side(crawls(world, options), options.beside):
            print(json.dumps(report))


if __name__ == "__main__":
    main()
