"""The fields of a request as msgpack, less Scrapy's defaults and what its slot says.

A text is a list: how the URL is stored, the depth, the callback, the other fields by number or
name, the URL's rest; with a referer the length that it has in common with the URL, and its rest.
So it begins with what most requests of a callback share.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Container
from contextlib import suppress
from itertools import chain, islice
from typing import Any, NamedTuple

from msgpack import ExtType, Packer, Unpacker, UnpackException, unpackb

OBJECTS = "bloom:objects"
"""The field with the values that are not plain, as bytes of one of the FORMATS. No attribute of a
request has such a name, so Scrapy leaves the field out."""
ORDER = (
    *("url", "callback", "errback", "headers", "body", "cookies", "meta", "encoding", "flags"),
    *("cb_kwargs", "dont_filter", "method", "priority"),
)
"""The fields of all requests, in the order of `Request.to_dict()` in Scrapy 2.19. A text names a
field by its place here."""
DEEPEST = 50
"""Most containers inside each other in a value that is packed; msgpack reads 1,024."""
LONGEST_NUMBER = 10_000
"""Most bytes of an integer."""

# the numbers of the extensions; a list whose first value is one of 1 to 4 is a tuple, a set, a
# frozenset, or a dict with containers as keys
_INTEGER, _OBJECT, PICKLED, MARSHALLED = range(5, 9)
_STARTS = ("http://", "https://", "")
_FIELDS = (*ORDER, OBJECTS)
_NUMBERS = {name: number for number, name in enumerate(_FIELDS)}
_VALUES: tuple[Any, ...] = (None, None, {}, b"", {}, {}, "utf-8", [], {}, False, "GET", 0)
DEFAULTS = dict(zip(ORDER[1:], _VALUES, strict=True))
"""The defaults of Scrapy's that a text leaves out."""
_ABSENT = object()
_SCALARS = frozenset({type(None), bool, int, float, str, bytes})
_CONTAINERS: dict[Any, int] = {tuple: 1, set: 2, frozenset: 3, dict: 4, list: 0}
_KINDS = {number: kind for kind, number in _CONTAINERS.items() if number}
_FEW = 16
"""Containers with so many values as they say take no memory to speak of."""
_SHORT = 65_536
_HEADS = bytes((*range(0x80, 0xA0), *range(0xDC, 0xE0)))
"""First bytes of lists and dicts."""


class NotPlainError(ValueError):
    """A value is not plain: of another type, in two places, too deep or too long."""


class Held(NamedTuple):
    """Stands for a value that is not plain: the one of this number in the field OBJECTS."""

    number: int


def _packer() -> Packer:
    return Packer(strict_types=True, default=_number, unicode_errors="surrogatepass")


