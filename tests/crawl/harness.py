"""Crawls in forked processes, killed and resumed; one process drives them side by side.

Scrapy is imported once, and every run of a crawl is a fork, so that a run takes a third
of a second and not two. Call it from a process without threads.
"""

import argparse
import asyncio
import gc
import inspect
import json
import logging
import os
import random
import signal
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path

from scrapy.core.downloader import Downloader
from scrapy.crawler import CrawlerProcess
from scrapy.settings import default_settings
from scrapy.utils.misc import load_object

import scrapy_bloom.addon  # noqa: F401 - before the forks, not in each
from tests.crawl.site import KINDS, Site, read_log
from tests.crawl.spider import TreeSpider
from tests.patience import PATIENCE
from tests.web_server import serve

ASYNCIO = "twisted.internet.asyncioreactor.AsyncioSelectorReactor"
SELECT = "twisted.internet.selectreactor.SelectReactor"
CONCURRENCY = 8
SETTINGS = {
    "ADDONS": {"scrapy_bloom.Addon": 300},
    "BLOOM_CAPACITY": 20_000,
    "BLOOM_DROP_EARLY": True,  # past the spider's middleware, which only adds to the output
    "BLOOM_HOLD": False,  # some sites fail all the time
    "CONCURRENT_ITEMS": 8,  # Scrapy makes so many tasks for each response
    "CONCURRENT_REQUESTS": CONCURRENCY,
    "CONCURRENT_REQUESTS_PER_DOMAIN": 4,
    "TELNETCONSOLE_ENABLED": False,
    "REMOTE_CONTROL_ENABLED": False,
}


@dataclass(frozen=True)
class Crawl:
    """What is crawled, and how."""

    name: str
    pages: int = 150
    reactor: str = ASYNCIO
    slow: bool = False
    kinds: tuple[str, ...] = tuple(KINDS)
    settings: dict = field(default_factory=dict)
    spider: type = TreeSpider
    attributes: dict = field(default_factory=dict)


def preload():
    """Import what Scrapy imports when it starts, but the reactor, so that forks have it."""
    defaults = default_settings
    components = {
        **defaults.EXTENSIONS_BASE,
        **defaults.DOWNLOADER_MIDDLEWARES_BASE,
        **defaults.SPIDER_MIDDLEWARES_BASE,
    }
    for path in [*components, defaults.DOWNLOADER, defaults.STATS_CLASS, defaults.LOG_FORMATTER]:
        load_object(path)
    for handler in ("scrapy.core.downloader.handlers.http11", "scrapy.pipelines"):
        import_module(handler)
    inspect.getsource(preload)  # Scrapy reads callbacks, with expressions that are compiled once
    assert "twisted.internet.reactor" not in sys.modules
    gc.freeze()


class World:
    """A folder with a site in a process of its own, whose crawls run here."""

    def __init__(self, folder, delay=0.01):
        self.folder = Path(folder)
        preload()
        reading, writing = os.pipe()
        self._site = fork(self._serve, self.folder / "site.err", delay, writing)
        os.close(writing)
        with os.fdopen(reading) as pipe:
            self._port = int(pipe.read())

    def _serve(self, delay, writing):
        def ready(port):
            os.write(writing, str(port).encode())
            os.close(writing)

        asyncio.run(serve(self.site(delay).answer, ready))

    def site(self, delay):
        """Return the site, in the process that serves it."""
        return Site(self.folder, delay)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        os.kill(self._site, signal.SIGKILL)
        os.waitpid(self._site, 0)

    def start(self, crawl, before=None, job=True):
        """Start a run of `crawl`; `before` is called in its process first, what it returns last."""
        folder = self.folder / crawl.name
        folder.mkdir(exist_ok=True)
        (folder / "stats.json").unlink(missing_ok=True)
        (folder / "handles").unlink(missing_ok=True)
        return Run(fork(self._crawl, folder / "log", crawl, before, job), folder)

    def _crawl(self, crawl, before, job):
        folder = self.folder / crawl.name
        random.seed()
        settings = {**SETTINGS, "TWISTED_REACTOR": crawl.reactor, **crawl.settings}
        if job:
            settings["JOBDIR"] = str(folder / "job")
        after = before() if before is not None else None
        process = CrawlerProcess(settings, install_root_handler=True)
        crawler = process.create_crawler(crawl.spider)
        site = f"http://127.0.0.1:{self._port}/{crawl.name}"
        crawling = process.crawl(
            crawler,
            site=site,
            pages=crawl.pages,
            slow=crawl.slow,
            kinds=crawl.kinds,
            **crawl.attributes,
        )
        crawling.addErrback(lambda failure: failure.printTraceback())
        from twisted.internet import reactor

        # Scrapy's handlers of signals come after the startup, before the first timer
        reactor.callLater(0, (folder / "handles").touch)
        process.start()
        if after is not None:
            after()
        write_stats(folder, crawler.stats.get_stats() if crawler.stats else {})
        logging.shutdown()

    def answers(self, crawl):
        """Return (time, page) for each answer to `crawl` so far."""
        return read_log(self.folder, crawl.name)

    def asked(self, crawl):
        """Return what was asked so far, in order, of a site that notes it."""
        try:
            return (self.folder / f"{crawl.name}.asked").read_text().split()
        except FileNotFoundError:
            return []

    def pages(self, crawl):
        """Return the pages that `crawl` was answered so far, each once."""
        return {page for _, page in self.answers(crawl)}


