"""Rounds of real crawls that are killed, stopped and resumed.

`python -m tests.crawl.round_crawls kills` prints one line of JSON for each crawl of that
story (of all stories without a name): what was lost, and what came again that should not.
"""

import json
import os
import pickle
import random
import re
import shutil
import signal
import sqlite3
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from pathlib import Path

import scrapy
from scrapy import Request, signals
from scrapy.exceptions import CloseSpider, DontCloseSpider

from scrapy_bloom.crawl.ledger import Ledger
from scrapy_bloom.sqlite.scheduler import DurableScheduler
from tests.crawl.harness import (
    ASYNCIO,
    FORCED,
    RECEIVED,
    SELECT,
    Crawl,
    World,
    command_line,
    parsed,
    side_by_side,
)
from tests.crawl.mutants import MUTANTS
from tests.crawl.points import Points, calls_of
from tests.crawl.spider import pause
from tests.failures import Failed

DOCUMENT = Path(__file__).parent.parent.parent / "docs" / "pipelines.md"
START = ("plain/900", "plain/900", "moved/901", "flaky/902", "unserializable/904", "plain/903")
LOGIN = "plain/905"
PAGES = 3
"""Behind each start page."""
FED = 8
"""Pages that come one by one."""
RETURNING = 60
"""Pages of which some come back."""
MADE = 3
"""The commits before that make the file and open it."""
REACTORS = (ASYNCIO, SELECT)
POINTS = ("sql COMMIT", "sql INSERT", "sql DELETE", "close")


def documented_pipeline():
    """Return the pipeline of the document."""
    (code,) = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    names = {"__name__": __name__}
    exec(code, names)
    return names["BooksPipeline"]


BooksPipeline = documented_pipeline()


class ReplacingMiddleware:
    """Puts another request in the place of each one that leaves start()."""

    async def process_start(self, start):
        async for thing in start:
            yield thing.replace(priority=1) if isinstance(thing, Request) else thing


class RoundSpider(scrapy.Spider):
    """Has start pages of every kind, some pages behind each, and links back to them."""

    name = "round"
    custom_settings = {  # noqa: RUF012
        "ITEM_PIPELINES": {f"{__name__}.BooksPipeline": 1},
        "SPIDER_MIDDLEWARES": {f"{__name__}.ReplacingMiddleware": 10},
        "CONCURRENT_REQUESTS": 1,
        "LOG_LEVEL": "INFO",
    }

    async def start(self):
        yield self.request(LOGIN, dont_filter=True, meta={"bloom_repeat_start": True})
        for number, page in enumerate(START):
            if number % 2:
                await pause(0.01)
            meta = {"function": pause} if page.startswith("unserializable") else {}
            yield self.request(page, dont_filter=page != "plain/903", meta=meta)
            yield {"url": f"item of start {number}", "title": ""}

    def request(self, page, **options):
        """Return a request for a page of the site."""
        return Request(f"{self.site}/{page}", **options)

    def parse(self, response):
        number = response.json()
        self.state.setdefault("pages", []).append(number)
        yield {"url": response.url.replace(self.site, ""), "title": f"page {number}"}
        if number >= 900:
            for child in range(self.pages):
                yield self.request(f"plain/{(number - 900) * 100 + child}")
            yield self.request("plain/900")
            yield self.request("plain/903")


class FedSpider(scrapy.Spider):
    """Gets page after page from its own handler of spider_idle, which stops it in the end."""

    name = "fed"
    custom_settings = {  # noqa: RUF012
        "FEEDS": {"fed.json": {"format": "json", "overwrite": True}},
        "LOG_LEVEL": "INFO",
    }

    @classmethod
    def from_crawler(cls, crawler, *arguments, **options):
        spider = super().from_crawler(crawler, *arguments, **options)
        crawler.signals.connect(spider.feed, signals.spider_idle)
        return spider

    async def start(self):
        yield Request(f"{self.site}/plain/0", dont_filter=True)

    def feed(self):
        number = self.state["number"] = self.state.get("number", 0) + 1
        if number >= self.pages:
            raise CloseSpider("all fed")
        self.crawler.engine.crawl(Request(f"{self.site}/plain/{number}"))
        raise DontCloseSpider

    def parse(self, response):
        yield {"page": response.json()}


