"""The fields of a request as msgpack, less Scrapy's defaults and what its slot says.

A text is a list: how the URL is stored, the depth, the callback, the other fields by number or
name, the URL's rest; with a referer the length that it has in common with the URL, and its rest.
So it begins with what most requests of a callback share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from copy import copy
from itertools import chain, islice
from operator import itemgetter
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
"""Most containers inside each other in the value of a field."""
LONGEST_NUMBER = 10_000
"""Most bytes of an integer."""

# the numbers of the extensions; a list whose first value is one of the first four is another type:
# _DICT one whose keys are no keys of msgpack's
_TUPLE, _SET, _FROZENSET, _DICT, _INTEGER, _OBJECT, PICKLED, MARSHALLED = range(1, 9)
_STARTS = ("http://", "https://", "")
_FIELDS = (*ORDER, OBJECTS)
_NUMBERS = {name: number for number, name in enumerate(_FIELDS)}
_CALLBACK, _HEADERS, _META, _OBJECTS = map(
    _NUMBERS.__getitem__, ("callback", "headers", "meta", OBJECTS)
)
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
    "callback": None,
    "errback": None,
}
"""The defaults of Scrapy's that a text leaves out."""
_ABSENT = object()
_OFTEN = ("callback", "headers", "meta", "dont_filter")
"""The fields that are seldom the default; `_rare` returns the others, less the URL."""
_rare = itemgetter(*(_DEFAULTS.keys() - {*_OFTEN}))
_RARE = _rare(_DEFAULTS)
_RARE_TYPES = [*map(type, _RARE)]
_PLACES = frozenset(ORDER)
_SCALARS = frozenset({type(None), bool, float, str, bytes})
_SCALARS_OF_64_BITS = _SCALARS | {int}
_SMALL = range(-(2**63), 2**64)
_FEW = 16
"""Containers with so many values as they say take no memory to speak of."""
_SHORT = 65_536
_HEADS = bytes((*range(0x80, 0xA0), *range(0xDC, 0xE0)))
"""First bytes of lists and dicts."""


def _packer() -> Packer:
    return Packer(strict_types=True, unicode_errors="surrogatepass")


_packers = [_packer()]


class NotPlainError(ValueError):
    """A value is not plain: of another type, in two places, too deep or too long."""


class Held(NamedTuple):
    """Stands for a value that is not plain: the one of this number in the field OBJECTS."""

    number: int


class _Mark(NamedTuple):
    """The first value of a list that stands for a container of another type."""

    kind: type


_MARKS: dict[type, ExtType | None] = {
    list: None,
    tuple: ExtType(_TUPLE, b"\0"),
    set: ExtType(_SET, b"\0"),
    frozenset: ExtType(_FROZENSET, b"\0"),
    dict: ExtType(_DICT, b"\0"),
}
_MARKED = {mark.code: _Mark(kind) for kind, mark in _MARKS.items() if mark is not None}


def pack(fields: dict[str, Any], slot: str) -> bytes:
    """Return the text of the request with these `fields` (`Request.to_dict`) in `slot`. Leaves out
    fields with Scrapy's default.

    Raises NotPlainError unless all are plain: None, bool, int, float, str, bytes, list, tuple,
    dict, set or frozenset, of that very type, each container in one place, at most DEEPEST of them
    inside each other.
    """
    try:
        try:
            text: bytes = _packers[0].pack(_record(fields, slot, _SCALARS_OF_64_BITS))
        except OverflowError:  # an integer of more than 64 bits
            text = _packers[0].pack(_record(fields, slot, _SCALARS))
    except (ValueError, OverflowError, MemoryError) as error:
        raise NotPlainError(str(error)) from error
    if len(text) > _SHORT:
        _packers[0] = _packer()  # the old one keeps as many bytes
    return text


def unpack(text: bytes, slot: str) -> dict[str, Any]:
    """Return the fields that were packed for `slot`, less those with Scrapy's default, unless there
    is a `_class`. Values that were held apart are Held. Raises ValueError for what is no such text;
    runs no code that it names, and takes memory in proportion to its length."""
    try:
        heads = len(text) - len(text.translate(None, _HEADS))
        if heads > _FEW or len(text) > _SHORT:
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
        if heads > DEEPEST:
            _require_flat(record)
        fields = record if type(record) is dict else _fields(record, slot)
        if set(map(type, fields)) != {str}:
            raise ValueError("the name of a field")
    except (
        *(UnpackException, ValueError, TypeError, AttributeError, LookupError),
        *(ArithmeticError, MemoryError, RecursionError),
    ) as error:
        raise ValueError(f"its text is damaged ({error})") from error
    return fields


def held_apart(fields: dict[str, Any], code: int, dumps: Callable[[Any], bytes]) -> dict[str, Any]:
    """Return `fields` that are plain but for OBJECTS, which has all values of `meta` and of
    `cb_kwargs` but numbers and strings, and the other fields that are not plain, as extension
    `code` of what `dumps` returns. Objects that share others share them there. Raises anything."""
    values: list[Any] = []
    wiring = _Wiring(_SCALARS)

    def is_plain(value: Any) -> bool:
        try:
            wiring.wired(value)
        except NotPlainError:
            return False
        return True

    def hold(value: Any) -> Held:
        values.append(value)
        return Held(len(values) - 1)

    apart: dict[str, Any] = {}
    for name, value in fields.items():
        if name in {"meta", "cb_kwargs"} and type(value) is dict and is_plain([*value]):
            apart[name] = {
                key: each if type(each) not in _MARKS and is_plain(each) else hold(each)
                for key, each in value.items()
            }
        else:
            apart[name] = value if is_plain(value) else hold(value)
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


