"""A small, link-dense site that notes what it answered, and crawls of it in subprocesses.

Every page is a JSON list of links: method, URL, body. Links wear disguises (fragments,
reordered arguments, escapes in either case); some lead over a redirect.
"""

import asyncio
import json
import os
import random
import re
import subprocess
from collections import Counter
from pathlib import Path
from threading import Event

from scrapy import Request
from scrapy.utils.request import fingerprint
from w3lib.url import canonicalize_url

import scrapy_bloom
from tests.patience import PATIENCE
from tests.processes import Process
from tests.web_server import ServedInThread

TESTS = Path(__file__).resolve().parent
PACKAGE = Path(scrapy_bloom.__file__).resolve().parent.parent
SETTINGS = {
    "DUPEFILTER_CLASS": "scrapy_bloom.BloomDupeFilter",
    "LOG_LEVEL": "INFO",
    "TELNETCONSOLE_ENABLED": 0,
    "REMOTE_CONTROL_ENABLED": 0,  # it warns where asyncio is missing
}

PAGES = [
    *(("GET", f"/page/{n}", "") for n in range(90)),
    *(("GET", f"/search?page={n}&q=x", "") for n in range(20)),
    *(("GET", f"/caf%C3%A9/{n}", "") for n in range(10)),
    *(("POST", "/form", f"n={n}") for n in range(20)),
    *((method, "/form", body) for method in ("GET", "POST", "PUT") for body in ("", "x=1")),
    *((method, "/page/7", "") for method in ("POST", "DELETE")),
]


def _disguised(number, chance):
    method, url, body = PAGES[number]
    if method == "GET" and number % 9 == 5:
        return method, f"/moved/{number}", body
    if url.startswith("/search") and chance.random() < 0.5:
        path, query = url.split("?")
        url = path + "?" + "&".join(reversed(query.split("&")))
    if chance.random() < 0.5:
        url = url.replace("%C3%A9", "%c3%a9")
    return method, url + chance.choice(["", "#a", "#b"]), body


def _links(number):
    chance = random.Random(number)
    linked = [2 * number + 1, 2 * number + 2, *chance.choices(range(len(PAGES)), k=8)]
    return [_disguised(n, chance) for n in linked if n < len(PAGES)]


class SmallSite(ServedInThread):
    """The site, on a free port of the loopback interface, in a thread."""

    def __init__(self):
        self.answered = Counter()
        self._limit = None
        self._held = Event()

    def __exit__(self, *_):
        self.release()
        super().__exit__()

    async def _answer(self, method, path, body):
        if path.startswith("/moved/"):
            target = PAGES[int(path.rpartition("/")[2])][1]
            return 302, {"Location": self.url + target}, b""
        page = (method, canonicalize_url(path), body)
        if page not in PAGES:
            return 404, {}, b""
        await self._wait_while_held()
        self.answered[page] += 1
        return 200, {}, json.dumps(_links(PAGES.index(page))).encode()

    async def _wait_while_held(self):
        while self._limit is not None and self.answered.total() >= self._limit:
            self._held.set()
            await asyncio.sleep(0.01)

    def hold_at(self, count):
        """From `count` answers on, keep clients waiting until `release`."""
        self._held.clear()
        self._limit = count

    def wait_held(self):
        """Wait until a client is kept waiting."""
        assert self._held.wait(PATIENCE)

    def release(self):
        """Answer those who wait, and all who come."""
        self._limit = None

    def stop(self, run, signal):
        """Let a crawl that waits get a signal, go on and end."""
        run.stop(signal)
        self.release()
        run.end()

    @property
    def missed(self):
        """The pages that were never answered with 200."""
        return [page for page in PAGES if not self.answered[page]]

    @property
    def twice(self):
        """The pages that were answered with 200 more than once."""
        return [page for page, count in [*self.answered.items()] if count > 1]

    def fingerprints(self):
        """Scrapy's fingerprints of the pages answered so far."""
        return [
            fingerprint(Request(self.url + url, method=method, body=body))
            for method, url, body in [*self.answered]  # the server may still answer
        ]


class Scrapy:
    """A Scrapy command in a process of its own, whose output is in `log` when it has ended.

    A setting that is None is left to Scrapy.
    """

    def __init__(self, folder, *arguments, environment=(), **settings):
        self._log = folder / f"log{len(list(folder.glob('log*')))}"
        settings = {**SETTINGS, **settings}.items()
        options = [f"--set={name}={value}" for name, value in settings if value is not None]
        path = [str(PACKAGE), *filter(None, [os.environ.get("PYTHONPATH")])]
        with self._log.open("w") as log:
            self.process = Process(
                ["-m", "scrapy", *arguments, *options],
                cwd=folder,
                env={**os.environ, **dict(environment), "PYTHONPATH": os.pathsep.join(path)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def end(self):
        """Wait for the end and return self."""
        try:
            self.status = self.process.wait(PATIENCE)
        finally:
            self.process.kill()
            self.process.wait()
        self.log = self._log.read_text()
        return self

    def stop(self, signal):
        """Send `signal`."""
        self.process.send_signal(signal)

    def stat(self, name):
        """Return a stat from the log as text, or None."""
        match = re.search(rf"'{re.escape(name)}': '?([^,'}}]*)", self.log)
        return match and match[1]

    @property
    def reason(self):
        """Why the spider was closed."""
        return self.stat("finish_reason")

    def lines(self, level):
        """The lines with that level, but for what a Scrapy with throttling says of its default."""
        lines = [line for line in self.log.splitlines() if f"] {level}: " in line]
        return [line for line in lines if "THROTTLING_SCOPE_CONCURRENCY" not in line]


def crawl_until(count, site, folder, **options):
    """Start such a crawl; return it when the site has answered so often, and keeps it waiting."""
    site.hold_at(count)
    run = crawl(site, folder, **options)
    site.wait_held()
    return run


def crawl(site, folder, job=True, **options):
    """Start a crawl of `site` with a job directory in `folder`."""
    if job:
        options["JOBDIR"] = folder / "job"
    spider = TESTS / "small_spider.py"
    return Scrapy(folder, "runspider", spider, "-a", f"first={site.url}/page/0", **options)