class Mark:
    """What can be stored as a pickle only."""


class ReturningSpider(scrapy.Spider):
    """Follows a tree of pages, some of them pickles, into an overwritten and an appended feed."""

    name = "returning"
    custom_settings = {  # noqa: RUF012
        "FEEDS": {
            "over.jsonl": {"format": "jsonlines", "overwrite": True},
            "append.jsonl": {"format": "jsonlines", "overwrite": False},
        },
        "LOG_LEVEL": "INFO",
    }

    async def start(self):
        yield self.request(0, dont_filter=True)

    def request(self, number, **options):
        meta = {"mark": Mark()} if number % 3 == 2 else {}
        return Request(f"{self.site}/plain/{number}", meta=meta, **options)

    def parse(self, response):
        number = response.json()
        yield {"page": number}
        for child in (2 * number + 1, 2 * number + 2):
            if child < self.pages:
                yield self.request(child)


@dataclass
class Step:
    """One start: what is done in it first, and which signals it gets after so many answers."""

    before: object = None
    signals: tuple = ()
    at: int = 0
    settings: dict = field(default_factory=dict)


def story(world, crawl, expected, steps, mutant=None):
    """Start a crawl once for each step; yield what became of it."""
    settings, runs = dict(crawl.settings), []
    for step in steps:
        crawl.settings.clear()
        crawl.settings.update({**settings, **step.settings})
        began, to_send = len(world.answers(crawl)), list(step.signals)
        run = world.start(crawl, prepared(world.folder / crawl.name, step, mutant))
        received = run.log.count(RECEIVED) + len(to_send)
        while not run.ended:
            # one that is sent before the last one is received may be taken for the same
            is_time = to_send and len(world.answers(crawl)) - began >= step.at
            if is_time and run.log.count(RECEIVED) + len(to_send) >= received:
                os.kill(run.pid, to_send.pop(0))
            yield None
        runs.append(seen(world, crawl, run, began))
    yield {"runs": runs, **result(world, crawl, expected)}


def prepared(folder, step, mutant):
    """Return what is done first in each process of a crawl."""

    def before():
        os.chdir(folder)
        if mutant:
            MUTANTS[mutant]()
        DurableScheduler.commit_operations = 3
        Ledger.preparing_share = 1  # a busy machine is no slow pipeline
        return step.before() if step.before else None

    return before


def seen(world, crawl, run, began):
    """Return what a run has done."""
    found = Counter(page for _, page in world.answers(crawl)[began:])
    folder = world.folder / crawl.name
    return {
        "status": run.status,
        "reason": run.reason,
        "answers": found.total(),
        "start": sum(found[page] for page in {*START}),
        "login": found[LOGIN],
        "skipped": run.stats.get("scheduler/start_skipped"),
        "rounds": rows(folder / "job" / "requests.sqlite", "SELECT number, phase FROM rounds"),
        "state": sorted(state(folder / "job" / "spider.state")),
        "left": left(folder / "job" / "requests.sqlite"),
    }


def left(path):
    """Return how many answers the start requests may have again that the file has not finished."""
    stored = [payload for (payload,) in rows(path, "SELECT payload FROM request")]
    waiting = [page for page in {*START} for payload in stored if page.encode() in payload]
    [(taken,)] = rows(path, "SELECT COUNT(*) FROM taken_start_requests") or [(0,)]
    return len(waiting) + 1 + len(START) - taken + 1  # of LOGIN, and a page that is asked twice


def result(world, crawl, expected):
    """Return what is missing or too much in a crawl that is over."""
    found = Counter(page for _, page in world.answers(crawl))
    folder = world.folder / crawl.name
    start_answers = Counter({page: count for page, count in found.items() if page in START})
    return {
        "crawl": crawl.name,
        "lost": sorted(expected["pages"].keys() - found.keys()),
        "lost_books": sorted(expected["books"] - books(folder)),
        "lost_state": sorted(expected["state"] - {*state(folder / "job" / "spider.state")}),
        "extra_start": (start_answers - expected["pages"]).total(),
    }


def books(folder):
    """Return what the pipeline has stored."""
    return {url for (url,) in rows(folder / "books.sqlite", "SELECT url FROM books")}


