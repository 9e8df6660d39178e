"""Requests as both backends store them: bytes of requests, and requests of bytes."""

from __future__ import annotations

import marshal
import pickle
import pickletools
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from io import BytesIO
from typing import TYPE_CHECKING, Any, NamedTuple

from scrapy import Request
from scrapy.utils.request import request_from_dict

from ..errors import encodable
from .dictionaries import Dictionaries, checksum
from .failed_request import ATTEMPTS_KEY, TIMES_KEYS
from .request_text import pack, unpack, without_defaults

if TYPE_CHECKING:
    from scrapy import Spider
    from scrapy.statscollectors import StatsCollector

    from .failed_request import FailedRequest

COMPACT, DEFLATED, DEFLATED_OBJECTS = b"\1", b"\2", b"\3"
"""The first byte of a payload: a checksum and a text of compact.py follow; a deflated text; the
bytes of another format, deflated. Those of the other formats come as they are."""
FORMATS: dict[str, Callable[[Any], bytes]] = {
    "pickle": lambda thing: pickle.dumps(thing, protocol=4),
    "marshal": marshal.dumps,
}
"""The formats of what is not plain."""
_KINDS: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("url", "callback", "errback", "method", "encoding"), (str,)),
    **dict.fromkeys(("headers", "meta", "cb_kwargs"), (dict,)),
    "body": (bytes, str),
    "priority": (int,),
}
_PRIORITIES = range(-(2**63), 2**63)
_WIDTHS = {
    tag: width
    for width, tags in {0: b"NFTS.0{:", 1: b"zZ)", 4: b"ilrstuaA([<>", 8: b"g", 16: b"y"}.items()
    for tag in tags
}
"""The bytes behind each tag of marshal: a length, or the value itself."""
_MOST_TUPLES = 10_000
"""A hash of so many inside each other does not reach the end of the stack."""


class Stored(NamedTuple):
    """A stored request: its slot, and its bytes, whose first one says their form."""

    slot: str
    payload: bytes


