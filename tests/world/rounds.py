"""Rounds of real crawls that are killed, stopped and resumed.

`python -m tests.world.rounds kills` prints one line of JSON for each crawl of that story (of all
stories without a name): what was lost, and what came again that should not.
"""

import json
import pickle
import re
import signal
import sqlite3
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path

import scrapy
from scrapy import Request, signals
from scrapy.exceptions import CloseSpider, DontCloseSpider

from scrapy_bloom.crawl.ledger import Ledger
from scrapy_bloom.sqlite.scheduler import DurableScheduler
from tests.failures import Failed
from tests.world.points import Points, calls_of
from tests.world.runner import FORCED, REACTORS, Crawl, Step, Teller, tell, tell_stories
from tests.world.tree import answer, pause

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
POINTS = ("sql COMMIT", "sql INSERT", "sql DELETE", "close")
KILL, STOP = ({"signals": (number,), "at": 5} for number in (signal.SIGKILL, signal.SIGINT))


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
        "ITEM_PIPELINES": {BooksPipeline: 1},
        "SPIDER_MIDDLEWARES": {ReplacingMiddleware: 10},
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
class RoundTeller(Teller):
    """Tells what is missing or too much in crawls, by what one fetches that is not stopped."""

    def __post_init__(self):
        super().__post_init__()
        crawl = Crawl("undisturbed", PAGES, spider=RoundSpider)
        run = self.world.start(crawl, self.prepared()).wait()
        assert run.reason == "finished", run.log
        self.whole = Counter(self.world.pages(crawl)), *stored(run.folder)

    def prepared(self, before=None):
        """Return what is done first in each process of a crawl."""

        def prepare():
            DurableScheduler.commit_operations = 3
            Ledger.preparing_share = 1  # a busy machine is no slow pipeline
            return before() if before else None

        return prepare

    def __call__(self, name, *steps, spider=RoundSpider, pages=PAGES, more=None, **options):
        """Tell the story of a crawl; `more` is what else its report says of its folder."""
        crawl = Crawl(name, pages, spider=spider, **options)
        folder = self.world.folder / name
        expected, books, state = self.whole if spider is RoundSpider else (Counter(), set(), set())
        prepared = [replace(step, before=self.prepared(step.before)) for step in steps]
        runs = yield from tell(self.world, crawl, prepared, seen)
        found, (found_books, found_state) = Counter(self.world.pages(crawl)), stored(folder)
        again = Counter({page: count for page, count in found.items() if page in START})
        yield {
            "crawl": name,
            "runs": runs,
            "lost": sorted(expected.keys() - found.keys()),
            "lost_books": sorted(books - found_books),
            "lost_state": sorted(state - found_state),
            "extra_start": (again - expected).total(),
            "more": more and json.loads((folder / more).read_text()),
        }


def seen(run, _step, answers):
    """Return what a run has done."""
    found = Counter(answer.page for answer in answers if answer.is_good)
    file = run.folder / "job" / "requests.sqlite"
    return {
        "status": run.status,
        "reason": run.reason,
        "answers": found.total(),
        "start": sum(found[page] for page in {*START}),
        "login": found[LOGIN],
        "skipped": run.stats.get("scheduler/start_skipped"),
        "rounds": rows(file, "SELECT number, phase FROM rounds"),
        "state": sorted(stored(run.folder)[1]),
        "left": left(file),
    }


def left(path):
    """Return how many answers the start requests may have again that the file has not finished."""
    payloads = [payload for (payload,) in rows(path, "SELECT payload FROM request")]
    waiting = [page for page in {*START} for payload in payloads if page.encode() in payload]
    [(taken,)] = rows(path, "SELECT COUNT(*) FROM taken_start_requests") or [(0,)]
    return len(waiting) + 1 + len(START) - taken + 1  # of LOGIN, and a page that is asked twice


def stored(folder):
    """Return what the pipeline has stored, and the pages that spider.state has noted."""
    books = {url for (url,) in rows(folder / "books.sqlite", "SELECT url FROM books")}
    try:
        state = pickle.loads((folder / "job" / "spider.state").read_bytes())
    except (FileNotFoundError, EOFError):
        state = {}
    return books, {*state.get("pages", ())}


def rows(path, statement):
    """Return what is in a database, nothing if there is no such table."""
    try:
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
            return connection.execute(statement).fetchall()
    except sqlite3.Error:
        return []


# Stories


def stock(teller):
    """Scrapy's own scheduler fetches the same pages as often."""
    return [teller("stock", Step(), settings={"BLOOM_DURABLE": False})]