FORCED = (signal.SIGINT,) * (3 if hasattr(Downloader, "stop_async") else 2)
"""Ctrl-C, as often as ends a process in any case: https://github.com/scrapy/scrapy/pull/7455 waits
for what it breaks off at the second one, with asyncio for ever."""
RECEIVED = "] INFO: Received SIG"
"""In the log, for each signal that a crawl has taken."""


def write_stats(folder, stats):
    """Write what a run tells of itself; a kill leaves all of it or nothing."""
    new = folder / "stats.new"
    new.write_text(json.dumps(stats, default=str))
    new.replace(folder / "stats.json")


class Run:
    """One process of a crawl."""

    def __init__(self, pid, folder):
        self.pid = pid
        self.folder = folder
        self.status = None
        self.deadline = time.monotonic() + PATIENCE

    @property
    def ended(self):
        """True when the process has ended; ends it if it takes too long."""
        if self.status is None:
            if time.monotonic() > self.deadline:
                self.kill()
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.status = os.waitstatus_to_exitcode(status)
        return self.status is not None

    def kill(self):
        """Send SIGKILL, unless it has ended: its id may be another's now."""
        if self.status is None:
            os.kill(self.pid, signal.SIGKILL)

    def wait(self):
        """Wait for the end; return self."""
        while not self.ended:
            time.sleep(0.01)
        return self

    @property
    def handles_signals(self):
        """True when Scrapy handles signals; Twisted may hold back a Ctrl-C before, for ever."""
        return (self.folder / "handles").exists()

    @property
    def stats(self):
        """The stats of a run that came to its end."""
        try:
            return json.loads((self.folder / "stats.json").read_text())
        except FileNotFoundError:
            return {}

    @property
    def reason(self):
        """Why the spider was closed."""
        return self.stats.get("finish_reason")

    @property
    def log(self):
        """What this and earlier runs of the crawl have logged."""
        try:
            return (self.folder / "log").read_text()
        except FileNotFoundError:  # killed before it began
            return ""


def fork(function, log, *arguments):
    """Run a function in a forked process, its output in `log`; return its id."""
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(output, 1)
        os.dup2(output, 2)
        function(*arguments)
        status = 0
    except BaseException:  # noqa: BLE001 - the log has it, and the test's process must not go on
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def command_line(module, mutants=()):
    """Return a parser of what crawls of any kind take."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    parser.add_argument("--beside", type=int, default=3, help="crawls that run at once")
    parser.add_argument("--mutant", choices=mutants, help="break something on purpose")
    return parser


def parsed(parser):
    """Return the options, and a new folder for the crawls; tell seed and folder."""
    options, folder = parser.parse_args(), tempfile.mkdtemp(prefix="crawls-")
    print(f"seed {options.seed}, in {folder}", file=sys.stderr, flush=True)
    return options, folder


def side_by_side(jobs, beside=3):
    """Run generators, `beside` at a time, until they yield something; return that."""
    waiting, running, results = iter(jobs), [], []
    while True:
        while len(running) < beside and (job := next(waiting, None)) is not None:
            running.append(job)
        if not running:
            return results
        time.sleep(0.004)
        for job in list(running):
            if (result := next(job, None)) is not None:
                running.remove(job)
                results.append(result)


def fields_of(fields):
    """Return the fields of a request of a stopped job."""
    return fields