class Codec:
    """Makes stored requests of the fields of requests (`Request.to_dict`), and requests of stored
    ones. What is not plain is in a format of Scrapy's queues, and counted in `stats`; without
    `pickles` it cannot be stored, nor read. `most_bytes` is the limit of a payload. Without a
    `spider` no callback can be stored."""

    def __init__(
        self,
        spider: Spider | None,
        most_bytes: int,
        *,
        has_cache: bool = False,
        pickles: bool = True,
        stats: StatsCollector | None = None,
        dictionaries: Dictionaries | None = None,
    ) -> None:
        self._spider = spider
        self._most_bytes = most_bytes
        self._has_cache = has_cache
        self._pickles = pickles
        self._stats = stats
        self._callbacks = Callbacks(spider)
        self.dictionaries = dictionaries or Dictionaries()

    def fields(self, request: Request) -> dict[str, Any]:
        """Return the fields of `request`. Raises ValueError for one that has none, such as
        one whose callback is no method of the spider."""
        try:
            return self._callbacks.to_dict(request)
        except Exception as error:
            raise ValueError(str(error)) from error

    def dump(self, fields: dict[str, Any], slot: str, format_: str) -> Stored:
        """Return the request of these `fields` as it is stored in `slot`, in `format_` if it is not
        plain. Raises ValueError if it cannot be serialized."""
        text = pack(fields, slot)
        is_plain = text is not None
        if text is None:
            if not self._pickles:
                raise ValueError("it has values that are not plain, and BLOOM_PICKLE is False")
            try:
                text = FORMATS[format_](without_defaults(fields))
            except Exception as error:
                raise ValueError(str(error)) from error
        if len(text) >= self._most_bytes:
            raise ValueError(f"{len(text):,} bytes are more than {self._most_bytes:,}")
        if not is_plain and self._stats is not None:
            self._stats.inc_value("scheduler/pickled")
        self.dictionaries.sample(fields, text)
        return self.stored(text, slot, is_plain=is_plain)

    def load(self, stored: Stored) -> Request:
        """Return the request that was stored. Raises anything: its classes run their code, without
        `pickles` only those of loaded classes of requests."""
        fields = self.load_fields(stored)
        if not self._pickles and "_class" in fields:
            _require_loaded(fields["_class"])
        return request_from_dict(fields, spider=self._spider)

    def loads_any(self, rows: Iterable[tuple[Any, ...]]) -> bool:
        """Return True if any of these slots and payloads can be loaded. Cost: up to the first."""
        for row in rows:
            with suppress(Exception):
                self.load(Stored(*row))
                return True
        return False

    def load_fields(self, stored: Stored) -> dict[str, Any]:
        """Return the fields of a stored request. Raises anything, as `load` does."""
        return load_fields(stored, self.dictionaries, pickles=self._pickles)

    def url_and_method(self, stored: Stored) -> tuple[str, str]:
        """Return the URL and the method of a stored request, as `url_and_method` does."""
        return url_and_method(stored, self.dictionaries, pickles=self._pickles)

    def again(self, stored: Stored, failed: FailedRequest) -> Stored:
        """Return a stored request that has `failed` as it is asked once more: with all its retries,
        and past a cache. One that does not unpickle a second time stays as it is."""
        try:
            text, is_plain = _opened(stored, self.dictionaries)
            format_ = "marshal" if is_plain else _format_of(text)
            fields = self.load_fields(stored)
            meta = {**fields.get("meta", {}), ATTEMPTS_KEY: failed.attempts}
            for key in TIMES_KEYS:
                meta.pop(key, None)
            if self._has_cache:
                meta["dont_cache"] = True
            return self.dump({**fields, "meta": meta}, stored.slot, format_)
        except Exception:  # noqa: BLE001 - objects of any class
            return stored

    def moved(self, stored: Stored, slot: str) -> Stored:
        """Return a stored request as it is stored in another `slot`. Raises ValueError for a
        damaged one."""
        text, is_plain = _opened(stored, self.dictionaries)
        if is_plain:
            moved = pack(unpack(text, stored.slot), slot)
            if moved is None:
                raise ValueError("its text is damaged")
            text = moved
        return self.stored(text, slot, is_plain=is_plain)

    def stored(self, text: bytes, slot: str, *, is_plain: bool) -> Stored:
        """Return the text or the bytes of a request as they are stored in `slot`."""
        deflated = self.dictionaries.deflate(text, slot)
        if deflated is not None and len(deflated) < len(text):
            return Stored(slot, (DEFLATED if is_plain else DEFLATED_OBJECTS) + deflated)
        return Stored(slot, COMPACT + checksum(text, slot) + text if is_plain else text)


def load_fields(
    stored: Stored,
    dictionaries: Dictionaries,
    *,
    pickles: bool = True,
    unpickler: type[pickle.Unpickler] = pickle.Unpickler,
) -> dict[str, Any]:
    """Return the fields of a stored request. Raises anything, as `Codec.load` does; without
    `pickles` only ValueError, also for what is no text."""
    text, is_plain = _opened(stored, dictionaries)
    if is_plain:
        return _checked(unpack(text, stored.slot))
    format_ = _format_of(text)
    if not pickles:
        raise ValueError(f"it is stored by {format_}, and BLOOM_PICKLE is False")
    if format_ == "pickle":
        _require_bounded(text)
        return _checked(unpickler(BytesIO(text)).load())
    _require_short(text)
    return _checked(marshal.loads(text))  # noqa: S302 - it makes no objects


def _checked(fields: Any) -> dict[str, Any]:
    """Return `fields`, if they are of types that a request has. Raises ValueError."""
    if type(fields) is not dict:
        raise ValueError("it is damaged (it has no fields)")
    for name, kinds in _KINDS.items():
        value = fields.get(name)
        if value is not None and not isinstance(value, kinds):
            raise ValueError(f"it is damaged (its {name} is of type {type(value).__name__})")
    if (fields.get("priority") or 0) not in _PRIORITIES:
        raise ValueError("it is damaged (its priority does not fit into 64 bits)")
    return fields


def movable(
    stored: Stored, dictionaries: Dictionaries, *, pickles: bool
) -> tuple[dict[str, Any], bytes | None]:
    """Return the fields of a stored request, and its bytes, to be moved as they are, if it holds
    objects, for which its fields have stand-ins: no code of the request's is run. Raises anything,
    as `load_fields` does."""
    if fields := plain_fields(stored, dictionaries, pickles=pickles):
        return fields, None
    text, _ = _opened(stored, dictionaries)
    return load_fields(stored, dictionaries, pickles=pickles, unpickler=_InertUnpickler), text


