"""The dictionaries of a crawl: what is made of its requests, and what is read with them."""

import random
import re
import zlib
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scrapy import Request

from scrapy_bloom.crawl.codec import PLAIN, Codec, Stored, stored_fields, url_and_method
from scrapy_bloom.crawl.dictionaries import LONGEST, PROPOSED_AT, SIZE, Dictionaries

SLOT = "a.example"
URL = "http://a.example/account/"
CODEC = Codec(None, 100_000)


def stored_as(number):
    """Return a request like those of a crawl, as it is stored."""
    url = f"http://a.example/category/shoes/item-{number}.html"
    return CODEC.dump(Request(url, cb_kwargs={"name": "shoes"}).to_dict(), SLOT)


def learned(*numbers):
    """Return the dictionaries of a crawl, each of other texts."""
    known = Dictionaries()
    for number in numbers:
        texts = (stored_as(number * 1000 + each).payload[3:] for each in range(60))
        known.learn(b"".join(texts)[-SIZE:])
    return known


@settings(max_examples=20)
@given(st.lists(st.integers(0, 3), max_size=6), st.integers(0, 100))
def test_the_newest_deflates_and_each_inflates(numbers, page):
    """Whichever are there; to learn one twice changes nothing, and a stream has one end."""
    known, (slot, payload) = Dictionaries(), stored_as(page)
    deflated = {None: payload}
    for number in numbers:
        fewer = learned(*(each for each in deflated if each is not None))
        known.learn(next(iter(learned(number).texts.values())))
        if number not in deflated:
            deflated[number] = known.deflate(payload)
            assert len(deflated[number]) < len(payload) / 2
            assert deflated[number][1:3].hex() == [*known.texts][-1]
            with pytest.raises(ValueError, match="is not there"):
                fewer.inflate(deflated[number])
            with pytest.raises(ValueError, match="does not end where it should"):
                known.inflate(deflated[number] + b"x")
            for end in range(len(deflated[number])):
                with pytest.raises(ValueError, match=r"damaged|is not there"):
                    stored_fields(Stored(slot, known.inflate(deflated[number][:end])))
    assert len(known.texts) == len(deflated) - 1
    assert known.deflate(payload) == [*deflated.values()][-1]
    assert {known.inflate(each) for each in deflated.values()} == {payload}


def test_long_texts_stay_as_they_are_and_bombs_are_refused(traced):
    """Deflated they would take too much work, and inflated too much memory."""
    known = learned(1)
    longest = PLAIN + bytes(LONGEST - 1)
    assert len(known.deflate(longest)) < 200
    assert known.inflate(known.deflate(longest)) == longest
    for stays in (longest + b"x", b"\0" + longest[1:], PLAIN + b"short"):
        assert known.deflate(stays) == stays
    bomb = zlib.compressobj(9, zlib.DEFLATED, -15)
    stream = bomb.compress(bytes(20_000_000)) + bomb.flush()
    payload = b"\2" + bytes.fromhex(next(iter(known.texts))) + bytes(2) + stream
    traced.start()
    with pytest.raises(ValueError, match="does not end where it should"):
        known.inflate(payload)
    _, peak = traced.get_traced_memory()
    assert peak < 1_000_000


def stored_in(known, requests):
    """Return the payloads of these requests as they are kept, and each proposal."""
    payloads = []
    for each in requests:
        stored = CODEC.dump(each.to_dict(), SLOT)
        known.sample(stored)
        payloads.append(known.deflate(stored.payload))
        if known.proposal:
            known.learn(known.proposal)
    return payloads


def test_damage_never_gives_another_request():
    """A checksum of two bytes lets one of 65,536 damaged payloads pass, and no more."""
    chance, wrong = random.Random(23), 0
    known = Dictionaries()
    for payload in stored_in(known, map(Request, [URL] * 60))[20:]:
        fields = stored_fields(Stored(SLOT, known.inflate(payload)))
        assert payload[0] == 2
        with pytest.raises(ValueError, match="checksum"):
            stored_fields(Stored("a.exampl", known.inflate(payload)))
        for _ in range(100):
            first, last = sorted(chance.choices(range(1, len(payload)), k=2))
            more = chance.randbytes(chance.choice([0, 1, 4, last - first]))
            found = payload[:first] + more + payload[last:]
            try:
                read = stored_fields(Stored(SLOT, known.inflate(found)))
                wrong += found != payload and read != fields
            except ValueError:
                continue
    assert wrong < 3


