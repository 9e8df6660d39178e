"""How a crawl starts: with one line about what is on, or with one line why it cannot."""

from __future__ import annotations

import logging
from contextlib import suppress
from inspect import getattr_static
from types import FunctionType
from typing import TYPE_CHECKING, Any, NoReturn
from weakref import WeakKeyDictionary, ref

from scrapy import signals
from scrapy.settings import SETTINGS_PRIORITIES
from scrapy.utils.misc import load_object

from .errors import describe, encodable

if TYPE_CHECKING:
    from scrapy.crawler import Crawler
    from scrapy.settings import BaseSettings

logger = logging.getLogger(__name__)

_reports: WeakKeyDictionary[Crawler, _StartLine] = WeakKeyDictionary()


class _StartLine:
    """What the components of a crawler have to say, in one line when all have opened."""

    def __init__(self, crawler: Crawler) -> None:
        self.parts: dict[str, str | None] = dict.fromkeys(("filter", "requests"))
        self._crawler = ref(crawler)
        crawler.signals.connect(self._engine_started, signals.engine_started)

    def _engine_started(self) -> None:
        crawler = self._crawler()
        parts = (f"{what}: {how}" for what, how in self.parts.items() if how)
        line = encodable("; ".join(parts))
        logger.info("%s", line, extra={"spider": crawler and crawler.spider})


def announce(crawler: Crawler, what: str, how: str) -> None:
    """Say in the line at the start of `crawler` how `what` works; the last word on each
    thing stands."""
    if crawler not in _reports:
        _reports[crawler] = _StartLine(crawler)
    _reports[crawler].parts[what] = how


def has_spider_middleware(crawler: Crawler, path: str) -> bool:
    """Return True if Scrapy has built the spider middleware at `path`, or a subclass. A path loads
    the module only for this question, and a lower room may ask it."""
    with suppress(RuntimeError):  # a script without an engine has no middlewares
        return crawler.get_spider_middleware(load_object(path)) is not None
    return False


def fetches_one_page(crawler: Crawler) -> bool:
    """Return True for `scrapy parse`, `fetch`, `view` and `check`, which are no crawl: they give
    the spider a `start()` of their own. And for the shell."""
    start = getattr(crawler.spidercls, "start", None)
    is_commands = str(getattr(start, "__module__", "")).startswith("scrapy.commands.")
    return is_commands or is_shell(crawler.settings)


def is_shell(settings: BaseSettings) -> bool:
    """Return True in the Scrapy shell: the one command that sets a dupefilter, and turns off
    the log of stats. A project may have set one of them itself."""
    command = SETTINGS_PRIORITIES["command"]
    return settings.getpriority("DUPEFILTER_CLASS") == command or (
        settings.getpriority("LOGSTATS_INTERVAL") == command
        and settings.getfloat("LOGSTATS_INTERVAL") == 0
    )


def is_public(found: object, name: str) -> bool:
    """Return True if `found` is the class that this package publishes as `name`, which is not
    imported for it: a crawl loads what it uses."""
    return (
        isinstance(found, type)
        and found.__name__ == name
        and found.__module__.partition(".")[0] == __name__.partition(".")[0]
    )


def is_component(setting: Any, base: type | str) -> bool:
    """Return True if `setting`, a class or the path of one, is `base` or a subclass; `base` is
    a class, or the public name of one of this package."""
    try:
        found = load_object(setting)
    except Exception:  # noqa: BLE001 - Scrapy says what is wrong with it
        return False
    # not issubclass: for Scrapy's schedulers whatever has three methods is a subclass
    return isinstance(found, type) and any(
        is_public(each, base) if isinstance(base, str) else each is base for each in found.__mro__
    )


def is_own_method(thing: object, name: str, *packages: str) -> bool:
    """Return True if the method `name` of `thing` was written in one of `packages`: it is not
    overridden in a subclass, nor replaced in the class or in the object."""
    found = getattr_static(thing, name)
    # not its __module__, which functools.wraps copies from what it wraps
    home = found.__globals__.get("__name__", "") if type(found) is FunctionType else ""
    return home.partition(".")[0] in packages


def refuse(crawler: Crawler, error: Exception) -> NoReturn:
    """Log `error` in one line and raise it, so that the crawl ends before it has begun:
    the command with status 1, other crawls of the process not at all.

    To be called while the spider opens. Scrapy then sends no `spider_closed` (after
    which its SpiderState would empty `spider.state`), closes no scheduler, and shows no
    traceback. Files and locks are the caller's to close.
    """
    logger.error("%s", describe(error), extra={"spider": crawler.spider})
    for name in _LOGGERS_OF_UNHANDLED_ERRORS:
        logging.getLogger(name).addFilter(_AllBut(error))
    with suppress(RuntimeError, AttributeError):  # there is no engine in a test or script
        crawler.engine.spider = None
    crawler.spider = None
    raise error


_LOGGERS_OF_UNHANDLED_ERRORS = ("asyncio", "twisted")


class _AllBut(logging.Filter):
    """Lets pass what is not about one exception object."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self._error = error

    def filter(self, record: logging.LogRecord) -> bool:
        return not _is_about(record, self._error)


def _is_about(record: logging.LogRecord, error: Exception) -> bool:
    if record.exc_info and record.exc_info[1] is error:
        return True
    failure: Any = getattr(record, "log_failure", None) or getattr(record, "failure", None)
    return failure is not None and getattr(failure, "value", None) is error
