"""Makes the delta stores beside it: `python -m tests.data.v030.make OUTDIR` in a checkout of 0.3.0.

Later versions must open them. Nothing is fetched: a downloader middleware answers.

    python -m tests.data.v030.make --crawl STORE DAY DIRECTORY

crawls with a (copy of a) store in any version, as on a day, and prints what it has asked for and
what its stats say.
"""

import json
import random
import shutil
import subprocess
import sys
import tempfile
from contextlib import closing
from importlib.metadata import version
from pathlib import Path

import scrapy
from scrapy.crawler import CrawlerProcess
from scrapy.http import TextResponse
from scrapy.utils.request import fingerprint

ROOT = Path(__file__).resolve().parents[3]
COMMAND = (sys.executable, "-m", "tests.data.v030.make", "--crawl")
DAY = 86_400
FIRST_DAY = 1_800_000_000
SITE = "http://site.example"
STORES = {
    "plain": {"BLOOM_DELTA": "item", "BLOOM_DELTA_DAYS": 8},
    "digests": {"BLOOM_DELTA": "item", "BLOOM_DELTA_DAYS": 8, "BLOOM_DELTA_DIGEST": "at"},
}
DAYS = (0, 7)
"""Of the crawls that have made them: on the second one of them marks of the first count."""
NEXT = 9
"""The day of the crawl that shows what a store knows: what was marked on the first day only has
expired."""
FORGOTTEN = f"{SITE}/item/2"


class DeltaSpider030(scrapy.Spider):
    """Follows a list to pages of many kinds."""

    name = "v030"

    async def start(self):
        yield scrapy.Request(f"{SITE}/list/1", dont_filter=True)

    def parse(self, response):
        kind = response.url.split("/")[-2]
        yield {"text": response.text, "at": random.random(), "kinds": {kind, "page"}}
        for path in response.json() if kind == "list" else ():
            kind = path.split("/")[0]
            meta = {"bloom_delta": False} if kind == "always" else {}
            meta |= {"bloom_delta_key": path} if kind == "keyed" else {}
            query = f"?sid={random.random()}" if kind == "keyed" else ""
            yield scrapy.Request(f"{SITE}/{path}{query}", meta=meta)


class Site030:
    """Answers as on a day, from 0: some bring a new page, and the last one rewrites one."""

    def __init__(self, crawler):
        self._day = crawler.settings.getint("FIXTURE_DAY")
        self._asked = crawler.asked

    @classmethod
    def from_crawler(cls, crawler):
        return cls(crawler)

    def process_request(self, request):
        path = request.url.partition("?")[0].removeprefix(f"{SITE}/")
        self._asked.append(path)
        text = path
        if path == "list/1":
            paths = [f"item/{n}" for n in range(1, 5)] + ["keyed/1", "always/1", "always/2"]
            new = [f"item/{day}" for day in (*DAYS, NEXT) if 0 < day <= self._day]
            text = json.dumps([*paths, *new])
        if path == "always/2" and self._day == NEXT:
            text += ", rewritten"
        return TextResponse(request.url, body=text.encode(), encoding="utf-8", request=request)


def crawl(store, day, directory):
    """Crawl, and print what became of it."""
    from scrapy_bloom.delta.middleware import DeltaMiddleware

    DeltaMiddleware.clock = staticmethod(lambda: FIRST_DAY + day * DAY)
    process = CrawlerProcess(
        {
            "ADDONS": {"scrapy_bloom.Addon": 300},
            **STORES[store],
            "BLOOM_DELTA_DIR": str(directory),
            "DOWNLOADER_MIDDLEWARES": {Site030: 1},
            "FIXTURE_DAY": day,
            "LOG_LEVEL": "ERROR",
            "TELNETCONSOLE_ENABLED": False,
        }
    )
    crawler = process.create_crawler(DeltaSpider030)
    crawler.asked = []
    process.crawl(crawler)
    process.start()
    stats = {k: v for k, v in crawler.stats.get_stats().items() if k.startswith("bloom/delta_")}
    del stats["bloom/delta_bytes"]
    print(json.dumps({"asked": sorted(crawler.asked), "stats": stats}))


def run(store, day, directory):
    """Crawl in a process of its own; return what it prints."""
    words = [*COMMAND, store, str(day), str(directory)]
    child = subprocess.run(words, capture_output=True, text=True, check=False, cwd=ROOT)
    assert child.returncode == 0, child.stderr
    return json.loads(child.stdout)


def rows_of(directory):
    """Return the rows of a store as `expected.json` has them."""
    from scrapy_bloom.delta.table import Table

    with closing(Table(directory)) as table:
        table.look()
        return [[key.hex(), when, digest and digest.hex()] for key, when, digest in table.rows()]


def main(out):
    """Make the stores and `expected.json`."""
    from scrapy_bloom.delta.table import Table

    expected = {
        "made_with": {name: version(name) for name in ("scrapy-bloom", "scrapy", "itemadapter")},
        "stores": {},
    }
    for store in STORES:
        directory = out / store
        for day in DAYS:
            run(store, day, directory)
        with closing(Table(directory)) as table:
            table.undo([fingerprint(scrapy.Request(FORGOTTEN))], "")
        rows = rows_of(directory)
        with tempfile.TemporaryDirectory() as scratch:
            copy = shutil.copytree(directory, Path(scratch) / store)
            resumed = run(store, NEXT, copy)
            after = rows_of(copy)
        expected["stores"][store] = {"rows": rows, "next": resumed, "rows_then": after}
    (out / "expected.json").write_text(json.dumps(expected, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1] == "--crawl":
        crawl(sys.argv[2], int(sys.argv[3]), Path(sys.argv[4]))
    else:
        main(Path(sys.argv[1]))
