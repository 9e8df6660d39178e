"""The text of a stored request: all fields come back, with their types and their order."""

import struct
from contextlib import suppress
from enum import IntEnum
from itertools import cycle, product
from time import process_time

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scrapy import FormRequest, Request, Spider
from scrapy.http import JsonRequest, XmlRpcRequest
from scrapy.settings import Settings

from scrapy_bloom.crawl.codec import Codec, Stored, stored_fields
from scrapy_bloom.crawl.request_text import DEEPEST, ORDER, pack, unpack
from scrapy_bloom.redis.codec import RedisCodec

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
    found = unpack(text, slot)
    if "_class" not in fields:
        defaults = Request("data:,").to_dict()
        assert not any(exactly(found[name]) == exactly(defaults.get(name, 0)) for name in found)
        found = {**defaults, **found}
    assert found.keys() == fields.keys()
    assert exactly({name: found[name] for name in fields}) == exactly(fields)
    return text


def in_order(fields):
    """Return `fields` in the order of Scrapy 2.19, which other releases do not have."""
    return {name: fields[name] for name in (*ORDER, *(fields.keys() - {*ORDER}))}


def nested(depth, *inner):
    """Return lists inside each other."""
    value = [*inner]
    for _ in range(depth - 1):
        value = [value]
    return value


