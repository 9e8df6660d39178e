"""Stops a crawl half-way, resumes it, and counts what the site saw: nothing twice, none missed."""

import argparse
import shutil
import signal
import sys
import tempfile
from pathlib import Path

from example.model import pages, site
from harness import SESSION, Run, Site, account, crawl, measure, serve, table, tail
from scrapy import Request

# Room for twice what this site needs: the default is for a million requests.
CAPACITY = 10_000
# So many of the pages that came twice, or never, are named.
SHOWN = 20


def stop_and_resume(folder: Path) -> bool:
    """Stop a crawl with Ctrl-C at half of the pages and resume it; true if each page came once."""
    total = len(pages(SESSION))
    job, settings = folder / "job", {"BLOOM_CAPACITY": CAPACITY}
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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keep", action="store_true", help="keep the job directory and the logs")
    options = parser.parse_args()
    # Ended by `kill` or with its terminal, the demo tidies up as it does after Ctrl-C.
    for ending in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, signal.default_int_handler)
    folder = Path(tempfile.mkdtemp(prefix="scrapy-bloom-demo-"))
    try:
        return 0 if stop_and_resume(folder) else 1
    except RuntimeError as error:
        print(f"\n{error}")
        return 1
    except KeyboardInterrupt:
        print("\ninterrupted")
        return 130
    finally:
        if options.keep:
            print(f"kept {folder}")
        else:
            shutil.rmtree(folder)


if __name__ == "__main__":
    sys.exit(main())
