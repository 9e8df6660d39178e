"""The site that killed crawls are made of: every kind of page, and a log of its answers.

`/<crawl>/<kind>/<number>` is a page of a binary tree, `<crawl>` any name, so that one
server serves many crawls at once. The kind tells server and spider what to make of it.
"""

import asyncio
import json
import random
import time
from collections import Counter

KINDS = {
    # kind: every how many numbers
    "moved": 7,
    "flaky": 11,
    "gone": 13,
    "broken": 17,
    "unserializable": 10,
    "raising": 9,
    "item": 8,
    "again": 19,
    "inline": 23,
    "swapped": 29,
    "refused": 31,
}


def kind_of(number, kinds=None):
    """Return the kind of page `number`."""
    for kind, every in KINDS.items():
        if (kinds is None or kind in kinds) and number % every == every - 1:
            return kind
    return "plain"


class Site:
    """Answers after a short while, and writes a line for each 200."""

    def __init__(self, logs, delay):
        self._logs = logs
        self._delay = delay
        self._failed = Counter()

    async def serve(self, ready):
        """Serve on a free port of the loopback interface, told to `ready`, for ever."""
        server = await asyncio.start_server(self._client, "127.0.0.1", 0, backlog=200)
        ready(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    async def _client(self, reader, writer):
        try:
            while line := await reader.readline():
                while await reader.readline() not in (b"\r\n", b""):
                    pass
                await asyncio.sleep(random.random() * self._delay)
                if not self._answer(writer, line.split()[1].decode()):
                    break
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()

    def _answer(self, writer, path):
        """Return False to hang up."""
        _, crawl, kind, number, *_ = path.split("/")
        head = ""
        if kind == "moved":
            status, head = 302, f"Location: /{crawl}/landed/{number}\r\n"
        elif kind == "flaky" and self._failed[path] < 2:
            self._failed[path] += 1
            status = 503
        elif kind == "gone":
            status = 404
        elif kind == "broken":
            return False
        else:
            status = 200
        if kind in ("gone", "moved"):
            self._note(crawl, f"{kind}/{number}")
        if status == 200:
            self._note(crawl, f"{kind}/{number}")
        body = json.dumps(int(number)).encode()
        writer.write(
            f"HTTP/1.1 {status} OK\r\nContent-Length: {len(body)}\r\n{head}\r\n".encode() + body
        )
        return True

    def _note(self, crawl, page):
        with (self._logs / f"{crawl}.answers").open("a") as log:
            log.write(f"{time.monotonic()} {page}\n")


def read_log(logs, crawl):
    """Return (time, page) for each answer to `crawl`, in order."""
    try:
        lines = (logs / f"{crawl}.answers").read_text().splitlines()
    except FileNotFoundError:
        return []
    return [(float(at), page) for at, page in map(str.split, lines)]
