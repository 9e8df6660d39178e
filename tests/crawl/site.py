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

    async def answer(self, _method, path, _body):
        """Answer as `serve` of the tests' server wants it."""
        await asyncio.sleep(random.random() * self._delay)
        _, crawl, kind, number, *_ = path.split("/")
        status, headers = 200, {}
        if kind == "moved":
            status, headers = 302, {"Location": f"/{crawl}/landed/{number}"}
        elif kind == "flaky" and self._failed[path] < 2:
            self._failed[path] += 1
            status = 503
        elif kind == "gone":
            status = 404
        elif kind == "broken":
            return None
        if status != 503:
            self._note(crawl, f"{kind}/{number}")
        return status, headers, json.dumps(int(number)).encode()

    def _note(self, crawl, page):
        with (self._logs / f"{crawl}.answers").open("a") as log:
            log.write(f"{time.monotonic()} {page}\n")


def read_log(logs, crawl):
    """Return (time, page) for each answer to `crawl`, in order."""
    try:
        whole, _, _ = (logs / f"{crawl}.answers").read_text().rpartition("\n")
    except FileNotFoundError:
        return []
    # without the line that the site is just writing
    return [(float(at), page) for at, page in map(str.split, whole.splitlines())]
