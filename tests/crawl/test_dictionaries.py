"""The dictionaries of a crawl: what is made of its requests, and what is read with them."""

import random
import tracemalloc
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scrapy import Request

from scrapy_bloom.crawl.codec import Codec, Stored, stored_fields, url_and_method
from scrapy_bloom.crawl.dictionaries import LONGEST, PROPOSED_AT, SIZE, Dictionaries, id_of

SLOT = "a.example"
FIELDS = {"url": "http://a.example/"}


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
    """A text takes a fraction of its bytes, whichever dictionaries are there; to learn one twice
    changes nothing, and without one nothing is deflated."""
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
    assert len(known.texts) == len(deflated) - 1
    assert known.deflate(text, SLOT) == [*deflated.values()][-1]
    assert {known.inflate(each, SLOT) for each in deflated.values() if each} <= {text}


def test_long_texts_stay_as_they_are():
    """Deflated they would take as much work as they have bytes."""
    known = learned(1)
    longest = bytes(LONGEST)
    assert known.inflate(known.deflate(longest, SLOT), SLOT) == longest
    assert known.deflate(longest + b"x", SLOT) is None


def test_a_stream_has_to_end_where_it_ends():
    """Cut anywhere, also where all of the text is there, or with more behind it."""
    known = learned(1)
    for number in range(30):
        deflated = known.deflate(text_of(number), SLOT)
        for end in range(len(deflated)):
            with pytest.raises(ValueError, match=r"damaged|is not there"):
                known.inflate(deflated[:end], SLOT)
        with pytest.raises(ValueError, match="does not end where it should"):
            known.inflate(deflated + b"x", SLOT)


def test_a_bomb_is_refused():
    """What would inflate to twenty megabytes stops at the limit, and takes no memory."""
    known = learned(1)
    bomb = zlib.compressobj(9, zlib.DEFLATED, -15)
    stream = bomb.compress(bytes(20_000_000)) + bomb.flush()
    payload = bytes.fromhex(next(iter(known.texts))) + bytes(2) + stream
    assert len(payload) < 100_000
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="does not end where it should"):
            known.inflate(payload, SLOT)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1_000_000


