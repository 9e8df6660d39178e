"""How a subcommand is run: what it gets, how it prints, and what becomes of its errors."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from io import TextIOWrapper

from scrapy import Spider
from scrapy.crawler import Crawler
from scrapy.settings import Settings
from scrapy.spiderloader import get_spider_loader
from scrapy.utils.misc import build_from_crawler, load_object
from scrapy.utils.request import RequestFingerprinterProtocol

from ..bloom.place import REDIS_SCHEMES, Place
from ..errors import BloomError, IncompatibleFilterError
from ..fingerprints.identity import FingerprinterIdentity
from ..redis_backend.filter_status import RedisPlace
from ..reporting import visible
from ..settings import BloomSettings
from . import drop_output, fail, flush


@dataclass
class Session:
    """What a subcommand is run with: its arguments, and the settings of the project."""

    options: argparse.Namespace
    settings: Settings

    def crawler(self) -> Crawler:
        """Return a crawler that does not crawl, with the settings of the project, its
        add-ons and, if one is named, its spider. Raises BloomError."""
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

    def fingerprinter(self, crawler: Crawler) -> RequestFingerprinterProtocol:
        """Return the fingerprinter that requests of that crawler get."""
        setting = crawler.settings["REQUEST_FINGERPRINTER_CLASS"]
        try:
            fingerprinter: RequestFingerprinterProtocol = build_from_crawler(
                load_object(setting), crawler
            )
        except Exception as error:
            raise BloomError(
                f"REQUEST_FINGERPRINTER_CLASS is {setting!r}, which fails: {error}"
            ) from error
        return fingerprinter

    def bloom_settings(self, crawler: Crawler) -> BloomSettings:
        """Return the BLOOM_… settings of that crawler."""
        return BloomSettings.read(crawler.settings)

    def place(self, name: str) -> Place:
        """Return the place on the disk that is called `name`. Raises BloomError."""
        if name.startswith(REDIS_SCHEMES):
            raise BloomError(
                f"{self.options.subcommand} takes a job directory here, and no URL of Redis:"
                " 'scrapy bloom export' copies a filter out of Redis, 'scrapy bloom load' into it"
            )
        if not name:
            raise BloomError("a PLACE is empty: give a job directory (. is this one)")
        return Place.find(name)

    def key(self, url: str) -> str:
        """Return the key of the filter on the server at `url`: --key, or the setting."""
        key: str | None = self.options.key or self.settings.get("BLOOM_REDIS_KEY")
        if not url.startswith(REDIS_SCHEMES):
            # what stands behind its first word may be a password
            (start,) = re.findall(r"^[\w+.-]*", url)
            raise BloomError(
                f"'{start}…' is no URL of Redis: it must begin with {REDIS_SCHEMES[0]}"
            )
        if not key or "%(spider)s" in key:
            raise BloomError("give the BLOOM_REDIS_KEY of the crawl with --key, such as shop:bloom")
        if "{" in key or "}" in key:
            raise BloomError(
                f"no crawl has the key {key!r}: give its BLOOM_REDIS_KEY, which has no braces, with"
                " --key"
            )
        return key

    def redis(self, url: str) -> AbstractContextManager[RedisPlace]:
        """Return the shared filter at `url`, for the length of a context."""
        return RedisPlace.open(url, self.key(url))

    def print(self, figures: object, lines: Iterable[str]) -> None:
        """Print `figures` as JSON with --json, else `lines`."""
        if self.options.json:
            self.print_json(figures, indent=2)
        else:
            self.print_lines(lines)

    def print_json(self, figures: object, indent: int | None = None) -> None:
        """Print `figures` as JSON, in one line without `indent`."""
        print(json.dumps(figures, indent=indent))  # noqa: T201 - this is what a command is for

    def print_lines(self, lines: Iterable[str]) -> None:
        """Print `lines` for a person, with escapes for what hostile pages put into them."""
        for line in lines:
            print(visible(line))  # noqa: T201 - see print_json


def require_fingerprinter(
    identity: str, fingerprinter: RequestFingerprinterProtocol, place: str
) -> None:
    """Raise IncompatibleFilterError if the filter at `place`, of that identity, knows
    other fingerprints; write a warning if they differ for unusual URLs only."""
    if not identity:
        return
    try:
        then = FingerprinterIdentity.from_text(identity)
    except ValueError:
        return  # made by hand, with some identity of its own
    try:
        warning = then.require_same(FingerprinterIdentity.of(fingerprinter), place)
    except IncompatibleFilterError as error:
        raise IncompatibleFilterError(
            f"{error}; for this command: run it in the job's project, with --spider if its spider"
            " has settings of its own, or with -s REQUEST_FINGERPRINTER_CLASS=..."
        ) from None
    if warning:
        sys.stderr.write(f"{visible(warning)}\n")


def run(program: str, options: argparse.Namespace, unknown: list[str], settings: Settings) -> int:
    """Run the subcommand in `options` and return its exit status: 0, 1 for a negative
    answer, 2 for an error, of which one line is printed."""
    program = f"{program} {options.subcommand}"
    if unknown:
        words = " ".join(re.sub("://.*", "://…", word) for word in unknown)  # no password
        return fail(program, f"unrecognized: {words} (see {program} --help)")
    if isinstance(sys.stdout, TextIOWrapper):
        # a name or URL that the terminal's encoding does not have is no reason to stop
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        status: int = options.run(Session(options, settings))
        flush()
    except BrokenPipeError:
        # whoever read the output has had enough, such as head
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


def aligned(rows: Iterable[tuple[str, str]]) -> list[str]:
    """Return rows of a name and a value as lines."""
    rows = list(rows)
    width = max(len(name) for name, _ in rows)
    return [f"{name:<{width}}  {value}" for name, value in rows]


def table(rows: Iterable[Iterable[str]]) -> list[str]:
    """Return rows of cells as lines: the first column to the left, the others to the
    right."""
    cells = [list(row) for row in rows]
    widths = [max(len(cell) for cell in column) for column in zip(*cells, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if number == 0 else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    ]
