"""One world for crawls that die, are stopped and are resumed: a local site, runs in forked
processes, and stories of them, which one process tells side by side.

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
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from math import inf
from pathlib import Path

from scrapy.core.downloader import Downloader
from scrapy.crawler import CrawlerProcess
from scrapy.settings import default_settings
from scrapy.utils.misc import load_object

import scrapy_bloom.addon  # noqa: F401 - before the forks, not in each
from tests.patience import PATIENCE
from tests.web_server import serve
from tests.world.mutants import MUTANTS
from tests.world.site import Answer, Asked
from tests.world.tree import KINDS, TreeSpider
from tests.world.tree import answer as answer_of_tree

ASYNCIO = "twisted.internet.asyncioreactor.AsyncioSelectorReactor"
SELECT = "twisted.internet.selectreactor.SelectReactor"
REACTORS = ASYNCIO, SELECT
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
FORCED = (signal.SIGINT,) * (3 if hasattr(Downloader, "stop_async") else 2)
"""Ctrl-C, as often as ends a process in any case: https://github.com/scrapy/scrapy/pull/7455 waits
for what it breaks off at the second one, with asyncio for ever."""
RECEIVED = "] INFO: Received SIG"
"""In the log, for each signal that a crawl has taken."""


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
    base: dict = field(default_factory=lambda: SETTINGS)


@dataclass(frozen=True)
class Step:
    """One start of a crawl."""

    before: Callable | None = None
    """Called in its process first; what it returns is called last."""
    settings: dict = field(default_factory=dict)
    state: str = ""
    """What the site is told."""
    signals: tuple[int, ...] = ()
    at: float = 0
    """After so many answers the signals are sent, and so many seconds."""
    seconds: float = 0.0
    job: bool = True
    """Whether it has the crawl's JOBDIR."""


def preload():
    """Import what Scrapy imports when it starts, but the reactor, so that forks have it."""
    defaults = default_settings
    for base in ("EXTENSIONS_BASE", "DOWNLOADER_MIDDLEWARES_BASE", "SPIDER_MIDDLEWARES_BASE"):
        for path in getattr(defaults, base):
            load_object(path)
    for path in (defaults.DOWNLOADER, defaults.STATS_CLASS, defaults.LOG_FORMATTER):
        load_object(path)
    for handler in ("scrapy.core.downloader.handlers.http11", "scrapy.pipelines"):
        import_module(handler)
    inspect.getsource(preload)  # Scrapy reads callbacks, with expressions that are compiled once
    assert "twisted.internet.reactor" not in sys.modules
    gc.freeze()


class World:
    """A folder with a site in a process of its own, whose crawls run here.

    `answer(asked)` is awaited for each page `/CRAWL/KIND/NUMBER`, and returns the Reply. What was
    asked is noted in a file of the crawl.
    """

    def __init__(self, folder, answer=answer_of_tree):
        self.folder = Path(folder)
        self._answer = answer
        preload()
        reading, writing = os.pipe()
        self._site = fork(self._serve, self.folder / "site.err", writing)
        os.close(writing)
        with os.fdopen(reading) as pipe:
            self._port = int(pipe.read())

    def _serve(self, writing):
        def ready(port):
            os.write(writing, str(port).encode())
            os.close(writing)

        self._times = Counter()
        asyncio.run(serve(self._reply, ready))

    async def _reply(self, _method, path, _body):
        if path == "/robots.txt":
            return 200, {}, b"User-agent: *\nDisallow: /*/robots/\n"
        _, crawl, page = path.partition("?")[0].split("/", 2)
        state = self.folder / f"{crawl}.state"
        state = state.read_text() if state.exists() else ""
        asked = Asked(crawl, page, self._times[crawl, page], state)
        self._times[crawl, page] += 1
        reply = await self._answer(asked)
        with (self.folder / f"{crawl}.asked").open("a") as log:
            log.write(f"{time.monotonic()} {reply.status or 0} {page}\n")
        await asyncio.sleep(reply.after)
        return None if reply.status is None else (reply.status, reply.headers, reply.body)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        os.kill(self._site, signal.SIGKILL)
        os.waitpid(self._site, 0)

    def url(self, crawl):
        """Return where the site of a crawl is."""
        return f"http://127.0.0.1:{self._port}/{crawl.name}"

    def say(self, crawl, state):
        """Tell the site what it is for a crawl from now on."""
        (self.folder / f"{crawl.name}.state").write_text(state)

    def start(self, crawl, before=None, job=True, folder=None, **arguments):
        """Start a run of `crawl`; `before` is called in its process first, what it returns last;
        `arguments` are its spider's."""
        folder = folder or self.folder / crawl.name
        folder.mkdir(exist_ok=True, parents=True)
        (folder / "stats.json").unlink(missing_ok=True)
        (folder / "handles").unlink(missing_ok=True)
        work = partial(self._crawl, folder, crawl, before, job, arguments)
        return Run(fork(work, folder / "log"), folder)

    def _crawl(self, folder, crawl, before, job, arguments):
        os.chdir(folder)
        random.seed()
        settings = {**crawl.base, "TWISTED_REACTOR": crawl.reactor, **crawl.settings}
        if job:
            settings.setdefault("JOBDIR", str(folder / "job"))
        after = before() if before is not None else None
        process = CrawlerProcess(settings, install_root_handler=True)
        crawler = process.create_crawler(crawl.spider)
        own = {"pages": crawl.pages, "slow": crawl.slow, "kinds": crawl.kinds}
        crawling = process.crawl(crawler, site=self.url(crawl), **own, **arguments)
        crawling.addErrback(lambda failure: failure.printTraceback())
        from twisted.internet import reactor

        # Scrapy's handlers of signals come after the startup, before the first timer
        reactor.callLater(0, (folder / "handles").touch)
        process.start()
        if after is not None:
            after()
        stats = crawler.stats.get_stats() if crawler.stats else {}
        # a kill leaves all of it or nothing
        (folder / "stats.new").write_text(json.dumps(stats, default=str))
        (folder / "stats.new").replace(folder / "stats.json")
        logging.shutdown()

    def _log(self, crawl):
        path = self.folder / f"{crawl.name}.asked"
        # without the line that the site is just writing
        return path.read_text().rpartition("\n")[0] if path.exists() else ""

    def count(self, crawl):
        """Return how often `crawl` was answered so far."""
        log = self._log(crawl)
        return log.count("\n") + bool(log)

    def answers(self, crawl):
        """Return the answers to `crawl` so far, in order."""
        lines = (line.split(" ", 2) for line in self._log(crawl).splitlines())
        return [Answer(float(at), int(status), page) for at, status, page in lines]

    def asked(self, crawl):
        """Return the pages that were asked so far, in order."""
        return [answer.page for answer in self.answers(crawl)]

    def pages(self, crawl):
        """Return the pages that were answered so far, in order, but for errors of the server."""
        return [answer.page for answer in self.answers(crawl) if answer.is_good]