def _number(number: int) -> ExtType:
    """Return an integer of more than 64 bits as an extension."""
    raw = number.to_bytes(number.bit_length() // 8 + 1, "big", signed=True)
    if len(raw) > LONGEST_NUMBER:
        raise NotPlainError("a number is too long")
    return ExtType(_INTEGER, raw)


_packers = [_packer()]


def pack(fields: dict[str, Any], slot: str) -> bytes:
    """Return the text of the request with these `fields` (`Request.to_dict`) in `slot`, without
    those with Scrapy's default, unless there is a `_class`, which may have others. Raises
    NotPlainError unless all are plain: None, bool, int, float, str, bytes, list, tuple, dict, set
    or frozenset, of that very type, each container in one place, DEEPEST inside each other."""
    try:
        text: bytes = _packers[0].pack(_record(fields, slot))
    except (ValueError, OverflowError, MemoryError) as error:
        raise NotPlainError(str(error)) from error
    if len(text) > _SHORT:
        _packers[0] = _packer()  # the old one keeps as many bytes
    return text


def unpack(text: bytes, slot: str) -> dict[str, Any]:
    """Return the fields that were packed for `slot`, less those with Scrapy's default. Values that
    were held apart are Held. Raises ValueError for what is no such text;
    runs no code that it names, and takes memory in proportion to its length."""
    try:
        if len(text) - len(text.translate(None, _HEADS)) > _FEW or len(text) > _SHORT:
            unpacker = Unpacker(max_buffer_size=len(text))
            unpacker.feed(text)
            unpacker.skip()  # all that it announces is there
        record = unpackb(
            text,
            ext_hook=_extension,
            list_hook=_container,
            strict_map_key=False,
            unicode_errors="surrogatepass",
        )
        return _fields(record, slot)
    except (
        *(UnpackException, ValueError, TypeError, AttributeError, LookupError),
        *(ArithmeticError, MemoryError, RecursionError),
    ) as error:
        raise ValueError(f"its text is damaged ({error})") from error


def checksum(text: bytes, slot: str) -> bytes:
    """Return two bytes that are others for another text or slot, but once in 65,536."""
    raw = slot.encode("utf-8", "surrogatepass")
    return (zlib.crc32(raw, zlib.crc32(text)) & 0xFFFF).to_bytes(2, "big")


def held_apart(fields: dict[str, Any], code: int, dumps: Callable[[Any], bytes]) -> dict[str, Any]:
    """Return `fields` that are plain but for OBJECTS, which has all values of `meta` and of
    `cb_kwargs` but numbers and strings, and others that are not plain, as extension `code` of what
    `dumps` returns; so objects still share others. Raises anything."""
    values: list[Any] = []
    seen: set[int] = set()

    def kept(value: Any, but: Container[type] = ()) -> Any:
        with suppress(ValueError, MemoryError):
            if type(value) not in but:
                _packers[0].pack(_wired(value, seen))
                return value
        values.append(value)
        return Held(len(values) - 1)

    apart: dict[str, Any] = {}
    for name, value in fields.items():
        is_open = name in {"meta", "cb_kwargs"} and type(value) is dict
        if is_open and _SCALARS.issuperset(map(type, value)):
            apart[name] = {key: kept(each, _CONTAINERS) for key, each in value.items()}
        else:
            apart[name] = kept(value)
    apart[OBJECTS] = ExtType(code, dumps(values))
    return apart


def put_back(fields: dict[str, Any], values: list[Any]) -> dict[str, Any]:
    """Return fields with the values that were held apart. Raises IndexError if one is missing."""

    def real(value: Any) -> Any:
        return values[value.number] if type(value) is Held else value

    return {
        name: {key: real(each) for key, each in value.items()}
        if type(value) is dict
        else real(value)
        for name, value in fields.items()
        if name != OBJECTS
    }


def _record(fields: dict[str, Any], slot: str) -> list[Any]:
    others, referer = fields.copy(), None
    url = others.pop("url") if type(fields.get("url")) is str else ""
    callback = others.pop("callback") if type(fields.get("callback")) is str else None
    values = _last(others.get("headers"), b"Referer")
    if type(values) is list and len(values) == 1 and type(values[0]) is bytes:
        others["headers"], referer = _but_last(others["headers"]), values[0]
    kind, start = 0, f"http://{slot}"
    if not url.startswith(start):
        kind, start = 1, f"https://{slot}"
        if not url.startswith(start):
            kind, start = 2, ""
    record = [kind, None, callback, None, url[len(start) :]]
    if referer is not None:
        shared = _shared(url.encode("utf-8", "surrogatepass"), referer)
        record += (shared, referer[shared:].decode("latin-1"))
    if type(depth := _last(others.get("meta"), "depth")) is int:
        record[1] = depth
        others["meta"] = _but_last(others["meta"])
    rest: dict[Any, Any] = {}
    seen: set[int] = set()
    defaults = {} if "_class" in fields else DEFAULTS
    for name, value in others.items():
        default = defaults.get(name, _ABSENT)
        if value is not default and (type(value) is not type(default) or value != default):
            rest[_NUMBERS.get(name, name)] = value if name == OBJECTS else _wired(value, seen)
    if rest:
        record[3] = rest
    return record


def _fields(record: Any, slot: str) -> dict[str, Any]:
    kind, depth, callback, others, rest, *referer = record
    start = _STARTS[kind]
    fields = {"url": (start and start + slot) + rest}
    if callback is not None:
        fields["callback"] = callback
    if others is not None:
        for name, value in others.items():
            fields[name if type(name) is str else _FIELDS[name]] = value
    if depth is not None:
        fields.setdefault("meta", {})["depth"] = depth
    if referer:
        shared, end = referer
        whole = fields["url"].encode("utf-8", "surrogatepass")[:shared] + end.encode("latin-1")
        fields.setdefault("headers", {})[b"Referer"] = [whole]
    return fields


def _last(values: Any, name: Any) -> Any:
    """Return the value of that name in a field, if it is the last one, or None."""
    if not values or type(values) is not dict:
        return None
    last = next(reversed(values))
    return values[last] if last == name and type(last) is type(name) else None


def _but_last(values: dict[Any, Any]) -> dict[Any, Any]:
    rest = values.copy()
    rest.popitem()
    return rest


def _shared(one: bytes, other: bytes) -> int:
    """Return the length of the beginning that both have."""
    if one.startswith(other):
        return len(other)
    length = min(len(one), len(other))
    differing = int.from_bytes(one[:length], "big") ^ int.from_bytes(other[:length], "big")
    return length - (differing.bit_length() + 7) // 8


def _wired(value: Any, seen: set[int], levels: int = DEEPEST) -> Any:
    """Return a value of a request, which may have so many `levels` of containers, as Packer takes
    it: integers, strings, lists, dicts, ExtType. `seen` are the ids of the containers before it."""
    kind = type(value)
    if kind in _SCALARS:
        return value
    if kind is Held:
        return ExtType(_OBJECT, value.number.to_bytes(4, "big"))
    # an empty tuple is the same one everywhere; a tuple that is shared may have what is not
    if kind not in _CONTAINERS or not levels or (id(value) in seen and value != ()):
        raise NotPlainError(f"a value of type {kind.__name__} is not plain")
    seen.add(id(value))
    levels -= 1
    if kind is dict:
        if _SCALARS.issuperset(map(type, chain(value, value.values()))):
            return value
        if _CONTAINERS.keys().isdisjoint(map(type, value)):
            return {
                _wired(key, seen, levels): _wired(each, seen, levels) for key, each in value.items()
            }
    each_value = chain.from_iterable(value.items()) if kind is dict else value
    values = [_wired(each, seen, levels) for each in each_value]
    return values if kind is list else [ExtType(_CONTAINERS[kind], b"\0"), *values]


def _extension(code: int, data: bytes) -> Any:
    if code == _INTEGER and len(data) <= LONGEST_NUMBER:
        return int.from_bytes(data, "big", signed=True)
    if code == _OBJECT:
        return Held(int.from_bytes(data, "big"))
    if code in _KINDS or code in {PICKLED, MARSHALLED}:
        return ExtType(code, data)
    raise ValueError(f"it has an extension {code}")


def _container(values: list[Any]) -> Any:
    kind = _KINDS.get(values[0].code) if values and type(values[0]) is ExtType else None
    if kind is None:
        return values
    rest = islice(values, 1, None)
    return dict(zip(rest, rest, strict=True)) if kind is dict else kind(rest)
