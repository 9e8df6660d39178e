"""Two projects in the style of real ones, against a site on the loopback interface: each runs
whole without ours, then with ours, killed once in the middle and resumed."""

from __future__ import annotations

import io
import re
import signal
import sqlite3
import tempfile
from collections import Counter
from contextlib import closing
from functools import cache
from pathlib import Path

from PIL import Image

from tests.patience import wait_until
from tests.small_site import Scrapy, SmallSite

HERE = Path(__file__).parent
PAGES = 120
ADDON = '{"scrapy_bloom.Addon": 300}'


class Shop(SmallSite):
    """Lists of books, books that lead to others, and a picture of each book."""

    def __init__(self):
        super().__init__()
        self.waiting = set()
        self.pictures = Counter()

    async def _answer(self, method, path, body):
        if path.endswith(".png"):
            self.pictures[path] += 1
            return 200, {"Content-Type": "image/png"}, _picture(int(re.search(r"\d+", path)[0]))
        self.waiting.add(path)
        await self._wait_while_held()
        self.waiting.discard(path)
        self.answered[path] += 1
        return 200, {"Content-Type": "text/html"}, _html(path).encode()

    @property
    def unanswered(self):
        """The known pages that were not answered."""
        known = {"/list/0"}.union(*map(_links, self.answered))
        return known - self.answered.keys()


def _links(path):
    number = int(path.rpartition("/")[2])
    below = [each for each in (2 * number + 1, 2 * number + 2) if each < PAGES]
    return {f"/{'book' if each % 3 else 'list'}/{each}" for each in [*below, number // 2]}


def _html(path):
    links = "".join(f"<a href='{link}'>{link}</a>" for link in sorted(_links(path)))
    picture = f"/picture/{path.rpartition('/')[2]}.png"
    return f"<html><body><h1>Page {path}</h1><img src='{picture}'>{links}</body></html>"


@cache
def _picture(number):
    file = io.BytesIO()
    Image.new("RGB", (8, 8), (number, 255 - number, 100)).save(file, "PNG")
    return file.getvalue()


def books_left(folder):
    """Return what the crawl of books has left behind."""
    with closing(sqlite3.connect(folder / "books.sqlite")) as connection:
        rows = connection.execute("SELECT * FROM books").fetchall()
    images = [f"{path.name} {path.stat().st_size}" for path in folder.glob("images/full/*")]
    return {"rows": rows, "images": images, "lines": _lines(folder / "books.csv")}


def pages_left(folder):
    """Return what the crawl of the magazine has left behind."""
    lines = [line.rstrip(",") for line in _lines(folder / "pages.json")]
    return {"tab lines": _lines(folder / "pages.tab"), "JSON lines": lines}


def _lines(path):
    return path.read_text().splitlines()


def crawl_all():
    """Run both projects, print what came of them, and return the faults, a line each."""
    faults = []
    for name, left in (("books", books_left), ("magazine", pages_left)):
        with tempfile.TemporaryDirectory(prefix=f"field-{name}-") as place:
            faults += [f"{name}: {fault}" for fault in crawl(name, left, Path(place))]
    return faults


def crawl(name, left, folder):
    """Run one project whole without ours, then with ours and a kill; return the faults."""
    with Shop() as site:
        # the same URLs for both runs, since they are in the results
        whole, killed = folder / "whole", folder / "killed"
        whole.mkdir()
        killed.mkdir()
        without = _start(name, site, whole, DUPEFILTER_CLASS=None).end()
        expected, pages = left(whole), Counter(site.answered)
        site.answered.clear()

        ours = {"DUPEFILTER_CLASS": None, "ADDONS": ADDON, "JOBDIR": "job"}
        site.hold_at(len(pages) // 2)
        first = _start(name, site, killed, **ours)
        site.wait_held()
        wait_until(lambda: _pending(killed) == len(site.unanswered), "the last commit")
        first.stop(signal.SIGKILL)
        first.end()
        in_progress = Counter(site.waiting)
        site.release()
        wait_until(lambda: not site.waiting, "the site to answer the dead client")
        resumed = _start(name, site, killed, **ours).end()
        found = left(killed)

    faults = [
        f"ended with {run.reason}:\n{run.log[-3000:]}"
        for run in (without, resumed)
        if run.reason != "finished"
    ]
    expected["pages"], found["pages"] = pages.elements(), (site.answered - in_progress).elements()
    for what, those in expected.items():
        should, does = Counter(those), Counter(found[what])
        faults += [f"{what}: {each} is missing" for each in sorted(should - does)]
        faults += [f"{what}: {each} is there too often" for each in sorted(does - should)]
    figures = ", ".join(f"{len(those)} {what}" for what, those in found.items() if what != "pages")
    print(
        f"\n== {name}: {len(pages)} pages, {figures}; killed with {len(in_progress)} in progress,"
        f" resumed: {len(faults)} faults",
        flush=True,
    )
    return faults


def _start(name, site, folder, **settings):
    settings = {"CONCURRENT_REQUESTS": 8, "CONCURRENT_REQUESTS_PER_DOMAIN": 8, **settings}
    return Scrapy(
        folder, "runspider", HERE / f"{name}.py", "-a", f"first={site.url}/list/0", **settings
    )


def _pending(folder):
    uri = f"file:{folder / 'job' / 'requests.sqlite'}?mode=ro"
    with closing(sqlite3.connect(uri, uri=True)) as connection:
        return connection.execute("SELECT COUNT(*) FROM request WHERE state < 3").fetchone()[0]
