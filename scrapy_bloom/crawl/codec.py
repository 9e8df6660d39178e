"""Requests as both backends store them: bytes of requests, and requests of bytes."""

from __future__ import annotations

import pickle
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from scrapy import Request
from scrapy.utils.request import request_from_dict

from ..errors import encodable
from .failed_request import ATTEMPTS_KEY, TIMES_KEYS
from .request_text import OBJECTS, checksum, held_apart, pack, put_back, unpack

if TYPE_CHECKING:
    from scrapy import Spider
    from scrapy.statscollectors import StatsCollector

    from .failed_request import FailedRequest

PLAIN = b"\1"
"""The first byte of a payload: a checksum and a text of request_text.py follow."""


class Stored(NamedTuple):
    """A stored request: its slot, and its bytes, whose first one says their form."""

    slot: str
    payload: bytes


class Codec:
    """Makes stored requests of requests or their fields (`to_dict`), and the reverse. Values
    that are not plain are a pickle, and such requests counted in `stats`; without `pickles` they
    cannot be stored, nor read. `most_bytes` is the limit of a payload. Without a `spider` no
    callback can be stored."""

    def __init__(
        self,
        spider: Spider | None,
        most_bytes: int,
        *,
        pickles: bool = True,
        stats: StatsCollector | None = None,
    ) -> None:
        self._spider = spider
        self._most_bytes = most_bytes
        self._pickles = pickles
        self._stats = stats
        self._names: dict[object, str] = {}
        """The callbacks that were found before, by function: Scrapy looks among all attributes of
        the spider, which takes longer than all the rest."""

    def dump(self, request: Request | dict[str, Any], slot: str) -> Stored:
        """Return a request, or that of some fields, as it is stored in `slot`. Raises ValueError if
        it cannot be serialized."""
        fields = request if isinstance(request, dict) else self.fields(request)
        try:
            text = pack(fields, slot)
        except ValueError:  # it is not plain
            text = b""
        if (OBJECTS in fields or not text) and not self._pickles:
            raise ValueError("it has values that are not plain, and BLOOM_PICKLE is False")
        if not text:
            fields, apart = held_apart(fields)
            try:
                fields[OBJECTS] = pickle.dumps(apart, protocol=4)
            except Exception as error:
                raise ValueError(str(error)) from error
            text = pack(fields, slot)
        if len(text) >= self._most_bytes:
            raise ValueError(f"{len(text):,} bytes are more than {self._most_bytes:,}")
        if OBJECTS in fields and self._stats is not None:
            self._stats.inc_value("scheduler/pickled")
        return _stored(text, slot)

    def fields(self, request: Request) -> dict[str, Any]:
        """Return the same as `to_dict`. Raises ValueError for a request without a dictionary: its
        callback is no method of the spider."""
        try:
            if type(request).to_dict is not Request.to_dict:
                return request.to_dict(spider=self._spider)
            fields: dict[str, Any] = {
                "url": request.url,
                "callback": self._name_of(request.callback),
                "errback": self._name_of(request.errback),
                "headers": dict(request.headers),
            }
            for name in request.attributes:
                fields.setdefault(name, getattr(request, name))
        except Exception as error:
            raise ValueError(str(error)) from error
        if type(request) is not Request:
            fields["_class"] = f"{request.__module__}.{type(request).__name__}"
        return fields

    def _name_of(self, method: Any) -> Any:
        """Return the name of a method of the spider. Raises ValueError for any other function."""
        if not callable(method):
            return method
        function = getattr(method, "__func__", None)
        name = self._names.get(function, "")
        if not name or getattr(getattr(self._spider, name, None), "__func__", None) is not function:
            name = Request("data:,", method).to_dict(spider=self._spider)["callback"]
            self._names[function] = name
        return name

    def load(self, stored: Stored) -> Request:
        """Return the request that was stored. Raises anything: its classes run their code, without
        `pickles` only those of loaded classes of requests."""
        fields = stored_fields(stored)
        if OBJECTS in fields:
            if not self._pickles:
                raise ValueError("it is stored by pickle, and BLOOM_PICKLE is False")
            fields = put_back(fields, pickle.loads(fields[OBJECTS]))  # noqa: S301
        if not self._pickles and "_class" in fields:
            _require_loaded(fields["_class"])
        return request_from_dict(fields, spider=self._spider)

    def again(self, stored: Stored, failed: FailedRequest) -> Stored:
        """Return a stored request that has `failed`, with all its retries, and past a cache. A
        damaged one stays as it is."""
        try:
            fields = stored_fields(stored)
            # the HTTP cache would answer as before
            meta = {**fields.get("meta", {}), ATTEMPTS_KEY: failed.attempts, "dont_cache": True}
            for key in TIMES_KEYS:
                meta.pop(key, None)
            return _stored(pack({**fields, "meta": meta}, stored.slot), stored.slot)
        except (TypeError, ValueError):
            return stored


def _stored(text: bytes, slot: str) -> Stored:
    return Stored(slot, PLAIN + checksum(text, slot) + text)


def stored_fields(stored: Stored) -> dict[str, Any]:
    """Return the fields of a stored request, read without running its code: values that are not
    plain are left out. Raises ValueError for a damaged one."""
    slot, payload = stored
    if type(payload) is not bytes or type(slot) is not str or payload[:1] != PLAIN:
        raise ValueError("it is damaged (it has no known form)")
    if checksum(text := payload[3:], slot) != payload[1:3]:
        raise ValueError("it is damaged (its checksum is another)")
    return unpack(text, slot)


def plain_fields(stored: Stored) -> dict[str, Any]:
    """Return what `stored_fields` returns, no fields for a damaged request."""
    with suppress(ValueError):
        return stored_fields(stored)
    return {}


def url_and_method(stored: Stored) -> tuple[str, str]:
    """Return the URL and the method of a stored request, the URL empty for a damaged one."""
    fields = plain_fields(stored)
    return encodable(fields.get("url") or ""), encodable(fields.get("method") or "GET")


def _require_loaded(path: object) -> None:
    """Raise ValueError unless a class of requests has this path. Loads no module."""
    module, _, name = str(path).rpartition(".")
    found = vars(sys.modules.get(module, object)).get(name)
    if not (isinstance(found, type) and issubclass(found, Request)):
        raise ValueError(
            f"its class {path!r} is no Request of a loaded module, and BLOOM_PICKLE is False"
        )
