"""A site with a calendar that has no end, crawled with a budget for it, killed again and again.

`python -m tests.world.trap` prints a line of JSON for the crawl of a job and for that of three
workers on Redis: what was asked, kept and lost.
"""

import asyncio
import random
import tempfile
from pathlib import Path
from signal import SIGKILL

import scrapy

from scrapy_bloom.redis.client import RedisClient
from scrapy_bloom.redis.desk import RedisDesk
from scrapy_bloom.redis.layout import in_one_slot
from tests.failures import Failed
from tests.redis.fleet import WORKERS, Fleet, to_the_end
from tests.redis.server import Server
from tests.world.runner import SELECT, Crawl, Step, tell, tell_stories
from tests.world.site import Reply, moved

PAGES = 150
MOST = 40
"""Pages of the calendar that a round may have."""
KILLS = 5
BUDGET = {"*/calendar/*": MOST, "*": 10_000}


def links(page):
    """Return the pages that a page links to; today is a day of the calendar."""
    kind, number = page.split("/")
    number = int(number)
    found = [f"page/{n}" for n in (2 * number + 1, 2 * number + 2, number // 2) if n < PAGES]
    if kind == "calendar":
        found = [f"calendar/{n}" for n in (number + 1, 2 * number, number - 1)]
        return [*found, f"page/{number % PAGES}"]
    return [*found, f"calendar/{number}", *([f"today/{number}"] if number % 3 == 0 else [])]


async def answer(asked):
    """Answer after a short while."""
    await asyncio.sleep(random.random() * 0.01)
    if asked.kind == "today":
        return moved(asked.crawl, f"calendar/{asked.number}000")
    return Reply(body=asked.page.encode())


class TrapSpider(scrapy.Spider):
    """Follows each link."""

    name = "trap"

    async def start(self):
        yield scrapy.Request(f"{self.site}/page/0", dont_filter=True)

    def parse(self, response):
        yield {"page": response.text}
        for page in links(response.text):
            yield scrapy.Request(f"{self.site}/{page}", priority=page.startswith("calendar"))


def report(world, crawl, kept, **found):
    """Return what became of a crawl: what can be reached was fetched, or is kept."""
    pages = {*world.pages(crawl)}
    over = {each.url.partition(f"/{crawl.name}/")[2] for each in kept}
    reached = {"page/0"}
    for page in pages:
        number = page.rpartition("/")[2]
        reached.update([f"calendar/{number}000"] if page.startswith("today") else links(page))
    return {
        "crawl": crawl.name,
        "pages": len([page for page in pages if page.startswith("page/")]),
        "calendar": len([page for page in pages if page.startswith("calendar/")]),
        "capped": len(over),
        "lost": sorted(reached - pages - over),
        "asked and capped": sorted(pages & over),
        "why": sorted({f"{each.reason}: {each.exception}" for each in kept}),
        **found,
    }


def job(teller):
    """A job, of which five processes are killed, and the last one comes to the end."""
    crawl = Crawl("job", spider=TrapSpider, settings={"BLOOM_BUDGET": BUDGET})
    steps = [Step(signals=(SIGKILL,), at=teller.chance.randrange(25)) for _ in range(KILLS)]

    def looked(run, _step, _answers):
        return run.status, run.stats.get("scheduler/capped/*/calendar/*", 0)

    def story():
        ends = yield from tell(teller.world, crawl, [*steps, Step()], looked)
        kept = Failed(teller.world.folder / "job" / "job").requests()
        kills = sum(status == -SIGKILL for status, _ in ends)
        yield report(teller.world, crawl, kept, kills=kills, stat=ends[-1][1] > 0)

    yield story()


def workers(teller):
    """Three workers on Redis, of which five are killed and replaced."""
    folder = Path(tempfile.mkdtemp(dir=teller.world.folder))
    settings = {"BLOOM_BUDGET": BUDGET}
    crawl = Crawl("workers", spider=TrapSpider, reactor=SELECT, settings=settings)

    def story():
        server = Server(folder)
        fleet = Fleet(teller.world, crawl, server.url)
        fleet.start_all(WORKERS)
        kills = 0
        for at in sorted(teller.chance.sample(range(10, 110), KILLS)):
            while fleet.running and fleet.answers.total() < at:
                yield None
            if fleet.running:
                fleet.kill(teller.chance.choice(fleet.running))
                kills += 1
                fleet.start()
        yield from to_the_end(fleet)
        with RedisClient(server.url) as client:
            kept = Failed(RedisDesk(client, in_one_slot(crawl.name))).requests()
        stat = sum(run.stats.get("scheduler/capped/*/calendar/*", 0) for run in fleet.all) > 0
        server.stop()
        yield report(teller.world, crawl, kept, kills=kills, stat=stat)

    yield story()


STORIES = {function.__name__: function for function in (job, workers)}


def main():
    """Run from the command line."""
    tell_stories(__spec__.name, STORIES, answer)


if __name__ == "__main__":
    main()
