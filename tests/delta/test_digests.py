"""Digests of items, and the verdicts on pages that they give."""

import logging
import tempfile
from collections import UserDict, deque
from dataclasses import make_dataclass
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum
from pathlib import Path, PurePosixPath
from types import SimpleNamespace
from uuid import UUID

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scrapy import Field, Item
from scrapy.http import Response
from scrapy.utils.test import get_crawler

from scrapy_bloom.delta.digests import Digests, digest_of
from scrapy_bloom.delta.file_store import FileDeltaStore, Row
from scrapy_bloom.delta.marks import CHANGED, NEW, UNCHANGED, Marks, Temporary
from scrapy_bloom.delta.settings import Lifetime
from scrapy_bloom.errors import SharedFilterError
from tests.delta import started
from tests.fakes import raising

PAGE = Response("http://example.com/page")
CRAWLER = get_crawler()


Colour = Enum("Colour", "RED")
Product = make_dataclass("Product", ["name", "price"])
Attrs = attrs.make_class("Attrs", ["name", "price"])
Scrapys = type("Scrapys", (Item,), {"name": Field(), "price": Field()})


def digest(*items, without=()):
    """Return the digest of a page with these items."""
    digests, so_far = Digests(CRAWLER, None, None, without), None
    for item in items:
        so_far = digests.add(so_far, item, PAGE)
    return digest_of(so_far)


VALUES = [
    *(None, 0, 1.5, "1.5", Decimal("1.5"), b"1.5", "", [], {}, ["a", "b"], ["b", "a"], {"a", "b"}),
    *({"a": 1, "b": 2}, {"a": 1, "b": 3}, datetime(2026, 5, 1), date(2026, 5, 1), timedelta(1)),
    *(datetime(2026, 5, 1, tzinfo=timezone.utc), UUID(int=7), PurePosixPath("/a"), Colour.RED),
    *(float("nan"), "\ud800 \u00e9", 2**70, Product("a", 1), [Product("a", 2)]),
]


def test_each_value_has_a_form_of_its_own():
    """The same each time, whatever the order of fields and of sets."""
    found = [digest({"value": value, "other": 1}) for value in VALUES]
    assert len({*found}) == len(VALUES)
    assert found == [digest({"other": 1, "value": value}) for value in VALUES]
    letters = [chr(n) for n in range(97, 123)]
    assert digest({"v": {*letters}}) == digest({"v": {*reversed(letters)}})
    assert digest({"v": (1, 2)}) == digest({"v": deque([1, 2])}) == digest({"v": [1, 2]})
    assert digest({"v": UserDict(a=1)}) == digest({"v": {"a": 1}})


def test_a_digest_is_that_of_the_fields_of_any_kind_of_item():
    """In a process of another kind, too: these bytes are in files."""
    kinds = (dict, Product, Attrs, Scrapys)
    found = {digest(kind(name="a", price=1.5)) for kind in kinds}
    assert found == {bytes.fromhex("fa768640c83df0c8a0e3503efc760080")}
    nested = {digest({"p": [kind(name="a", price=1.5)]}) for kind in kinds}
    assert len(nested) == 1


def test_items_count_in_their_order_without_fields_that_are_left_out():
    """A page without items has a digest, too; two items are not one with the fields of both. A
    field is left out of the item itself, not of what is in it."""
    a, b = {"a": 1}, {"b": 1}
    found = {digest(), digest({}), digest(a), digest(b), digest(a, b), digest(b, a), digest(a | b)}
    assert len(found) == 7
    assert digest({"a": 1, "at": 1}, without=["at"]) == digest(a)
    assert digest({"a": {"at": 1}}, without=["at"]) != digest({"a": {"at": 2}}, without=["at"])


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ([{object()}], "(field 'b': it is of builtins.object"),
        ({1: 1, "a": 2}, "(field 'b': '<' not supported"),
        (None, ""),
    ],
)
def test_a_value_without_a_stable_form_equals_nothing(caplog, value, why):
    """One WARNING names its field, if there is one, as a pipeline may have made of the item what it
    likes; whoever leaves that out has a digest again."""
    digests = Digests(CRAWLER, None, None, [])
    item = {"a": 1, "b": value} if value else object()
    assert len({digest_of(digests.add(None, item, PAGE)) for _ in range(3)}) == 3
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert f"An item of <200 http://example.com/page> has no stable form {why}" in record.message
    assert not value or digest(item, without=["b"]) == digest({"a": 1})


ROUNDS = st.lists(
    st.lists(
        st.tuples(
            st.lists(st.integers(0, 3), min_size=1, max_size=2, unique=True),  # keys of a page
            st.sampled_from("abc"),  # what it says
            st.booleans(),  # whether the process is killed then
            st.booleans(),  # whether what waits is delivered then
        ),
        max_size=6,
    ),
    max_size=4,
)


@settings(max_examples=25)
@given(ROUNDS)
def test_verdicts(rounds):
    """As dicts have it: what each page said last, and the first verdict of a round that counts."""
    with tempfile.TemporaryDirectory() as folder:
        store = FileDeltaStore(Path(folder), Lifetime())
        said = {}
        for pages in rounds:
            executor, counted = Temporary(), {}
            for keys, text, is_killed, is_delivered in pages:
                keys = [bytes([key]) * 20 for key in keys]
                marks = Marks(executor)
                found = Digests(CRAWLER, store, marks, []).verdict(keys, text.encode())
                last = next((said[key] for key in reversed(keys) if key in said), None)
                expected = NEW if last is None else UNCHANGED if last == text else CHANGED
                earlier = [counted[key] for key in reversed(keys) if key in counted]
                earlier = earlier[0] if earlier else UNCHANGED
                assert found == (expected if earlier == UNCHANGED else earlier)
                if is_killed:
                    continue
                marks.add([Row(key, None, text.encode()) for key in keys], found)
                said.update(dict.fromkeys(keys, text))
                if counted.get(keys[-1], UNCHANGED) == UNCHANGED:
                    counted[keys[-1]] = found
                totals = {v: [*counted.values()].count(v) for v in counted.values()}
                assert +marks.verdicts == +Marks(executor).verdicts == totals
                if is_delivered:
                    store.add(marks)
            store.add(Marks(executor))
        store.close()


def test_a_store_that_fails_costs_the_comparison_only(caplog):
    """One line says so; no page counts as unchanged."""
    failing = SimpleNamespace(fact=raising(SharedFilterError("Redis is away")))
    digests = Digests(CRAWLER, failing, Marks(Temporary()), [])
    assert [digests.verdict([b"k" * 20], b"d") for _ in range(3)] == [None] * 3
    (record,) = caplog.records
    assert "The delta store failed: Redis is away. No more pages are compared" in record.message


@pytest.mark.parametrize(
    ("given", "missing"),
    [
        ({}, "no JOBDIR and no scrapy-bloom's SCHEDULER and no FEEDS with DurableFeedExporter"),
        (
            {"SCHEDULER": "scrapy_bloom.DurableScheduler", "JOBDIR": "job"},
            "there is no FEEDS with DurableFeedExporter: ",
        ),
    ],
)
def test_items_are_left_out_of_durable_feeds_only(tmp_path, monkeypatch, given, missing):
    """The start is refused without them, and nothing is made."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=f"BLOOM_DELTA_DIGEST is 'skip', .*{missing}"):
        started(BLOOM_DELTA_DIGEST="skip", **given)
    assert [*filter(Path.is_file, tmp_path.rglob("*"))] == []  # Scrapy makes the JOBDIR
