"""A site with a login, and a calendar without end and its budget, killed again and again.

Run as a module, this file crawls. Set TRAP_SEED to repeat a run.
"""

import asyncio
import random
import sys
from signal import SIGKILL

import pytest
import scrapy

from tests.failures import Failed
from tests.seeded import seed_of, told
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
    if kind in ("today", "login"):
        return [f"calendar/{number}000" if kind == "today" else f"login/{number + 1}"]
    if kind == "calendar":
        days = (number + 1, 2 * number, number - 1)
        return [*(f"calendar/{day}" for day in days), f"page/{number % PAGES}"]
    found = [f"page/{n}" for n in (2 * number + 1, 2 * number + 2, number // 2) if n < PAGES]
    return [*found, f"calendar/{number}", *([f"today/{number}"] if number % 3 == 0 else [])]


async def answer(asked):
    """Answer after a short while."""
    await asyncio.sleep(random.random() * 0.01)
    if asked.kind == "today" or asked.page == "login/0":
        return moved(asked.crawl, *links(asked.page))
    return Reply(body=asked.page.encode())


class TrapSpider(scrapy.Spider):
    """Follows each link."""

    name = "trap"
    custom_settings = {  # noqa: RUF012
        "BLOOM_BUDGET": {"*/calendar/*": MOST, "*/login/*": 0, "*": 10_000}
    }

    async def start(self):
        for page in "login/0", "page/0":
            meta = {"bloom_repeat_start": page == "login/0"}
            yield scrapy.Request(f"{self.site}/{page}", dont_filter=True, meta=meta)

    def parse(self, response):
        self.crawler.stats.inc_value(response.text)
        for page in links(response.text):
            meta, first = response.meta if "login" in page else {}, page.startswith("calendar")
            yield scrapy.Request(f"{self.site}/{page}", meta=meta, priority=first)


def trap(teller):
    """Tell of a job, of which five processes are killed, and the last one comes to the end."""
    crawl = Crawl("trap", spider=TrapSpider)
    steps = [Step(signals=(SIGKILL,), at=teller.chance.randrange(25)) for _ in range(KILLS)]

    def story():
        runs = yield from tell(teller.world, crawl, [*steps, Step()], lambda run, *_: run)
        kept = Failed(teller.world.folder / "trap" / "job").requests()
        yield {
            "crawl": "trap",
            "pages": sorted({*teller.world.pages(crawl)}),
            "over": [each.url.partition("/trap/")[2] for each in kept],
            "why": [each.exception for each in kept],
            "killed": [run.status == -SIGKILL for run in runs],
            "logins": runs[-1].stats["login/1"],
            "stat": runs[-1].stats["scheduler/capped/*/calendar/*"],
        }

    yield story()


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="forks")
def test_a_trap_takes_its_budget_and_no_other_page():
    """Takes as long as six processes do: exactly so many days are asked, each other page is, and
    what is left of the calendar is kept, with the pattern that is full; that of the login has no
    room, and stops neither it nor its redirect, but a page behind them."""
    (found,) = told("tests.test_budget_crawls", seed=seed_of("TRAP_SEED")).values()
    pages, over = {*found["pages"]}, {*found["over"]}
    assert [sum(page.startswith(kind) for page in pages) for kind in ("page", "cal")] == [150, 40]
    assert {"page/0", "login/0"}.union(*map(links, pages)) == pages | over
    assert (len(over) > 50, pages & over) == (True, set())
    full = "BLOOM_BUDGET has no room for pattern '*/{}/*'".format
    assert {*found["why"]} == {full("calendar"), full("login")}
    assert ("login/2" in over, found["logins"] > 0) == (True, True)
    assert found["killed"] == [True] * KILLS + [False]
    assert found["stat"] > 0


if __name__ == "__main__":
    tell_stories(__spec__.name, {"trap": trap}, answer)
