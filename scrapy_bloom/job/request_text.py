"""The fields of a request as a short text, without pickle: plain values, and the URL without the
part that its slot says.

A text is: flags, depth, callback and errback, other fields, URL, referer. It begins with what most
requests of a callback share, and its parts end with a NUL rather than begin with a length: so one
match in a dictionary of such texts covers several parts. Numbers in URLs take half a byte a digit,
since no dictionary knows them.
"""

from __future__ import annotations

import re
import struct
from copy import copy
from itertools import chain, islice
from typing import Any

ORDER = (
    *("url", "callback", "errback", "headers", "body", "cookies", "meta", "encoding", "flags"),
    *("cb_kwargs", "dont_filter", "method", "priority"),
)
"""The fields of all requests, in the order of `Request.to_dict()` in Scrapy 2.19. A text names a
field by its place here."""
DEEPEST = 50
"""Most containers inside each other in the value of a field."""

# the first byte: how the URL is stored, and what else the text has
_HTTP, _HTTPS, _WHOLE, _KINDS = range(4)
_DONT_FILTER, _CALLBACK, _ERRBACK, _OTHERS, _REFERER = 4, 8, 16, 32, 64
_AS_IT_IS = 0xFF  # all fields as one value
_DEEP = 0xFF  # the least depth that is no byte of its own, but a value in the meta
_NOT_SHARED = 0x7F  # before a referer that has no beginning of the URL
_NAMED = 0xFF  # the place of a field whose name follows
_PLACES = {name: place for place, name in enumerate(ORDER)}
_STARTS = ("http://", "https://", "")
_NAMES = ((_CALLBACK, "callback"), (_ERRBACK, "errback"))
_DEFAULTS: dict[str, Any] = {
    "headers": {},
    "meta": {},
    "body": b"",
    "cookies": {},
    "encoding": "utf-8",
    "flags": [],
    "cb_kwargs": {},
    "method": "GET",
    "priority": 0,
    "dont_filter": False,
}
"""The defaults of Scrapy's that a text leaves out."""

# tags of values; from _SMALL on a tag is a small integer itself
_NONE, _TRUE, _FALSE, _INT, _FLOAT, _HEX = b"NTFifx"
_STR, _LONG_STR, _BYTES, _LONG_BYTES = b"sSbB"  # up to a NUL, or with a length
_LIST, _TUPLE, _DICT, _SET, _FROZENSET, _END = b"[({<|."
_SMALL = 0x80
_CONSTANTS = {_NONE: None, _TRUE: True, _FALSE: False}
_TAGS: dict[type, int] = {list: _LIST, tuple: _TUPLE, dict: _DICT, set: _SET, frozenset: _FROZENSET}
_TYPES: dict[int, Any] = {tag: kind for kind, tag in _TAGS.items()}
_double = struct.Struct("<d")
# two digits of a URL, which is ASCII
_DIGITS = {b"%02d" % number: bytes((0x80 + number,)) for number in range(100)}
_PAIRS = {pair: digits for digits, pair in _DIGITS.items()}
_each_two_digits = re.compile(rb"[0-9][0-9]").sub
_each_pair = re.compile(rb"[\x80-\xe3]").sub
_is_hexadecimal = re.compile(r"(?:[0-9a-f]{2}){4,127}").fullmatch


class _NotPlainError(Exception):
    pass


def pack(fields: dict[str, Any], slot: str) -> bytes | None:
    """Return the text of the request with these `fields` (`Request.to_dict`) in `slot`, None if one
    is not plain: None, bool, int, float, str, bytes, list, tuple, dict, set or frozenset, of that
    very type, each container in one place, at most DEEPEST of them inside each other. Leaves out
    fields with Scrapy's default, unless there is a `_class`."""
    try:
        return _pack(fields, slot)
    except (_NotPlainError, RecursionError):
        return None


def unpack(text: bytes, slot: str) -> dict[str, Any]:
    """Return the fields that were packed for `slot`, less those with Scrapy's default, unless there
    is a `_class`. Raises ValueError for what is no such text; runs no code that it names, and takes
    memory in proportion to its length."""
    try:
        return _unpack(text, slot)
    except (IndexError, TypeError, RecursionError, struct.error) as error:
        raise ValueError(f"its text is damaged ({error})") from error


def without_defaults(fields: dict[str, Any]) -> dict[str, Any]:
    """Return `fields` without those that have Scrapy's default; all, if there is a `_class`, which
    may have other defaults."""
    if "_class" in fields:
        return fields
    return {name: value for name, value in fields.items() if not _is_default(name, value)}


def _is_default(name: str, value: Any) -> bool:
    default = _DEFAULTS.get(name)
    return name in _PLACES and type(value) is type(default) and value == default


