"""Commits `spider.state` together with the requests."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from scrapy import signals
from scrapy.extensions.spiderstate import SpiderState

from ..crawl.ledger import CommitHook
from ..files import replace
from ..jobdir import session_of
from ..startup import is_own_method

if TYPE_CHECKING:
    from scrapy import Request, Spider
    from scrapy.crawler import Crawler

    from ..crawl.ledger import Ledger
    from .rounds import Round

logger = logging.getLogger("scrapy_bloom.durable.spider_state")


class KeptSpiderState(CommitHook):
    """Writes `spider.state` of `crawler` to the file of the job, in each commit of `ledger` that
    finds it changed. At a clean close it goes to the file that Scrapy's SpiderState `extension`
    reads, and would empty before it writes, and leaves that of the job: what a start finds there is
    of a process that died. Raises OSError, sqlite3.Error.
    """

    def __init__(
        self, crawler: Crawler, extension: SpiderState, ledger: Ledger, round_: Round
    ) -> None:
        self._crawler, self._path = crawler, Path(extension.statefn)
        self._ledger, self._round = ledger, round_
        self._can_pickle = True
        for (committed,) in round_.file.query("SELECT state FROM spider_state"):
            replace(self._path, committed, name="spider.state")
        self._last = saved_state(extension)
        crawler.signals.disconnect(extension.spider_closed, signals.spider_closed)
        # after the extension's own, which was connected before
        crawler.signals.connect(self._spider_opened, signals.spider_opened)

    def before_commit(self, acknowledged: Sequence[Request]) -> None:
        """Write the state if it has changed."""
        if (state := self._pickled()) not in (None, self._last):
            write = "INSERT OR REPLACE INTO spider_state (rowid, state) VALUES (1, ?)"
            self._round.file.execute(write, (state,))
            self._last = state

    def _spider_opened(self, spider: Spider) -> None:
        if "state" in vars(spider):  # else the extension could not read it, and it stays
            self._ledger.commit_hooks.append(self)
            session_of(self._crawler).begin(self)
            self._crawler.signals.connect(self._spider_closed, signals.spider_closed)

    def _spider_closed(self) -> None:
        """Save the state, also where it has changed since the last commit."""
        try:
            state = self._pickled()
            if state is not None and not self._ledger.failed:
                replace(self._path, state, name="spider.state")
                self._round.file.execute("DELETE FROM spider_state")
                self._round.commit()
        finally:
            session_of(self._crawler).end(self)

    def _pickled(self) -> bytes | None:
        try:
            state = pickle.dumps(vars(self._crawler.spider)["state"], protocol=4)
        except Exception as error:  # noqa: BLE001 - objects of any class
            if self._can_pickle:
                logger.error(
                    "spider.state cannot be pickled: %(error)s. It stays as it was at the last"
                    " commit until it can be; keep only what can be pickled in it.",
                    {"error": error},
                    extra={"spider": self._crawler.spider},
                )
            self._can_pickle = False
            return None
        self._can_pickle = True
        return state


def extension_of(crawler: Crawler) -> SpiderState | None:
    """Return the SpiderState of `crawler`, None without one that saves the state as Scrapy's."""
    found: SpiderState | None = crawler.get_extension(SpiderState)
    is_scrapys = is_own_method(found, "spider_closed", "scrapy")
    return found if found and found.jobdir and is_scrapys else None


def saved_state(extension: SpiderState) -> bytes | None:
    """Return what the file has that the extension reads, None without one. Raises OSError."""
    path = Path(extension.statefn)
    return path.read_bytes() if path.exists() else None
