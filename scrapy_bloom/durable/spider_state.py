"""`spider.state`, as it was when the requests were last committed."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from scrapy import signals
from scrapy.extensions.spiderstate import SpiderState

from ..files import replace

if TYPE_CHECKING:
    from scrapy import Request, Spider
    from scrapy.crawler import Crawler
    from typing_extensions import Self

    from .request_file import RequestFile

logger = logging.getLogger(__name__)

MARK = b"\nas of the last commit in requests.sqlite\n"
"""Ends a file that we have written. Scrapy, which reads the pickle before it, writes none,
and so tells that it has written the file since."""


class KeptSpiderState:
    """Keeps `spider.state` of `crawler` in `file`, in each commit that finds it changed,
    and lets Scrapy's SpiderState extension have it: as it was at the last commit if the
    process died since, as the extension has saved it otherwise.
    """

    def __init__(self, crawler: Crawler, extension: SpiderState, file: RequestFile) -> None:
        self._crawler = crawler
        self._extension = extension
        self._file = file
        self._is_read = False
        self._can_pickle = True
        file.execute("CREATE TABLE IF NOT EXISTS spider_state (state BLOB NOT NULL)")
        kept = file.execute("SELECT state FROM spider_state").fetchone()
        self._committed: bytes | None = kept and kept[0]
        crawler.signals.connect(self._spider_opened, signals.spider_opened)

    @classmethod
    def of(cls, crawler: Crawler, file: RequestFile) -> Self | None:
        """Return None where SpiderState is switched off. Raises sqlite3.Error."""
        extension = crawler.get_extension(SpiderState)
        return cls(crawler, extension, file) if extension and extension.jobdir else None

    def put_back(self) -> None:
        """Write `spider.state` for the extension, if Scrapy has not saved it since the
        last commit. Raises OSError."""
        path = Path(self._extension.statefn)
        found = path.read_bytes() if path.exists() else b""
        if self._committed is None or self._is_saved_by_scrapy(found):
            return
        if found != self._committed + MARK:
            replace(path, self._committed + MARK)

    def before_commit(self, acknowledged: Sequence[Request]) -> None:
        """Write the state if it has changed."""
        state = self._pickled()
        if state is None or state == self._committed:
            return
        self._file.execute("DELETE FROM spider_state")
        self._file.execute("INSERT INTO spider_state VALUES (?)", (state,))
        self._committed = state

    def after_commit(self) -> None:
        """Do nothing."""

    def end(self, *, failed: bool) -> None:
        """Keep the extension from writing what it must not: nothing at all if it has not
        read the state, which it would empty, or if the last commit `failed`."""
        if failed or not self._is_read or not self._can_pickle:
            self._extension.jobdir = None

    def _is_saved_by_scrapy(self, found: bytes) -> bool:
        """Return True for what the extension has written, all of it."""
        if not found or found.endswith(MARK):
            return False
        if found == self._committed:
            return True
        try:
            pickle.loads(found)  # noqa: S301 - as the extension will
        except (EOFError, pickle.UnpicklingError):
            return False
        except Exception:  # noqa: BLE001 - a class that is gone; the extension will say so
            return True
        return True

    def _spider_opened(self, spider: Spider) -> None:
        # after the extension's handler, which was connected before; it may have failed
        self._is_read = "state" in vars(spider)

    def _pickled(self) -> bytes | None:
        if not self._is_read:
            return None
        try:
            state = pickle.dumps(vars(self._crawler.spider)["state"], protocol=4)
        except Exception as error:  # noqa: BLE001 - whatever a user keeps there
            self._tell(error)
            return None
        self._can_pickle = True
        return state

    def _tell(self, error: Exception) -> None:
        if not self._can_pickle:
            return
        self._can_pickle = False
        logger.error(
            "spider.state cannot be pickled: %(error)s. It stays as it was at the last commit until"
            " it can be; keep only what can be pickled in it.",
            {"error": error},
            extra={"spider": self._crawler.spider},
        )