def damaged(payload, chance):
    """Return a payload with one of the usual damages, or rubbish."""
    where = chance.randrange(len(payload))
    return chance.choice(
        [
            payload[:where],
            payload + chance.randbytes(3),
            payload[:where] + chance.randbytes(1) + payload[where + 1 :],
            payload[:where] + chance.randbytes(4) + payload[where + 4 :],
            payload[:where] + payload[where + 1 :],
            payload[: 1 + where // 2] + payload[where:],
            payload[:1] + chance.randbytes(where),
            chance.randbytes(where),
        ]
    )


def requests(count):
    """Return the fields of requests like those of a crawl."""
    referer = "http://a.example/category/shoes/?page=7"
    for number in range(count):
        url = f"http://a.example/category/shoes/item-{number}.html"
        headers = {b"Referer": [referer.encode()]}
        yield {"url": url, "headers": headers, "meta": {"depth": 3, "n": number}}


def coding():
    """Return a codec with dictionaries."""
    return Codec(None, 100_000, dictionaries=Dictionaries())


def filled(*, learn):
    """Return a codec, and what it has stored; with a dictionary it is deflated."""
    codec = coding()
    known, stored = codec._dictionaries, []
    for fields in requests(60):
        stored.append((fields, codec.dump(fields, SLOT, "pickle")))
        if learn and known.proposal:
            known.learn(known.proposal)
    return codec, stored[20:]


@pytest.mark.parametrize("learn", [True, False], ids=["deflated", "not deflated"])
def test_damage_never_gives_another_request(learn):
    """A checksum of two bytes lets one of 65,536 damaged payloads pass, and no more."""
    chance = random.Random(23)
    codec, stored = filled(learn=learn)
    wrong = 0
    for _ in range(100):
        for fields, (slot, payload) in stored:
            assert payload[0] == (2 if learn else 1)
            found = damaged(payload, chance)
            if found[:1] not in (b"\1", b"\2"):
                continue  # another form
            try:
                wrong += stored_fields(Stored(slot, found), codec._dictionaries) != fields
            except ValueError:
                continue
    assert wrong < 3


@pytest.mark.parametrize("learn", [True, False], ids=["deflated", "not deflated"])
def test_another_slot_is_noticed(learn):
    """The slot is a part of the URL, so a request that lies in another one is not read."""
    codec, stored = filled(learn=learn)
    for _, (_, payload) in stored:
        for slot in ("b.example", "", "a.example.org", "a.exampl"):
            with pytest.raises(ValueError, match="checksum"):
                stored_fields(Stored(slot, payload), codec._dictionaries)


def test_another_dictionary_is_noticed():
    """One of the same length, under the same id, gives another text without an error of zlib's."""
    known, other = learned(1), learned(1)
    (name,) = known.texts
    text = known.texts[name]
    stranger = bytes(sorted(text))
    other._inflaters[bytes.fromhex(name)] = zlib.decompressobj(-13, zdict=stranger)
    for number in range(300):
        deflated = known.deflate(text_of(number), SLOT)
        with pytest.raises(ValueError, match="damaged"):
            other.inflate(deflated, SLOT)


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
        known.learn(waiting)
        assert known.proposal is None
    assert at[0] == PROPOSED_AT[0]
    for found, wanted in zip(at, PROPOSED_AT, strict=False):
        assert wanted <= found <= wanted * 1.1
    assert len(at) == 3


@pytest.mark.parametrize(("begun", "requests"), [((), PROPOSED_AT[0]), ((1, 2), PROPOSED_AT[1])])
def test_a_dictionary_from_elsewhere_takes_the_place_of_a_proposal(begun, requests):
    """Two workers that begin at once need one, and a crawl that goes on begins with the next."""
    known = learned(*begun)
    if not begun:
        for number in range(PROPOSED_AT[0]):
            known.sample(FIELDS, text_of(number))
        assert known.proposal is not None
        known.learn(b"another one")
    for number in range(requests * 2):
        assert known.proposal is None
        known.sample(FIELDS, text_of(number))
    assert known.proposal is None


def test_samples_are_of_all_parts():
    """Not of the last page alone: the second half of what came since the last dictionary."""
    known = learned(1)
    for number in range(PROPOSED_AT[1] + 50):
        known.sample(FIELDS, text_of(number))
    found = {number for number in range(2000) if b"item-%d.html" % number in known.proposal}
    assert min(found) < PROPOSED_AT[1] * 0.7
    assert max(found) > PROPOSED_AT[1] * 0.95


def test_no_two_dictionaries_have_one_id(monkeypatch):
    """A proposal whose id is taken is made another."""
    known = learned(1)
    (name,) = known.texts
    made = b"".join(map(text_of, range(16)))[-SIZE:]
    monkeypatch.setattr(
        "scrapy_bloom.crawl.dictionaries.id_of", lambda text: name if text == made else id_of(text)
    )
    monkeypatch.setattr("scrapy_bloom.crawl.dictionaries.PROPOSED_AT", (0, 16))
    for number in range(16):
        known.sample(FIELDS, text_of(number))
    assert known.proposal == made[1:]


URL = "http://a.example/account/"
SECRET = "hush"
SECRETS = {
    "authorization": {"headers": {"Authorization": f"Basic {SECRET}"}},
    "cookie header": {"headers": {"Cookie": SECRET}},
    "proxy header": {"headers": {"Proxy-Authorization": SECRET}},
    "api key": {"headers": {"X-Api-Key": SECRET}},
    "auth": {"headers": {"X-Auth": SECRET}},
    "cookies": {"cookies": {"a": SECRET}},
    "list of cookies": {"cookies": [{"name": "a", "value": SECRET}]},
    "body": {"method": "POST", "body": SECRET},
    "user in the URL": {"url": f"http://{SECRET}:pw@a.example/"},
    "user in the URL of a slot": {"url": f"http://a.example:{SECRET}@b.example/"},
    "user in the referer": {"headers": {"Referer": f"http://x:{SECRET}@a.example/"}},
    "user in the referer's rest": {"headers": {"Referer": f"http://a.example:{SECRET}@b.example/"}},
    "token in the URL": {"url": f"{URL}?access_token={SECRET}"},
    "session in the URL": {"url": f"{URL};jsessionid={SECRET}"},
    "key in the URL": {"url": f"{URL}?key={SECRET}"},
    "proxy": {"meta": {"proxy": f"http://user:{SECRET}@proxy.example:8080"}},
    "proxy with a slash": {"meta": {"proxy": f"http://user:{SECRET}/w@proxy.example:8080"}},
    "session of PHP": {"url": f"{URL}?PHPSESSID={SECRET}"},
    "some key in the URL": {"url": f"{URL}?app_key={SECRET}"},
    "some key in a header": {"headers": {"Subscription-Key": SECRET}},
    "basic": {"headers": {"X-Own": f"Basic {SECRET}"}},
    "password": {"meta": {"login": {"Password": SECRET}}},
    "pass": {"meta": {"pass": SECRET}},
    "user and password": {"meta": {"auth": ("user", SECRET)}},
    "user and password of a proxy": {"meta": {"proxy_auth": f"user:{SECRET}"}},
    "argument": {"cb_kwargs": {"csrf": SECRET}},
    "user without a scheme": {"meta": {"via": [f"user:{SECRET}@proxy.example:8080"]}},
    "user in a URL of the meta": {"cb_kwargs": {"from": (f"x http://u:{SECRET}@a.example/",)}},
    "user in bytes": {"meta": {b"depth": f"user:{SECRET}@a.example".encode()}},
}


@pytest.mark.parametrize("name", SECRETS)
@pytest.mark.parametrize("slot", [SLOT, "", "of the meta"])
def test_no_secret_gets_into_a_dictionary(name, slot):
    """Its request may be done and gone, and a dictionary stays."""
    codec = coding()
    options = {"url": URL, **SECRETS[name]}
    for number in range(100):
        url = options["url"].replace("/account/", f"/account/{number}")
        codec.dump(Request(**{**options, "url": url}).to_dict(), slot, "pickle")
    assert codec._dictionaries.proposal is None
    for number in range(PROPOSED_AT[0]):
        codec.dump(Request(f"{URL}{number}").to_dict(), slot, "pickle")
        codec.dump(Request(**options).to_dict(), slot, "pickle")
    assert codec._dictionaries.proposal is not None
    assert SECRET.encode() not in codec._dictionaries.proposal


def test_no_secret_of_a_pickle(monkeypatch):
    """One that is not plain has the names of its attributes, too."""
    codec = coding()
    for number in range(100):
        meta = {"account": Account(number)}
        codec.dump(Request(f"{URL}{number}", meta=meta).to_dict(), SLOT, "pickle")
    assert codec._dictionaries.proposal is None


@pytest.mark.parametrize("number", [2.0, 3.0, 180.0, 65536.0, 131071.5])
def test_numbers_are_no_secrets(number):
    """Nor floats whose bytes look like a user in a URL: there is a dictionary as soon."""
    codec = coding()
    for page in range(PROPOSED_AT[0]):
        meta = {"price": number, "download_timeout": 180.0, "depth": 1}
        codec.dump(Request(f"{URL}{page}", meta=meta).to_dict(), SLOT, "pickle")
    assert codec._dictionaries.proposal is not None


def test_the_search_ends_where_all_may_be_secret(monkeypatch):
    """What is refused has been looked at: of a million such requests a few thousand are."""
    looked = []

    def look(_fields, _text):
        looked.append(1)
        return True

    monkeypatch.setattr("scrapy_bloom.crawl.dictionaries._may_be_secret", look)
    known = Dictionaries()
    for _ in range(PROPOSED_AT[-1] * 2):
        known.sample(FIELDS, b"")
    assert len(looked) < 3000
    before = len(looked)
    for _ in range(PROPOSED_AT[-1]):
        known.sample(FIELDS, b"")
    assert len(looked) == before


class Account:
    """An object of a spider."""

    def __init__(self, number):
        self.number, self.password = number, SECRET


def test_pickles_are_deflated_too():
    """A crawl whose requests all have objects has a dictionary of those."""
    codec = coding()
    stored = []
    for number in range(60):
        fields = Request(f"{URL}{number}", meta={"number": complex(number)}).to_dict()
        stored.append((fields["url"], codec.dump(fields, SLOT, "pickle")))
        if codec._dictionaries.proposal:
            codec._dictionaries.learn(codec._dictionaries.proposal)
    for url, each in stored:
        assert stored_fields(each, codec._dictionaries)["url"] == url
        assert url_and_method(each, codec._dictionaries) == (url, "GET")
        assert codec.load(each).meta["number"] == complex(url.removeprefix(URL))
    assert stored[0][1].payload[:1] == b"\1"
    assert stored[-1][1].payload[:1] == b"\2"
    assert len(stored[-1][1].payload) < len(stored[0][1].payload) / 2
