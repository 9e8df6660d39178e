"""The arguments of all subcommands, and which function runs each."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from difflib import get_close_matches
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from ..amounts import MOST, whole_number
from . import copies, crawls, delta, failed, filters, queue, study, top
from .context import fail

if TYPE_CHECKING:
    from .context import Context


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, and whose options may stand among the words."""

    _is_inside = False

    def error(self, message: str) -> NoReturn:
        """Exit with status 2."""
        _exit(self, self.prog, message)

    def parse_known_args(self, *arguments: Any, **options: Any) -> Any:
        """Parse as argparse does, but words that stand behind an option, too."""
        if self._is_inside:  # called by what is called here
            return super().parse_known_args(*arguments, **options)
        self._is_inside = True
        try:
            return self.parse_known_intermixed_args(*arguments, **options)
        finally:
            self._is_inside = False


def _exit(parser: argparse.ArgumentParser, program: str, message: str) -> NoReturn:
    if message.endswith("required: <subcommand>"):
        parser.print_help()
        parser.exit()
    if found := re.match("argument <subcommand>: invalid choice: '(.*?)'", message):
        like = get_close_matches(found[1], [name for name, *_ in SUBCOMMANDS], n=1)
        meant = f": did you mean {like[0]}?" if like else ""
        message = f"{found[1]!r} is no subcommand{meant}"
    parser.exit(fail(program, f"{message} (see {program} --help)"))


def add_subcommands(
    parser: argparse.ArgumentParser,
    program: str,
    add_options: Callable[[argparse.ArgumentParser], None],
) -> None:
    """Give `parser` the subcommands; `add_options` adds Scrapy's own options to each."""
    # it is Scrapy's own; Parser is for what is made here
    vars(parser)["error"] = partial(_exit, parser, program)
    subcommands = parser.add_subparsers(
        title="subcommands",
        dest="subcommand",
        metavar="<subcommand>",
        required=True,
        prog=program,
        parser_class=Parser,
    )
    for name, run, help_, description, arguments in SUBCOMMANDS:
        # a description of several lines is laid out already
        layout = (
            argparse.RawDescriptionHelpFormatter if "\n" in description else argparse.HelpFormatter
        )
        subparser = subcommands.add_parser(
            name, help=help_, description=description, formatter_class=layout
        )
        subparser.set_defaults(run=run)
        for argument, options in arguments:
            subparser.add_argument(argument, **options)
        add_options(subparser)


def number(text: str, most: int = MOST) -> int:
    """Return `text` as a whole number from 1 to `most`."""
    value = whole_number(text)
    if value is None or not 1 <= value <= most:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a whole number from 1 to {most:,}, such as 5000000, 5M or 5e6"
        )
    return value


_bits = partial(number, most=10**11)  # 12.5 GB


Argument = tuple[str, dict[str, Any]]
"""What `add_argument` of a parser takes."""


def _argument(usage: str, help_: str, **options: Any) -> Argument:
    """Return an argument: `usage` is its name, and a metavar where that is another word."""
    name, *metavar = usage.split()
    return name, {"help": help_, **({"metavar": metavar[0]} if metavar else {}), **options}


def _several(usage: str, help_: str, **options: Any) -> Argument:
    """Return an option that takes several values, and may come several times."""
    return _argument(usage, help_, nargs="+", action="extend", default=[], **options)


def _subcommand(
    name: str, run: Callable[[Context], int], help_: str, description: str, *arguments: Argument
) -> tuple[str, Callable[[Context], int], str, str, tuple[Argument, ...]]:
    return name, run, help_, description, arguments


