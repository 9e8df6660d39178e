"""What a host that refuses all requests for a minute costs: stock Scrapy and ours, side by side.

Both crawl 400 pages of one host of a site on this machine, and 600 of another one that answers.
From its 21st page on the first answers 429 for 60 seconds, with Retry-After or without. Counted are
pages without an answer of 200, refusals, the pages of the other host meanwhile, and seconds.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent.parent))
from tests.job.resting_site import Rest, RestingSite

ROOT = Path(__file__).resolve().parent.parent.parent
PAGES = {"rests": 400, "answers": 600}
OURS = ["-s", 'ADDONS={"scrapy_bloom.Addon": 300}', "-s", "JOBDIR=job"]


def crawl(seconds: float, says: str, options: list[str]) -> list[object]:
    """Crawl a site of its own, and return the row of the table."""
    with tempfile.TemporaryDirectory() as folder, RestingSite({}) as site:
        rest = site.rests["rests"] = Rest(seconds, says, after=20)
        site.go.set()
        command = [sys.executable, "-m", "scrapy", "runspider"]
        command += [str(ROOT / "tests" / "job" / "hold_spider.py"), "-a", f"site={site.url}"]
        command += ["-a", f"pages={json.dumps(PAGES)}", "-s", "LOG_LEVEL=ERROR", *options]
        started = time.monotonic()
        subprocess.run(command, cwd=folder, stderr=subprocess.DEVNULL, check=True)
        took = time.monotonic() - started
        missed = sum(PAGES.values()) - sum(len({*site.pages(host)}) for host in PAGES)
        meanwhile = sum(each.came < rest.until for each in site.asked["answers"])
        return [missed, len(site.pages("rests", rest.status)), meanwhile, f"{took:.0f}"]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="for which the host refuses")
    seconds = parser.parse_args().seconds
    kinds = {
        (header, name): (seconds, says, options)
        for header, says in (("yes", "seconds"), ("no", ""))
        for name, options in (("stock Scrapy", []), ("scrapy-bloom", OURS))
    }
    with ThreadPoolExecutor() as pool:
        rows = [*pool.map(lambda each: crawl(*each), kinds.values())]
    heads = ["Retry-After", "", "pages missed", "refusals", "others meanwhile", "seconds"]
    print("".join(f"{head:>18}" for head in heads))
    for (header, name), row in zip(kinds, rows, strict=True):
        print("".join(f"{cell!s:>18}" for cell in (header, name, *row)))


if __name__ == "__main__":
    main()
