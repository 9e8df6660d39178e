"""What a host that refuses requests costs: stock Scrapy and ours, side by side.

    python benchmarks/bench_hold.py [--seconds N]

Each crawl is of a site of its own on this machine. One host refuses all but its first 20 of 400
pages for 60 seconds, with Retry-After or without, and another one answers 600 meanwhile. Counted
are pages without an answer of 200, refusals, the pages of the other host meanwhile, and the
seconds until the last page and until the end.
"""

import tempfile
from concurrent.futures import ThreadPoolExecutor
from itertools import product

from sidebyside import SIDES, crawl_waiting, parser_of, table

from tests.crawl.resting_site import Rest, RestingSite

PAGES = {"rests": 400, "answers": 600}


def crawl(seconds: float, says: str, side: str) -> list[object]:
    """Crawl a site of its own, and return the row of the table."""
    rest = Rest(seconds, says, after=20)
    with tempfile.TemporaryDirectory() as folder, RestingSite({"rests": rest}) as site:
        site.go.set()
        words = ("-a", f"site={site.url}", "-s", "LOG_LEVEL=ERROR")
        started, ended = crawl_waiting(folder, side, PAGES, *words)
        missed = sum(PAGES.values()) - sum(len({*site.pages(host)}) for host in PAGES)
        meanwhile = sum(each.came < rest.until for each in site.asked["answers"])
        last = max((each.answered for each in site.asked["rests"] if each.status == 200), default=0)
        refused = len(site.pages("rests", rest.status))
        times = f"{max(0, last - started):.0f}", f"{ended - started:.0f}"
        return ["yes" if says else "no", side, missed, refused, meanwhile, *times]


def main() -> None:
    parser = parser_of(__doc__, seconds=(60.0, "for which the host refuses"))
    seconds = parser.parse_args().seconds
    with ThreadPoolExecutor() as pool:
        rows = [*pool.map(lambda arm: crawl(seconds, *arm), product(("seconds", ""), SIDES))]
    head = ["Retry-After", "", "pages missed", "refusals", "others meanwhile", "last page"]
    table([*head, "seconds"], rows)


if __name__ == "__main__":
    main()
