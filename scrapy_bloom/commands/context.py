"""The session of a subcommand: its options and settings, its output, its errors."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cached_property
from io import TextIOWrapper
from pathlib import Path
from typing import Any, TypeVar

from scrapy import Request, Spider
from scrapy.crawler import Crawler
from scrapy.settings import Settings
from scrapy.spiderloader import get_spider_loader
from scrapy.utils.misc import build_from_crawler, load_object
from scrapy.utils.request import RequestFingerprinterProtocol

from ..crawl.choice import PATIENCE, Desk
from ..errors import BloomError, IncompatibleFilterError
from ..fingerprints import FingerprinterIdentity
from ..migration.sources import open_list, url_in
from ..redis.client import RedisClient
from ..redis.desk import RedisDesk
from ..redis.layout import in_one_slot
from ..redis.lifecycle import require_crawl_format
from ..redis.settings import REDIS_KEY
from ..redis.status import FilterView
from ..sqlite.desk import SqliteDesk
from ..texts import escaped, in_brief
from .target import Kind, Target

A = TypeVar("A")
B = TypeVar("B")


@dataclass
class Context:
    """The arguments of a subcommand, and the settings of the project."""

    options: argparse.Namespace
    settings: Settings

    @cached_property
    def crawler(self) -> Crawler:
        """A crawler that does not crawl, with the settings of the project, its add-ons and, if one
        is named, its spider. Raises BloomError."""
        name = getattr(self.options, "spider", None)
        try:
            spider = get_spider_loader(self.settings).load(name) if name else Spider
            crawler = Crawler(spider, self.settings)
            crawler.addons.load_settings(crawler.settings)
            crawler.stats = load_object(crawler.settings["STATS_CLASS"])(crawler)
        except KeyError as error:
            raise BloomError(
                f"there is no spider {name!r} here: 'scrapy list' prints those of the project"
            ) from error
        except Exception as error:
            raise BloomError(f"cannot use the project's settings: {error}") from error
        return crawler

    @cached_property
    def fingerprinter(self) -> RequestFingerprinterProtocol:
        """The fingerprinter that requests of that crawler get. Raises BloomError."""
        setting = self.crawler.settings["REQUEST_FINGERPRINTER_CLASS"]
        try:
            component: type[RequestFingerprinterProtocol] = load_object(setting)
            return build_from_crawler(component, self.crawler)
        except Exception as error:
            raise BloomError(
                f"REQUEST_FINGERPRINTER_CLASS is {setting!r}, which fails: {error}"
            ) from error

    def require_fingerprinter(self, identity: str, place: str) -> None:
        """Raise IncompatibleFilterError if the filter at `place`, of that identity, knows other
        fingerprints."""
        try:
            FingerprinterIdentity.of(self.fingerprinter).require_same(identity, place)
        except IncompatibleFilterError as error:
            raise IncompatibleFilterError(
                f"{error}; for this command: run it in the job's project, with --spider if its"
                " spider has settings of its own, or with -s REQUEST_FINGERPRINTER_CLASS=..."
            ) from None
        except ValueError:
            return  # made by hand, with some identity of its own

    def key(self, url: str) -> str:
        """Return the key of the filter on the server at `url`: --key, or the setting."""
        Target.find(url).require(Kind.REDIS)
        key: str | None = self.options.key or self.settings.get(REDIS_KEY.name)
        if not key or "%(spider)s" in key:
            raise BloomError("give the BLOOM_REDIS_KEY of the crawl with --key, such as shop:bloom")
        if "{" in key or "}" in key:
            raise BloomError(
                f"no crawl has the key {key!r}: give its BLOOM_REDIS_KEY, which has no braces, with"
                " --key"
            )
        return key

    @contextmanager
    def shared_filter(self, url: str) -> Iterator[FilterView]:
        """Yield the filter in Redis at `url`. Raises BloomError."""
        key = self.key(url)
        with RedisClient(url) as client:
            yield FilterView(client, key)

    @contextmanager
    def crawl(self, url: str) -> Iterator[tuple[RedisClient, str]]:
        """Yield a client for the crawl in Redis at `url`, and its key. Raises BloomError."""
        key = in_one_slot(self.key(url))
        with RedisClient(url) as client:
            require_crawl_format(client, key)
            yield client, key

    @contextmanager
    def job_or_crawl(
        self, of_job: Callable[[Path], A], of_crawl: Callable[[RedisClient, str], B]
    ) -> Iterator[tuple[str, A | B]]:
        """Yield the name of the JOB, and what one of these makes of it. Raises BloomError."""
        target = Target.find(self.options.place).require(Kind.REQUESTS, Kind.REDIS)
        if target.job is not None:
            yield str(target.job.path), of_job(target.job.path)
            return
        with self.crawl(target.name) as (client, key):
            yield f"{client.name} {key[1:-1]}", of_crawl(client, key)

    def desk(self) -> AbstractContextManager[tuple[str, Desk]]:
        """Return a context with the name of the JOB, and its Desk. Raises BloomError."""
        return self.job_or_crawl(SqliteDesk, RedisDesk)

    def print_standing(self, name: str) -> int:
        """Print that the process of the job of that `name` has not answered to an order; return
        the exit status."""
        line = (
            f"the order stands: the process that has {name} has not answered in {PATIENCE:.0f} s;"
            " it, or the next start, carries it out"
        )
        return self.print({"stands": True}, [line])

    def print(
        self, figures: object, lines: Iterable[str], indent: int | None = 2, *, found: bool = True
    ) -> int:
        """Print `figures` as JSON with --json, in one line without `indent`; else `lines`. Return
        the exit status, 1 if nothing was `found`."""
        if getattr(self.options, "json", False):
            self.print_json(figures, indent)
        else:
            self.print_lines(lines)
        return 0 if found else 1

    def print_now(self, lines: Iterable[str]) -> None:
        """Print `lines` while the work goes on, nothing with --json."""
        if not self.options.json:
            self.print_lines(lines)

    def print_json(self, figures: object, indent: int | None = None) -> None:
        """Print `figures` as JSON."""
        print(json.dumps(figures, indent=indent))  # noqa: T201 - this is what a command is for

    def print_lines(self, lines: Iterable[str]) -> None:
        """Print `lines` for a person, with escapes for what hostile pages put into them."""
        for line in lines:
            print(escaped(line))  # noqa: T201 - see print_json


Printed = tuple[object, Iterable[str]]
"""Figures for JSON, and lines for a person."""
Known = tuple[str, str, Callable[[bytes], bool]]
"""The name of a filter or a delta store, its identity, and what tells whether a fingerprint was
seen."""


@dataclass
class Place:
    """What a subcommand is about. A subclass has a method for what each subcommand asks of it."""

    session: Context
    target: Target

    @cached_property
    def name(self) -> str:
        """Its name in lines for a person."""
        return self.target.name


def fingerprints_of(session: Context, identity: str, name: str) -> Iterator[tuple[str, bytes]]:
    """Yield the URLs that were given, with their fingerprints. `name` and `identity` are those of
    the filter or the delta store. Raises BloomError."""
    options = session.options
    session.require_fingerprinter(identity, name)
    for url, fingerprint, _ in requests_of(session, method=options.method, body=options.body):
        yield url, fingerprint


def requests_of(session: Context, **attributes: Any) -> Iterator[tuple[str, bytes, Request]]:
    """Yield the URLs that were given, with the fingerprints of requests that have these attributes,
    and those requests. Raises BloomError."""
    fingerprinter = session.fingerprinter
    for line in _lines_of(session.options.urls):
        try:
            url = url_in(line)
            if not url:
                continue
            request = Request(url, **attributes)
            fingerprint = fingerprinter.fingerprint(request)
        except Exception as error:
            shown = in_brief(line.decode(errors="backslashreplace").strip())
            raise BloomError(f"'{shown}' has no fingerprint: {in_brief(str(error))}") from error
        yield url, fingerprint, request


def _lines_of(urls: list[str]) -> Iterator[bytes]:
    """Yield the URLs given, and the lines on standard input for `-`."""
    for url in urls:
        if url == "-":
            with open_list(None) as file:
                yield from file
        else:
            yield url.encode(errors="surrogateescape")


def run(program: str, options: argparse.Namespace, unknown: list[str], settings: Settings) -> int:
    """Run the subcommand in `options` and return its exit status: what its function returns, 0 for
    None and 1 for a negative answer, or 2 for an error, of which one line is printed."""
    program = f"{program} {options.subcommand}"
    if unknown:
        words = " ".join(re.sub("://.*", "://…", word) for word in unknown)  # no password
        return fail(program, f"unrecognized: {words} (see {program} --help)")
    if isinstance(sys.stdout, TextIOWrapper):
        # a name or URL that the terminal's encoding does not have is no reason to stop
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        status: int = options.run(Context(options, settings)) or 0
        flush()
    except BrokenPipeError:
        # the reader of the output has ended, such as head
        drop_output()
        return 2
    except KeyboardInterrupt:
        return fail(program, "interrupted; run it again to finish")
    except OSError as error:
        what = f"{error.filename}: {error.strerror}" if error.filename else error
        return fail(program, what)
    except MemoryError as error:
        return fail(program, str(error) or "there is not enough memory")
    except (BloomError, ValueError) as error:
        return fail(program, error)
    return status


def fail(program: str, message: object) -> int:
    """Print one line of an error and return the exit status of errors."""
    try:
        flush()
    except OSError:
        drop_output()
    if sys.stderr is not None:
        sys.stderr.write(f"{program}: error: {escaped(' '.join(str(message).split()))}\n")
    return 2


def flush() -> None:
    """Let out what was printed, if there is a standard output."""
    print(end="", flush=True)  # noqa: T201


def drop_output() -> None:
    """Forget what is still to be printed, since it cannot be."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def aligned(rows: Iterable[tuple[str, str]]) -> list[str]:
    """Return rows of a name and a value as lines, without those that have none."""
    return table([row for row in rows if row[1]], left=2)


def table(rows: Iterable[Sequence[str]], *, left: int = 1) -> list[str]:
    """Return rows of cells as lines: so many columns to the left, the others to the right."""
    cells = [*rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if number < left else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    ]