def _pack(fields: dict[str, Any], slot: str) -> bytes:
    get = fields.get
    url = get("url")
    if (
        type(url) is not str
        or not url.isascii()
        or "\0" in url
        or ("_class" in fields and tuple(fields)[: len(ORDER)] != ORDER)
    ):
        out = bytearray((_AS_IT_IS,))
        _put(out, without_defaults(fields), set(), DEEPEST + 1)
        return bytes(out)
    flags, start = _HTTP, f"http://{slot}"
    if not url.startswith(start):
        flags, start = _HTTPS, f"https://{slot}"
        if not url.startswith(start):
            flags, start = _WHOLE, ""
    others: dict[str, Any] = {}
    for name, default in _DEFAULTS.items():
        value = get(name, default)
        if value is not default and (type(value) is not type(default) or value != default):
            others[name] = value
    names = b""
    for bit, field in _NAMES:
        value = get(field)
        if type(value) is str and value.isascii() and "\0" not in value:
            flags |= bit
            names += value.encode() + b"\0"
        elif value is not None:
            others[field] = value
    depth, referer = 0, None
    if others:
        if others.get("dont_filter") is True:
            flags |= _DONT_FILTER
            del others["dont_filter"]
        if "headers" in others and (referer := _referer(others["headers"])) is not None:
            flags |= _REFERER
            _drop_last(others, "headers")
        if "meta" in others and (depth := _depth(others["meta"])):
            _drop_last(others, "meta")
    if len(fields) != len(ORDER) or fields.keys() != _PLACES.keys():
        others |= {name: value for name, value in fields.items() if name not in _PLACES}
    out = bytearray((flags, depth))
    out += names
    if others:
        out[0] |= _OTHERS
        seen: set[int] = set()
        for name, value in others.items():
            place = _PLACES.get(name)
            if place is not None:
                out.append(place)
            elif type(name) is str:
                out.append(_NAMED)
                _put(out, name, seen, 0)
            else:
                raise _NotPlainError
            _put(out, value, seen, DEEPEST)
        out.append(_END)
    rest = url[len(start) :].encode()
    out += _paired(rest)
    if referer is not None:
        out.append(0)
        begin = start.encode()
        if referer.startswith(begin):
            end = referer[len(begin) :]
            shared = min(_shared(rest, end), _NOT_SHARED - 1)
            out.append(shared)
            out += _paired(end[shared:])
        else:
            out.append(_NOT_SHARED)
            out += _paired(referer)
    return bytes(out)


def _unpack(text: bytes, slot: str) -> dict[str, Any]:
    flags = text[0]
    if flags == _AS_IT_IS:
        found, at = _take(text, 1, DEEPEST + 1)
        if at != len(text) or type(found) is not dict:
            raise ValueError("its text is damaged")
        return found
    depth, at = text[1], 2
    fields: dict[str, Any] = {"url": ""}
    for bit, name in _NAMES:
        if flags & bit:
            end = text.index(0, at)
            fields[name] = text[at:end].decode("ascii")
            at = end + 1
    if flags & _OTHERS:
        while (place := text[at]) != _END:
            at += 1
            if place == _NAMED:
                name, at = _take(text, at, 0)
            else:
                name = ORDER[place]
            fields[name], at = _take(text, at, DEEPEST)
        at += 1
    if flags & _DONT_FILTER:
        fields["dont_filter"] = True
    if depth:
        fields.setdefault("meta", {})["depth"] = depth - 1
    start = _STARTS[flags & _KINDS]
    if start:
        start += slot
    rest = text[at:]
    if not rest.isascii():
        rest = _each_pair(lambda found: _PAIRS[found[0]], rest)
    if flags & _REFERER:
        end = rest.index(0)
        shared, referer = rest[end + 1], rest[end + 2 :]
        rest = rest[:end]
        if shared != _NOT_SHARED:
            referer = start.encode() + rest[:shared] + referer
        fields.setdefault("headers", {})[b"Referer"] = [referer]
    fields["url"] = start + rest.decode("ascii")
    if "_class" in fields:
        return {name: copy(_DEFAULTS.get(name)) for name in ORDER} | fields
    return fields


def _referer(headers: Any) -> bytes | None:
    """Return the referer, if it is the last of these headers, and ASCII without a NUL."""
    if type(headers) is dict:
        name, values = next(reversed(headers.items()))
        if type(name) is bytes and name == b"Referer" and type(values) is list:
            value = values[0] if len(values) == 1 else None
            if type(value) is bytes and value.isascii() and 0 not in value:
                return value
    return None


def _depth(meta: Any) -> int:
    """Return 1 more than the depth, if it is the last value in `meta` and fits into a byte, else
    0."""
    if type(meta) is dict:
        name, value = next(reversed(meta.items()))
        if type(name) is str and name == "depth" and type(value) is int and 0 <= value < _DEEP:
            return value + 1
    return 0


