"""Drops duplicates next to the spider, before they pass through Scrapy's engine.

A seen request stays seen, so one whose URL is in the dupefilter's cache can be dropped as soon as
the spider has yielded it. docs/speed.md lists the observable differences.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pydispatch.dispatcher import getAllReceivers, liveReceivers
from scrapy import signals
from scrapy.exceptions import NotConfigured
from scrapy.utils.python import global_object_name

from ..dupefilter import FilterDupeFilter
from ..scrapy_private.middlewares import OutputFilter, output_methods, skip_output_of
from ..scrapy_private.progress import scheduler_of
from ..speed.known import KnownUrls, known_urls
from ..startup import announce, is_own_method, refuse
from .settings import DROP_EARLY

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.crawler import Crawler
    from scrapy.http import Response
    from typing_extensions import Self


_OWN = ("scrapy", "scrapy_bloom")


class DropEarlyMiddleware(OutputFilter):
    """Spider middleware, next to the spider, that drops requests of callbacks that the scheduler is
    sure to drop. The add-on enables it.

    It needs BloomDupeFilter or RedisBloomDupeFilter. It stays off if a component other than
    Scrapy's would notice: a spider middleware that has a method for the output of callbacks, unless
    `bloom_neutral` of its own class is True or BLOOM_DROP_EARLY names it; a handler of a signal; a
    changed dupefilter or scheduler; a fingerprinter that does not say what it reads.
    BLOOM_DROP_EARLY = True ignores middlewares and handlers, False turns it off.
    """

    order = 1100
    """Its place in SPIDER_MIDDLEWARES: between Scrapy's own and the spider."""

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler
        self._wanted = DROP_EARLY.read(crawler.settings)
        self._known: KnownUrls | None = None  # set while requests are dropped

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Return the middleware of `crawler`. Raises NotConfigured if its setting turns it off;
        refuses the start with ValueError for a bad one."""
        try:
            self = cls(crawler)
        except ValueError as error:
            refuse(crawler, error)
        if self._wanted is False:
            announce(crawler, "duplicates", "not dropped early, BLOOM_DROP_EARLY is False")
            raise NotConfigured
        crawler.signals.connect(self._engine_started, signals.engine_started)
        return self

    def process_spider_input(self, response: Response) -> None:
        """Let follow_new and NewLinkExtractor, if a spider has imported them, leave out known links
        of `response`."""
        links = sys.modules.get("scrapy_bloom.early.links")
        if links is not None and self._known is not None:
            links.known_links[response] = self._known

    def _skips(self, request: Request, response: Response) -> bool:
        if (known := self._known) is None or not known.is_known(request):
            return False
        assert self._crawler.spider is not None
        known.log(request, self._crawler.spider)
        return True

    def _engine_started(self) -> None:
        scheduler = scheduler_of(self._crawler)
        dupefilter: Any = getattr(scheduler, "df", None)
        reason = _why_unsound(scheduler, dupefilter)
        if reason is None and self._wanted is not True:
            reason = self._why_missed()
        if reason is None:
            self._known = known_urls(dupefilter)
        elif type(self) is DropEarlyMiddleware:  # a subclass may do more
            skip_output_of(self._crawler, self)
        how = "dropped early" if reason is None else f"not dropped early, {reason}"
        announce(self._crawler, "duplicates", how)

    def _why_missed(self) -> str | None:
        """Return who of others would miss a dropped request, None without one: a middleware, or the
        handler of a signal."""
        methods = output_methods(self._crawler)
        if methods is None:
            return "Scrapy hides its spider middlewares"
        for method in methods:
            owner = getattr(method, "__self__", method)
            if owner is not self and not self._is_passed(owner, method):
                return f"{_name(owner)} is between the spider and the engine"
        for name in ("request_scheduled", "request_dropped"):
            receivers = getAllReceivers(self._crawler.signals.sender, getattr(signals, name))
            for receiver in liveReceivers(receivers):
                owner = getattr(receiver, "__self__", None)
                # those of Scrapy and of this package can do without the signals of dropped requests
                if not (_is_own(receiver) and (owner is None or _is_own(type(owner)))):
                    return f"{_name(receiver)} handles {name}"
        return None

    def _is_passed(self, owner: object, method: Callable[..., Any]) -> bool:
        """Return True if the `method` of `owner` has no effect on dropped requests."""
        if _is_own(type(owner)):
            return is_own_method(owner, method.__name__, *_OWN)
        # a subclass, or another method of the object, may change what the word is about
        is_patched = any(each is method for each in getattr(owner, "__dict__", {}).values())
        says_so = vars(type(owner)).get("bloom_neutral") is True and not is_patched
        return says_so or (isinstance(self._wanted, tuple) and _name(owner) in self._wanted)


def _why_unsound(scheduler: object, dupefilter: object) -> str | None:
    """Return why dropping a known request early could change the crawl, None if it cannot."""
    if not is_own_method(scheduler, "enqueue_request", *_OWN):
        return f"{_name(type(scheduler))} has a changed enqueue_request"
    if not isinstance(dupefilter, FilterDupeFilter):
        return "without scrapy-bloom's filter"
    return known_urls(dupefilter).why_not_early()


def _is_own(thing: object) -> bool:
    return str(getattr(thing, "__module__", "")).partition(".")[0] in _OWN


def _name(thing: object) -> str:
    return global_object_name(thing if hasattr(thing, "__qualname__") else type(thing))