_A_FILTER = "a job directory (JOBDIR), the directory of a filter or a delta store, or a filter file"
_PLACE = _argument("place PLACE", f"{_A_FILTER}, or redis://HOST/DB with --key")
_PLACE_ON_DISK = _argument("place PLACE", _A_FILTER)
_REDIS = _argument("url REDIS", "redis://HOST/DB")
_KEY = _argument("--key", "of the filter in Redis (default: BLOOM_REDIS_KEY)")
_JOB = (
    _argument("place JOB", "a job directory (JOBDIR), or redis://HOST/DB with --key"),
    _argument("--key", "of the crawl in Redis (default: BLOOM_REDIS_KEY)"),
)
_URLS = _several("--url GLOB", "only such URLs")
_FAILED = (
    *_JOB,
    _several("--reason GLOB", "only those that failed for such a reason, such as 'download/*'"),
    _URLS,
)
_SPIDER = _argument(
    "--spider NAME", "the project's spider whose own settings (custom_settings) apply"
)
_REQUESTS = (
    _argument("--method", "of the requests (default: GET)", default="GET"),
    _argument("--body", "of the requests, as UTF-8 (default: empty)", default=""),
    _SPIDER,
)
_YES = _argument("--yes", "needed: there is no way back", action="store_true")
_JSON = _argument("--json", "print JSON instead of text", action="store_true")


