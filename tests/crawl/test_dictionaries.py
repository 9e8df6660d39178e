"""The dictionaries of a crawl: what is made of its requests, and what is read with them."""

import random
import re
import zlib
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scrapy import Request

from scrapy_bloom.crawl.codec import Codec, Stored, stored_fields, url_and_method
from scrapy_bloom.crawl.dictionaries import LONGEST, PROPOSED_AT, SIZE, Dictionaries

SLOT = "a.example"
URL = "http://a.example/account/"
FIELDS = {"url": URL}


def text_of(number):
    """Return a text like those of a crawl."""
    return b"\x48\x03parse_item\0/category/shoes/item-%d.html\0\x0ashoes" % number


def learned(*numbers):
    """Return the dictionaries of a crawl, each of other texts."""
    known = Dictionaries()
    for number in numbers:
        known.learn(b"".join(text_of(number * 1000 + each) for each in range(60))[-SIZE:])
    return known


@settings(max_examples=20)
@given(st.lists(st.integers(0, 3), max_size=6), st.integers(0, 100))
def test_the_newest_deflates_and_each_inflates(numbers, page):
    """Whichever are there; to learn one twice changes nothing, and a stream has one end."""
    known, deflated, text = Dictionaries(), {None: None}, text_of(page)
    for number in numbers:
        fewer = learned(*(each for each in deflated if each is not None))
        known.learn(next(iter(learned(number).texts.values())))
        if number not in deflated:
            deflated[number] = known.deflate(text, SLOT)
            assert len(deflated[number]) < len(text) / 2
            assert deflated[number][:2].hex() == [*known.texts][-1]
            with pytest.raises(ValueError, match="is not there"):
                fewer.inflate(deflated[number], SLOT)
            with pytest.raises(ValueError, match="checksum"):
                known.inflate(deflated[number], "a.exampl")
            with pytest.raises(ValueError, match="does not end where it should"):
                known.inflate(deflated[number] + b"x", SLOT)
            for end in range(len(deflated[number])):
                with pytest.raises(ValueError, match=r"damaged|is not there"):
                    known.inflate(deflated[number][:end], SLOT)
    assert len(known.texts) == len(deflated) - 1
    assert known.deflate(text, SLOT) == [*deflated.values()][-1]
    assert {known.inflate(each, SLOT) for each in deflated.values() if each} <= {text}


def test_long_texts_stay_as_they_are_and_bombs_are_refused(traced):
    """Deflated they would take too much work, and inflated too much memory."""
    known = learned(1)
    longest = bytes(LONGEST)
    assert known.inflate(known.deflate(longest, SLOT), SLOT) == longest
    assert known.deflate(longest + b"x", SLOT) is None
    bomb = zlib.compressobj(9, zlib.DEFLATED, -15)
    stream = bomb.compress(bytes(20_000_000)) + bomb.flush()
    payload = bytes.fromhex(next(iter(known.texts))) + bytes(2) + stream
    traced.start()
    with pytest.raises(ValueError, match="does not end where it should"):
        known.inflate(payload, SLOT)
    _, peak = traced.get_traced_memory()
    assert peak < 1_000_000


def coding():
    known = Dictionaries()
    return Codec(None, 100_000, dictionaries=known), known


def stored_in(codec, known, requests):
    """Return these requests as they are stored; each proposal is kept."""
    stored = []
    for each in requests:
        stored.append(codec.dump(each.to_dict(), SLOT))
        if known.proposal:
            known.learn(known.proposal)
    return stored


def test_damage_never_gives_another_request():
    """A checksum of two bytes lets one of 65,536 damaged payloads pass, and no more."""
    chance, wrong = random.Random(23), 0
    codec, known = coding()
    for slot, payload in stored_in(codec, known, map(Request, [URL] * 60))[20:]:
        fields = stored_fields(Stored(slot, payload), known)
        assert payload[0] == 2
        for _ in range(100):
            first, last = sorted(chance.choices(range(1, len(payload)), k=2))
            more = chance.randbytes(chance.choice([0, 1, 4, last - first]))
            found = payload[:first] + more + payload[last:]
            try:
                wrong += found != payload and stored_fields(Stored(slot, found), known) != fields
            except ValueError:
                continue
    assert wrong < 3


def test_proposals_come_with_more_requests():
    """After 16 requests, after 1,000 and so on; none while one waits to be kept."""
    known = Dictionaries()
    at, count = [], 0
    while count < PROPOSED_AT[2] + 100:
        count += 1
        known.sample(FIELDS, text_of(count))
        if known.proposal is None:
            continue
        at.append(count)
        waiting = known.proposal
        for _ in range(5):
            count += 1
            known.sample(FIELDS, text_of(count))
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
    codec, known = coding()
    options = {"url": URL, **SECRETS[name]}
    for number in range(100):
        url = options["url"].replace("/account/", f"/account/{number}")
        codec.dump(Request(**{**options, "url": url}).to_dict(), slot)
    assert known.proposal is None
    for number in range(PROPOSED_AT[0]):
        # floats, some of whose bytes look like a user in a URL, are none
        meta = {"price": [2.0, 180.0, 131071.5][number % 3], "download_timeout": 180.0}
        codec.dump(Request(f"{URL}{number}", meta=meta).to_dict(), slot)
        codec.dump(Request(**options).to_dict(), slot)
    assert SECRET.encode() not in known.proposal


def test_pickles_are_deflated_too():
    """A crawl whose requests all have objects has a dictionary of those."""
    codec, known = coding()
    pages = [Request(f"{URL}{n}", meta={"number": complex(n)}) for n in range(60)]
    stored = stored_in(codec, known, pages)
    for page, each in zip(pages, stored, strict=True):
        assert url_and_method(each, known) == (page.url, "GET")
        assert codec.load(each).meta == page.meta
    assert stored[0].payload[:1] == b"\1"
    assert stored[-1].payload[:1] == b"\2"
    assert len(stored[-1].payload) < len(stored[0].payload) / 2
