"""Serves the site on loopback; `python -m example.site` does so in a process of its own."""

import argparse
import json
import os
from collections import Counter
from html import escape
from pathlib import Path
from typing import Any, TextIO

from twisted.internet import task
from twisted.web import resource, server

from example.model import NAVIGATION, NOT_FOUND, Answer, Page, canonical, session_of, site
from example.news import news

HOST = "127.0.0.1"
ELSEWHERE = ("http://elsewhere.invalid/", "mailto:site@elsewhere.invalid")


class SiteResource(resource.Resource):
    """Answers from the model, fails until pages have healed, logs each 200 as a line of JSON."""

    isLeaf = True  # noqa: N815, the name is Twisted's

    def __init__(self, log: TextIO | None = None, day: int = 1) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.log = log
        self.day = day
        self.failed: Counter[Page] = Counter()

    def render(self, request: Any) -> bytes:
        method, target = request.method.decode(), request.uri.decode()
        body = request.content.read().decode()
        session = session_of(request.getHeader("User-Agent") or "")
        page = canonical(method, target, body)
        answer = site(session).get(page, NOT_FOUND)
        if target.startswith("/news"):
            answer = news(target, self.day)
        if self.failed[page] < answer.failures:
            self.failed[page] += 1
            answer = Answer(500, "Try again")
        elif answer.status == 200 and self.log:
            self.log.write(json.dumps([method, target, body]) + "\n")
        request.setResponseCode(answer.status)
        request.setHeader("Content-Type", "text/html; charset=utf-8")
        if answer.location:
            request.setHeader("Location", answer.location)
        return html(answer).encode()


class Factory(server.Site):
    """A server that keeps quiet: an access log of 4,000 lines would bury the crawler's own."""

    def log(self, request: Any) -> None:
        pass


def html(answer: Answer) -> str:
    """Return the page as a browser gets it."""
    links = [*NAVIGATION, "#top", "#contents", *answer.links, *ELSEWHERE]
    items = "\n".join(f'<li><a href="{escape(link)}">{escape(link)}</a>' for link in links)
    form = ""
    if answer.topics:
        options = "".join(f"<option>{topic}</option>" for topic in answer.topics)
        form = (
            '<form class="crawl" method="post" action="/search">'
            '<input type="hidden" name="scope" value="all">'
            f'<select name="topic">{options}</select></form>'
        )
    title = escape(answer.title)
    return (
        f"<!doctype html>\n<title>{title}</title>\n<h1>{title}</h1>\n{form}\n<ul>\n{items}\n</ul>\n"
    )


def listen(port: int, log: TextIO | None = None, day: int = 1) -> Any:
    """Serve on loopback, on a free port if `port` is 0, and return what Twisted calls the port."""
    # Not at the top: the import installs a reactor, and which one is for Scrapy to say.
    from twisted.internet import reactor

    network: Any = reactor
    factory = Factory(SiteResource(log, day))  # type: ignore[no-untyped-call]
    return network.listenTCP(port, factory, interface=HOST)


def write_whole(path: Path, text: str) -> None:
    """Write a file so that whoever finds it finds all of it."""
    partial = path.with_name(f"{path.name}.part")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)


def main() -> None:
    """Serve until a signal comes; the port file appears once the site answers."""
    from twisted.internet import reactor

    parser = argparse.ArgumentParser(prog="python -m example.site", description=__doc__)
    parser.add_argument("--port", type=int, default=0, help="0, the default, takes a free one")
    parser.add_argument("--port-file", type=Path, help="where to write the port")
    parser.add_argument("--log", type=Path, help="where to append a line for each 200")
    parser.add_argument("--with-parent", action="store_true", help="end when the parent has ended")
    parser.add_argument("--day", type=int, default=1, help="of the news, which change daily")
    options = parser.parse_args()
    log = options.log.open("a", buffering=1, encoding="utf-8") if options.log else None
    port = listen(options.port, log, options.day).getHost().port
    if options.port_file:
        write_whole(options.port_file, str(port))
    print(f"http://{HOST}:{port}/", flush=True)
    network: Any = reactor
    if options.with_parent:
        parent = os.getppid()
        task.LoopingCall(lambda: os.getppid() == parent or network.stop()).start(1)
    network.run()


if __name__ == "__main__":
    main()