SUBCOMMANDS = (
    _subcommand(
        "info",
        filters.on_place,
        "what is in a filter, a job or a crawl in Redis",
        "Print what there is to know about a filter: requests, capacity, layers, memory, error"
        " rate, pages probably lost, fingerprinter, versions, whether it was closed cleanly, and"
        " which process uses it; of a job or a crawl in Redis also its state, and what is pending"
        " and has failed. Changes nothing, and works while the job runs.",
        _PLACE,
        _KEY,
        _JSON,
    ),
    _subcommand(
        "size",
        study.size,
        "what a crawl of N URLs needs",
        "Print the memory that a filter for N URLs takes, set at once or grown from a smaller"
        " capacity, without and with BLOOM_EXACT, whose table is on the disk, beside that of"
        " Scrapy's RFPDupeFilter; with --json exact to the byte.",
        _argument(
            "--urls N", "requests expected, such as 5000000, 5M or 5e6", type=number, required=True
        ),
        _argument(
            "--error-rate P",
            "bound on the chance that a new request is taken for a seen one"
            " (default: BLOOM_ERROR_RATE)",
            type=float,
        ),
        _argument(
            "--from N",
            "the smaller capacity to grow from (default: BLOOM_CAPACITY)",
            dest="start",
            type=number,
        ),
        _JSON,
    ),
    _subcommand(
        "check",
        filters.on_place,
        "which URLs were seen",
        "Say for each URL whether the filter has seen it, through the job's own fingerprinter."
        " 'seen (start request)' is a page that start() asked, to which a link is new. The exit"
        " status is 1 if any is new. Changes nothing.",
        _PLACE,
        _KEY,
        _argument("urls URL", "a URL, or - for one a line on standard input", nargs="+"),
        *_REQUESTS,
        _JSON,
    ),
    _subcommand(
        "add",
        filters.on_place,
        "import URLs, a requests.seen or a scrapy-redis set",
        "Import URLs into a filter, one a line, as the GET requests they would be made into, or"
        " fingerprints: a requests.seen of Scrapy in either format, which its content tells, or"
        " the set of a scrapy-redis dupefilter. A PLACE that holds no filter gets one. What is"
        " known already stays as it is, so an interrupted import can be run again.",
        _PLACE_ON_DISK,
        _argument(
            "files FILE",
            "a list of URLs (plain or gzip), a requests.seen, or redis://HOST/DB with --key",
            nargs="+",
        ),
        _argument("--key", "of the scrapy-redis set, such as myspider:dupefilter"),
        _argument(
            "--capacity N",
            "of a new filter (default: BLOOM_CAPACITY, or what is imported if that is more)",
            type=number,
        ),
        _argument("--error-rate P", "of a new filter (default: BLOOM_ERROR_RATE)", type=float),
        _SPIDER,
        _JSON,
    ),
    _subcommand(
        "load",
        copies.load,
        "copy a filter, or a whole crawl, into Redis",
        "Copy a job into Redis. Where SCHEDULER is RedisDurableScheduler, its filter and all of"
        " its requests that are not done, from a job of DurableScheduler or from scrapy-redis;"
        " else the filter alone, for crawls with RedisBloomDupeFilter. Workers need the same"
        " BLOOM_CAPACITY and BLOOM_ERROR_RATE. The source stays as it is; what was interrupted can"
        " be run again.",
        _argument(
            "place SOURCE",
            "a job directory, or redis://HOST/DB, where scrapy-redis has the crawl of --spider",
        ),
        _argument("url URL", "redis://HOST/DB, where the crawl goes on"),
        _KEY,
        _SPIDER,
        _JSON,
    ),
    _subcommand(
        "export",
        copies.export,
        "copy a filter in Redis into a job",
        "Copy a filter in Redis into a job directory that has none yet.",
        _argument("url URL", "redis://HOST/DB"),
        _argument("place PLACE", "a job directory"),
        _KEY,
        _JSON,
    ),
    _subcommand(
        "push",
        crawls.push,
        "add URLs to a crawl in Redis",
        "Push URLs into a crawl with RedisDurableScheduler, as GET requests, unless it has seen"
        " them. Run it in the crawl's project. What was interrupted can be run again.",
        _REDIS,
        _argument("urls URL", "a URL, or - for one a line", nargs="+"),
        _KEY,
        _argument("--priority", "of the requests (default: 0)", type=int, default=0),
        _argument("--callback", "the spider's method (default: parse)"),
        _SPIDER,
        _JSON,
    ),
    _subcommand(
        "workers",
        crawls.workers,
        "who works on a crawl in Redis",
        "List the workers of a crawl with RedisDurableScheduler.\n\n"
        "columns:\n"
        "  lease left   until then the requests of the worker are its own, unless it\n"
        "               renews that; run out: it is dead, and the others get them\n"
        "  claimed      requests that it has\n"
        "  oldest       for how long it has had the oldest of them\n"
        "  dispatched   how many of them its engine has, or may have got\n"
        "  start()      runs, while it sends the start requests of the crawl\n\n"
        "In --json they are lease_seconds, in_flight, oldest_seconds, dispatched and\n"
        "in_start, as in 'top --json' and 'info --json'.",
        _REDIS,
        _KEY,
        _JSON,
    ),
    _subcommand(
        "merge",
        filters.on_place,
        "join filters of one origin into one of them",
        "Join filters into one of them, DEST. They must be of one origin: copies of one filter"
        " that have gone separate ways (same secret, shape and fingerprinter).",
        _argument("place DEST", f"{_A_FILTER}; it gets what the others know"),
        _argument("sources SRC", _A_FILTER, nargs="+"),
        _argument(
            "--over-capacity",
            "accept more items than a layer was made for, and a higher error rate",
            action="store_true",
        ),
        _JSON,
    ),
    _subcommand(
        "clear",
        filters.on_place,
        "forget everything: remove a filter",
        "Remove a filter from the disk, sound or not, or from Redis. What else is in the job"
        " directory stays.",
        _PLACE,
        _KEY,
        _YES,
    ),
    _subcommand(
        "top",
        top.top,
        "how far a job is, live in the terminal",
        "Show how far a running job is, or a crawl in Redis with all its workers, live in the"
        " terminal: its speed, what waits and has failed, and what it keeps, as it was last"
        " committed. Changes nothing. Ctrl-C ends it.",
        *_JOB,
        _argument("--once", "print it once", action="store_true"),
        _JSON,
        _argument("--follow", "with --json: a line of JSON a second", action="store_true"),
    ),
    _subcommand(
        "queue",
        queue.queue,
        "which requests are pending",
        "Count, list or drop pending requests of a job or a crawl, or hold hosts, also while it"
        " runs: queue count JOB --by slot. What is dropped stays seen. Nothing of a host on hold is"
        " asked. The exit status is 1 if nothing is selected.",
        _argument("action ACTION", "count, list, drop, hold or release", choices=queue.ACTIONS),
        *_JOB,
        _argument("slots SLOT", "hold, release: these download slots", nargs="*"),
        _several("--slot GLOB", "only of such download slots, such as '*.example.com'"),
        _URLS,
        _several("--callback NAME", "only for these methods of the spider"),
        _argument("--by", "count them by this", choices=("slot", "callback", "priority")),
        _argument("--limit N", f"print so many (default: {queue.SHOWN})", type=number),
        _argument(
            "--keep",
            "drop: they have failed, and 'scrapy bloom retry' brings them back",
            action="store_true",
        ),
        _argument("--for AGE", "hold: such as 30m or 12h (default: until release)"),
        _YES,
        _JSON,
    ),
    _subcommand(
        "failed",
        failed.failed,
        "which requests of a job have failed",
        "List the requests of a job or a crawl that have failed, by reason, with how often they"
        " were asked and why they failed. Changes nothing, and works while the job runs.",
        *_FAILED,
        _argument("-o FILE", "write their URLs to a new file, - to print them", dest="output"),
        _JSON,
    ),
    _subcommand(
        "retry",
        failed.retry,
        "ask failed requests once more",
        "Make requests of a job or a crawl that have failed pending again: a job that runs, or"
        " its next start, asks them once more, goes on with the round, and adds to its feeds. In"
        " Redis its workers do, at once if there are any.",
        *_FAILED,
        _JSON,
    ),
    _subcommand(
        "drop",
        failed.drop,
        "forget failed requests",
        "Forget requests of a job or a crawl that have failed: they count as done.",
        *_FAILED,
        _YES,
    ),
    _subcommand(
        "delta",
        delta.delta,
        "count, list or forget what crawls have done",
        "Count or list the pages that a delta store has as done, with their times, or forget some:"
        " those are fetched again. MEMORY is the directory of a delta store (BLOOM_DELTA_DIR), or"
        " redis://HOST/DB with --spider or -s BLOOM_DELTA_DIR=NAME.",
        _argument("action", "what to do", choices=delta.ACTIONS),
        _argument("place MEMORY", "a delta store"),
        _argument(
            "urls URL", "of the pages to forget; - for one a line on standard input", nargs="*"
        ),
        _argument("--older AGE", "such as 30d or 12h: only what is older; whole slices"),
        _several(
            "--key HEX", "forget the pages of these keys, as list prints them", dest="hex_keys"
        ),
        *_REQUESTS,
        _JSON,
    ),
    _subcommand(
        "verify",
        filters.on_place,
        "find out whether a filter can be trusted",
        "Read a whole filter, compare headers, sizes, checksums and counts with the bits, and say"
        " whether it can be trusted (exit status 0) or not (2). Changes nothing.",
        _PLACE,
        _KEY,
        _JSON,
    ),
    _subcommand(
        "compare",
        study.compare,
        "ways to remember URLs, side by side",
        "Remember the URLs of a list in several ways, and print what each costs and how many new"
        " URLs it takes for seen ones: a set of URLs, a set of fingerprints, a table of bits with"
        " one hash, a small classic Bloom filter, eight multiplicative hash functions as copied"
        " from crawler to crawler, and the filter of this package without and with its exact"
        " table.",
        _argument("files FILE", "URLs, one a line, plain or gzip", nargs="+"),
        _argument("--slots N", "bits of the one-hash table", type=_bits, default=1_000_000),
        _argument("--bits N", "bits of the classic filter", type=_bits, default=480_833),
        _argument(
            "--hashes K", "hashes of the classic filter", type=partial(number, most=100), default=3
        ),
        _argument("--every N", "lines between two rows", type=number, default=10_000),
        _JSON,
    ),
    _subcommand(
        "plot",
        study.plot,
        "draw error rates and memory",
        "Draw a chart into a PNG or SVG file, readable in black and white (needs matplotlib).",
        _argument(
            "chart CHART",
            "error-by-bits, error-by-probes or memory",
            choices=("error-by-bits", "error-by-probes", "memory"),
        ),
        _argument("file FILE", "the file to write, .png or .svg"),
        _argument(
            "--probes K",
            "probes of the curves of error-by-bits",
            type=number,
            nargs="+",
            default=[1, 2, 3, 6, 10, 14, 22],
        ),
        _argument(
            "--bits B",
            "bits an item of the curves of error-by-probes",
            type=float,
            nargs="+",
            default=[8, 12, 16, 24, 32],
        ),
        _argument(
            "--error-rate P",
            "error rates of the curves of memory",
            type=float,
            nargs="+",
            default=[1e-2, 1e-4, 1e-6, 1e-9],
        ),
    ),
)
