"""Pending requests as an operator sees them, and which of them a command is about."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from ..errors import encodable
from .failed_request import FailedRequest, attempts_of, matches

By = Literal["slot", "callback", "priority"]
DROPPED = "dropped"
"""The reason of failed requests that an operator has dropped, and kept."""


class PendingRequest(NamedTuple):
    """A pending request. `url` is empty, and `callback` None, if it cannot be read.
    `priority` is Scrapy's. `due` is in seconds from now, None for a request that is not delayed."""

    url: str
    method: str
    slot: str
    priority: int
    callback: str | None
    due: float | None = None

    @classmethod
    def of(
        cls, fields: Mapping[str, Any], slot: str, priority: int, due: float | None = None
    ) -> PendingRequest:
        """Return the request of these `fields` (`Request.to_dict`), none for one that cannot be
        read."""
        return cls(
            url=encodable(fields.get("url") or ""),
            method=encodable(fields.get("method") or "GET"),
            slot=slot,
            priority=priority,
            callback=encodable(fields.get("callback") or "parse") if fields else None,
            due=due,
        )

    def dropped(self, fields: Mapping[str, Any]) -> FailedRequest:
        """Return the record of this request, of these `fields`, which is dropped and kept."""
        meta, headers = fields.get("meta") or {}, fields.get("headers") or {}
        values = headers.get(b"Referer")
        referer = values[0] if isinstance(values, list) and values else None
        before = referer.decode("utf-8", "backslashreplace") if isinstance(referer, bytes) else None
        now, attempts = time.time(), attempts_of(meta)
        return FailedRequest(self.url, self.method, DROPPED, None, None, attempts, now, before)


class Selection(NamedTuple):
    """The pending requests whose slot matches one of these globs, whose URL one of those, and
    whose callback has one of these names; all, if there are none."""

    slots: Sequence[str] = ()
    urls: Sequence[str] = ()
    callbacks: Sequence[str] = ()

    @property
    def reads_requests(self) -> bool:
        """True if more than the slot of a request decides."""
        return bool(self.urls or self.callbacks)

    def includes_slot(self, slot: str) -> bool:
        """Return True if requests of `slot` may be selected."""
        return matches(self.slots, slot)

    def includes(self, request: PendingRequest) -> bool:
        """Return True if `request` is selected; it is not if a URL or a callback is asked for that
        cannot be read."""
        return (
            self.includes_slot(request.slot)
            and (not self.urls or (bool(request.url) and matches(self.urls, request.url)))
            and (not self.callbacks or request.callback in self.callbacks)
        )


@dataclass
class PendingCount:
    """Numbers of requests: `pending` by slot, callback (None where it cannot be read) or
    priority, the `later` ones among them, those `in_flight`, which are not pending, and the
    `unknown` ones, which cannot be read and so not be selected."""

    pending: Counter[Any] = field(default_factory=Counter)
    later: int = 0
    in_flight: int = 0
    unknown: int = 0

    def add(
        self, request: PendingRequest, by: By, selection: Selection, *, in_flight: bool = False
    ) -> None:
        """Count `request`, if it is selected."""
        if not selection.includes(request):
            of_slot = selection.includes_slot(request.slot)
            self.unknown += of_slot and not request.url and selection.reads_requests
        elif in_flight:
            self.in_flight += 1
        else:
            self.pending[getattr(request, by)] += 1
            self.later += request.due is not None
