"""The start requests that a round has taken, which a resumed round does not send again."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from scrapy import Request

from ..amounts import counted
from ..crawl.settings import REPEAT_START
from ..crawl.start_requests import REPEAT_KEY, StartRequests, key_of
from .schema import START

if TYPE_CHECKING:
    from collections.abc import Callable

    from scrapy.crawler import Crawler

    from ..crawl.ledger import Ledger
    from .rounds import Round

logger = logging.getLogger("scrapy_bloom.durable.start_requests")


class LocalStartRequests(StartRequests):
    """The start requests of a job: those that its round has taken are left out. They stand in a
    table beside the rows, and not in the filter, to which a link back to a start page is new, until
    the next round begins."""

    exhausted = False
    """True when there is no start request or item any more."""

    def __init__(self, crawler: Crawler) -> None:
        super().__init__(crawler)
        self._repeats_all = REPEAT_START.read(crawler.settings)

    def open(self, fingerprint: Callable[[Request], bytes], round_: Round, ledger: Ledger) -> None:
        """Begin to work, with the round that is in `ledger`."""
        self._file, self._fingerprint = round_.file, fingerprint
        self._round, self._ledger = round_, ledger
        ledger.commit_hooks.append(self)

    def _offer(self, request: Request) -> bool:
        with self._ledger.guarded():
            key = key_of(request, self._fingerprint(request))
            is_taken = self._file.meet(START, key)
            if is_taken and not (self._repeats_all or request.meta.get(REPEAT_KEY)):
                self._skipped += 1
                return False
            self.offered, self._mark = request, None if is_taken else key
        return True

    def _take(self, mark: bytes) -> None:
        self._file.take(START, mark)

    def _end(self, *, exhausted: bool) -> None:
        self.exhausted = exhausted
        if self._skipped:
            self._crawler.stats.set_value("scheduler/start_skipped", self._skipped)
            logger.info(
                "Round %(round)d of the job goes on: skipped %(skipped)s that it has taken"
                " already. BLOOM_REPEAT_START = True sends them again.",
                {"round": self._round.number, "skipped": counted(self._skipped, "start request")},
                extra={"spider": self._crawler.spider},
            )