def test_proposals_come_with_more_requests():
    """After 16 requests, after 1,000 and so on; none while one waits to be kept."""
    known = Dictionaries()
    at, count = [], 0
    while count < PROPOSED_AT[2] + 100:
        count += 1
        known.sample(stored_as(count))
        if known.proposal is None:
            continue
        at.append(count)
        waiting = known.proposal
        for _ in range(5):
            count += 1
            known.sample(stored_as(count))
        assert known.proposal is waiting
        assert 0 < len(waiting) <= SIZE
        found = {int(number) for number in re.findall(rb"item-(\d+).html", waiting)}
        assert len(at) == 1 or min(found) < at[-1] * 0.7 < max(found) * 0.7 / 0.95  # of all parts
        known.learn(waiting)
        assert known.proposal is None
    assert at[0] == PROPOSED_AT[0]
    for found, wanted in zip(at, PROPOSED_AT[:3], strict=True):
        assert wanted <= found <= wanted * 1.1


SECRET = "hush"


SECRETS = {
    "authorization": {"headers": {"Authorization": f"Basic {SECRET}"}},
    "cookies": {"cookies": [{"name": "a", "value": SECRET}]},
    "body": {"method": "POST", "body": SECRET},
    "user in the URL": {"url": f"http://{SECRET}:pw@a.example/"},
    "user in the URL of a slot": {"url": f"http://a.example:{SECRET}@b.example/"},
    "user in the referer's rest": {"headers": {"Referer": f"http://a.example:{SECRET}@b.example/"}},
    "token in the URL": {"url": f"{URL}?access_token={SECRET}"},
    "session in the URL": {"url": f"{URL};jsessionid={SECRET}"},
    "key in the URL": {"url": f"{URL}?key={SECRET}"},
    "some key in a header": {"headers": {"Subscription-Key": SECRET}},
    "proxy with a slash": {"meta": {"proxy": f"http://user:{SECRET}/w@proxy.example:8080"}},
    "password": {"meta": {"login": {"Password": SECRET}}},
    "argument": {"cb_kwargs": {"csrf": SECRET}},
    "user without a scheme": {"meta": {"via": [f"user:{SECRET}@proxy.example:8080"]}},
    "user in a URL of the meta": {"cb_kwargs": {"from": (f"x http://u:{SECRET}@a.example/",)}},
    "user in bytes": {"meta": {b"depth": f"user:{SECRET}@a.example".encode()}},
    "attribute of an object": {"meta": {"account": SimpleNamespace(password=SECRET)}},
}


@pytest.mark.parametrize("name", SECRETS)
@pytest.mark.parametrize("slot", [SLOT, "of the meta"])
def test_no_secret_gets_into_a_dictionary(name, slot):
    """Its request may be done and gone, and a dictionary stays."""
    known, options = Dictionaries(), {"url": URL, **SECRETS[name]}
    for number in range(100):
        url = options["url"].replace("/account/", f"/account/{number}")
        known.sample(CODEC.dump(Request(**{**options, "url": url}).to_dict(), slot))
    assert known.proposal is None
    for number in range(PROPOSED_AT[0]):
        # floats, some of whose bytes look like a user in a URL, are none
        meta = {"price": [2.0, 180.0, 131071.5][number % 3], "download_timeout": 180.0}
        for each in (Request(f"{URL}{number}", meta=meta), Request(**options)):
            known.sample(CODEC.dump(each.to_dict(), slot))
    assert SECRET.encode() not in known.proposal


def test_pickles_are_deflated_too():
    """A crawl whose requests all have objects has a dictionary of those."""
    known = Dictionaries()
    pages = [Request(f"{URL}{n}", meta={"number": complex(n)}) for n in range(60)]
    payloads = stored_in(known, pages)
    for page, payload in zip(pages, payloads, strict=True):
        stored = Stored(SLOT, known.inflate(payload))
        assert url_and_method(stored) == (page.url, "GET")
        assert CODEC.load(stored).meta == page.meta
    assert payloads[0][:1] == b"\1"
    assert payloads[-1][:1] == b"\2"
    assert len(payloads[-1]) < len(payloads[0]) / 2
