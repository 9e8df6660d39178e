"""CPU time of a whole crawl, with this package and with stock Scrapy by turns: on real
pages, from a Debian documentation package or a folder, and on the demo's site.

    python benchmarks/bench_crawl.py [--pairs N] [--pages N] [--only real|demo] [folder]
    python benchmarks/bench_crawl.py --with nothing|scrapy-poet|…

`--with` crawls 300 pages of 100 links beside other people's components, which the environment must
have.
"""

import json
import os
import random
import subprocess
import sys
import tempfile
from itertools import product
from pathlib import Path

from crawls import OURS, Folder, crawl_links, serve_demo
from scrapy.utils.request import fingerprint
from sidebyside import in_turns, medians, parser_of, spread, table

PACKAGES = ("openjdk-17-doc", "openjdk-21-doc", "postgresql-doc-15", "postgresql-doc-17")
PLACES = ("JOBDIR", "memory")
COUNTED = ("response_received_count", "dupefilter/filtered")
# how a spider comes to its requests, and what it is compared with
WAYS = {
    "response.follow_all": ("follow_all", "follow_all"),
    "follow_new": ("follow_all", "follow_new"),
    "LinkExtractor": ("link_extractor", "link_extractor"),
    "NewLinkExtractor": ("link_extractor", "new_link_extractor"),
}
COMPANY_PAGES, COMPANY_LINKS = 300, 100


class UnknownMiddleware:
    """Looks at what a callback yields, as a project's own middleware would."""

    def process_spider_output(self, response, result):
        yield from result

    async def process_spider_output_async(self, response, result):
        async for thing in result:
            yield thing


class UnknownFingerprinter:
    """Says nothing about what its fingerprints depend on."""

    def fingerprint(self, request):
        return fingerprint(request, include_headers=["X-Id"])


def companies(folder: Path) -> dict[str, dict]:
    """Return the settings of other people's components, by name."""
    rule = {"urlPattern": {"include": ["127.0.0.1"]}, "processor": "queryRemoval"}
    rules = folder / "rules.json"
    rules.write_text(json.dumps([{"order": 1, "args": ["sid"], **rule}]))
    return {
        "nothing": {},
        "scrapy-poet": {"ADDONS": {"scrapy_poet.Addon": 100}},
        "duplicate-url-discarder": {
            "ADDONS": {"duplicate_url_discarder.Addon": 100},
            "DUD_LOAD_RULE_PATHS": [str(rules)],
        },
        "spidermon": {
            "SPIDERMON_ENABLED": True,
            "EXTENSIONS": {"spidermon.contrib.scrapy.extensions.Spidermon": 500},
        },
        "unknown-middleware": {"SPIDER_MIDDLEWARES": {UnknownMiddleware: 500}},
        "unknown-fingerprinter": {"REQUEST_FINGERPRINTER_CLASS": UnknownFingerprinter},
    }


def write_site(folder: Path) -> None:
    """Write the pages for `--with`, each with links to others of them."""
    chance = random.Random(24)
    others = range(COMPANY_LINKS - 1)
    for number in range(COMPANY_PAGES):
        linked = [(number + 1) % COMPANY_PAGES, *(chance.randrange(COMPANY_PAGES) for _ in others)]
        anchors = " ".join(f'<a href="{page or "index"}.html">page</a>' for page in linked)
        text = f"<html><title>{number}</title><body>{anchors}</body></html>"
        (folder / f"{number or 'index'}.html").write_text(text)


def documentation() -> Path:
    """Return the folder of a Debian documentation package, fetched if it is not there."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "scrapy-bloom"
    for package in PACKAGES:
        folder = cache / package
        if folder.is_dir():
            return folder
        with tempfile.TemporaryDirectory() as name:
            try:
                subprocess.run(["apt-get", "download", package], cwd=name, check=True)
                (archive,) = Path(name).glob("*.deb")
                unpacked = Path(name) / "unpacked"
                subprocess.run(["dpkg-deb", "-x", archive, unpacked], check=True)
                cache.mkdir(parents=True, exist_ok=True)
                subprocess.run(["cp", "-r", unpacked, folder], check=True)
            except (OSError, subprocess.CalledProcessError) as error:
                print(f"without {package}: {error}", file=sys.stderr)
                continue
        return folder
    sys.exit("no documentation package can be fetched here: name a folder of HTML pages")


def turns(site: str, arms: dict, pairs: int, pages: int, place: str) -> dict:
    """Crawl a site by turns in each of `arms`, a way and settings."""
    print(site, place, file=sys.stderr)
    job = place == "JOBDIR"
    return in_turns(arms, pairs, lambda arm: crawl_links(site, *arms[arm], pages, job=job))


def compare(title: str, site: str, pairs: int, pages: int) -> None:
    """Print the medians of each way, and of the ratios of crawls that followed each other."""
    arms = {("stock", way): (way, {}) for way, _ in WAYS.values()}
    arms |= {("ours", way): (way, OURS) for _, way in WAYS.values()}
    rows = []
    for place in PLACES:
        runs = turns(site, arms, pairs, pages, place)
        for label, (stock, ours) in WAYS.items():
            sides = runs["stock", stock], runs["ours", ours]
            each = [[run["each"] for run in side] for side in sides]
            row = [f"{place}: {label}", *spread(*each[::-1]), *medians(".2f", *each)]
            for count in COUNTED:
                row += medians(",.0f", *([run[count] for run in side] for side in sides))
            rows.append(row)
    print(f"\n{title}: milliseconds of CPU time a page, medians of {pairs}")
    table(["", "ratio", "from, to", "stock", "ours", "pages", "ours", "dropped", "ours"], rows)


def compare_in_company(names: list[str], pairs: int) -> None:
    """Print the CPU time with this package, times that without it, beside each of `names`."""
    rows = []
    with tempfile.TemporaryDirectory() as place:
        write_site(Path(place))
        known = companies(Path(place))
        with Folder(Path(place)) as site:
            for name, where in product(known if "all" in names else names, PLACES):
                stock = known[name]
                ours = {**stock, "ADDONS": {**stock.get("ADDONS", {}), **OURS["ADDONS"]}}
                arms = {"stock": ("follow_all", stock), "ours": ("follow_all", ours)}
                runs = turns(site.start, arms, pairs, 0, where)
                each = [[run["seconds"] for run in runs[whose]] for whose in ("ours", "stock")]
                rows.append([f"{name}, {where}", *spread(*each), *medians(".2f", each[1])])
    print(f"\nCPU time times that without scrapy-bloom, medians of {pairs}")
    table(["", "ratio", "from, to", "stock, s"], rows)


def main() -> None:
    parser = parser_of(__doc__, pairs=5, pages=(1000, "of each site; 0 for all"))
    parser.add_argument("folder", nargs="?", type=Path, help="of HTML pages, with an index.html")
    parser.add_argument("--only", choices=["real", "demo"])
    parser.add_argument("--with", dest="company", action="append", help="a component, or all")
    arguments = parser.parse_args()
    if arguments.company:
        compare_in_company(arguments.company, arguments.pairs)
        return
    if arguments.only != "demo":
        with Folder(arguments.folder or documentation()) as served:
            compare("real pages", served.start, arguments.pairs, arguments.pages)
    if arguments.only != "real":
        with serve_demo() as site:
            compare("the demo's site", site, arguments.pairs, arguments.pages)


if __name__ == "__main__":
    main()
