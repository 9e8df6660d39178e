"""Requests as Redis keeps them: where each waits, and the bytes that it is."""

from __future__ import annotations

import secrets
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

from scrapy import Request
from scrapy.utils.request import request_from_dict

from ..job.failure import to_be_repeated
from ..sqlite_backend.queues import FORMATS, QueueSettings

if TYPE_CHECKING:
    from scrapy import Spider
    from scrapy.settings import BaseSettings

    from ..job.failure import FailedRequest

PRIORITIES = range(-(2**51), 2**51)
"""What a score of Redis tells apart, with a bit for start requests."""
MAX_BYTES = 100_000_000
_PAGE = "bloom:page"
"""The field of a stored request that was sent again, or of which there may be equal ones. No
attribute of a request has such a name, so Scrapy leaves it out."""

_DEFAULTS = Request("data:,").to_dict()
del _DEFAULTS["url"]  # has none: a request may be for just that URL


@dataclass(frozen=True, slots=True)
class Packed:
    """A request as it is stored: in the list of `priority` (lower first) and `slot`."""

    priority: str
    slot: str
    payload: bytes


class SlotOf(Protocol):
    """Says which download slot a request belongs to."""

    def __call__(self, request: Request) -> str:
        """Return the key of the downloader's slot for `request`."""


class Packer:
    """Makes stored requests of requests and the other way round, in the format and the
    order of Scrapy's SCHEDULER_DISK_QUEUE and SCHEDULER_START_DISK_QUEUE.

    Fields that have Scrapy's default are left out. Raises ValueError for queue classes
    that are not Scrapy's own.
    """

    def __init__(self, settings: BaseSettings, spider: Spider, slot_of: SlotOf) -> None:
        self._queues = QueueSettings.read(settings)
        self._spider = spider
        self._slot_of = slot_of
        self._format = FORMATS[self._queues.kind.format]
        self._has_cache = settings.getbool("HTTPCACHE_ENABLED")

    def pack(self, request: Request, again: bytes | None = None) -> Packed:
        """Return `request` as it is stored; it sends the page of `again`, which is stored,
        once more. Raises ValueError if it cannot be."""
        try:
            fields = request.to_dict(spider=self._spider)
        except Exception as error:
            raise ValueError(str(error)) from error
        if again is not None:
            fields[_PAGE] = self.page_of(again)
        return pack(fields, self._queues, self._slot_of(request))

    def unpack(self, payload: bytes) -> Request:
        """Return the request that was stored. Raises whatever that raises."""
        _, deserialize = self._format
        return request_from_dict(deserialize(payload), spider=self._spider)

    def page_of(self, payload: bytes) -> str:
        """Return by what the page of a stored request is known: the same for all retries and
        redirects of one, also where a worker was killed between them, and others began anew."""
        _, deserialize = self._format
        page = None
        with suppress(Exception):  # what cannot be read back is known by what it is
            page = deserialize(payload).get(_PAGE)
        return page if isinstance(page, str) else blake2b(payload, digest_size=16).hexdigest()

    def to_be_repeated(self, payload: bytes, failed: FailedRequest) -> bytes:
        """Return a stored request that has failed as it is asked once more."""
        return to_be_repeated(payload, self._format, failed, has_cache=self._has_cache)


def pack(fields: dict[str, Any], queues: QueueSettings, slot: str | None = None) -> Packed:
    """Return the request that is made of `fields` (`Request.to_dict`) as it is stored: in
    `slot`, or in the one that it has by its meta or its host. Raises ValueError if it cannot
    be."""
    priority, meta = fields["priority"], fields["meta"]
    if priority not in PRIORITIES:
        raise ValueError(f"the priority {priority} does not fit into 51 bits")
    if slot is None:
        slot = str(meta.get("download_slot") or urlsplit(fields["url"]).hostname or "")
    if "\0" in slot:
        raise ValueError(f"the download slot {slot!r} has a NUL in it")
    serialize, _ = FORMATS[queues.kind.format]
    if fields["dont_filter"]:
        # no filter keeps it from being there twice
        fields = {_PAGE: secrets.token_hex(8), **fields}
    try:
        payload = serialize(_without_defaults(fields))
    except Exception as error:
        raise ValueError(str(error)) from error
    if len(payload) > MAX_BYTES:
        raise ValueError(f"{len(payload):,} bytes are more than {MAX_BYTES:,}")
    is_start = queues.start is not None and bool(meta.get("is_start_request", False))
    return Packed(str(-2 * priority + is_start), slot, payload)


def _without_defaults(fields: dict[str, Any]) -> dict[str, Any]:
    if "_class" in fields:  # it may have other defaults
        return fields
    return {name: value for name, value in fields.items() if not _is_default(name, value)}


def _is_default(name: str, value: Any) -> bool:
    default = _DEFAULTS.get(name)
    return name in _DEFAULTS and type(value) is type(default) and value == default