def rows(path, statement):
    """Return what is in a database, nothing if there is no such table."""
    try:
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
            return connection.execute(statement).fetchall()
    except sqlite3.Error:
        return []


def state(path):
    """Return the pages that spider.state has noted."""
    try:
        return pickle.loads(path.read_bytes()).get("pages", [])
    except (FileNotFoundError, EOFError):
        return []


# Stories


def undisturbed(world):
    """Return what a crawl does that nobody stops."""
    crawl = Crawl("undisturbed", PAGES, spider=RoundSpider)
    run = world.start(crawl, prepared(world.folder / crawl.name, Step(), None)).wait()
    assert run.reason == "finished", run.log
    folder = world.folder / crawl.name
    return {
        "pages": Counter(page for _, page in world.answers(crawl)),
        "books": books(folder),
        "state": {*state(folder / "job" / "spider.state")},
    }


def round_story(world, expected, options, name, *steps):
    """Tell the story of a crawl with start pages of every kind."""
    crawl = Crawl(name, PAGES, spider=RoundSpider)
    return story(world, crawl, expected, steps, options.mutant)


def stock(world, expected, options):
    """Scrapy's own scheduler fetches the same pages as often."""
    crawl = Crawl("stock", PAGES, spider=RoundSpider)
    crawl.settings["BLOOM_DURABLE"] = False
    return [story(world, crawl, expected, [Step()])]


def kills(world, expected, options):
    """SIGKILL at random moments, one to three a crawl."""
    chance = random.Random(options.seed)
    stories = []
    for number in range(options.count):
        crawl = Crawl(f"kill{number}", PAGES, reactor=REACTORS[number % 2], spider=RoundSpider)
        steps = [
            Step(signals=[signal.SIGKILL], at=chance.randrange(12))
            for _ in range(chance.randint(1, 3))
        ]
        stories.append(story(world, crawl, expected, [*steps, Step()], options.mutant))
    return stories


def points(world, expected, options):
    """Death before and after commits and other calls on the database, or of `names` only."""
    chance = random.Random(options.seed)
    crawl = Crawl("calls", PAGES, spider=RoundSpider)
    calls = calls_of(world, crawl, prepared(world.folder / crawl.name, Step(), None))
    stories = []
    for name, total in sorted(Counter(calls).items()):
        if name not in (options.names or POINTS):
            continue
        first = MADE if name == "sql COMMIT" else 1
        wanted = options.count if name == "sql COMMIT" else 1
        # not the last ones: a crawl on a busy machine has fewer
        possible = range(first, max(total - 2, first + 1))
        numbers = sorted(chance.sample(possible, min(wanted, len(possible))))
        for number, action in product(numbers, ("before", "after")):
            steps = Step(Points(name, number, action).lay), Step()
            stories.append(round_story(world, expected, options, f"point{len(stories)}", *steps))
    return stories


def second(world, expected, options):
    """Death in the second run of a round, and in the second round."""
    stop, kill = Step(signals=[signal.SIGINT], at=5), Step(signals=[signal.SIGKILL], at=5)
    return [round_story(world, expected, options, "second", stop, kill, Step(), kill, Step())]


def stops(world, expected, options):
    """Ctrl-C, and two of them at once."""
    return [
        round_story(world, expected, options, name, Step(signals=signals, at=5), Step())
        for name, signals in (("stop1", FORCED[:1]), ("stop2", FORCED))
    ]


def daily(world, expected, options):
    """One round after the other."""
    return [round_story(world, expected, options, "daily", Step(), Step(), Step())]


def refused(world, expected, options):
    """Between two runs of a round, starts that are refused, or whose pipeline is."""

    def unreachable():
        def open_spider(self):
            raise ConnectionError("the database does not answer")

        BooksPipeline.open_spider = open_spider

    steps = [
        Step(signals=[signal.SIGINT], at=5),
        Step(unreachable),
        Step(settings={"BLOOM_CAPACITY": "much"}),
        Step(settings={"BLOOM_REPEAT_START": "perhaps"}),
        Step(),
        Step(unreachable),
        Step(),
    ]
    return [round_story(world, expected, options, "refused", *steps)]


