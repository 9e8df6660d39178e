"""A project in the style of real ones, against a site on the loopback interface: it runs whole
without ours, then with ours, killed once in the middle and resumed."""

import io
import re
import signal
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path

from PIL import Image

from tests.patience import wait_until
from tests.small_site import Scrapy, SmallSite

PAGES = 120


class Magazine(SmallSite):
    """Lists of pages, pages that lead to others, and a picture of each."""

    def __init__(self):
        super().__init__()
        self.waiting = set()

    async def _answer(self, method, path, body):
        if path.endswith(".png"):
            number, file = int(re.search(r"\d+", path)[0]), io.BytesIO()
            Image.new("RGB", (8, 8), (number, 255 - number, 100)).save(file, "PNG")
            return 200, {"Content-Type": "image/png"}, file.getvalue()
        self.waiting.add(path)
        await self._wait_while_held()
        self.waiting.discard(path)
        self.answered[path] += 1
        links = "".join(f"<a href='{link}'>{link}</a>" for link in sorted(_links(path)))
        text = f"<html><body><img src='/{path.rpartition('/')[2]}.png'>{links}</body></html>"
        return 200, {"Content-Type": "text/html"}, text.encode()

    @property
    def unanswered(self):
        """The known pages that were not answered."""
        return {"/list/0"}.union(*map(_links, self.answered)) - self.answered.keys()


def _links(path):
    number = int(path.rpartition("/")[2])
    below = [each for each in (2 * number + 1, 2 * number + 2) if each < PAGES]
    return {f"/{'page' if each % 3 else 'list'}/{each}" for each in [*below, number // 2]}


def left(folder):
    """Return what a crawl has left behind."""
    with closing(sqlite3.connect(folder / "pages.sqlite")) as connection:
        found = {"rows": connection.execute("SELECT * FROM pages").fetchall()}
    found["images"] = [f"{path.name} {path.stat().st_size}" for path in folder.glob("images/*/*")]
    for name in ("pages.tab", "pages.csv", "pages.json"):
        lines = (folder / name).read_text().splitlines()
        found[name] = [line.rstrip(",") for line in lines]
    return found


def crawl(folder):
    """Run the project without ours, then with ours and a kill; print it, and return the faults."""
    with Magazine() as site:
        # the same URLs for both runs, since they are in the results
        whole, killed = folder / "whole", folder / "killed"
        whole.mkdir()
        killed.mkdir()
        without = _start(site, whole).end()
        expected, pages = left(whole), Counter(site.answered)
        site.answered.clear()

        ours = {"ADDONS": '{"scrapy_bloom.Addon": 300}', "JOBDIR": "job"}
        site.hold_at(len(pages) // 2)
        first = _start(site, killed, **ours)
        site.wait_held()
        wait_until(lambda: _pending(killed) == len(site.unanswered), "the last commit")
        first.stop(signal.SIGKILL)
        first.end()
        in_progress = Counter(site.waiting)
        site.release()
        wait_until(lambda: not site.waiting, "the site to answer the dead client")
        resumed = _start(site, killed, **ours).end()
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
    print(
        f"\n== magazine: {len(pages)} pages, killed with {len(in_progress)}: {faults}", flush=True
    )
    return faults


def _start(site, folder, **settings):
    settings |= {"CONCURRENT_REQUESTS_PER_DOMAIN": 8, "DUPEFILTER_CLASS": None}
    spider, first = Path(__file__).with_name("magazine.py"), f"first={site.url}/list/0"
    return Scrapy(folder, "runspider", spider, "-a", first, **settings)


def _pending(folder):
    uri = f"file:{folder / 'job' / 'requests.sqlite'}?mode=ro"
    with closing(sqlite3.connect(uri, uri=True)) as connection:
        return connection.execute("SELECT COUNT(*) FROM request WHERE state < 3").fetchone()[0]
