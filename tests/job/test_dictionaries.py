"""The dictionaries of a crawl: what is made of its requests, and what is read with them."""

import pytest

from scrapy_bloom.job.dictionaries import (
    SIZE,
    Dictionaries,
)

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


def test_without_a_dictionary():
    """Nothing is deflated."""
    known = Dictionaries()
    assert known.deflate(text_of(1), SLOT) is None
    assert known.texts == {}
    assert known.proposal is None


def test_there_and_back():
    """A text takes a fraction of its bytes, and comes back."""
    known = learned(1)
    for number in range(100):
        deflated = known.deflate(text_of(number), SLOT)
        assert len(deflated) < len(text_of(number)) / 2
        assert known.inflate(deflated, SLOT) == text_of(number)


def test_the_newest_is_used_and_all_are_read():
    """Payloads of any dictionary that was ever used."""
    first, both = learned(1), learned(1, 2)
    old, new = first.deflate(text_of(1), SLOT), both.deflate(text_of(1), SLOT)
    assert [old[:2].hex(), new[:2].hex()] == list(both.texts)
    assert both.inflate(old, SLOT) == both.inflate(new, SLOT) == text_of(1)
    with pytest.raises(ValueError, match="is not there"):
        first.inflate(new, SLOT)


def test_learning_twice_changes_nothing():
    """A worker is told of a dictionary that it knows."""
    both = learned(1, 2)
    before = list(both.texts)
    both.learn(both.texts[before[0]])
    assert list(both.texts) == before
    assert both.deflate(text_of(1), SLOT)[:2].hex() == before[1]
