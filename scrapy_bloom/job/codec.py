"""Requests as both backends store them: bytes of requests, and requests of bytes."""

from __future__ import annotations

import marshal
import pickle
from collections.abc import Callable
from contextlib import suppress
from io import BytesIO
from typing import TYPE_CHECKING, Any, NamedTuple

from scrapy import Request
from scrapy.utils.request import request_from_dict

from ..errors import encodable
from .failure import ATTEMPTS_KEY

if TYPE_CHECKING:
    from scrapy import Spider

    from .failure import FailedRequest

FORMATS: dict[str, tuple[Callable[[Any], bytes], Callable[[bytes], Any]]] = {
    "pickle": (lambda thing: pickle.dumps(thing, protocol=4), pickle.loads),
    "marshal": (marshal.dumps, marshal.loads),
}


class Stored(NamedTuple):
    """A stored request: its slot, the name of its format, and its bytes."""

    slot: str
    format: str
    payload: bytes


class Codec:
    """Makes stored requests of requests, and requests of stored ones.

    A request passes through its fields, which are those of `Request.to_dict`; a backend may
    add some, and leave out those with Scrapy's default. `most_bytes` is the limit of a
    payload. Without a `spider` no callback can be stored.
    """

    def __init__(self, spider: Spider | None, most_bytes: int, *, has_cache: bool = False) -> None:
        self._spider = spider
        self._most_bytes = most_bytes
        self._has_cache = has_cache
        self._callbacks = Callbacks(spider)

    def fields(self, request: Request) -> dict[str, Any]:
        """Return the fields of `request`. Raises ValueError for one that has none, such as
        one whose callback is no method of the spider."""
        try:
            return self._callbacks.to_dict(request)
        except Exception as error:
            raise ValueError(str(error)) from error

    def dump(self, fields: dict[str, Any], slot: str, format_: str) -> Stored:
        """Return the request of these `fields` as it is stored in `slot`. Raises ValueError
        if it cannot be serialized."""
        serialize, _ = FORMATS[format_]
        try:
            payload = serialize(fields)
        except Exception as error:
            raise ValueError(str(error)) from error
        if len(payload) > self._most_bytes:
            raise ValueError(f"{len(payload):,} bytes are more than {self._most_bytes:,}")
        return Stored(slot, format_, payload)

    def load(self, stored: Stored) -> Request:
        """Return the request that was stored. Raises anything: its classes run their code."""
        return request_from_dict(load_fields(stored), spider=self._spider)

    def again(self, stored: Stored, failed: FailedRequest) -> Stored:
        """Return a stored request that has `failed` as it is asked once more: with all its
        retries, and past a cache, which may have the page that made it fail. One that does
        not unpickle a second time stays as it is."""
        serialize, _ = FORMATS[stored.format]
        try:
            fields = load_fields(stored)
            meta = {**fields.get("meta", {}), ATTEMPTS_KEY: failed.attempts}
            meta.pop("retry_times", None)
            if self._has_cache:
                meta["dont_cache"] = True
            return stored._replace(payload=serialize({**fields, "meta": meta}))
        except Exception:  # noqa: BLE001 - objects of any class
            return stored


def load_fields(stored: Stored) -> dict[str, Any]:
    """Return the fields of a stored request. Raises anything, as `Codec.load` does."""
    _, deserialize = FORMATS[stored.format]
    fields: dict[str, Any] = deserialize(stored.payload)
    return fields


def url_and_method(payload: bytes) -> tuple[str, str]:
    """Return the URL and the method of a stored request, the URL empty where it cannot be
    read without running code of the request's."""
    fields = plain_fields(payload)
    return encodable(str(fields.get("url", ""))), encodable(str(fields.get("method", "GET")))


def plain_fields(payload: bytes) -> dict[str, Any]:
    """Return the fields of a stored request, read without the spider and without running
    code of the request's; none, if it holds objects."""
    try:
        if payload.startswith(pickle.PROTO):
            fields = _PlainUnpickler(BytesIO(payload)).load()
        else:
            fields = marshal.loads(payload)  # noqa: S302 - it makes no objects
    except Exception:  # noqa: BLE001 - whatever is wrong with it
        return {}
    return fields if isinstance(fields, dict) else {}


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"{module}.{name} is an object")


class Callbacks:
    """Cache of the names that `Request.to_dict` finds for the callbacks of a spider.

    For each request Scrapy looks for them among all attributes of the spider, which takes
    longer than the rest of the serialization. This object stands for the spider there, and
    lists only the names that were found before.
    """

    def __init__(self, spider: Spider | None) -> None:
        self._spider = spider
        self._names: dict[object, str] = {}
        """By function."""
        self._wanted: list[str] = []

    def to_dict(self, request: Request) -> dict[str, Any]:
        """Return `request.to_dict(spider=spider)`. Raises what that raises."""
        if type(request).to_dict is not Request.to_dict:
            return request.to_dict(spider=self._spider)
        functions = [getattr(m, "__func__", None) for m in (request.callback, request.errback)]
        self._wanted = [self._names[each] for each in functions if each in self._names]
        stand_in: Any = self
        with suppress(ValueError):
            return request.to_dict(spider=stand_in)
        found = request.to_dict(spider=self._spider)
        for function, name in zip(functions, (found["callback"], found["errback"]), strict=True):
            if function is not None:
                self._names[function] = name
        return found

    def __dir__(self) -> list[str]:
        return self._wanted

    def __getattr__(self, name: str) -> Any:
        return getattr(self._spider, name)
