"""A site with a calendar that has no end, crawled with a budget for it, and killed again and again:
what was asked, kept and lost."""

import asyncio
import random
from signal import SIGKILL

import scrapy

from tests.failures import Failed
from tests.world.runner import Crawl, Step, tell, tell_stories
from tests.world.site import Reply, moved

PAGES = 150
MOST = 40
"""Pages of the calendar that a round may have."""
KILLS = 5


def links(page):
    """Return the pages that a page links to; today is a day of the calendar."""
    kind, number = page.split("/")
    number = int(number)
    if kind == "today":
        return [f"calendar/{number}000"]
    if kind == "calendar":
        days = (number + 1, 2 * number, number - 1)
        return [*(f"calendar/{day}" for day in days), f"page/{number % PAGES}"]
    found = [f"page/{n}" for n in (2 * number + 1, 2 * number + 2, number // 2) if n < PAGES]
    return [*found, f"calendar/{number}", *([f"today/{number}"] if number % 3 == 0 else [])]


async def answer(asked):
    """Answer after a short while."""
    await asyncio.sleep(random.random() * 0.01)
    if asked.kind == "today":
        return moved(asked.crawl, *links(asked.page))
    return Reply(body=asked.page.encode())


class TrapSpider(scrapy.Spider):
    """Follows each link."""

    name = "trap"
    custom_settings = {"BLOOM_BUDGET": {"*/calendar/*": MOST, "*": 10_000}}  # noqa: RUF012

    async def start(self):
        yield scrapy.Request(f"{self.site}/page/0", dont_filter=True)

    def parse(self, response):
        for page in links(response.text):
            yield scrapy.Request(f"{self.site}/{page}", priority=page.startswith("calendar"))


def job(teller):
    """A job, of which five processes are killed, and the last one comes to the end."""
    crawl = Crawl("job", spider=TrapSpider)
    steps = [Step(signals=(SIGKILL,), at=teller.chance.randrange(25)) for _ in range(KILLS)]

    def looked(run, _step, _answers):
        return run.status, run.stats.get("scheduler/capped/*/calendar/*", 0)

    def story():
        *killed, (_, stat) = yield from tell(teller.world, crawl, [*steps, Step()], looked)
        kept = Failed(teller.world.folder / "job" / "job").requests()
        pages = {*teller.world.pages(crawl)}
        over = {each.url.partition("/job/")[2] for each in kept}
        reached = {"page/0"}.union(*map(links, pages))
        yield {
            "crawl": "job",
            "pages": len([page for page in pages if page.startswith("page/")]),
            "calendar": len([page for page in pages if page.startswith("calendar/")]),
            "capped": len(over),
            "lost": sorted(reached - pages - over),
            "asked and capped": sorted(pages & over),
            "why": sorted({f"{each.reason}: {each.exception}" for each in kept}),
            "kills": sum(status == -SIGKILL for status, _ in killed),
            "stat": stat > 0,
        }

    yield story()


if __name__ == "__main__":
    tell_stories(__spec__.name, {"job": job}, answer)
