"""Whether a handler of spider_idle may give a crawl more requests."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from pydispatch.dispatcher import getAllReceivers, liveReceivers
from scrapy import signals
from scrapy.exceptions import DontCloseSpider

if TYPE_CHECKING:
    from scrapy.crawler import Crawler

from . import get, miss


class IdleChecks:
    """The results of the signal spider_idle of `crawler`, to be made before the spider is open."""

    def __init__(self, crawler: Crawler) -> None:
        self._engine: Any = crawler.engine
        self._signals: Any = crawler.signals
        self.settle: Callable[[], object] = lambda: None
        """Called before the engine closes the spider because it is idle; may give it more."""
        self.has_closed = False
        """True if the engine has closed the spider because it was idle, with any reason."""
        if (ask := get(self._engine, "_spider_idle")) is None:
            miss("engine._spider_idle", "a spider with handlers of spider_idle ends no round")
        else:
            self._engine._spider_idle = partial(self._ask, ask)  # type: ignore[method-assign]

    @property
    def may_give_more(self) -> bool:
        """True if a handler of the project is connected, and the spider was not closed as idle."""
        handlers = liveReceivers(getAllReceivers(self._signals.sender, signals.spider_idle))
        return not self.has_closed and any(map(_is_foreign, handlers))

    def _ask(self, ask: Callable[[], object]) -> None:
        # exceptions of handlers are only in the answers that the engine gets; in between, signals
        # are sent as ever, since each request sends two
        send = self._signals.send_catch_log

        def send_and_note(signal: object, **options: Any) -> list[tuple[Any, Any]]:
            answers: list[tuple[Any, Any]] = send(signal, **options)
            if signal is signals.spider_idle:
                values = [get(answer, "value") for _, answer in answers]
                held = any(isinstance(value, DontCloseSpider) for value in values)
                if not held and self._engine.spider_is_idle():
                    self.settle()
                    self.has_closed = self._engine.spider_is_idle()
            return answers

        self._signals.send_catch_log = send_and_note
        try:
            ask()
        finally:
            self._signals.send_catch_log = send


def _is_foreign(handler: object) -> bool:
    module = getattr(handler, "__module__", None) or ""
    return module.partition(".")[0] not in {"scrapy", "scrapy_bloom"}