def gone(world, expected, options):
    """The pipeline's database is gone in the middle, and at the end."""
    flush = BooksPipeline.flush

    def gone_in_the_middle(self):
        if len(rows("books.sqlite", "SELECT url FROM books")) >= 5:
            raise ConnectionError("the database does not answer")
        flush(self)

    def gone_at_the_end(self):
        if hasattr(self, "is_closing"):
            raise ConnectionError("the database does not answer")
        flush(self)

    def close_spider(self):
        self.is_closing = True

    def replace(function):
        BooksPipeline.flush = function
        BooksPipeline.close_spider = close_spider

    return [
        round_story(world, expected, options, each.__name__, Step(partial(replace, each)), Step())
        for each in (gone_in_the_middle, gone_at_the_end)
    ]


def fed(world, _, options):
    """A spider with nothing left but what its handler of spider_idle would give is stopped."""
    steps = {
        "interrupted": Step(signals=[signal.SIGINT], at=3),
        "counted": Step(settings={"CLOSESPIDER_PAGECOUNT": 3}),
    }

    pages = Counter(f"plain/{number}" for number in range(FED))
    expected = {"pages": pages, "books": set(), "state": set()}

    def stories(name, step):
        crawl = Crawl(name, FED, spider=FedSpider)
        for report in story(world, crawl, expected, [step, Step()], options.mutant):
            if report is not None:
                report["items"] = json.loads((world.folder / name / "fed.json").read_text())
            yield report

    return [stories(name, step) for name, step in steps.items()]


def returns(world, _, options):
    """What a budget has kept is retried, what could not be read comes back, over kills."""
    small, large = {"BLOOM_BUDGET": {"*": 9}}, {"BLOOM_BUDGET": {"*": RETURNING}}
    stop = Step(signals=[signal.SIGINT], at=5)
    steps = {
        "command": [Step(settings=small), Step(retry_capped, settings=large), Step(settings=large)],
        "setting": [
            Step(settings=small),
            Step(settings={**large, "BLOOM_RETRY_FAILED": True}),
            Step(settings=large),
        ],
        "unreadable": [stop, Step(settings={"BLOOM_PICKLE": False}), Step(), Step()],
    }
    chance = random.Random(options.seed)
    for number in range(options.count):
        for name, each in steps.items():
            crawl = Crawl(f"{name}{number}", RETURNING, spider=ReturningSpider)
            of_crawl = [*each]
            if number % 2:
                at = chance.randrange(1, 12)
                of_crawl.insert(-2, replace(each[-2], signals=[signal.SIGKILL], at=at))
                of_crawl[-2] = replace(of_crawl[-2], before=None)
            yield returning(world, crawl, of_crawl, options.mutant)


def retry_capped():
    """Have this start ask what is over the budget."""
    Failed(Path("job")).retry(reasons=["capped"])


def returning(world, crawl, steps, mutant):
    """Yield the story with the feeds as they are after the last start but one."""
    feeds, expected = {}, {"pages": Counter(), "books": set(), "state": set()}

    def look():
        for name in ("over", "append"):
            lines = Path(f"{name}.jsonl").read_text().splitlines()
            feeds[name] = sorted(json.loads(line)["page"] for line in lines)
        Path("feeds.json").write_text(json.dumps(feeds))

    steps = [*steps[:-1], replace(steps[-1], before=look)]
    for report in story(world, crawl, expected, steps, mutant):
        if report is not None:
            report["feeds"] = json.loads((world.folder / crawl.name / "feeds.json").read_text())
        yield report


STORIES = {
    function.__name__: function
    for function in (stock, kills, points, second, stops, daily, refused, gone, fed, returns)
}


def main():
    """Run from the command line."""
    parser = command_line("tests.crawl.round_crawls", MUTANTS)
    parser.add_argument("stories", nargs="*", choices=[[], *STORIES])
    parser.add_argument("--count", type=int, default=8, help="of crawls or commits")
    parser.add_argument("--names", nargs="*", help="of points")
    options, folder = parsed(parser)
    with World(folder) as world:
        expected = undisturbed(world)
        for name in options.stories or STORIES:
            stories = STORIES[name](world, expected, options)
            for report in side_by_side(stories, options.beside):
                print(json.dumps({"story": name, **report}), flush=True)
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
