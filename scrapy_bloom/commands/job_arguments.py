"""The arguments of the subcommands about a job or a crawl in Redis: failed, retry, drop, top."""

from __future__ import annotations

import argparse

from . import failed, top

_FAILED = (
    "List the requests of a job or a crawl that have failed, by reason, with how often they were"
    " asked and why they failed. Changes nothing, and works while the job runs."
)


def _failed(parser: argparse.ArgumentParser) -> None:
    _choice(parser)
    parser.add_argument(
        "-o", dest="output", metavar="FILE", help="write their URLs to a new file, - to print them"
    )
    add_json(parser)


_RETRY = (
    "Make requests of a job or a crawl that have failed pending again: its next start asks them"
    " once more, goes on with the round, and adds to its feeds. In Redis its workers do, at once"
    " if there are any."
)


def _retry(parser: argparse.ArgumentParser) -> None:
    _choice(parser)
    add_json(parser)


_DROP = "Forget requests of a job or a crawl that have failed: they count as done."


def _drop(parser: argparse.ArgumentParser) -> None:
    _choice(parser)
    parser.add_argument("--yes", action="store_true", help="needed: there is no way back")


_TOP = (
    "Show how far a running job is, or a crawl in Redis with all its workers, live in the"
    " terminal: its speed, what waits and has failed, and what it keeps, as it was last committed."
    " Changes nothing. Ctrl-C ends it."
)


def _top(parser: argparse.ArgumentParser) -> None:
    _place(parser)
    parser.add_argument("--once", action="store_true", help="print it once")
    add_json(parser)
    parser.add_argument(
        "--follow", action="store_true", help="with --json: a line of JSON a second"
    )


def _place(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "place", metavar="JOB", help="a job directory (JOBDIR), or redis://HOST/DB with --key"
    )
    parser.add_argument("--key", help="of the crawl in Redis (default: BLOOM_REDIS_KEY)")


def _choice(parser: argparse.ArgumentParser) -> None:
    _place(parser)
    parser.add_argument(
        "--reason",
        metavar="GLOB",
        nargs="+",
        action="extend",
        default=[],
        help="only those that failed for such a reason, such as 'download/*'",
    )
    parser.add_argument(
        "--url", metavar="GLOB", nargs="+", action="extend", default=[], help="only such URLs"
    )


def add_json(parser: argparse.ArgumentParser) -> None:
    """Give `parser` the option --json."""
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")


SUBCOMMANDS = (
    ("top", top.top, "how far a job is, live in the terminal", _TOP, _top),
    ("failed", failed.failed, "which requests of a job have failed", _FAILED, _failed),
    ("retry", failed.retry, "ask failed requests once more", _RETRY, _retry),
    ("drop", failed.drop, "forget failed requests", _DROP, _drop),
)
"""Name, function, help, description, and what adds the arguments."""