def url_and_method(
    stored: Stored, dictionaries: Dictionaries, *, pickles: bool = True
) -> tuple[str, str]:
    """Return the URL and the method of a stored request, the URL empty where it cannot be
    read without running code of the request's, or without `pickles`."""
    fields = plain_fields(stored, dictionaries, pickles=pickles)
    return encodable(fields.get("url") or ""), encodable(fields.get("method") or "GET")


def plain_fields(
    stored: Stored, dictionaries: Dictionaries, *, pickles: bool = True
) -> dict[str, Any]:
    """Return the fields of a stored request, read without the spider and without running
    code of the request's; none, if they are damaged, hold objects, or are no text and there are no
    `pickles`. Cost: 1 µs for each opcode of a pickle."""
    try:
        return load_fields(stored, dictionaries, pickles=pickles, unpickler=_PlainUnpickler)
    except Exception:  # noqa: BLE001 - whatever is wrong with it
        return {}


def _require_bounded(text: bytes) -> None:
    """Raise ValueError for a pickle that would take more memory than its length, or the stack."""
    tuples = 0
    for opcode, argument, _ in pickletools.genops(text):
        tuples += "TUPLE" in opcode.name or opcode.name == "FROZENSET"
        is_far = opcode.name.endswith("PUT") and (argument or 0) > len(text)
        if is_far or tuples > _MOST_TUPLES:
            raise ValueError("it is damaged (it would take too much memory)")


def _require_short(text: bytes) -> None:
    """Raise ValueError for what marshal would take more memory for than its length. Cost: 0.3 µs
    for each value."""
    at = items = 0
    while at < len(text) and items <= len(text):
        tag = text[at] & 0x7F
        width = _WIDTHS.get(tag, len(text))
        count = int.from_bytes(text[at + 1 : at + 1 + width], "little", signed=tag in b"l")
        at += 1 + width
        if tag in b"stuaAzZ":
            at += count
        elif tag in b"l":
            at += 2 * abs(count)
        elif tag in b"([<>)":
            items += count
    if at != len(text) or items > len(text):
        raise ValueError("it is damaged (it is shorter than it says)")


def _opened(stored: Stored, dictionaries: Dictionaries) -> tuple[bytes, bool]:
    """Return the text or the bytes of a stored request, and whether it is a text. Raises
    ValueError."""
    payload = stored.payload
    form = payload[:1]
    if form == COMPACT:
        text = payload[3:]
        if checksum(text, stored.slot) != payload[1:3]:
            raise ValueError("it is damaged (its checksum is another)")
        return text, True
    if form in {DEFLATED, DEFLATED_OBJECTS}:
        return dictionaries.inflate(payload[1:], stored.slot), form == DEFLATED
    return payload, False


def _require_loaded(path: object) -> None:
    """Raise ValueError unless a class of requests has this path. Loads no module."""
    module, _, name = str(path).rpartition(".")
    found = vars(sys.modules.get(module, object)).get(name)
    if not (isinstance(found, type) and issubclass(found, Request)):
        raise ValueError(
            f"its class {path!r} is no Request of a loaded module, and BLOOM_PICKLE is False"
        )


def _format_of(text: bytes) -> str:
    """Raises ValueError for what no format begins with: to marshal some rubbish is a gigabyte."""
    if text.startswith(pickle.PROTO):
        return "pickle"
    if text[:1] not in {b"{", b"\xfb"}:  # a dictionary, and one that may be referred to
        raise ValueError("it is damaged (it has no known form)")
    return "marshal"


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"{module}.{name} is an object")


class _StandIn:
    """Stands for an object of any class: takes and does nothing."""

    def __new__(cls, *_: object, **__: object) -> _StandIn:
        return super().__new__(cls)

    def __call__(self, *_: object, **__: object) -> _StandIn:
        return self

    __setstate__ = __setitem__ = append = extend = add = __call__


class _InertUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        return _StandIn


class Callbacks:
    """Cache of the names of callbacks. For each request Scrapy looks for them among all attributes
    of the spider, which takes longer than the rest of the serialization. This object stands for the
    spider there, and lists only the names that were found before."""

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
