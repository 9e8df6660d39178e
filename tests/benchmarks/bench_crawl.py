"""CPU time of a whole crawl, with this package and with stock Scrapy by turns: on real
pages, from a Debian documentation package or a folder, and on the demo's site.

    python tests/benchmarks/bench_crawl.py [--pairs N] [--pages N] [--only real|demo] [folder]
    python tests/benchmarks/bench_crawl.py --with nothing|scrapy-poet|… [--tree FOLDER]

`--with` crawls 300 pages of 100 links beside other people's components, which the environment must
have. `--tree` is another checkout of this package, by turns with this one.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from company import SETTINGS as BUSY_CRAWL
from company import WITH, write_site
from sidebyside import HERE, ROOT, table

sys.path.append(str(ROOT / "example_project"))

from scrapy import Spider
from scrapy.crawler import AsyncCrawlerProcess
from scrapy.http import HtmlResponse
from scrapy.linkextractors import LinkExtractor

from scrapy_bloom import NewLinkExtractor, follow_new
from tests.job.harness import preload

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
LINKS = 'a:not([href^="mailto:"])'  # which are errors
OURS = {"ADDONS": {"scrapy_bloom.Addon": 300}}


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
    """Crawl in a forked process, which has imported everything already."""
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        status = 1
        try:
            os.write(writing, json.dumps(_crawl(site, way, folder, settings, pages)).encode())
            status = 0
        finally:
            os._exit(status)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        answer = pipe.read()
    _, status, used = os.wait4(pid, 0)
    if status:
        sys.exit(f"the crawl of {site} by {way} failed")
    return Run(used.ru_utime + used.ru_stime, **json.loads(answer))


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
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                while await reader.readline() != b"\r\n":
                    pass
                path = folder / line.split()[1].decode().partition("?")[0].lstrip("/")
                found = path.suffix in TYPES and path.is_file()
                body = path.read_bytes() if found else b""
                status = "200 OK" if found else "404 Not Found"
                kind = TYPES.get(path.suffix, "text/plain")
                head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}"
                writer.write(f"{head}\r\n\r\n".encode() + body)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    os.write(writing, str(server.sockets[0].getsockname()[1]).encode())
    os.close(writing)
    await server.serve_forever()


@contextmanager
def serve_demo() -> Iterator[str]:
    """Serve the demo's site; yield its URL."""
    from harness import serve

    with tempfile.TemporaryDirectory() as folder, serve(Path(folder)) as site:
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
    for place in ("JOBDIR", "memory"):
        runs: dict[tuple[str, str], list[Run]] = {}
        for _ in range(pairs):
            crawls = sorted(
                {(whose, getattr(way, whose)) for way in WAYS for whose in ("stock", "ours")}
            )
            random.shuffle(crawls)
            for whose, way in crawls:
                settings = OURS if whose == "ours" else {}
                with tempfile.TemporaryDirectory() as name:
                    folder = Path(name) / "job" if place == "JOBDIR" else None
                    run = crawl(site, way, folder, settings, pages)
                runs.setdefault((whose, way), []).append(run)
                print(f"{title}, {place}, {whose}, {way}: {run}", file=sys.stderr, flush=True)
        for way in WAYS:
            stock, ours = runs["stock", way.stock], runs["ours", way.ours]
            ratios = sorted(b.each / a.each for a, b in zip(stock, ours, strict=True))
            a, b = (statistics.median(run.each for run in each) for each in (stock, ours))
            rows.append(
                [
                    f"{place}: {way.label}",
                    f"{statistics.median(ratios):.2f}",
                    f"{ratios[0]:.2f} to {ratios[-1]:.2f}",
                    f"{a:.2f}",
                    f"{b:.2f}",
                    *(
                        f"{statistics.median(run.pages for run in each):,.0f}"
                        for each in (stock, ours)
                    ),
                    *(
                        f"{statistics.median(run.filtered for run in each):,.0f}"
                        for each in (stock, ours)
                    ),
                ]
            )
    print(f"\n{title}: milliseconds of CPU time a page, medians of {pairs}")
    table(["", "ratio", "from, to", "stock", "ours", "pages", "ours", "dropped", "ours"], rows)


def compare_in_company(companies: list[str], pairs: int, tree: Path | None) -> None:
    """Print the CPU time with this package, times that without it, beside each of `companies`."""
    trees = {"stock": ROOT, "ours": ROOT, **({"before": tree} if tree else {})}
    rows = []
    with tempfile.TemporaryDirectory() as name:
        write_site(Path(name))
        with serve_folder(Path(name)) as site:
            for company in companies:
                for place in ("JOBDIR", "memory"):
                    runs: dict[str, list[Run]] = {whose: [] for whose in trees}
                    for _ in range(pairs):
                        for whose in random.sample([*trees], len(trees)):
                            run = crawl_in_company(company, place, whose, trees[whose], site)
                            runs[whose].append(run)
                            print(company, place, whose, run, file=sys.stderr, flush=True)
                    rows.append([f"{company}, {place}", *_ratios(runs, trees)])
    print(f"\nCPU time times that without scrapy-bloom, medians of {pairs}")
    table(["", "stock, s", *(f"{whose}, from, to" for whose in trees if whose != "stock")], rows)


def _ratios(runs: dict[str, list[Run]], trees: dict[str, Path]) -> Iterator[str]:
    yield f"{statistics.median(run.seconds for run in runs['stock']):.2f}"
    for whose in trees:
        if whose != "stock":
            pairs = zip(runs["stock"], runs[whose], strict=True)
            ratios = sorted(ours.seconds / stock.seconds for stock, ours in pairs)
            yield f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"


def crawl_in_company(company: str, place: str, whose: str, tree: Path, site: str) -> Run:
    """Crawl in a process of its own, with scrapy_bloom from `tree`."""
    with tempfile.TemporaryDirectory() as folder:
        job = f"{folder}/job" if place == "JOBDIR" else ""
        options = {"company": company, "ours": whose != "stock", "job": job, "site": site}
        answer = subprocess.run(
            [sys.executable, str(HERE / "company.py"), json.dumps(options)],
            env={**os.environ, "PYTHONPATH": str(tree.resolve())},
            stdout=subprocess.PIPE,
            check=True,
        ).stdout
    return Run(**json.loads(answer))


def main() -> None:
    """Print a table for each site."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", nargs="?", type=Path, help="of HTML pages, with an index.html")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--pages", type=int, default=1000, help="of each site; 0 for all")
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
