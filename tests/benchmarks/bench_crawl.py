"""CPU time of a whole crawl, with this package and with stock Scrapy by turns: on real
pages, from a Debian documentation package or a folder, and on the demo's site.

    python tests/benchmarks/bench_crawl.py [--pairs N] [--pages N] [--only real|demo] [folder]
    python tests/benchmarks/bench_crawl.py --with nothing|scrapy-poet|… [--tree FOLDER]

`--with` crawls 300 pages of 100 links beside other people's components, which the environment must
have. `--tree` is another checkout of this package, by turns with this one.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path

from company import SETTINGS as BUSY_CRAWL
from company import WITH, write_site
from sidebyside import HERE, OURS, ROOT, forked, in_turns, parser_of, spread, table

# isort: split
from scrapy import Spider
from scrapy.crawler import AsyncCrawlerProcess
from scrapy.http import HtmlResponse
from scrapy.linkextractors import LinkExtractor

from scrapy_bloom import NewLinkExtractor, follow_new
from tests.job.harness import preload
from tests.web_server import serve

PACKAGES = ("openjdk-17-doc", "openjdk-21-doc", "postgresql-doc-15", "postgresql-doc-17")
TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
SETTINGS = {
    **BUSY_CRAWL,
    "USER_AGENT": "scrapy-bloom-example",  # the demo's site knows it
    # breadth first, so that a limit cuts the same pages off, whoever crawls
    "DEPTH_PRIORITY": 1,
    "SCHEDULER_DISK_QUEUE": "scrapy.squeues.PickleFifoDiskQueue",
    "SCHEDULER_MEMORY_QUEUE": "scrapy.squeues.FifoMemoryQueue",
}
PLACES = ("JOBDIR", "memory")
LINKS = 'a:not([href^="mailto:"])'  # which are errors


class LinkSpider(Spider):
    """Yields an item for each page, and follows its links in one of the usual ways."""

    name = "links"

    def parse(self, response):
        if isinstance(response, HtmlResponse):
            yield {"url": response.url, "title": response.css("title::text").get()}
            yield from getattr(self, self.way)(response)

    def follow_all(self, response):
        return response.follow_all(css=LINKS)

    def follow_new(self, response):
        return follow_new(response, css=LINKS)

    def link_extractor(self, response, extractor=LinkExtractor()):  # noqa: B008 - one for all
        return response.follow_all(extractor.extract_links(response))

    def new_link_extractor(self, response, extractor=NewLinkExtractor()):  # noqa: B008
        return response.follow_all(extractor.extract_links(response))


@dataclass(frozen=True)
class Way:
    """How a spider comes to its requests, and what it is compared with."""

    label: str
    stock: str
    ours: str


WAYS = (
    Way("response.follow_all", "follow_all", "follow_all"),
    Way("follow_new", "follow_all", "follow_new"),
    Way("LinkExtractor", "link_extractor", "link_extractor"),
    Way("NewLinkExtractor", "link_extractor", "new_link_extractor"),
)


@dataclass(frozen=True)
class Run:
    """What one crawl took and did."""

    seconds: float
    pages: int
    items: int
    filtered: int

    @property
    def each(self) -> float:
        """Milliseconds of CPU time a page."""
        return self.seconds / self.pages * 1e3


def crawl(site: str, way: str, folder: Path | None, settings: dict, pages: int) -> Run:
    found, used = forked(
        f"the crawl of {site} by {way}",
        lambda answer: answer(_crawl(site, way, folder, settings, pages)),
    )
    return Run(used.ru_utime + used.ru_stime, **found)


def _crawl(site: str, way: str, folder: Path | None, settings: dict, pages: int) -> dict:
    limit = {"CLOSESPIDER_PAGECOUNT": pages} if pages else {}
    job = {"JOBDIR": str(folder)} if folder else {}
    process = AsyncCrawlerProcess({**SETTINGS, **settings, **limit, **job})
    crawler = process.create_crawler(LinkSpider)
    host = site.split("/")[2].partition(":")[0]
    process.crawl(crawler, way=way, start_urls=[site], allowed_domains=[host])
    process.start()
    stats = crawler.stats.get_stats()
    return {
        "pages": stats["response_received_count"],
        "items": stats["item_scraped_count"],
        "filtered": stats["dupefilter/filtered"],
    }


@contextmanager
def serve_folder(folder: Path) -> Iterator[str]:
    """Serve a folder in a process of its own; yield the URL of the page to start at."""
    start = max(folder.rglob("index.html"), key=lambda page: page.read_bytes().count(b"<a "))
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            asyncio.run(_serve(start.parent, writing))
        finally:
            os._exit(1)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        port = int(pipe.read())
    try:
        yield f"http://127.0.0.1:{port}/index.html"
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


async def _serve(folder: Path, writing: int) -> None:
    async def answer(method: str, path: str, body: str) -> tuple[int, dict[str, str], bytes]:
        page = folder / path.partition("?")[0].lstrip("/")
        found = page.suffix in TYPES and page.is_file()
        kind = {"Content-Type": TYPES.get(page.suffix, "text/plain")}
        return (200, kind, page.read_bytes()) if found else (404, kind, b"")

    def ready(port: int) -> None:
        os.write(writing, str(port).encode())
        os.close(writing)

    await serve(answer, ready)


@contextmanager
def serve_demo() -> Iterator[str]:
    """Serve the demo's site; yield its URL."""
    import harness

    with tempfile.TemporaryDirectory() as folder, harness.serve(Path(folder)) as site:
        yield site.url


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
    ways = sorted({(whose, getattr(way, whose)) for way in WAYS for whose in ("stock", "ours")})
    for place in PLACES:

        def run(arm: tuple[str, str], has_job: bool = place == "JOBDIR") -> Run:
            whose, way = arm
            with tempfile.TemporaryDirectory() as name:
                folder = Path(name) / "job" if has_job else None
                return crawl(site, way, folder, OURS if whose == "ours" else {}, pages)

        print(f"{title}, {place}", file=sys.stderr)
        runs = in_turns(ways, pairs, run)
        for way in WAYS:
            stock, ours = runs["stock", way.stock], runs["ours", way.ours]
            rows.append(
                [
                    f"{place}: {way.label}",
                    *spread([run.each for run in ours], [run.each for run in stock]),
                    *medians("each", ".2f", stock, ours),
                    *medians("pages", ",.0f", stock, ours),
                    *medians("filtered", ",.0f", stock, ours),
                ]
            )
    print(f"\n{title}: milliseconds of CPU time a page, medians of {pairs}")
    table(["", "ratio", "from, to", "stock", "ours", "pages", "ours", "dropped", "ours"], rows)


