"""The text of a stored request: all fields come back, with their types and their order."""

import random
import struct
import tracemalloc
from collections import OrderedDict
from contextlib import suppress
from enum import IntEnum

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scrapy import FormRequest, Request
from scrapy.http import JsonRequest, XmlRpcRequest

from scrapy_bloom.job.request_text import DEEPEST, ORDER, pack, unpack, without_defaults

SLOT = "a.example"
URL = f"http://{SLOT}/b?c=d"


def exactly(value):
    """Return `value` with all types and orders in it, so that equal means the same."""
    kind = type(value)
    if kind is dict:
        return kind, [(exactly(key), exactly(each)) for key, each in value.items()]
    if kind in (list, tuple):
        return kind, [exactly(each) for each in value]
    if kind in (set, frozenset):
        return kind, sorted(repr(exactly(each)) for each in value)
    if kind is float:
        return kind, struct.pack("<d", value)
    return kind, value


def require_round_trip(fields, slot=SLOT):
    """Return the text of `fields`, which come back from it, or all but the defaults of Scrapy."""
    text = pack(fields, slot)
    assert text is not None
    found = unpack(text, slot)
    if "_class" not in fields:
        assert found.keys() == without_defaults(fields).keys()
        found = {**Request("data:,").to_dict(), **found}
        found = {name: found[name] for name in fields}
    assert exactly(found) == exactly(fields)
    return text


def in_order(fields):
    """Return `fields` in the order of Scrapy 2.19, which other releases do not have."""
    return {name: fields[name] for name in (*ORDER, *(fields.keys() - {*ORDER}))}


REQUESTS = {
    "plain": Request(URL),
    "all": Request(
        URL,
        callback=None,
        method="PUT",
        headers={"A": ["b", "c"], "D": "\xe9", "Referer": f"http://{SLOT}/z"},
        body=b"\0\xff",
        cookies=[{"name": "a", "value": "b", "secure": True}],
        meta={"x": [1, {"y": (2.5, None)}], "depth": 7},
        encoding="cp1252",
        priority=-3,
        dont_filter=True,
        flags=["f"],
        cb_kwargs={"k": {"v"}},
    ),
    "cookies": Request(URL, cookies={"a": "b"}),
    "referer first": Request(URL, headers={"Referer": URL, "X": "y"}),
    "referer elsewhere": Request(URL, headers={"Referer": "https://b.example/"}),
    "referer with a NUL": Request(URL, headers={"Referer": b"\0"}),
    "two referers": Request(URL, headers={"Referer": [URL, URL]}),
    "no referer": Request(URL, headers={"Referer": b""}),
    "depth first": Request(URL, meta={"depth": 1, "x": 2}),
    "depth of another type": Request(URL, meta={"depth": True}),
    "deep": Request(URL, meta={"depth": 255}),
    "negative": Request(URL, meta={"depth": -1}),
    "form": FormRequest(URL, formdata={"a": "b"}, meta={"depth": 1}),
    "json": JsonRequest(URL, data={"a": [1]}, dumps_kwargs={"indent": 1}),
    "rpc": XmlRpcRequest(URL, methodname="m", params=(1,), encoding="latin-1"),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_all_fields_come_back(name):
    """With the types and the order that `Request.to_dict` gives them."""
    require_round_trip(in_order(REQUESTS[name].to_dict()))


@pytest.mark.parametrize("name", REQUESTS)
def test_the_order_of_any_release(name):
    """A class may look at the order of its arguments; for Request itself it says nothing."""
    fields = in_order(REQUESTS[name].to_dict())
    require_round_trip(dict(reversed(fields.items())))


@pytest.mark.parametrize("name", REQUESTS)
def test_fields_that_have_the_default_may_be_missing(name):
    """As in what was stored without them."""
    fields = in_order(REQUESTS[name].to_dict())
    assert pack(without_defaults(fields), SLOT) == pack(fields, SLOT)


def test_names_of_callbacks():
    """ASCII or not, and whatever a field holds that should be a name."""
    fields = in_order(Request(URL).to_dict())
    for name in ("parse", "", "pars\xe9", "a\0b", "\udc80", 7, None):
        require_round_trip({**fields, "callback": name, "errback": "failed"})
        require_round_trip({**fields, "callback": "parse", "errback": name})


@pytest.mark.parametrize(
    ("url", "slot"),
    [
        ("http://a.example/", "a.example"),
        ("https://a.example:8443/b", "a.example"),
        ("https://a.example.org/b", "a.example"),  # the slot is a prefix of the host
        ("http://user:pw@a.example/", "a.example"),
        ("http://A.example/", "a.example"),
        ("HTTP://a.example/", "a.example"),
        ("http://xn--bcher-kva.example/", "b\xfccher.example"),
        ("http://a.example/#!f", "a.example"),
        ("http://a.example/", "slot of a meta"),
        ("http://a.example/", ""),
        ("https://", ""),
        ("http://https://", "https://"),
        ("http://[::1]:8000/", "::1"),
        ("data:,a", ""),
        ("s3://bucket/key", "bucket"),
        ("file:///a\x7f", ""),
        ("http://\xe9.example/", "\xe9.example"),
        ("http://a.example/\0", "a.example"),
        ("http://a.example/\udc80", "a.example"),
        ("http://a.example/", "\udc80"),
        ("", "a.example"),
    ],
)
@pytest.mark.parametrize(
    "referer", [None, b"http://a.example/b/c", b"https://a.example:8443/b", b"", b"\xe9"]
)
def test_odd_urls(url, slot, referer):
    """The slot stands for a part of a URL only where the two together are that URL."""
    fields = {**in_order(Request(URL).to_dict()), "url": url}
    if referer is not None:
        fields["headers"] = {b"Referer": [referer]}
    require_round_trip(fields, slot)


texts = st.text(st.characters(exclude_categories=()), max_size=9)
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    texts,
    st.binary(max_size=9),
)
keys = scalars | st.tuples(scalars, texts)
values = st.recursive(
    scalars | st.sets(keys, max_size=3) | st.frozensets(keys, max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(keys, inner, max_size=3)
    ),
    max_leaves=6,
)