NUMBERS = [
    sign * (1 << bits) + more
    for bits in (0, 7, 31, 32, 63, 64, 299, 79_000)
    for sign in (1, -1)
    for more in (-1, 0, 1)
]
NUMBERS += [float("nan"), float("-inf"), -0.0, struct.unpack("<d", b"\1\0\0\0\0\0\xf8\x7f")[0]]
ALL = Request(
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
)
REQUESTS = [
    ALL,
    Request(URL, priority=False, dont_filter=0, cookies={"a": "b"}),  # equal to the defaults
    Request(URL, headers={"Referer": URL, "X": "y"}, meta={"depth": 1, "x": 2}),
    Request(URL, headers={"Referer": [URL, URL]}, meta={"depth": True}),
    Request(URL, headers={"Referer": b"\0"}, meta={"depth": 255}),
    Request(URL, meta={"depth": -1, "depth ": 1}),
    FormRequest(URL, formdata={"a": "b"}, meta={"depth": 1}),
    JsonRequest(URL, data={"a": [1]}, dumps_kwargs={"indent": 1}),
    XmlRpcRequest(URL, methodname="m", params=(1,), encoding="latin-1"),
]
LONG = {"numbers": NUMBERS}
for length in (0, 1, 20, 70_000):
    LONG[length] = ["a" * length, "\udc80" * length, b"\0" * length, [1] * (length // 3)]
    LONG[-length] = {(number,): number for number in range(length % 1000)}
PLAIN = [LONG, *(nested(DEEPEST - 1, *inner) for inner in ((), (1,), ("a" * 70_000,)))]


@pytest.mark.parametrize("tested", [*REQUESTS, *(Request(URL, meta={"a": a}) for a in PLAIN)])
def test_all_fields_come_back(tested):
    """With the types and the order that `to_dict` gives them; defaults may be missing."""
    fields = tested.to_dict()
    require_round_trip(in_order(fields))
    left_out = unpack(pack(fields, SLOT), SLOT)
    assert exactly(unpack(pack(left_out, SLOT), SLOT)) == exactly(left_out)
    turned = unpack(pack(dict(reversed(fields.items())), SLOT), SLOT)
    assert dict(exactly(turned)[1]) == dict(exactly(left_out)[1])


STARTS = ["http://", "https://", "HTTP://", "http://u@", "data:,", ""]
HOSTS = ["a.example", "a.example.org", "a.example:8443", "\xe9.example", "https://", ""]


@pytest.mark.parametrize("slot", ["a.example", "\xe9.example", "https://", "\udc80", ""])
def test_odd_urls(slot):
    """The slot stands for a part of a URL only where the two together are that URL, and the URL for
    one of the referer. A callback is any text."""
    names = cycle(["parse", "", "pars\xe9", "a\0b", "\udc80", None])
    for start, host, path in product(STARTS, HOSTS, ["/", "/b", "\0", "\udc80"]):
        fields = {**in_order(Request(URL).to_dict()), "url": f"{start}{host}{path}"}
        require_round_trip(fields | {"callback": next(names), "errback": "failed"}, slot)
        for referer in (b"http://a.example/b/c", b"https://a.example:8443/b", b"", b"\xe9"):
            changed = {"headers": {b"Referer": [referer]}, "errback": next(names)}
            require_round_trip(fields | changed, slot)


texts = st.text(st.characters(exclude_categories=()), max_size=9)
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers() | st.integers(-(2**70), 2**70),
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


@given(st.dictionaries(texts, values, max_size=4), values)
def test_any_plain_values(meta, value):
    """Whatever a spider puts into its meta, beside what is not plain, which is held apart."""
    fields = {**in_order(Request(URL).to_dict()), "meta": meta, "cb_kwargs": {"a": value}}
    with suppress(ValueError):  # Hypothesis may give one container twice
        require_round_trip(fields)
    codec, fields = Codec(None, 10**6), {**fields, "flags": [object]}
    stored = codec.dump(fields, SLOT)
    assert stored_fields(stored)["url"] == URL
    loaded = codec.load(stored)
    assert loaded.meta.keys() == meta.keys()
    assert exactly([loaded.meta[key] for key in meta]) == exactly([*meta.values()])
    assert (exactly(loaded.cb_kwargs), loaded.flags) == (exactly({"a": value}), [object])


class Own(IntEnum):
    """A value of a subclass."""

    ONE = 1


class OwnText(str):
    """Another."""


shared = [1]
cyclic = []
cyclic.append(cyclic)
shared_tuple = (shared,)


@pytest.mark.parametrize(
    "value",
    [
        *(object(), msgpack.ExtType(7, b""), Own.ONE, (shared_tuple, shared_tuple)),
        *(cyclic, nested(DEEPEST), nested(100_000), {OwnText("a"): 1}, {(Own.ONE,): 1}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_not_plain(value):
    """A value of any other type, and a container in two places, which would come back as two."""
    fields = in_order(Request(URL).to_dict())
    for more in ({"meta": {"a": value}}, {"cb_kwargs": {"a": [value]}}, {"flags": [{"a": value}]}):
        with pytest.raises(ValueError, match="is not plain"):
            pack({**fields, **more}, SLOT)


class Thing:
    """An object of a spider."""

    def __init__(self, numbers):
        self.numbers = numbers


def test_what_is_not_plain_is_one_pickle():
    """What objects share they share again, and the rest is read without them."""
    numbers = [1, 2]
    meta = {"a": Thing(numbers), "n": 5, "b": numbers, "c": {"d": numbers}, "depth": 2}
    codec = Codec(None, 10**6)
    fields = Request(URL, meta=meta, priority=3).to_dict()
    stored = codec.dump({**fields, "flags": shared, "cookies": shared}, SLOT)
    fields = stored_fields(stored)
    assert (fields["url"], fields["priority"], fields["meta"]["n"]) == (URL, 3, 5)
    assert stored.payload.count(b"Thing") == 1
    loaded = codec.load(stored)
    found = loaded.meta
    assert {*found} == {*meta}
    assert found["a"].numbers is found["b"] is found["c"]["d"]
    assert (found["b"], found["depth"]) == (numbers, 2)
    assert (loaded.flags, loaded.cookies) == (shared, shared)


@pytest.mark.parametrize("objects", [False, True])
def test_any_other_bit_makes_it_unreadable(objects):
    """Each flipped bit of a row, each beginning of it, and another slot: none is another row."""
    codec = Codec(None, 10**6)
    request = ALL.replace(meta={"a": Thing([1])} if objects else {"depth": 3})
    slot, payload = codec.dump(request.to_dict(), SLOT)
    others = [payload[:end] for end in range(len(payload))]
    for bit in range(8 * len(payload)):
        damaged = bytearray(payload)
        damaged[bit // 8] ^= 1 << bit % 8
        others.append(bytes(damaged))
    for each in [*(Stored(slot, other) for other in others), Stored("b.example", payload)]:
        with pytest.raises(ValueError, match="damaged"):
            stored_fields(each)


def deep(head, tail=b"\xc0", levels=100_000):
    """Return the text of a meta with so many levels."""
    return b"\x95\x00\x03\xc0\x81\x06" + head * levels + tail


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\x95\x00\x01\xc0\x81\x06\xc0\xa1/",  # a depth in no meta
        b"\x95\x00\xc0\xc0\x81\x20\xc0\xa1/",  # no such field
        b"\x95\x00\xc0\xc0\xc0\xa1/\xc0",  # more behind it
        deep(b"\x81\xa1a\xd4\x20\x00", b"\xa1/", 1),  # no such extension
        deep(b"\x91", b"\xc0\xa1/", 900),
        deep(b"\xdd\x00\x01\x86\xa0"),  # lists of a hundred thousand
        deep(b"\xdf\x00\x01\x86\xa0", levels=500),
        b"\xdd\x7f\xff\xff\xff",
        b"\xc9\xff\xff\xff\xff\x05",
    ],
    ids=lambda text: repr(text[:12]),
)
def test_what_is_no_text(text, traced):
    """It is refused at once, in time and memory of its length."""
    began = process_time()
    traced.start()
    with pytest.raises(ValueError, match="its text is damaged"):
        unpack(text, SLOT)
    _, peak = traced.get_traced_memory()
    assert process_time() - began < 1
    assert peak < 1_500_000 + 20 * len(text)


def test_a_text_is_short_and_leaves_no_buffer(traced):
    """Six bytes and what slot and URL do not say; one of 20 MB leaves as little memory."""
    request = Request(URL, headers={"Referer": f"http://{SLOT}/b"}, meta={"depth": 3})
    fields = {**in_order(request.to_dict()), "callback": "parse"}
    assert require_round_trip(fields) == b"\x97\0\x03\xa5parse\xc0\xa6/b?c=d\x12\xa0"
    traced.start()
    pack(Request(URL, body=bytes(20_000_000)).to_dict(), SLOT)
    pack(Request(URL).to_dict(), SLOT)
    now, _ = traced.get_traced_memory()
    assert now < 2_000_000


# Names of callbacks, which Scrapy looks for among all attributes of a spider


class CountingSpider(Spider):
    """Notes when somebody looks at all that it has."""

    name = "counting"
    looks = 0

    @property
    def looked_at(self):
        type(self).looks += 1

    def parse(self, response):
        pass

    def parse_item(self, response):
        pass

    parse_alias = parse_item

    def failed(self, failure):
        pass


class OwnRequest(Request):
    """Has something to say about its spider."""

    def to_dict(self, *, spider=None):
        return {**super().to_dict(spider=spider), "flags": [spider.name, type(spider).__name__]}


class Short(Request):
    """Makes what is not among its attributes itself."""

    attributes = ("url", "body")


@pytest.fixture
def spider():
    CountingSpider.looks = 0
    return CountingSpider()


def requests(spider):
    named = Request(URL)
    named.callback = "parse"
    return [
        Request(URL),
        Request(URL, callback=spider.parse),
        Request(URL, spider.parse, "HEAD", {"Referer": URL}, b"b", meta={"depth": True}),
        Request(URL, spider.parse, flags=["a"], encoding="latin-1", priority=False, dont_filter=0),
        Request(URL, callback=spider.parse_item, errback=spider.failed),
        Request(URL, callback=spider.parse_alias, meta={"a": 1}, headers={"B": "c"}),
        Request(URL, errback=spider.failed, cookies={"a": "b"}, cb_kwargs={"d": 1}),
        FormRequest(URL, formdata={"a": "b"}, callback=spider.parse),
        OwnRequest(URL, callback=spider.parse, errback=spider.failed),
        Short(URL, callback=spider.parse, headers={"B": "c"}),
        named,
        # a method of another spider of the class counts by its function
        Request(URL, callback=CountingSpider().parse),
    ]


def test_same_dicts(spider):
    """What is stored of a request is what Scrapy would store, the first time and later."""
    codec = Codec(spider, 1000)
    for request in requests(spider) * 3:
        fields, expected = codec.fields(request), request.to_dict(spider=spider)
        assert fields == expected
        assert {n: type(fields[n]) for n in fields} == {n: type(expected[n]) for n in fields}
    assert Codec(None, 1000).fields(Request(URL)) == Request(URL).to_dict()


@pytest.mark.parametrize("backend", ["sqlite", "redis"])
def test_both_backends_look_for_each_method_once(spider, backend):
    """Whatever else the spider has, and however many plain requests have the method."""
    is_redis = backend == "redis"
    dump = RedisCodec(Settings(), spider).dump if is_redis else Codec(spider, 1000).fields
    for request in requests(spider) * 5:
        if type(request) is not OwnRequest:
            dump(request)
    # parse; parse_item and failed, which came together
    assert spider.looks == 3


def test_a_method_that_was_replaced_is_looked_for_again(spider):
    """A name is of use while it leads to the function, and for no other function."""
    codec = Codec(spider, 1000)
    old = Request(URL, callback=spider.parse)
    assert codec.fields(old)["callback"] == codec.fields(old)["callback"] == "parse"
    spider.parse = spider.failed
    new = Request(URL, callback=spider.parse)
    assert codec.fields(new) == new.to_dict(spider=spider)
    with pytest.raises(ValueError, match="is not an instance method in") as expected:
        old.to_dict(spider=spider)
    with pytest.raises(ValueError, match="is not an instance method in") as raised:
        codec.fields(old)
    assert str(raised.value) == str(expected.value)
