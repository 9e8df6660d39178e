"""CPU time of crawls without one duplicate, with JOBDIR, times that of stock Scrapy's.

    python tests/benchmarks/bench_new_pages.py [--pairs N] [--pages N] [hosts…]

Each page has ten new links to so many hosts. A download handler answers in the process. The
minimum of a side counts, since single runs differ by a fifth.
"""

from __future__ import annotations

import gc
import random
import resource
import tempfile
from functools import partial

from sidebyside import OURS, forked, in_turns, parser_of, table

# isort: split
from scrapy import Request, Spider
from scrapy.crawler import AsyncCrawlerProcess
from scrapy.http import HtmlResponse

from tests.job.harness import preload

LINKS = 10
SETTINGS = {
    "TELNETCONSOLE_ENABLED": False,
    "REMOTE_CONTROL_ENABLED": False,
    "LOG_LEVEL": "ERROR",
    "CONCURRENT_REQUESTS": 16,
    "DOWNLOAD_DELAY": 0,
    "DOWNLOAD_HANDLERS": {"http": "__main__.Answers"},
}


class Answers:
    """A download handler that answers at once."""

    lazy = False

    async def download_request(self, request, spider=None):
        return HtmlResponse(request.url, body=b"<html></html>", request=request)

    async def close(self):
        pass


class NewPages(Spider):
    """Yields new links from each page."""

    name = "new"

    async def start(self):
        self._chance = random.Random(self.hosts)
        self._asked = self._seen = 0
        yield self._request()

    def parse(self, response):
        self._seen += 1
        if self._seen == self.pages:
            used = resource.getrusage(resource.RUSAGE_SELF)
            self.answer(used.ru_utime + used.ru_stime)
        for _ in range(LINKS):
            yield self._request(response.url)

    def _request(self, referer="http://first.example/"):
        self._asked += 1
        host = self._chance.randrange(self.hosts)
        return Request(
            f"http://host-{host:05}.example/section-{self._asked % 7}/page-{self._asked}.html",
            headers={"Referer": referer},
            meta={"link_text": "Chapter"},
        )


def crawl(pages: int, hosts: int, whose: str) -> float:
    """Crawl in a forked process; return its CPU seconds."""

    def work(answer):
        gc.unfreeze()  # a collection takes as long as in any crawl
        process = AsyncCrawlerProcess({**SETTINGS, **(OURS if whose == "ours" else {}), **job})
        process.crawl(NewPages, hosts=hosts, pages=pages, answer=answer)
        process.start()

    with tempfile.TemporaryDirectory() as name:
        job = {"JOBDIR": f"{name}/job"}
        return forked(f"the crawl of {hosts} hosts", work)[0]


def main() -> None:
    parser = parser_of(__doc__, pairs=7, pages=2_000)
    parser.add_argument("hosts", nargs="*", type=int, default=[40, 2_000])
    arguments = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    preload()
    rows = []
    for hosts in arguments.hosts:
        run = partial(crawl, arguments.pages, hosts)
        runs = in_turns(("stock", "ours"), arguments.pairs, run)
        stock, ours = (min(runs[whose]) for whose in ("stock", "ours"))
        row = f"{hosts:,} hosts", f"{stock:.2f}", f"{ours:.2f}", f"{ours / stock:.2f}"
        rows.append(row)
    print(f"CPU seconds of {arguments.pages:,} pages of {LINKS} new links, least of each side")
    table(["", "stock", "ours", "of stock"], rows)


if __name__ == "__main__":
    main()
