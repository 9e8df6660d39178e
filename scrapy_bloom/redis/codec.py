"""Stored requests of a crawl in Redis: the list in which each waits, and its bytes."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping
from contextlib import suppress
from hashlib import blake2b
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from ..crawl.budget import BUDGET, Budget
from ..crawl.codec import Codec, Stored, stored_fields, url_and_method
from ..crawl.dictionaries import Dictionaries
from ..crawl.failed_request import FailedRequest, class_and_message
from ..crawl.queue_order import QueueSettings
from ..crawl.records import rank_of
from ..errors import encodable
from ..scrapy_private.throttling import slot_named
from .call import Claim, Failing, Packed
from .layout import ODD_BYTES

if TYPE_CHECKING:
    from scrapy import Request, Spider
    from scrapy.settings import BaseSettings
    from scrapy.statscollectors import StatsCollector

_MOST_PRIORITY = 2**51
"""Integers that a score in Redis represents exactly, less a bit for start requests."""
MAX_BYTES = 100_000_000
_PAGE = "bloom:page"
"""The field with the page's name, of a stored request that sends a page again or may have equal
ones. No attribute of a request has such a name, so Scrapy leaves the field out."""


class RedisCodec:
    """Makes stored requests of requests and the other way round, in the order of Scrapy's
    SCHEDULER_DISK_QUEUE and SCHEDULER_START_DISK_QUEUE. `stats` count what is not plain.

    A request waits in the slot that `slot_of` says, by default that of its meta or its host.
    Raises ValueError for queue classes that are not Scrapy's own, and a bad BLOOM_BUDGET.
    """

    def __init__(
        self,
        settings: BaseSettings,
        spider: Spider | None = None,
        slot_of: Callable[[Request], str | None] = lambda _request: None,
        stats: StatsCollector | None = None,
    ) -> None:
        self.queues = QueueSettings.read(settings)
        self.dictionaries = Dictionaries()
        """The dictionaries of the crawl that this worker knows."""
        self._codec = Codec(spider, MAX_BYTES, pickles=self.queues.pickles, stats=stats)
        self.budget = Budget(BUDGET.read(settings))
        self.slot_of = slot_of
        """Returns the slot in which a request would be stored, None if only its fields say so."""

    def dump(
        self, request: Request, *, again: Claim | None = None, callback: str | None = None
    ) -> Packed:
        """Return `request` as it is stored: with the callback of that name, if there is one;
        as the page of `again`, which it sends once more. Raises ValueError if it cannot be."""
        fields = self._codec.fields(request)
        if again is not None:
            fields[_PAGE] = self.page_of(again)
        if callback is not None:
            fields["callback"] = callback
        return self.dump_fields(fields, self.slot_of(request))

    def dump_fields(self, fields: dict[str, Any], slot: str | None = None) -> Packed:
        """Return the request of these `fields` (`Request.to_dict`) as it is stored: in
        `slot`, or in the one that it has by its meta or its host. Raises ValueError if it
        cannot be."""
        priority, meta = fields.get("priority", 0), fields.get("meta", {})
        if not isinstance(priority, int) or abs(priority) >= _MOST_PRIORITY:
            raise ValueError(f"the priority {priority} does not fit into 51 bits")
        if slot is None:
            slot = str(slot_named(meta) or urlsplit(fields["url"]).hostname or "")
        if not is_storable_slot(slot):
            raise ValueError(f"the download slot {slot!r} has a NUL or a lone surrogate in it")
        if fields.get("dont_filter"):
            # no filter keeps it from being there twice
            fields = {**fields, _PAGE: fields.get(_PAGE) or secrets.token_hex(8)}
        stored = self._codec.dump(fields, slot)
        self.dictionaries.sample(stored)
        start = self.queues.newest_first[1] is not None and bool(meta.get("is_start_request"))
        rank = rank_of(priority, start=start)
        return Packed(str(rank), slot, self.dictionaries.deflate(stored.payload))

    def load(self, claim: Claim) -> Request:
        """Return the request that was stored. Raises anything: its classes run their code."""
        return self._codec.load(self._stored(claim))

    def page_of(self, claim: Claim) -> str:
        """Return the name of the page of a stored request: the same for all its retries and
        redirects, also where a worker was killed between them and others began anew."""
        fields: dict[str, Any] = {}
        with suppress(ValueError):  # what cannot be read back is known by what it is
            fields = stored_fields(self._stored(claim))
        return page_in(fields, claim.slot, claim.payload)

    def failing(self, claim: Claim, failed: FailedRequest, *, is_readable: bool = True) -> Failing:
        """Return what the server is told of `claim`, whose request has failed."""
        payload = b""
        if is_readable:
            payload = self._codec.again(self._stored(claim), failed).payload
        return Failing(
            claim=claim.number,
            page=self.page_of(claim),
            reason=failed.reason,
            attempts=failed.attempts,
            details=details_of(failed),
            payload=self.dictionaries.deflate(payload),
        )

    def unreadable(self, claim: Claim, error: Exception) -> Failing:
        """Return what the server is told of `claim`, which cannot be made a request again."""
        url, method = "", "GET"
        with suppress(ValueError):
            url, method = url_and_method(self._stored(claim))
        failed = FailedRequest.unreadable(url, method, class_and_message(error))
        return self.failing(claim, failed, is_readable=False)

    def _stored(self, claim: Claim) -> Stored:
        """Return the stored request of `claim`. Raises ValueError if its payload is deflated, and
        cannot be inflated."""
        return Stored(claim.slot, self.dictionaries.inflate(claim.payload))


def details_of(failed: FailedRequest) -> str:
    """Return what the server is told of a failed request beside its reason and attempts."""
    known = {"reason", "attempts", "time"}  # the last by its own clock
    return json.dumps({name: what for name, what in failed._asdict().items() if name not in known})


def page_in(fields: Mapping[str, Any], slot: str, payload: bytes) -> str:
    """Return what `page_of` does of a stored request with these `fields`, if they can be read."""
    if isinstance(page := fields.get(_PAGE), str):
        return page
    # a payload has of its slot two bytes of a checksum only
    named = slot.encode(errors=ODD_BYTES) + b"\0" + payload
    return blake2b(named, digest_size=16).hexdigest()


def is_storable_slot(slot: str) -> bool:
    """Return True if requests of that download slot can be in Redis."""
    return "\0" not in slot and slot == encodable(slot)