def medians(figure: str, form: str, *arms: list[Run]) -> list[str]:
    """Return the median of a figure in each of `arms`."""
    return [format(statistics.median(getattr(run, figure) for run in arm), form) for arm in arms]


def compare_in_company(companies: list[str], pairs: int, tree: Path | None) -> None:
    """Print the CPU time with this package, times that without it, beside each of `companies`."""
    trees = {"stock": ROOT, "ours": ROOT, **({"before": tree} if tree else {})}
    rows = []
    with tempfile.TemporaryDirectory() as name:
        write_site(Path(name))
        with serve_folder(Path(name)) as site:
            for company, place in product(companies, PLACES):
                print(company, place, file=sys.stderr)
                run = partial(crawl_in_company, site, company, place, trees)
                runs = in_turns(trees, pairs, run)
                ratios = (spread(runs[whose], runs["stock"]) for whose in [*trees][1:])
                rows.append([f"{company}, {place}", f"{statistics.median(runs['stock']):.2f}"])
                rows[-1] += ["{} ({})".format(*each) for each in ratios]
    print(f"\nCPU time times that without scrapy-bloom, medians of {pairs}")
    table(["", "stock, s", *(f"{whose}, from, to" for whose in trees if whose != "stock")], rows)


def crawl_in_company(
    site: str, company: str, place: str, trees: dict[str, Path], whose: str
) -> float:
    """Crawl in a process of its own, with scrapy_bloom from a tree; return its CPU seconds."""
    with tempfile.TemporaryDirectory() as folder:
        job = f"{folder}/job" if place == "JOBDIR" else ""
        options = {"company": company, "ours": whose != "stock", "job": job, "site": site}
        answer = subprocess.run(
            [sys.executable, str(HERE / "company.py"), json.dumps(options)],
            env={**os.environ, "PYTHONPATH": str(trees[whose].resolve())},
            stdout=subprocess.PIPE,
            check=True,
        ).stdout
    return float(json.loads(answer)["seconds"])


def main() -> None:
    parser = parser_of(__doc__, pairs=5, pages=(1000, "of each site; 0 for all"))
    parser.add_argument("folder", nargs="?", type=Path, help="of HTML pages, with an index.html")
    parser.add_argument("--only", choices=["real", "demo"])
    parser.add_argument("--with", dest="company", action="append", choices=[*WITH, "all"])
    parser.add_argument("--tree", type=Path, help="another checkout, for --with")
    arguments = parser.parse_args()
    if arguments.company:
        companies = [*WITH] if "all" in arguments.company else arguments.company
        compare_in_company(companies, arguments.pairs, arguments.tree)
        return
    preload()
    if arguments.only != "demo":
        with serve_folder(arguments.folder or documentation()) as site:
            compare("real pages", site, arguments.pairs, arguments.pages)
    if arguments.only != "real":
        with serve_demo() as site:
            compare("the demo's site", site, arguments.pairs, arguments.pages)


if __name__ == "__main__":
    main()
