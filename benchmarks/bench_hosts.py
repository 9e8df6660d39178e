"""What a host that is gone costs: stock Scrapy and ours, side by side.

    python benchmarks/bench_hosts.py [--pages N] [--healthy N]

Each crawl is of `--healthy` pages of a site of its own on this machine, answered after 0.2 s,
beside `--pages` of a port that is closed, or that takes connections and never answers
(DOWNLOAD_TIMEOUT 5), or beside nothing. Printed are the attempts on the other host, the seconds
until the last healthy page, and those from there to the end. Of the black hole stock Scrapy gets
as many pages as there are healthy ones, since it would take hours.
"""

import asyncio
import re
import socket
import tempfile
import time
from contextlib import ExitStack
from itertools import product
from pathlib import Path

from sidebyside import SIDES, crawl_waiting, parser_of, table

from tests.web_server import ServedInThread

HOSTS = {"nothing": None, "a closed port": 0, "a black hole": 500}
"""How many connections the port takes that it never answers."""


class Site(ServedInThread):
    """A site that takes its time, and knows when it has answered last."""

    last = 0.0

    async def _answer(self, _method, _path, _body):
        await asyncio.sleep(0.2)
        self.last = time.monotonic()
        return 200, {}, b"-"


def crawl(pages: int, healthy: int, side: str, host: str) -> list[object]:
    """Crawl a site of its own beside a host, and return the row of the table."""
    backlog = HOSTS[host]
    with ExitStack() as stack:
        folder, site = stack.enter_context(tempfile.TemporaryDirectory()), Site()
        port = stack.enter_context(socket.socket())
        stack.enter_context(site)
        port.bind(("127.0.0.1", 0))
        if backlog:
            port.listen(backlog)
            pages = min(pages, healthy) if side == "stock Scrapy" else pages
        asked = {site.url: healthy}
        asked |= {} if backlog is None else {f"http://127.0.0.1:{port.getsockname()[1]}": pages}
        words = ("-s", "DOWNLOAD_TIMEOUT=5", "-s", "LOG_LEVEL=INFO", "-s", "LOG_FILE=log")
        started, end = crawl_waiting(folder, side, asked, *words)
        log = (Path(folder) / "log").read_text()
        count = re.search(r"'downloader/request_count': (\d+)", log)
        attempts = int(count[1]) - healthy if count else -1
        times = f"{site.last - started:.0f}", f"{end - site.last:.0f}"
        return [host, side, f"{pages:,}" if backlog is not None else "-", attempts, *times]


def main() -> None:
    parser = parser_of(
        __doc__,
        pages=(1000, "of the host that is gone"),
        healthy=(400, "pages of the host that answers"),
    )
    options = parser.parse_args()
    rows = [crawl(options.pages, options.healthy, *arm) for arm in product(SIDES, HOSTS)]
    head = ["beside", "", "pages", "attempts", "last healthy page (s)", "then until the end (s)"]
    table(head, sorted(rows, key=lambda row: [*HOSTS].index(str(row[0]))))


if __name__ == "__main__":
    main()
