"""What it costs that feeds hold each item once: CPU time of a crawl of the demo's site with
a feed, ours and Scrapy's by turns, both with DurableScheduler.

    python benchmarks/bench_feeds.py [--pairs N]
"""

import tempfile

from crawls import OURS, crawl_links, serve_demo
from sidebyside import in_turns, medians, parser_of, spread, table

FORMATS = ("jsonlines", "csv", "json")
PAGES = 1_000


def milliseconds(site: str, form: str, durable: bool) -> float:
    """Crawl, and return the CPU time of a page."""
    with tempfile.TemporaryDirectory() as folder:
        feed = {"FEEDS": {f"{folder}/items": {"format": form}}, "BLOOM_DURABLE_FEEDS": durable}
        return crawl_links(site, "follow_all", {**OURS, **feed}, PAGES)["each"]


def main() -> None:
    pairs = parser_of(__doc__, pairs=5).parse_args().pairs
    rows = []
    with serve_demo() as site:
        for form in FORMATS:
            runs = in_turns(
                (False, True), pairs, lambda durable, form=form: milliseconds(site, form, durable)
            )
            rows.append([form, *spread(runs[True], runs[False]), *medians(".2f", *runs.values())])
    print(f"the demo's site, one item a page: milliseconds of CPU time a page, {pairs} pairs")
    table(["", "ratio", "from, to", "Scrapy's feeds", "each item once"], rows)


if __name__ == "__main__":
    main()
