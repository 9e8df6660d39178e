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

from crawls import OURS, crawl_links, serve_demo, serve_folder
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
    poet = {"ADDONS": {"scrapy_poet.Addon": 100}}
    return {
        "nothing": {},
        "scrapy-poet": poet,
        "page-params": poet,
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


def compare(title: str, site: str, pairs: int, pages: int) -> None:
    """Print the medians of each way, and of the ratios of crawls that followed each other."""
    rows = []
    sides = [zip(("stock", "ours"), pair, strict=True) for pair in WAYS.values()]
    arms = sorted({arm for side in sides for arm in side})
    for place in PLACES:
        print(f"{title}, {place}", file=sys.stderr)
        has_job = place == "JOBDIR"
        runs = in_turns(
            arms,
            pairs,
            lambda arm, job=has_job: crawl_links(
                site, arm[1], OURS if arm[0] == "ours" else {}, pages, job=job
            ),
        )
        for label, (stock_way, our_way) in WAYS.items():
            stock, ours = runs["stock", stock_way], runs["ours", our_way]
            each = [[run["each"] for run in side] for side in (ours, stock)]
            row = [f"{place}: {label}", *spread(*each), *medians(".2f", *each[::-1])]
            for count in COUNTED:
                row += medians(",.0f", *([run[count] for run in side] for side in (stock, ours)))
            rows.append(row)
    print(f"\n{title}: milliseconds of CPU time a page, medians of {pairs}")
    table(["", "ratio", "from, to", "stock", "ours", "pages", "ours", "dropped", "ours"], rows)


def compare_in_company(names: list[str], pairs: int) -> None:
    """Print the CPU time with this package, times that without it, beside each of `names`."""
    rows = []
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        write_site(folder)
        known = companies(folder)
        with serve_folder(folder) as site:
            for name, where in product(known if "all" in names else names, PLACES):
                # fingerprints of scrapy-poet depend on this key, so that no URL is enough
                meta = {"page_params": {"shop": 1}} if name == "page-params" else None
                both = {
                    **known[name],
                    "ADDONS": {**known[name].get("ADDONS", {}), **OURS["ADDONS"]},
                }
                sides = {"stock": known[name], "ours": both}

                def run(whose: str, sides=sides, meta=meta, job=where == "JOBDIR") -> float:
                    found = crawl_links(site, "follow_all", sides[whose], job=job, meta=meta)
                    return found["seconds"]

                print(name, where, file=sys.stderr)
                runs = in_turns(sides, pairs, run)
                ratio = spread(runs["ours"], runs["stock"])
                rows.append([f"{name}, {where}", *ratio, *medians(".2f", runs["stock"])])
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
        with serve_folder(arguments.folder or documentation()) as site:
            compare("real pages", site, arguments.pairs, arguments.pages)
    if arguments.only != "real":
        with serve_demo() as site:
            compare("the demo's site", site, arguments.pairs, arguments.pages)


if __name__ == "__main__":
    main()
