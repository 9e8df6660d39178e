"""Tests the wheel in dist/ as a stranger would: alone, in an empty environment of this Python.

A crawl of a small site on this machine is killed and resumed; then `scrapy bloom` looks at its job.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import signal
import subprocess
import threading
import time
import venv
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory

DIST = Path(__file__).parents[1] / "dist"
PAGES = 200
SPIDER = """
import scrapy

class SiteSpider(scrapy.Spider):
    name = "site"
    custom_settings = {{"ADDONS": {{"scrapy_bloom.Addon": 300}}, "TELNETCONSOLE_ENABLED": False}}
    start_urls = ["{url}"]

    def parse(self, response):
        yield {{"url": response.url}}
        yield from response.follow_all(css="a")
"""


class Site(ThreadingHTTPServer):
    """Each page leads to two more and to page 1; `third` is set when a third was asked for."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self.third = threading.Event()
        super().__init__(("127.0.0.1", 0), Page)
        self.url = f"http://127.0.0.1:{self.server_port}/"
        threading.Thread(target=self.serve_forever, daemon=True).start()


class Page(BaseHTTPRequestHandler):
    """Answers after 20 ms."""

    server: Site

    def do_GET(self) -> None:
        """Send the links of a page."""
        self.server.asked[self.path] += 1
        if len(self.server.asked) > PAGES / 3:
            self.server.third.set()
        time.sleep(0.02)
        number = int(self.path[1:] or 0)
        linked = [n for n in (2 * number + 1, 2 * number + 2) if n < PAGES]
        body = "".join(f'<a href="/{n}">{n}</a>' for n in (1, *linked)).encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def handle(self) -> None:
        """Answer; the crawl that is killed hears nothing."""
        with contextlib.suppress(ConnectionError):
            super().handle()

    def log_message(self, *_arguments: object) -> None:
        """Print nothing."""


class Stranger:
    """An empty folder with an environment that has the wheel, and what it depends on."""

    def __init__(self, folder: Path, wheel: Path) -> None:
        self.folder = folder
        venv.create(folder / "venv", with_pip=True)
        # nothing of ours may come from elsewhere
        hidden = {"PYTHONPATH", "SCRAPY_SETTINGS_MODULE", "VIRTUAL_ENV"}
        self.environment = {k: value for k, value in os.environ.items() if k not in hidden}
        self.run("pip", "--disable-pip-version-check", "install", "--quiet", str(wheel))
        self.run("pip", "--disable-pip-version-check", "check")

    def start(self, command: str, *arguments: str) -> subprocess.Popen[str]:
        """Start a command of the environment in the folder."""
        return subprocess.Popen(
            [str(self.folder / "venv" / "bin" / command), *arguments],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, command: str, *arguments: str) -> str:
        """Return what a command prints; exit with it if the command fails."""
        process = self.start(command, *arguments)
        printed = process.communicate(timeout=300)[0]
        check(process.returncode == 0, f"{command} {' '.join(arguments)} ended well:\n{printed}")
        return printed


def main() -> None:
    """Install, crawl, kill, resume, look; what is not as it should be ends it."""
    wheels = list(DIST.glob("*.whl"))
    if len(wheels) != 1:
        raise SystemExit(f"wheel: {DIST} holds {len(wheels)} wheels, not 1: run `make dist`")
    with TemporaryDirectory() as folder:
        stranger = Stranger(Path(folder), wheels[0].resolve())
        crawl(stranger)
        look(stranger)
    print(f"wheel: {wheels[0].name} is right with Python {platform.python_version()}")


def crawl(stranger: Stranger) -> None:
    """Kill a crawl after a third of the pages; the same command finishes it."""
    site = Site()
    (stranger.folder / "spider.py").write_text(SPIDER.format(url=site.url))
    command = ["scrapy", "runspider", "spider.py", "-s", "JOBDIR=job", "-o", "items.jsonl"]
    killed = stranger.start(*command)
    reached = site.third.wait(60)
    killed.kill()
    log = killed.communicate()[0]
    check(reached and killed.returncode == -signal.SIGKILL, f"killed on the way:\n{log}")
    log = stranger.run(*command)
    check("Spider closed (finished)" in log, f"resumed, and finished:\n{log}")
    lines = (stranger.folder / "items.jsonl").read_text().splitlines()
    wanted = Counter(f"{site.url}{number or ''}" for number in range(PAGES))
    check(Counter(json.loads(line)["url"] for line in lines) == wanted, "each item once")
    again = site.asked.total() - PAGES
    check(again < PAGES / 4, f"few pages were fetched again, not {again}")


def look(stranger: Stranger) -> None:
    """Ask `scrapy bloom` about the job, by both of its names."""
    told = json.loads(stranger.run("scrapy", "bloom", "info", "job", "--json"))
    check(told["job"]["state"] == "finished", f"info says that the job has finished: {told}")
    stranger.run("scrapy", "bloom", "verify", "job")
    printed = stranger.run("python", "-m", "scrapy_bloom", "size", "--urls", "1M")
    check("BLOOM_CAPACITY" in printed, f"size prints its table: {printed}")


def check(holds: object, what: str) -> None:
    """Exit with `what` should be so."""
    if not holds:
        raise SystemExit(f"wheel: not so: {what}")


if __name__ == "__main__":
    main()
