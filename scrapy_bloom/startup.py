"""The lines at the start of a crawl, the refusal to start, and the close."""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from importlib import import_module
from inspect import getattr_static
from types import FunctionType
from typing import TYPE_CHECKING, Any, NoReturn
from weakref import WeakKeyDictionary

from scrapy import signals
from scrapy.settings import SETTINGS_PRIORITIES
from scrapy.utils.asyncio import call_later
from scrapy.utils.defer import deferred_from_coro
from scrapy.utils.misc import load_object

from .errors import encodable, message_of

if TYPE_CHECKING:
    from scrapy.crawler import Crawler
    from scrapy.settings import BaseSettings

logger = logging.getLogger(__name__)

_parts: WeakKeyDictionary[Crawler, dict[str, tuple[str, str]]] = WeakKeyDictionary()
"""What the lines at the start of each crawler say, by part, and the ways out."""


def announce(crawler: Crawler, what: str, how: str, way_out: str = "") -> None:
    """Log `what: how` when `crawler` starts, instead of an earlier line for `what`. With a way out
    that is a warning: the user may believe that part protected, and it is not."""
    if crawler not in _parts:
        _parts[crawler] = dict.fromkeys(("filter", "requests"), ("", ""))
        crawler.signals.connect(_log_parts, signals.engine_started)
    _parts[crawler][what] = how, way_out


def _log_parts(sender: Crawler) -> None:
    parts = {f"{what}:": said for what, said in _parts[sender].items() if said[0]}
    width = max(map(len, parts), default=0)
    for what, (how, way_out) in parts.items():
        line = encodable(f"{what:<{width}} {how}{way_out and '; '}{way_out}")
        level = logging.WARNING if way_out else logging.INFO
        logger.log(level, "%s", line, extra={"spider": sender.spider})


def fetches_one_page(crawler: Crawler) -> bool:
    """Return True for `scrapy parse`, `fetch`, `view` and `check`, which replace `Spider.start()`,
    and for the shell: none of them is a crawl."""
    start = getattr(crawler.spidercls, "start", None)
    is_commands = str(getattr(start, "__module__", "")).startswith("scrapy.commands.")
    return is_commands or is_shell(crawler.settings)


def is_shell(settings: BaseSettings) -> bool:
    """Return True in the Scrapy shell, and in `scrapy bench`: no other command sets any of these,
    of which a project may set some with a higher priority."""
    command = SETTINGS_PRIORITIES["command"]
    names = "DUPEFILTER_CLASS", "LOGSTATS_INTERVAL", "REMOTE_CONTROL_ENABLED", "KEEP_ALIVE"
    return any(settings.getpriority(name) == command for name in names)


def is_ours(kind: type, name: str) -> bool:
    """Return True if `kind` is this package's class `name`, which is not imported for the
    comparison: a crawl loads what it uses."""
    return kind.__name__ == name and kind.__module__.startswith("scrapy_bloom.")


def is_component(setting: Any, name: str) -> bool:
    """Return True if `setting`, a class or the path of one, is this package's class `name` or a
    subclass of it."""
    try:
        found = load_object(setting)
    except Exception:  # noqa: BLE001 - Scrapy reports what is wrong with the setting
        return False
    # not issubclass: BaseScheduler takes any class with its three methods for a subclass
    return isinstance(found, type) and any(is_ours(each, name) for each in found.__mro__)


def is_own_method(thing: object, name: str, *packages: str) -> bool:
    """Return True if the method `name` of `thing` was written in one of `packages`: it is not
    overridden in a subclass, nor replaced in the class or in the object."""
    found = getattr_static(thing, name, None)
    # not its __module__, which functools.wraps copies from what it wraps
    home = found.__globals__.get("__name__", "") if type(found) is FunctionType else ""
    return home.partition(".")[0] in packages


def refuse(crawler: Crawler, error: Exception) -> NoReturn:
    """Log `error` in one line and raise it, so that the crawl ends before it has begun. The
    command exits with status 1; other crawls of the process go on.

    To be called while the spider opens. Scrapy then sends no `spider_closed`, at which its
    SpiderState would empty `spider.state`, closes no scheduler, and shows no traceback. The caller
    closes its files and locks.
    """
    is_systems = isinstance(error, OSError) and error.strerror == os.strerror(error.errno or 0)
    remedy = "; remove the cause, then start again" * is_systems  # ours has a better one
    logger.error("%s%s", message_of(error), remedy, extra={"spider": crawler.spider})
    for name in ("asyncio", "twisted"):  # which log errors that are not handled
        logging.getLogger(name).addFilter(
            lambda record: not record.exc_info or record.exc_info[1] is not error
        )
    with suppress(RuntimeError, AttributeError):  # a test or script has no engine
        crawler.engine.spider = None
    crawler.spider = None
    raise error


def close_spider(crawler: Crawler, reason: str) -> None:
    """Close the spider, if it is open, on the reactor's next turn. RuntimeError without one."""

    def close() -> None:
        closed = deferred_from_coro(crawler.engine.close_spider_async(reason=reason))
        closed.addErrback(lambda failure: None)
        # the close does not depend on this import
        import_module("scrapy_bloom.scrapy_private.progress").end_items_of_start(crawler, closed)

    call_later(0, close)
