"""What BLOOM_BUDGET costs in a job: the push of a request, and the bytes of a capped one.

    python benchmarks/bench_budget.py [--items 20000] [--rounds 3]

A real DurableScheduler is given requests as Scrapy makes them of the links of a page, with Referer
and depth: days of a calendar of one host, and pages of a thousand shops. They are pushed without a
budget, under one that has room for all, and over one; a commit is made after each 200. Bytes are
those of `requests.sqlite`, less those of an empty one.
"""

import tempfile
from pathlib import Path

from scrapy import Request
from sidebyside import Clock, parser_of, table
from streams import shop

from tests.crawl.engine import Job

BUDGETS = {"none": {}, "with room": {"*": 10**9}, "over it": {"*": 1}}


def calendar(number: int) -> tuple[str, str]:
    """Return the URLs of a day and of its month."""
    month = f"https://town.example/events/{2000 + number // 336}-{number // 28 % 12 + 1:02}"
    return f"{month}-{number % 28 + 1:02}", month


SITES = {"calendar": calendar, "shops": lambda number: shop(number, number % 1000)}


def push(clock: Clock, site: str, name: str, items: int) -> float:
    """Push so many requests; return the bytes of one."""
    with tempfile.TemporaryDirectory() as folder:
        job = Job(Path(folder), BLOOM_BUDGET=BUDGETS[name], BLOOM_CAPACITY=10 * items).open()
        file = Path(folder, "requests.sqlite")
        empty = file.stat().st_size
        pages = [
            Request(url, job.spider.parse_other, headers={"Referer": of}, meta={"depth": 3})
            for url, of in map(SITES[site], range(items))
        ]

        def push_one(page: tuple[int, Request]) -> None:
            job.scheduler.enqueue_request(page[1])
            if page[0] % 200 == 0:
                job.commit()

        clock.run(f"{site} {name}", push_one, [*enumerate(pages)])
        assert name != "over it" or job.stat("scheduler/capped") >= items - 1000
        job.close("shutdown")
        return (file.stat().st_size - empty) / items


def main() -> None:
    options = parser_of(__doc__, items=20_000, rounds=3).parse_args()
    clock, rows = Clock(), []
    for site in SITES:
        for _ in range(options.rounds):
            nbytes = {name: push(clock, site, name, options.items) for name in BUDGETS}
        alone = clock.each(f"{site} none")
        for name in BUDGETS:
            each = clock.each(f"{site} {name}")
            found = f"{each:.1f} µs", f"{each / alone:.2f}", f"{nbytes[name]:.0f} B"
            rows.append((site, name, *found))
    table(("requests", "budget", "a push", "to none", "a request"), rows)


if __name__ == "__main__":
    main()
