"""CPU time of crawls without one duplicate, with JOBDIR, times that of stock Scrapy's.

    python benchmarks/bench_new_pages.py [--pairs N] [--pages N] [hosts…]

Each page has ten new links to so many hosts. A download handler answers in the process. The
minimum of a side counts, since single runs differ by a fifth.
"""

import random
import resource

from crawls import IN_PROCESS, OURS, crawl, open_files
from scrapy import Request, Spider
from sidebyside import in_turns, parser_of, seconds_of, table

LINKS = 10


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
            self.answer({"seconds": seconds_of(resource.getrusage(resource.RUSAGE_SELF))})
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


def main() -> None:
    parser = parser_of(__doc__, pairs=7, pages=2_000)
    parser.add_argument("hosts", nargs="*", type=int, default=[40, 2_000])
    arguments = parser.parse_args()
    open_files()
    sides = {"stock": IN_PROCESS, "ours": {**IN_PROCESS, **OURS}}
    rows = []
    for hosts in arguments.hosts:
        options = {"hosts": hosts, "pages": arguments.pages}
        runs = in_turns(
            sides,
            arguments.pairs,
            lambda whose, options=options: crawl(NewPages, sides[whose], **options)["seconds"],
        )
        stock, ours = (min(runs[whose]) for whose in sides)
        rows.append([f"{hosts:,} hosts", f"{stock:.2f}", f"{ours:.2f}", f"{ours / stock:.2f}"])
    print(f"CPU seconds of {arguments.pages:,} pages of {LINKS} new links, least of each side")
    table(["", *sides, "of stock"], rows)


if __name__ == "__main__":
    main()