class Run:
    """One process of a crawl."""

    def __init__(self, pid, folder):
        self.pid = pid
        self.folder = folder
        self.status = None
        self.deadline = time.monotonic() + PATIENCE
        self._to_receive = self.log.count(RECEIVED)

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

    def sent(self, number):
        """Send a signal, if it is time; return True if it was sent.

        Twisted may hold back for ever what comes before Scrapy handles signals, and one that is
        sent before the last one is received may be taken for the same.
        """
        if number == signal.SIGKILL:
            self.kill()
            return True
        is_time = (self.folder / "handles").exists()
        if is_time and self.log.count(RECEIVED) >= self._to_receive:
            os.kill(self.pid, number)
            self._to_receive += 1
            return True
        return False

    def wait(self):
        """Wait for the end; return self."""
        while not self.ended:
            time.sleep(0.01)
        return self

    @property
    def stats(self):
        """The stats of a run that came to its end."""
        path = self.folder / "stats.json"
        return json.loads(path.read_text()) if path.exists() else {}

    @property
    def reason(self):
        """Why the spider was closed."""
        return self.stats.get("finish_reason")

    @property
    def log(self):
        """What this and earlier runs of the crawl have logged."""
        path = self.folder / "log"
        return path.read_text() if path.exists() else ""  # killed before it began

    def lines(self, text):
        """Return the lines of the log that have this in them."""
        return [line for line in self.log.splitlines() if text in line]


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


def take(world, crawl, step):
    """Take a step of a crawl to its end; return its run. Yields while it goes on."""
    world.say(crawl, step.state)
    began, to_send, due = world.count(crawl), [*step.signals], inf
    settings = {**crawl.settings, **step.settings}
    run = world.start(replace(crawl, settings=settings), step.before, step.job)
    while not run.ended:
        if to_send and due == inf and world.count(crawl) - began >= step.at:
            due = time.monotonic() + step.seconds
        if to_send and time.monotonic() >= due and run.sent(to_send[0]):
            to_send.pop(0)
            due = time.monotonic() + random.random() * 0.02
        yield None
    return run


def tell(world, crawl, steps, look):
    """Take the steps of a crawl in turn; return what `look` says of run, step and answers."""
    found = []
    for step in steps:
        began = world.count(crawl)
        run = yield from take(world, crawl, step)
        found.append(look(run, step, world.answers(crawl)[began:]))
    return found


def side_by_side(jobs, beside):
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


@dataclass
class Teller:
    """What stories need: the world, what the command line says, and chance."""

    world: World
    options: argparse.Namespace

    def __post_init__(self):
        self.chance = random.Random(self.options.seed)


def tell_stories(module, stories, answer, arguments=lambda parser: None, teller=Teller):
    """Tell the stories that the command line names, or all: functions that return generators, of
    which each yields a report in the end, printed as a line of JSON. The folder stays if it fails,
    or if something is `wrong` in a report."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    parser.add_argument("--beside", type=int, default=3, help="crawls that run at once")
    parser.add_argument("--mutant", choices=MUTANTS, help="break something on purpose")
    parser.add_argument("--count", type=int, default=1, help="of crawls of a kind, or of kills")
    parser.add_argument("stories", nargs="*", choices=[[], *stories])
    arguments(parser)
    options, folder = parser.parse_args(), tempfile.mkdtemp(prefix="crawls-")
    print(f"seed {options.seed}, in {folder}", file=sys.stderr, flush=True)
    if options.mutant:
        MUTANTS[options.mutant]()
    with World(folder, answer) as world:
        tells, totals = teller(world, options), Counter()
        told = (each for name in options.stories or stories for each in stories[name](tells))
        for report in side_by_side(told, options.beside):
            print(json.dumps(report, default=str), flush=True)
            totals.update({k: v for k, v in report.items() if isinstance(v, int)})
            totals["wrong"] += bool(report.get("wrong"))
    print(dict(totals), file=sys.stderr)
    if totals["wrong"]:
        sys.exit(1)
    shutil.rmtree(folder)
