"""A site whose hosts ask for a rest, and that notes when it was asked for what."""

import asyncio
import math
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from email.utils import formatdate
from threading import Event
from typing import NamedTuple

from tests.web_server import ServedInThread


class Asked(NamedTuple):
    """A request: when it came and was answered, for which page, with what answer."""

    came: float
    answered: float
    page: str
    status: int
    retry_after: float | None


@dataclass
class Rest:
    """A host that refuses all requests for so many seconds, `after` its first pages, and longer
    while `goes_on()`. It says how long in seconds ("seconds"), by a date ("date"), or not ("")."""

    seconds: float
    says: str = "seconds"
    after: int = 4
    status: int = 429
    goes_on: Callable[[], bool] = lambda: False
    until: float = math.inf
    asked: int = 0


@dataclass
class RestingSite(ServedInThread):
    """The site, in a thread, with paths `/HOST/NUMBER`; "moved" leads to "named" of localhost."""

    rests: dict[str, Rest]
    asked: dict[str, list[Asked]] = field(default_factory=lambda: defaultdict(list))
    go: Event = field(default_factory=Event)

    async def _answer(self, _method, path, _body):
        came = time.monotonic()
        _, host, page = path.split("/")
        if host == "moved":
            there = f"{self.url}/named/to-{page}".replace("127.0.0.1", "localhost")
            return 302, {"Location": there}, b""
        rest, status, headers, says = self.rests.get(host), 200, {}, None
        await asyncio.sleep(0.02)
        if rest is None:
            while not self.go.is_set():
                await asyncio.sleep(0.01)
        else:
            rest.asked += 1
            if rest.asked == rest.after + 1:
                rest.until = came + rest.seconds
                self.go.set()
            left = rest.until - came
            if left <= 0 and rest.goes_on():
                left = 0.5
            if rest.asked > rest.after and left > 0:
                status = rest.status
                says = math.ceil(left) if rest.says else None
                if rest.says == "date":
                    now = math.floor(time.time())
                    headers["Date"] = formatdate(now, usegmt=True)
                    headers["Retry-After"] = formatdate(now + says, usegmt=True)
                elif rest.says:
                    headers["Retry-After"] = says
        self.asked[host].append(Asked(came, time.monotonic(), page, status, says))
        return status, headers, b"{}"

    def pages(self, host, status=200):
        """Return the pages that were answered with a status, in order."""
        return [each.page for each in self.asked[host] if each.status == status]

    def too_early(self, host):
        """Return the requests that came between a refusal and the end of the rest it named."""
        asked = self.asked[host]
        rests = [each for each in asked if each.retry_after]
        ends = [(each.answered, each.answered + each.retry_after) for each in rests]
        return [each for each in asked if any(begin < each.came < end for begin, end in ends)]