def _drop_last(others: dict[str, Any], name: str) -> None:
    value = others[name]
    if len(value) == 1:
        del others[name]
    else:
        others[name] = dict(islice(value.items(), len(value) - 1))


def _shared(one: bytes, other: bytes) -> int:
    """Return the length of the beginning that both have."""
    length = min(len(one), len(other))
    differing = int.from_bytes(one[:length], "big") ^ int.from_bytes(other[:length], "big")
    return length - (differing.bit_length() + 7) // 8


def _paired(url: bytes) -> bytes:
    return _each_two_digits(lambda found: _DIGITS[found[0]], url)


def _put(out: bytearray, value: Any, seen: set[int], levels: int) -> None:
    """Append a value, which may have so many `levels` of containers. `seen` has the ids of the
    containers before it."""
    kind = type(value)
    if kind is str:
        raw = value.encode("utf-8", "surrogatepass")
        if 0 in raw:
            _put_long(out, _LONG_STR, raw)
        elif _is_hexadecimal(value):
            out += bytes((_HEX, len(value) // 2))
            out += bytes.fromhex(value)
        else:
            out.append(_STR)
            out += raw
            out.append(0)
    elif kind is int:
        if 0 <= value < _SMALL:
            out.append(_SMALL + value)
        else:
            size = value.bit_length() // 8 + 1
            _put_long(out, _INT, value.to_bytes(size, "little", signed=True))
    elif value is None:
        out.append(_NONE)
    elif kind is bool:
        out.append(_TRUE if value else _FALSE)
    elif kind is bytes:
        if 0 in value:
            _put_long(out, _LONG_BYTES, value)
        else:
            out.append(_BYTES)
            out += value
            out.append(0)
    elif kind is float:
        out.append(_FLOAT)
        out += _double.pack(value)
    elif kind in _TAGS:
        _enter(value, seen, levels)
        out.append(_TAGS[kind])
        for each in chain.from_iterable(value.items()) if kind is dict else value:
            _put(out, each, seen, levels - 1)
        out.append(_END)
    else:
        raise _NotPlainError


def _enter(container: Any, seen: set[int], levels: int) -> None:
    # an empty tuple is the same one everywhere; a tuple that is shared may have what is not
    if not levels or (id(container) in seen and container != ()):
        raise _NotPlainError
    seen.add(id(container))


def _put_long(out: bytearray, tag: int, raw: bytes) -> None:
    out.append(tag)
    length = len(raw)
    while length >= 0x80:
        out.append(length & 0x7F | 0x80)
        length >>= 7
    out.append(length)
    out += raw


def _take(text: bytes, at: int, levels: int) -> tuple[Any, int]:
    """Return the value at a place, and the place after it."""
    tag = text[at]
    at += 1
    if tag >= _SMALL:
        return tag - _SMALL, at
    if tag == _STR:
        end = text.index(0, at)
        return str(text[at:end], "utf-8", "surrogatepass"), end + 1
    if tag == _BYTES:
        end = text.index(0, at)
        return text[at:end], end + 1
    if tag in _CONSTANTS:
        return _CONSTANTS[tag], at
    if tag == _FLOAT:
        return _double.unpack(text[at : at + 8])[0], at + 8
    if tag == _HEX:
        end = at + 1 + text[at]
        return _whole(text, at + 1, end).hex(), end
    if tag in _TYPES:
        return _take_container(text, at, tag, levels)
    if tag not in {_INT, _LONG_STR, _LONG_BYTES}:
        raise ValueError(f"its text is damaged (no value begins with {tag})")
    length = shift = 0
    while True:
        digit = text[at]
        at += 1
        length |= (digit & 0x7F) << shift
        if digit < 0x80:
            break
        shift += 7
        if shift > 63:
            raise ValueError("its text is damaged (a length)")
    end = at + length
    raw = _whole(text, at, end)
    if tag == _INT:
        return int.from_bytes(raw, "little", signed=True), end
    return (raw if tag == _LONG_BYTES else str(raw, "utf-8", "surrogatepass")), end


def _take_container(text: bytes, at: int, tag: int, levels: int) -> tuple[Any, int]:
    if not levels:
        raise ValueError("its text is damaged (too deep)")
    values = []
    while text[at] != _END:
        value, at = _take(text, at, levels - 1)
        values.append(value)
    if tag == _DICT:
        each = iter(values)
        return dict(zip(each, each, strict=True)), at + 1
    return _TYPES[tag](values), at + 1


def _whole(text: bytes, at: int, end: int) -> bytes:
    if end > len(text):
        raise ValueError("its text is damaged (it ends too early)")
    return text[at:end]