@given(st.dictionaries(texts, values, max_size=4))
def test_any_plain_values(meta):
    """Whatever a spider puts into its meta."""
    require_round_trip({**in_order(Request(URL).to_dict()), "meta": meta})


def test_numbers_of_any_size():
    """With all their bits."""
    numbers = [
        sign * (1 << bits) + more
        for bits in range(0, 300, 7)
        for sign in (1, -1)
        for more in (-1, 0, 1)
    ]
    numbers += [float("nan"), float("-inf"), -0.0, struct.unpack("<d", b"\1\0\0\0\0\0\xf8\x7f")[0]]
    require_round_trip({**in_order(Request(URL).to_dict()), "meta": {"numbers": numbers}})


@pytest.mark.parametrize("length", [0, 1, 127, 128, 16_384, 70_000])
def test_strings_of_any_length(length):
    """With a NUL or without one, and those that look like hexadecimal digits."""
    long = ["a" * length, "ab" * length, "\0" * length, b"a" * length, b"\0" * length]
    require_round_trip({**in_order(Request(URL).to_dict()), "meta": {"long": long}})


class Own(IntEnum):
    """A value of a subclass."""

    ONE = 1


class OwnText(str):
    """Another."""


def nested(depth):
    """Return lists inside each other."""
    value = []
    for _ in range(depth - 1):
        value = [value]
    return value


shared = [1]
cyclic = []
cyclic.append(cyclic)
shared_tuple = (shared,)


@pytest.mark.parametrize(
    "value",
    [
        object(),
        Own.ONE,
        OwnText("a"),
        OrderedDict(a=1),
        bytearray(b"a"),
        1j,
        range(3),
        [shared, {"a": shared}],
        (shared_tuple, shared_tuple),
        cyclic,
        nested(DEEPEST),
        nested(100_000),
        {OwnText("a"): 1},
        {(Own.ONE,): 1},
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_not_plain(value):
    """A value of any other type, and a container in two places, which would come back as two."""
    fields = in_order(Request(URL).to_dict())
    assert pack({**fields, "meta": {"a": value}}, SLOT) is None
    assert pack({**fields, "cb_kwargs": {"a": [value]}}, SLOT) is None
    assert pack({**fields, "flags": [{"a": value}]}, SLOT) is None


def test_as_deep_as_it_may_be():
    """One level less than what is refused."""
    require_round_trip(in_order(Request(URL, meta={"a": nested(DEEPEST - 1)}).to_dict()))


def test_rubbish_is_a_value_error():
    """Whatever the bytes are: no other exception, and no code of theirs."""
    chance = random.Random(7)
    texts = [pack(request.to_dict(), SLOT) for request in REQUESTS.values()]
    for number in range(20_000):
        text = bytearray(chance.choice(texts) if number % 4 else chance.randbytes(40))
        for _ in range(chance.randrange(4)):
            where = chance.randrange(len(text))
            text[where : where + chance.randrange(3)] = chance.randbytes(chance.randrange(3))
        with suppress(ValueError):
            unpack(bytes(text[: chance.randrange(1, 400)]), SLOT)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\0",
        b"\3\0/",  # no way to store a URL
        b"\x20\0\6" + b"[" * 100_000,
        b"\x20\0\6" + b"{N" * 100_000,
        b"\xff" + b"(" * 100_000,
        b"\xffi" + b"\xff" * 100_000,
        b"\xffS\xff\xff\xff\xff\xff\xff\xff\xff\x01",
        b"\xffB\x80\x80\x80\x80\x10abc",
        b"\xffx\x7fab",
        b"\xfff1234567",
        b"\xff{[.N.",  # a list as a key
        b"\xff<[..",
        b"\xff[..",  # no fields
        b"\xff{.x",
        b"\x20\0\x20N./",  # no such field
        b"\x20\1\6N./",  # a depth in no meta
        b"\x40\0/",
        b"\x40\0/\0",
        b"\0\0/\xff",
    ],
    ids=lambda text: repr(text[:12]),
)
def test_what_is_no_text(text):
    """It is refused at once, in time and memory of its length."""
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=r"."):
            unpack(text, SLOT)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 200_000 + 10 * len(text)


def test_an_ordinary_request_takes_few_bytes():
    """Two bytes, the callback, and what the slot and the URL do not say."""
    request = Request(URL, headers={"Referer": f"http://{SLOT}/b"}, meta={"depth": 3})
    fields = {**in_order(request.to_dict()), "callback": "parse"}
    assert require_round_trip(fields) == b"\x48\x04parse\0/b?c=d\0\2"
