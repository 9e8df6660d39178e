"""The arguments of all subcommands, and which function runs each."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from difflib import get_close_matches
from functools import partial
from inspect import cleandoc
from typing import TYPE_CHECKING, Any, NoReturn

from ..amounts import MOST, whole_number
from ..study import CHARTS
from . import crawls, delta, filters, requests, study, top
from .context import Context, fail

if TYPE_CHECKING:
    from typing_extensions import Unpack

Argument = tuple[str, dict[str, Any]]
"""What `add_argument` of a parser takes."""


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
        like = get_close_matches(found[1], [run.__name__ for run in SUBCOMMANDS], n=1)
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
    for run, (help_, *arguments) in SUBCOMMANDS.items():
        description, layout = cleandoc(run.__doc__ or ""), argparse.HelpFormatter
        if "\n\n" in description:  # it is laid out already
            layout = argparse.RawDescriptionHelpFormatter
        subparser = subcommands.add_parser(
            run.__name__, help=help_, description=description, formatter_class=layout
        )
        subparser.set_defaults(run=run)
        if run not in _LINES_ONLY and _JSON not in arguments:
            arguments.append(_JSON)
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


def _argument(usage: str, help_: str, **options: Any) -> Argument:
    """Return an argument: `usage` is its name, and a metavar where that is another word."""
    name, *metavar = usage.split()
    return name, {"help": help_, **({"metavar": metavar[0]} if metavar else {}), **options}


_number = partial(_argument, type=number)


def _flag(usage: str, help_: str) -> Argument:
    return _argument(usage, help_, action="store_true")


def _several(usage: str, help_: str, **options: Any) -> Argument:
    """Return an option that takes several values, and may come several times."""
    return _argument(usage, help_, nargs="+", action="extend", default=[], **options)


def _curves(
    usage: str, what: str, chart: str, number_of: Callable[[str], float], *default: float
) -> Argument:
    """Return an option with a number for each curve of a chart."""
    help_ = f"{what} of the curves of {chart}"
    return _argument(usage, help_, type=number_of, nargs="+", default=[*default])


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
_YES = _flag("--yes", "needed: there is no way back")
_JSON = _flag("--json", "print JSON instead of text")
_LINES_ONLY = (filters.clear, requests.drop, study.plot)

Subcommand = Callable[[Context], int | None]
SUBCOMMANDS: dict[Subcommand, tuple[str, Unpack[tuple[Argument, ...]]]] = {
    filters.info: ("what is in a filter, a job or a crawl in Redis", _PLACE, _KEY),
    study.size: (
        "what a crawl of N URLs needs",
        _number("--urls N", "requests expected, such as 5000000, 5M or 5e6", required=True),
        _argument(
            "--error-rate P",
            "bound on the chance that a new request is taken for a seen one"
            " (default: BLOOM_ERROR_RATE)",
            type=float,
        ),
        _number(
            "--from N", "the smaller capacity to grow from (default: BLOOM_CAPACITY)", dest="start"
        ),
    ),
    filters.check: (
        "which URLs were seen",
        _PLACE,
        _KEY,
        _argument("urls URL", "a URL, or - for one a line on standard input", nargs="+"),
        *_REQUESTS,
    ),
    filters.add: (
        "import URLs, a requests.seen or a scrapy-redis set",
        _PLACE_ON_DISK,
        _argument(
            "files FILE",
            "a list of URLs (plain or gzip), a requests.seen, or redis://HOST/DB with --key",
            nargs="+",
        ),
        _argument("--key", "of the scrapy-redis set, such as myspider:dupefilter"),
        _number(
            "--capacity N",
            "of a new filter (default: BLOOM_CAPACITY, or what is imported if that is more)",
        ),
        _argument("--error-rate P", "of a new filter (default: BLOOM_ERROR_RATE)", type=float),
        _SPIDER,
    ),
    crawls.load: (
        "copy a filter, or a whole crawl, into Redis",
        _argument(
            "place SOURCE",
            "a job directory, or redis://HOST/DB, where scrapy-redis has the crawl of --spider",
        ),
        _argument("url URL", "redis://HOST/DB, where the crawl goes on"),
        _KEY,
        _SPIDER,
    ),
    crawls.export: (
        "copy a filter in Redis into a job",
        _argument("url URL", "redis://HOST/DB"),
        _argument("place PLACE", "a job directory"),
        _KEY,
    ),
    crawls.push: (
        "add URLs to a crawl in Redis",
        _REDIS,
        _argument("urls URL", "a URL, or - for one a line", nargs="+"),
        _KEY,
        _argument("--priority", "of the requests (default: 0)", type=int, default=0),
        _argument("--callback", "the spider's method (default: parse)"),
        _SPIDER,
    ),
    crawls.workers: ("who works on a crawl in Redis", _REDIS, _KEY),
    filters.merge: (
        "join filters of one origin into one of them",
        _argument("place DEST", f"{_A_FILTER}; it gets what the others know"),
        _argument("sources SRC", _A_FILTER, nargs="+"),
        _flag(
            "--over-capacity",
            "accept more items than a layer was made for, and a higher error rate",
        ),
    ),
    filters.clear: ("forget everything: remove a filter", _PLACE, _KEY, _YES),
    top.top: (
        "how far a job is, live in the terminal",
        *_JOB,
        _flag("--once", "print it once"),
        _JSON,
        _flag("--follow", "with --json: a line of JSON a second"),
    ),
    requests.queue: (
        "which requests are pending",
        _argument("action ACTION", "count, list, drop, hold or release", choices=requests.ACTIONS),
        *_JOB,
        _argument("slots SLOT", "hold, release: these download slots", nargs="*"),
        _several("--slot GLOB", "only of such download slots, such as '*.example.com'"),
        _URLS,
        _several("--callback NAME", "only for these methods of the spider"),
        _argument("--by", "count them by this", choices=requests.BY),
        _number("--limit N", f"print so many (default: {requests.SHOWN})"),
        _flag("--keep", "drop: they have failed, and 'scrapy bloom retry' brings them back"),
        _argument("--for AGE", "hold: such as 30m or 12h (default: until release)"),
        _YES,
    ),
    requests.failed: (
        "which requests of a job have failed",
        *_FAILED,
        _argument("-o FILE", "write their URLs to a new file, - to print them", dest="output"),
    ),
    requests.retry: ("ask failed requests once more", *_FAILED),
    requests.drop: ("forget failed requests", *_FAILED, _YES),
    delta.delta: (
        "count, list or forget what crawls have done",
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
    ),
    filters.verify: ("find out whether a filter can be trusted", _PLACE, _KEY),
    study.compare: (
        "ways to remember URLs, side by side",
        _argument("files FILE", "URLs, one a line, plain or gzip", nargs="+"),
        _argument("--slots N", "bits of the one-hash table", type=_bits, default=1_000_000),
        _argument("--bits N", "bits of the classic filter", type=_bits, default=480_833),
        _argument(
            "--hashes K", "hashes of the classic filter", type=partial(number, most=100), default=3
        ),
        _number("--every N", "lines between two rows", default=10_000),
    ),
    study.plot: (
        "draw error rates and memory",
        _argument("chart CHART", "error-by-bits, error-by-probes or memory", choices=[*CHARTS]),
        _argument("file FILE", "the file to write, .png or .svg"),
        _curves("--probes K", "probes", "error-by-bits", number, 1, 2, 3, 6, 10, 14, 22),
        _curves("--bits B", "bits an item", "error-by-probes", float, 8, 12, 16, 24, 32),
        _curves("--error-rate P", "error rates", "memory", float, 1e-2, 1e-4, 1e-6, 1e-9),
    ),
}
"""By the function that runs it, whose name and docstring are the subcommand's: a line of help, and
the arguments, but --json."""