def kills(teller):
    """SIGKILL at random moments, one to three a crawl."""
    for number in range(teller.options.count):
        steps = [
            Step(signals=(signal.SIGKILL,), at=teller.chance.randrange(12))
            for _ in range(teller.chance.randint(1, 3))
        ]
        yield teller(f"kill{number}", *steps, Step(), reactor=REACTORS[number % 2])


def points(teller):
    """Death before and after commits and other calls on the database, or of `names` only."""
    calls = calls_of(teller.world, Crawl("calls", PAGES, spider=RoundSpider), teller.prepared())
    number = 0
    for name in sorted({*calls} & {*(teller.options.names or POINTS)}):
        first = MADE if name == "sql COMMIT" else 1
        # not the last ones: a crawl on a busy machine has fewer
        possible = range(first, max(calls.count(name) - 2, first + 1))
        wanted = teller.options.count if name == "sql COMMIT" else 1
        chosen = sorted(teller.chance.sample(possible, min(wanted, len(possible))))
        for call, side in product(chosen, ("before", "after")):
            yield teller(f"point{number}", Step(Points(name, call, side).lay), Step())
            number += 1


def second(teller):
    """Death in the second run of a round, and in the second round."""
    yield teller("second", Step(**STOP), Step(**KILL), Step(), Step(**KILL), Step())


def stops(teller):
    """Ctrl-C, and two of them at once."""
    for name, sent in (("stop1", FORCED[:1]), ("stop2", FORCED)):
        yield teller(name, Step(signals=sent, at=5), Step())


def daily(teller):
    """One round after the other."""
    yield teller("daily", Step(), Step(), Step())


def refused(teller):
    """Between two runs of a round, starts that are refused, or whose pipeline is."""

    def unreachable():
        def open_spider(self):
            raise ConnectionError("the database does not answer")

        BooksPipeline.open_spider = open_spider

    yield teller(
        "refused",
        Step(**STOP),
        Step(unreachable),
        Step(settings={"BLOOM_CAPACITY": "much"}),
        Step(settings={"BLOOM_REPEAT_START": "perhaps"}),
        Step(),
        Step(unreachable),
        Step(),
    )


def gone(teller):
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

    def put(function):
        BooksPipeline.flush = function
        BooksPipeline.close_spider = close_spider

    for each in (gone_in_the_middle, gone_at_the_end):
        yield teller(each.__name__, Step(partial(put, each)), Step())


def fed(teller):
    """A spider with nothing left but what its handler of spider_idle would give is stopped."""
    steps = {
        "interrupted": Step(signals=(signal.SIGINT,), at=3),
        "counted": Step(settings={"CLOSESPIDER_PAGECOUNT": 3}),
    }
    for name, step in steps.items():
        yield teller(name, step, Step(), spider=FedSpider, pages=FED, more="fed.json")


def returns(teller):
    """What a budget has kept is retried, what could not be read comes back, over kills."""
    small, large = {"BLOOM_BUDGET": {"*": 9}}, {"BLOOM_BUDGET": {"*": RETURNING}}
    last = Step(look, large)
    steps = {
        "command": [Step(settings=small), Step(retry_capped, large), last],
        "setting": [Step(settings=small), Step(None, {**large, "BLOOM_RETRY_FAILED": True}), last],
        "unreadable": [Step(**STOP), Step(settings={"BLOOM_PICKLE": False}), Step(), Step(look)],
    }
    for number, (name, each) in product(range(teller.options.count), steps.items()):
        *before, back, last = each
        if number % 2:
            at = teller.chance.randrange(1, 12)
            before.append(replace(back, signals=(signal.SIGKILL,), at=at))
            back = replace(back, before=None)
        options = {"spider": ReturningSpider, "pages": RETURNING, "more": "feeds.json"}
        yield teller(f"{name}{number}", *before, back, last, **options)


def retry_capped():
    """Have this start ask what is over the budget."""
    Failed(Path("job")).retry(reasons=["capped"])


def look():
    """Note what is in the feeds before this start."""
    feeds = {}
    for name in ("over", "append"):
        lines = Path(f"{name}.jsonl").read_text().splitlines()
        feeds[name] = sorted(json.loads(line)["page"] for line in lines)
    Path("feeds.json").write_text(json.dumps(feeds))


STORIES = {
    function.__name__: function
    for function in (stock, kills, points, second, stops, daily, refused, gone, fed, returns)
}


def main():
    """Run from the command line."""

    def arguments(parser):
        parser.add_argument("--names", nargs="*", help="of points")

    tell_stories(__spec__.name, STORIES, answer, arguments, RoundTeller)


if __name__ == "__main__":
    main()
