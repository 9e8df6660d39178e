"""Crawls whose handler of spider_idle feeds them, and that are stopped and resumed."""

import json
import signal

import scrapy
from scrapy import Request, signals
from scrapy.exceptions import CloseSpider, DontCloseSpider

from tests.crawl.engine import query
from tests.world.runner import Crawl, Step, tell, tell_stories
from tests.world.tree import answer

FED = 8
"""Pages that come one by one."""


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


def fed(teller):
    """A spider with nothing left but what its handler of spider_idle would give is stopped."""
    steps = {
        "interrupted": Step(signals=(signal.SIGINT,), at=3),
        "counted": Step(settings={"CLOSESPIDER_PAGECOUNT": 3}),
    }
    for name, step in steps.items():
        yield story(teller, Crawl(name, FED, spider=FedSpider), step)


def story(teller, crawl, step):
    """Tell of a crawl whose first run is stopped."""

    def seen(run, _step, answers):
        rounds = query(run.folder / "job", "SELECT number, phase FROM rounds")
        return {"reason": run.reason, "answers": len(answers), "rounds": rounds}

    runs = yield from tell(teller.world, crawl, [step, Step()], seen)
    items = json.loads((teller.world.folder / crawl.name / "fed.json").read_text())
    yield {"crawl": crawl.name, "runs": runs, "pages": sorted(item["page"] for item in items)}


if __name__ == "__main__":
    tell_stories(__spec__.name, {"fed": fed}, answer)
