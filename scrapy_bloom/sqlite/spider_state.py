"""Commits `spider.state` together with the requests."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from scrapy import signals
from scrapy.extensions.spiderstate import SpiderState

from ..crawl.ledger import CommitHook
from ..files import replace

if TYPE_CHECKING:
    from scrapy import Request, Spider
    from scrapy.crawler import Crawler
    from typing_extensions import Self

    from .job_file import RequestFile

logger = logging.getLogger(__name__)


class KeptSpiderState(CommitHook):
    """Writes `spider.state` of `crawler` to `file`, in each commit that finds it changed.

    Scrapy's SpiderState `extension` saves the state after the last commit, in its own file. With a
    committed state goes a hash of what that file had at the start of the run: if it still has that
    at the next start, or is gone or torn, the extension gets the committed state, else its own.
    """

    def __init__(self, crawler: Crawler, extension: SpiderState, file: RequestFile) -> None:
        self._crawler, self._extension, self._file = crawler, extension, file
        self._path = Path(extension.statefn)
        self._is_read, self._can_pickle = False, True
        self._last: bytes | None = None
        self._begun_with: bytes | None = None
        self._replaces: bytes | None = None
        # after the extension's handlers, which were connected before
        crawler.signals.connect(self._spider_opened, signals.spider_opened)
        crawler.signals.connect(self._spider_closed, signals.spider_closed)

    @classmethod
    def of(cls, crawler: Crawler, file: RequestFile) -> Self | None:
        """Return the committed state, None without SpiderState. Raises sqlite3.Error."""
        extension = crawler.get_extension(SpiderState)
        return cls(crawler, extension, file) if extension and extension.jobdir else None

    def put_back(self) -> None:
        """Write the committed state to the extension's file, unless the extension has saved a later
        one. Raises OSError, sqlite3.Error."""
        self._last = saved_state(self._crawler)
        for committed, replaces in self._file.query("SELECT state, replaces FROM spider_state"):
            self._replaces = replaces
            if _digest(self._last) == replaces or _is_torn(self._last):
                self._last = committed
                replace(self._path, committed, name="spider.state")
        self._begun_with = _digest(self._last)

    def before_commit(self, acknowledged: Sequence[Request]) -> None:
        """Write the state if it has changed."""
        state = self._pickled()
        if state is None or state == self._last:
            return
        self._file.execute("DELETE FROM spider_state")
        self._file.execute("INSERT INTO spider_state VALUES (?, ?)", (state, self._begun_with))
        self._last, self._replaces = state, self._begun_with

    def end(self, *, failed: bool) -> None:
        """Keep the extension from saving if it has not read the state, which it would empty, or if
        the last commit `failed`."""
        if failed or not self._is_read or not self._can_pickle:
            self._extension.jobdir = None

    def _spider_opened(self, spider: Spider) -> None:
        # False if the extension could not read the state
        self._is_read = "state" in vars(spider)

    def _spider_closed(self) -> None:
        if (saved := saved_state(self._crawler)) and _digest(saved) == self._replaces:
            # the saved content equals the replaced one: a byte after the pickle marks it as newer
            with self._path.open("ab") as file:
                file.write(b"\n")

    def _pickled(self) -> bytes | None:
        if not self._is_read:
            return None
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


def saved_state(crawler: Crawler) -> bytes | None:
    """Return what the SpiderState of `crawler` has saved, None without either. Raises OSError."""
    extension = crawler.get_extension(SpiderState)
    path = Path(extension.statefn) if extension and extension.jobdir else None
    return path.read_bytes() if path and path.exists() else None


def _digest(content: bytes | None) -> bytes | None:
    return None if content is None else sha256(content).digest()


def _is_torn(content: bytes | None) -> bool:
    """Return True for a pickle that is gone, or was not finished when the process died."""
    try:
        pickle.loads(content or b"")  # noqa: S301 - as the extension does
    except Exception as error:  # noqa: BLE001 - a missing class, say; the extension reports it
        return isinstance(error, (EOFError, pickle.UnpicklingError))
    return False
