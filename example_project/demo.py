"""Stops a crawl with Ctrl-C and resumes it, kills others and resumes them; counts pages and items
missed."""

import json
import signal
import sys
from collections import Counter
from pathlib import Path

from example.model import pages, site
from harness import SESSION, Run, Site, account, crawl, measure, serve, show, table, tail
from scrapy import Request
from w3lib.url import canonicalize_url

# Room for twice what this site needs: the default is for a million requests.
CAPACITY = 10_000
# Killed when the site has given away this share of its pages.
KILLS = (0.2, 0.45, 0.7)
UNINTERRUPTED, OURS, STOCK = "uninterrupted", "scrapy-bloom", "stock Scrapy"
# So many of the pages and items that came twice, or never, are named.
SHOWN = 20


def stop_and_resume(folder: Path) -> bool:
    """Stop a crawl with Ctrl-C at half of the pages and resume it; true if each page came once."""
    total = len(pages(SESSION))
    job, settings = folder / "job", {"BLOOM_CAPACITY": CAPACITY}
    print("1. A crawl is stopped with Ctrl-C at half of the pages; the same command goes on: 20 s")
    with serve(folder) as served:
        first = crawl(served, job, "first run", settings=settings, stop_after=total // 2)
        second = crawl(served, job, "resumed", settings=settings)
    for run, reason in ((first, "shutdown"), (second, "finished")):
        if run.status or run.reason != reason:
            print(f"a run ended as {run.reason!r}, not as {reason!r}:\n{tail(folder / 'job.log')}")
            return False
    found = account(served)
    rows = [
        ("pages fetched", first.fetched, second.fetched, found.fetched),
        ("pages fetched twice", "", "", len(found.twice)),
        (f"pages missed of {total:,}", "", "", len(found.missed)),
        ("requests offered", first.offered, second.offered, first.offered + second.offered),
        ("duplicates dropped", first.filtered, second.filtered, first.filtered + second.filtered),
    ]
    print("\n" + table(("", "first run", "resumed", "both"), rows))
    print("\n" + memory(served, second))
    for request in found.twice[:SHOWN]:
        print(f"fetched twice: {request.method} {request.url} {request.body.decode()}")
    for page in found.missed[:SHOWN]:
        print(f"missed: {' '.join(page)}")
    return not (found.twice or found.missed)


def kill_and_resume(folder: Path) -> bool:
    """Kill a crawl several times, ours and stock Scrapy's, and hold their feeds against that of
    one that nobody kills; true if ours has missed no page, and no item, and has none twice."""
    total, found, last, feeds = len(pages(SESSION)), {}, {}, {}
    ours, stock = {"BLOOM_CAPACITY": CAPACITY}, {"ADDONS": "{}"}
    kills = dict.fromkeys((UNINTERRUPTED, OURS, STOCK), 0)
    print("2. A crawl undisturbed, one killed three times, one of stock Scrapy killed: 45 s")
    for name, settings, shares in (
        (UNINTERRUPTED, ours, ()),
        (OURS, ours, KILLS),
        (STOCK, stock, KILLS),
    ):
        place = folder / name
        place.mkdir()
        feed = place / "items.jl"
        options = {**settings, "FEEDS": json.dumps({str(feed): {"format": "jsonlines"}})}
        with serve(place) as served:
            for share in (*shares, None):
                left = max(1, int(total * share) - served.fetched()) if share else None
                label = f"{name}, to {share:.0%}" if share else f"{name}, to the end"
                last[name] = crawl(
                    served,
                    place / "job",
                    label,
                    settings=options,
                    stop_after=left,
                    stop_with=signal.SIGKILL,
                )
                if last[name].status == 0:
                    break  # stock Scrapy may end before the next kill: it has nothing left
                kills[name] += 1
            found[name] = account(served)
            feeds[name] = items(feed, served)
    whole = feeds[UNINTERRUPTED]
    missing = {name: (whole - each).total() for name, each in feeds.items()}
    surplus = {name: (each - whole).total() for name, each in feeds.items()}
    rows = [
        ("times killed", *kills.values()),
        (f"pages missed of {total:,}", *(len(each.missed) for each in found.values())),
        ("pages fetched again", *(len(each.twice) for each in found.values())),
        (f"items missing of {whole.total():,}", *missing.values()),
        ("items twice, or torn", *surplus.values()),
        ("last run ended as", *(str(run.reason) for run in last.values())),
    ]
    print("\n" + table(("SIGKILL", *found), rows))
    for page in found[OURS].missed[:SHOWN]:
        print(f"missed: {' '.join(page)}")
    for item in [*(whole - feeds[OURS]), *(feeds[OURS] - whole)][:SHOWN]:
        print(f"missing, or twice: {item}")
    return (
        not found[OURS].missed
        and feeds[OURS] == whole
        and last[OURS].reason == last[UNINTERRUPTED].reason == "finished"
    )


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


def memory(served: Site, run: Run) -> str:
    """Compare filter and set, after this crawl and when the filter is as full as it may get."""
    distinct = len(site(SESSION))
    crawled = (served.request(*page) for page in site(SESSION))
    made_up = (Request(f"{served.url}{number}") for number in range(CAPACITY))
    allocated = int(run.stats["bloom/bytes"])
    rows: list[tuple[object, ...]] = []
    for count, taken in ((distinct, measure(crawled)), (CAPACITY, measure(made_up))):
        each = [f"{total / count:.1f}" for total in (allocated, taken)]
        rows.append((f"{count:,} requests", allocated, each[0], taken, each[1]))
    return table(("memory in bytes", "filter", "each", "RFPDupeFilter", "each"), rows)


def acts(folder: Path) -> bool:
    """Run both acts; true if neither has missed a page."""
    print(f"Crawls a site of {len(pages(SESSION)):,} pages on this machine, for a minute.\n")
    stopped = stop_and_resume(folder)
    print()
    return kill_and_resume(folder) and stopped


if __name__ == "__main__":
    sys.exit(show(__doc__, acts))
