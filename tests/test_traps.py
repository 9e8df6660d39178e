"""Crawls of a site with a calendar that has no end, with the budget of the recipe."""

import json
import sys

import pytest

from tests.small_site import SmallSite, crawl
from tests.test_streams import recipe_budget

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="JOBDIR needs Linux or macOS")


class Town(SmallSite):
    """So many pages, five behind each, and on each the way to a calendar: a month has its days, and
    the months beside it."""

    def __init__(self, pages):
        super().__init__()
        self._pages = pages

    async def _answer(self, method, path, body):
        self.answered[path] += 1
        return 200, {}, json.dumps([("GET", link, "") for link in self._links(path)]).encode()

    def _links(self, path):
        if self.answered.total() > 20 * self._pages:  # without a budget
            return []
        _, kind, number = path.split("/")
        number = int(number)
        if kind == "month":
            days = [f"/day/{31 * number + day}" for day in range(28)]
            return ["/page/0", f"/month/{number - 1}", f"/month/{number + 1}", *days]
        if kind == "day":
            beside = [f"/day/{number - 1}", f"/day/{number + 1}"]
            return ["/page/0", f"/month/{number // 31}", *beside]
        children = range(5 * number + 1, min(5 * number + 6, self._pages))
        return [f"/page/{number // 5}", *(f"/page/{child}" for child in children), "/month/0"]

    @property
    def found(self):
        """How many of its pages were asked."""
        return sum(path.startswith("/page/") for path in self.answered)


def check(folder, share):
    """Crawl a site with a share of the budget, and of 10,000 pages."""
    budget = {slot: int(share * limit) for slot, limit in recipe_budget().items()}
    pages = int(share * 10_000)
    addons = json.dumps({"scrapy_bloom.Addon": 300})
    with Town(pages) as town:
        run = crawl(town, folder, ADDONS=addons, BLOOM_BUDGET=json.dumps(budget)).end()
    assert run.reason == "finished"
    assert len(town.answered) == town.answered.total() == budget["*"]
    assert int(run.stat("scheduler/capped")) > 0
    assert town.found >= 0.99 * pages
    print(f"{town.found:,} of {pages:,} pages, {town.answered.total():,} asked")


def test_a_site_with_a_calendar_without_an_end_is_crawled(tmp_path):
    """The crawl ends with its budget, here a hundredth of the recipe's, and has all of the site."""
    check(tmp_path, 0.01)


@pytest.mark.torture
def test_a_site_with_a_calendar_and_the_whole_budget(tmp_path):
    """Of 10,000 pages."""
    check(tmp_path, 1)
