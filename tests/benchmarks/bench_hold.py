"""What hosts that refuse requests cost: stock Scrapy and ours, side by side.

Each crawl is of a site of its own on this machine. With `rest` one host refuses all but its first
20 of 400 pages for 60 seconds, with Retry-After or without, and another one answers 600 meanwhile.
`--sites` are hosts that refuse for other reasons: some pages for ever, asked first, last or spread;
what is above a rate; all for a minute, with five pages left. Stock Scrapy, a job and three workers
with Redis crawl each. Counted are pages without an answer of 200, refusals, the pages of the
other host meanwhile, and the seconds until the last page and until the end.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from sidebyside import ROOT, redis_server, table

# isort: split
from tests.job.resting_site import Rest, RestingSite

PAGES = {"rests": 400, "answers": 600}
OURS = ["-s", 'ADDONS={"scrapy_bloom.Addon": 300}', "-s", "JOBDIR=job"]
WORKERS = 3


def crawl(pages: dict[str, int], rest: Rest, options: list[str], workers: int = 1) -> list[object]:
    """Crawl a site of its own, and return the row of the table."""
    with tempfile.TemporaryDirectory() as folder, RestingSite({"rests": rest}) as site:
        site.go.set()
        command = [sys.executable, "-m", "scrapy", "runspider"]
        command += [str(ROOT / "tests" / "job" / "hold_spider.py"), "-a", f"site={site.url}"]
        command += ["-a", f"pages={json.dumps(pages)}", "-s", "LOG_LEVEL=ERROR", *options]
        started = time.monotonic()
        places = [Path(folder, str(number)) for number in range(workers)]
        running = []
        for place in places:
            place.mkdir()
            running.append(subprocess.Popen(command, cwd=place, stderr=subprocess.DEVNULL))
        assert not any(process.wait() for process in running)
        took = time.monotonic() - started
        missed = sum(pages.values()) - sum(len({*site.pages(host)}) for host in pages)
        meanwhile = sum(each.came < rest.until for each in site.asked["answers"])
        last = max((each.answered for each in site.asked["rests"] if each.status == 200), default=0)
        refused = len(site.pages("rests", rest.status))
        return [missed, refused, meanwhile, f"{max(0, last - started):.0f}", f"{took:.0f}"]


def above(rate: int) -> Rest:
    """Return a host that answers so many requests a second."""
    answered: Counter[int] = Counter()

    def refuses(_: str) -> bool:
        second = int(time.monotonic())
        answered[second] += 1
        return answered[second] > rate

    return Rest(0, "", refuses=refuses)


def sites() -> dict[str, tuple[int, Rest]]:
    """Return the other hosts, and how many pages each has."""
    broken = {"first": range(20), "last": range(300, 320), "spread": range(7, 320, 16)}
    found = {
        f"20 of 320 broken, {name}": (
            320,
            Rest(0, "", 0, 503, refuses={*map(str, which)}.__contains__),
        )
        for name, which in broken.items()
    }
    for rate in (1, 2):
        found[f"{rate}/s"] = 320, above(rate)
        found[f"{rate}/s, Retry-After"] = 320, above(rate)
        found[f"{rate}/s, Retry-After"][1].says = "seconds"
    return {**found, "60 s, 5 pages left": (5, Rest(60, "", 0, 503))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="for which the host refuses")
    parser.add_argument("--sites", nargs="*", help="the other hosts instead, or those of them")
    options = parser.parse_args()
    arms = {"stock Scrapy": [], "scrapy-bloom": OURS}
    with ThreadPoolExecutor() as pool, ExitStack() as stack:
        kinds = {
            (header, name): (PAGES, Rest(options.seconds, says, after=20), arm)
            for header, says in (("yes", "seconds"), ("no", ""))
            for name, arm in arms.items()
        }
        if options.sites is not None:
            url = stack.enter_context(redis_server()).url
            kinds = {}
            for site in sites():
                if not site.startswith(tuple(options.sites or [""])):
                    continue
                shared = ["-s", f"BLOOM_REDIS_URL={url}", "-s", f"BLOOM_REDIS_KEY={site}"]
                every = {**arms, "three workers": [*OURS[:2], *shared]}
                for name, arm in every.items():
                    pages, rest = sites()[site]
                    workers = 1 if name in arms else WORKERS
                    kinds[site, name] = {"rests": pages}, rest, arm, workers
        rows = [*pool.map(lambda each: crawl(*each), kinds.values())]
    head = ["Retry-After", "", "pages missed", "refusals", "others meanwhile", "last page"]
    table([*head, "seconds"], [[*kind, *row] for kind, row in zip(kinds, rows, strict=True)])


if __name__ == "__main__":
    main()
