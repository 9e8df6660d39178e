"""The fields of a request as msgpack, less Scrapy's defaults and what its slot says.

A text is a list: how the URL is stored, the depth, the callback, the other fields by number or
name, the URL's rest; with a referer the length that it has in common with the URL, and its rest.
So it begins with what most requests of a callback share.
"""

from __future__ import annotations

import zlib
from itertools import chain
from typing import Any

from msgpack import ExtType, Packer, Unpacker, unpackb

OBJECTS = "bloom:objects"
"""The field with a pickle of the values that are not plain. No attribute of a request has such a
name, so Scrapy leaves the field out."""
ORDER = (
    *("url", "callback", "errback", "headers", "body", "cookies", "meta", "encoding", "flags"),
    *("cb_kwargs", "dont_filter", "method", "priority"),
)
"""The fields of all requests, in the order of `Request.to_dict()` in Scrapy 2.19. A text names a
field by its place here."""
DEEPEST = 50
"""Most containers inside each other in a value that is packed; msgpack reads 1,024."""

# the numbers of the extensions; a list whose first value is one of 1 to 3 is another container
_INTEGER = 4
_STARTS = ("http://", "https://", "")
_FIELDS = (*ORDER, OBJECTS)
_NUMBERS = {name: number for number, name in enumerate(_FIELDS)}
_VALUES: tuple[Any, ...] = (None, None, {}, b"", {}, {}, "utf-8", [], {}, False, "GET", 0)
DEFAULTS = dict(zip(ORDER[1:], _VALUES, strict=True))
"""The defaults of Scrapy's that a text leaves out."""
_TYPES = dict.fromkeys(("url", "callback", "errback"), str) | {OBJECTS: bytes}
_TYPES |= {n: type(DEFAULTS[n]) for n in ("method", "headers", "meta", "cb_kwargs", "priority")}
"""The types of fields that are looked at without making a request of them."""
OPEN = frozenset({"meta", "cb_kwargs"})
"""The fields whose values are told apart one by one."""
_ABSENT = object()
_SCALARS = frozenset({type(None), bool, int, float, str, bytes})
_MARKED: dict[Any, ExtType] = {
    kind: ExtType(number, b"\0") for number, kind in enumerate((tuple, set, frozenset), 1)
}
_KINDS = {mark: kind for kind, mark in _MARKED.items()}
_CONTAINERS = frozenset({*_MARKED, list, dict})
_SHORT = 1_024
"""Containers in so many bytes take little memory, however many values they announce."""


def _packable(value: Any) -> Any:
    """Return what stands for a value that msgpack has no form for."""
    if type(value) is not int:
        return [_MARKED[type(value)], *value]
    return ExtType(_INTEGER, value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True))


def pack(fields: dict[str, Any], slot: str) -> bytes:
    """Return the text of the request with these `fields` (`Request.to_dict`) in `slot`, without
    those with Scrapy's default, unless there is a `_class`, which may have others. Raises
    ValueError unless all are plain: None, bool, int, float, str, bytes, list, tuple, dict, set or
    frozenset, of that very type, each container in one place, DEEPEST inside each other."""
    try:
        packer = Packer(strict_types=True, default=_packable, unicode_errors="surrogatepass")
        text: bytes = packer.pack(_record(fields, slot))
    except (OverflowError, MemoryError) as error:
        raise ValueError(str(error)) from error
    return text


def unpack(text: bytes, slot: str) -> dict[str, Any]:
    """Return the fields that were packed for `slot`, less those with Scrapy's default. Raises
    ValueError for what is no such text; runs no code that it names, and takes memory in proportion
    to its length, or up to 2 MB."""
    try:
        if len(text) > _SHORT:
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
        fields = _fields(record, slot)
        for name, value in fields.items():
            if value is not None and not isinstance(value, _TYPES.get(name, object)):
                raise TypeError(f"{name} is of type {type(value).__name__}")
        return fields
    except Exception as error:
        raise ValueError(f"its text is damaged ({error})") from error


def checksum(text: bytes, slot: str) -> bytes:
    """Return two bytes that are others for another text or slot, but once in 65,536."""
    raw = slot.encode("utf-8", "surrogatepass")
    return (zlib.crc32(raw, zlib.crc32(text)) & 0xFFFF).to_bytes(2, "big")


def held_apart(fields: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return those of `fields` that are plain, and those that are not; of `meta` and `cb_kwargs`
    only numbers and strings are plain here, so objects still share others."""
    seen: set[int] = set()
    plain, apart = {}, {}
    for name, value in fields.items():
        if name in OPEN and type(value) is dict:
            short = {k: v for k, v in value.items() if type(k) is str and type(v) in _SCALARS}
            plain[name] = short
            apart[name] = {key: each for key, each in value.items() if key not in short}
        else:
            (plain if _is_plain(value, seen) else apart)[name] = value
    return plain, apart


def put_back(fields: dict[str, Any], apart: dict[str, Any]) -> dict[str, Any]:
    """Return fields with those that were held apart. Raises anything."""
    merged = {name: {**apart[name], **fields.get(name, {})} for name in OPEN & apart.keys()}
    whole = {**fields, **apart, **merged}
    del whole[OBJECTS]
    return whole


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
            if not _is_plain(value, seen):
                raise ValueError(f"its {name} is not plain")
            rest[_NUMBERS.get(name, name)] = value
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


def _is_plain(value: Any, seen: set[int], levels: int = DEEPEST) -> bool:
    """Return True if a value is plain, with so many `levels` of containers at most. `seen` are the
    ids of the containers before it."""
    kind = type(value)
    if kind in _SCALARS:
        return True
    # an empty tuple is the same one everywhere; a tuple that is shared may have what is not
    if kind not in _CONTAINERS or not levels or (id(value) in seen and value != ()):
        return False
    seen.add(id(value))
    inner = chain(value, value.values()) if kind is dict else value
    return all(type(each) in _SCALARS or _is_plain(each, seen, levels - 1) for each in inner)


def _extension(code: int, data: bytes) -> Any:
    if code == _INTEGER:
        return int.from_bytes(data, "big", signed=True)
    if (found := ExtType(code, data)) in _KINDS:
        return found
    raise ValueError(f"it has an extension {code}")


def _container(values: list[Any]) -> Any:
    if values and type(values[0]) is ExtType and (kind := _KINDS.get(values[0])):
        return kind(values[1:])
    return values
