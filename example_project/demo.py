"""Kills a crawl three times and resumes it, beside crawls of stock Scrapy with the same kills and
with none; counts pages and items missed."""

import contextlib
import json
import signal
import sys
from collections import Counter
from collections.abc import Generator, Sequence
from pathlib import Path

from example.model import pages
from harness import SESSION, Run, Site, account, crawling, serve, show, side_by_side, table
from w3lib.url import canonicalize_url

# Killed when the site has given away this share of its pages.
KILLS = (0.2, 0.45, 0.7)
OURS, STOCK, NOT_KILLED = "scrapy-bloom", "stock Scrapy", "stock, not killed"
# Room for twice what this site needs: the default is for a million requests.
CRAWLS = {
    OURS: ({"BLOOM_CAPACITY": 10_000}, KILLS),
    STOCK: ({"ADDONS": "{}"}, KILLS),
    NOT_KILLED: ({"ADDONS": "{}"}, ()),
}
# So many of the pages and items that came twice, or never, are named.
SHOWN = 20


def kill_and_resume(folder: Path) -> bool:
    """Run the crawls, and hold their feeds against that of the one that is not killed; true if
    ours has missed no page, and no item, and has none twice."""
    total = len(pages(SESSION))
    print(f"Crawls a site of {total:,} pages on this machine, three times at once, for a minute:")
    print("killed three times, the same with stock Scrapy, and stock Scrapy without a kill.\n")
    with contextlib.ExitStack() as sites:
        served = {}
        for name in CRAWLS:
            (folder / name).mkdir()
            served[name] = sites.enter_context(serve(folder / name))
        crawls = [
            killed(served[name], folder / name, name, settings, shares)
            for name, (settings, shares) in CRAWLS.items()
        ]
        runs = dict(zip(CRAWLS, side_by_side(*crawls), strict=True))
    found = {name: account(site) for name, site in served.items()}
    feeds = {name: items(folder / name / "items.jl", site) for name, site in served.items()}
    whole = feeds[NOT_KILLED]
    cpu = {name: sum(run.cpu for run in each) for name, each in runs.items()}
    rows = [
        ("times killed", *(len(each) - 1 for each in runs.values())),
        (f"pages missed of {total:,}", *(len(each.missed) for each in found.values())),
        ("pages fetched again", *(len(each.twice) for each in found.values())),
        (
            f"items missing of {whole.total():,}",
            *((whole - each).total() for each in feeds.values()),
        ),
        ("items twice, or torn", *((each - whole).total() for each in feeds.values())),
        ("CPU time of all runs, s", *(f"{each:.1f}" for each in cpu.values())),
        ("CPU time an item, ms", *(f"{1e3 * cpu[n] / feeds[n].total():.1f}" for n in feeds)),
        ("last run ended as", *(str(each[-1].reason) for each in runs.values())),
    ]
    print("\n" + table(("SIGKILL", *CRAWLS), rows))
    for page in found[OURS].missed[:SHOWN]:
        print(f"missed: {' '.join(page)}")
    for item in [*(whole - feeds[OURS]), *(feeds[OURS] - whole)][:SHOWN]:
        print(f"missing, or twice: {item}")
    return (
        not found[OURS].missed
        and feeds[OURS] == whole
        and runs[OURS][-1].reason == runs[NOT_KILLED][-1].reason == "finished"
    )


def killed(
    served: Site, place: Path, name: str, settings: dict[str, object], shares: Sequence[float]
) -> Generator[None, None, list[Run]]:
    """Run a crawl, kill it at each of these shares of the pages, and return its runs."""
    total, runs = len(pages(SESSION)), []
    feeds = {str(place / "items.jl"): {"format": "jsonlines"}}
    for share in (*shares, None):
        run = yield from crawling(
            served,
            place / "job",
            f"{name}, to {share:.0%}" if share else f"{name}, to the end",
            settings={**settings, "FEEDS": json.dumps(feeds)},
            stop_after=max(1, int(total * share) - served.fetched()) if share else None,
            stop_with=signal.SIGKILL,
        )
        runs.append(run)
        if run.status == 0:
            break  # stock Scrapy may end before the next kill: it has nothing left
    return runs


def items(feed: Path, served: Site) -> Counter[str]:
    """Return the items of a feed, with how often each is there: its title and the page that it is
    of, which has the same name on each site and however a link to it is spelled."""
    found: Counter[str] = Counter()
    for line in feed.read_text(encoding="utf-8").splitlines() if feed.exists() else ():
        try:
            item = json.loads(line)
        except ValueError:
            found[f"torn: {line}"] += 1
            continue
        page = canonicalize_url(item["url"].replace(served.url, "/"))
        found[f"{page} {item['title']}"] += 1
    return found


if __name__ == "__main__":
    sys.exit(show(__doc__, kill_and_resume))