def _record(fields: dict[str, Any], slot: str, scalars: frozenset[type]) -> Any:
    url = fields.get("url")
    if type(url) is not str or ("_class" in fields and not fields.keys() >= _PLACES):
        return _wired_each(fields, scalars, OBJECTS)
    kind, start = 0, f"http://{slot}"
    if not url.startswith(start):
        kind, start = 1, f"https://{slot}"
        if not url.startswith(start):
            kind, start = 2, ""
    names: Iterable[str] = fields
    if fields.keys() == _PLACES:
        rare = _rare(fields)
        if [*map(type, rare)] == _RARE_TYPES and rare == _RARE:
            names = _OFTEN
    others: dict[Any, Any] = {}
    for name in names:
        value, default = fields[name], _DEFAULTS.get(name, _ABSENT)
        if value is not default and (type(value) is not type(default) or value != default):
            others[_NUMBERS.get(name, name)] = value
    others.pop(0, None)
    callback = others.pop(_CALLBACK) if type(others.get(_CALLBACK)) is str else None
    record = [kind, None, callback, None, url[len(start) :]]
    if (depth := _last(others, _META, "depth", int)) is not None and depth in _SMALL:
        record[1] = depth
        _drop_last(others, _META)
    values = _last(others, _HEADERS, b"Referer", list)
    if values and len(values) == 1 and type(referer := values[0]) is bytes:
        _drop_last(others, _HEADERS)
        raw = url.encode("utf-8", "surrogatepass")
        shared = len(referer) if raw.startswith(referer) else _shared(raw, referer)
        record += (shared, referer[shared:].decode("latin-1"))
    if others:
        record[3] = _wired_each(others, scalars, _OBJECTS)
    return record


def _wired_each(values: dict[Any, Any], scalars: frozenset[type], but: Any) -> dict[Any, Any]:
    wired = _Wiring(scalars).wired
    return {name: value if name == but else wired(value) for name, value in values.items()}


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
    if "_class" in fields:
        return {name: copy(_DEFAULTS.get(name)) for name in ORDER} | fields
    return fields


def _last(others: dict[Any, Any], number: int, name: Any, kind: type) -> Any:
    """Return the value of that name in a field, if it is the last one and of that type, or None."""
    values = others.get(number)
    if type(values) is dict:
        last = next(reversed(values), None)
        if last == name and type(last) is type(name) and type(value := values[last]) is kind:
            return value
    return None


def _drop_last(others: dict[Any, Any], number: int) -> None:
    if len(others[number]) == 1:
        del others[number]
    else:
        others[number] = {**others[number]}
        others[number].popitem()


def _shared(one: bytes, other: bytes) -> int:
    """Return the length of the beginning that both have."""
    length = min(len(one), len(other))
    differing = int.from_bytes(one[:length], "big") ^ int.from_bytes(other[:length], "big")
    return length - (differing.bit_length() + 7) // 8


class _Wiring:
    """Makes values of which Packer takes `scalars`, lists, dicts and ExtType as they are."""

    def __init__(self, scalars: frozenset[type]) -> None:
        self._scalars = scalars
        self._seen: set[int] = set()
        """The ids of the containers before a value."""

    def wired(self, value: Any, levels: int = DEEPEST) -> Any:
        """Return a value, which may have so many `levels` of containers, as Packer takes it."""
        kind = type(value)
        if kind in self._scalars:
            return value
        if kind is int:
            return value if value in _SMALL else ExtType(_INTEGER, _bytes_of(value))
        if kind is Held:
            return ExtType(_OBJECT, value.number.to_bytes(4, "big"))
        # an empty tuple is the same one everywhere; a tuple that is shared may have what is not
        if kind not in _MARKS or not levels or (id(value) in self._seen and value != ()):
            raise NotPlainError(f"a value of type {kind.__name__} is not plain")
        self._seen.add(id(value))
        levels -= 1
        if kind is dict and _MARKS.keys().isdisjoint(map(type, value)):
            if self._scalars.issuperset(map(type, chain(value, value.values()))):
                return value
            return {
                self.wired(key, levels): self.wired(each, levels) for key, each in value.items()
            }
        each_value = chain.from_iterable(value.items()) if kind is dict else value
        values = [self.wired(each, levels) for each in each_value]
        return values if kind is list else [_MARKS[kind], *values]


def _bytes_of(number: int) -> bytes:
    raw = number.to_bytes(number.bit_length() // 8 + 1, "big", signed=True)
    if len(raw) > LONGEST_NUMBER:
        raise NotPlainError("a number is too long")
    return raw


def _extension(code: int, data: bytes) -> Any:
    if code in _MARKED:
        return _MARKED[code]
    if code == _INTEGER and len(data) <= LONGEST_NUMBER:
        return int.from_bytes(data, "big", signed=True)
    if code == _OBJECT:
        return Held(int.from_bytes(data, "big"))
    if code in {PICKLED, MARSHALLED}:
        return ExtType(code, data)
    raise ValueError(f"it has an extension {code}")


def _container(values: list[Any]) -> Any:
    if not values or type(values[0]) is not _Mark:
        return values
    kind, rest = values[0].kind, islice(values, 1, None)
    return dict(zip(rest, rest, strict=True)) if kind is dict else kind(rest)


def _require_flat(record: Any) -> None:
    """Raise ValueError for a record with more than DEEPEST containers inside each other."""
    values, levels = [record], -3  # the record, the dict of its fields, and what is innermost
    while values:
        levels += 1
        if levels > DEEPEST:
            raise ValueError("too deep")
        values = [
            inner
            for each in values
            if type(each) in _MARKS
            for inner in (chain(each, each.values()) if type(each) is dict else each)
        ]
