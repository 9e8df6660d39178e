"""The contract of delta stores: a table in a directory, slices in Redis, and on a Cluster."""

from contextlib import closing
from random import Random

import pytest

from scrapy_bloom.delta.file_store import FACTS, FileDeltaStore, Row
from scrapy_bloom.delta.redis_store import SLICES, RedisDeltaStore
from scrapy_bloom.delta.settings import Lifetime

HOUR = 3600.0
PERIOD = 8 * HOUR
NOON = 1_800_000_000.0
KEYS = [bytes([number]) * 20 for number in range(6)]
ONE, TWO, THREE, FOUR = KEYS[:4]
DIGESTS = [bytes([letter]) * 16 for letter in b"ab"]
FULL = (DIGESTS[0], b"v" * 8, b"validators")
LATE = NOON + 100 * PERIOD


@pytest.fixture(params=["table", "server", "cluster"])
def kind(request):
    """Where it is."""
    return request.param


@pytest.fixture
def opened(kind, request, tmp_path):
    """A function that opens the store with a clock that stands."""

    def open_at(now=NOON, period=PERIOD):
        lifetime = Lifetime(period, "ours")
        if kind == "table":
            made = FileDeltaStore(tmp_path / "memory", lifetime, lambda: now)
        else:
            server, key = map(request.getfixturevalue, (f"redis_{kind}", "key"))
            made = RedisDeltaStore(server.url, key, lifetime, 5.0, clock=lambda: now)
        made.open()
        return closing(made)

    return open_at


@pytest.mark.parametrize("seed", range(3))
def test_a_mark_counts_for_the_period_and_no_longer_than_a_slice_after_it(opened, kind, seed):
    """As a dict of the times has it; a request may ask for less, and gets no more than that."""
    chance, now, marked = Random(seed), NOON, {}
    slack = 0 if kind == "table" else PERIOD / SLICES
    for _ in range(8):
        now += chance.uniform(0, 6 * HOUR)
        with opened(now) as store:
            for key in KEYS:
                age = now - marked.get(key, -1e12)
                for days in (None, 2 * HOUR, 2 * PERIOD):
                    period = min(days or PERIOD, PERIOD)
                    until = store.known_until(key, days)
                    late, early = (slack, 0) if period == PERIOD else (0, slack)
                    assert age <= period + late if until else age > period - early
                    assert until == 0 or now <= until <= now - age + period + late
            gone = chance.choice(KEYS)
            is_known = bool(store.known_until(gone))
            assert store.forget([gone]) in ({is_known} if slack == 0 else {is_known, True})
            assert not store.known_until(gone)
            marked.pop(gone, None)
            new = chance.sample(KEYS, 2)
            store.add([(key, now) for key in new])
            marked |= dict.fromkeys(new, now)


@pytest.mark.parametrize(
    ("period", "marked", "ages"),
    [
        (PERIOD, 0, {0: True, 3 * HOUR: True, PERIOD: True, PERIOD + HOUR + 1: False}),
        (None, 0, {0: True, 1000 * PERIOD: True}),
        # from a job whose clock was ahead: it is one of now
        (PERIOD, 1000 * PERIOD, {0: True, 10 * HOUR: False, 1000 * PERIOD: False}),
    ],
)
def test_a_mark_counts_to_its_last_second(opened, period, marked, ages):
    """Whoever opens the store at whatever time in between, and however often it is added."""
    for _ in range(2):
        with opened(NOON, period) as store:
            store.add([(ONE, NOON + marked)])
    for age, is_known in ages.items():
        for days in (-300, 0.1):
            with opened(NOON + days * 24 * HOUR, period):
                pass
        with opened(NOON + age, period) as store:
            assert bool(store.known_until(ONE)) is is_known, age
            assert not store.known_until(TWO)


@pytest.mark.parametrize("fact", FACTS)
def test_a_fact_outlives_its_mark_and_a_newer_one_takes_its_place(opened, fact):
    """A mark without one leaves it; a page that has only a fact is not done."""
    first, second = DIGESTS
    pages = Row(ONE, NOON, **{fact: first}), Row(TWO, None, **{fact: second})
    with opened() as store:
        store.add([*pages, (ONE, NOON)])
        assert [store.known_until(key) > 0 for key in (ONE, TWO)] == [True, False]
    with opened(LATE) as store:
        assert [store.fact(key, fact) for key in (ONE, TWO, THREE)] == [first, second, None]
        assert not any(map(store.known_until, (ONE, TWO, THREE)))
        store.add([Row(ONE, LATE, **{fact: second})])
        assert (store.fact(ONE, fact), store.known_until(ONE) > 0) == (second, True)


def test_what_is_there_is_listed_forgotten_and_cleared(opened, kind):
    """All of it, or what was done before a time; a clear is for any fingerprinter."""
    with opened() as store:
        store.add([(ONE, NOON), Row(TWO, None, *FULL), Row(THREE, NOON, DIGESTS[1])])
        store.add([Row(FOUR, None, None, b"v" * 8)])
    with opened() as store:
        start = NOON if kind == "table" else NOON // HOUR * HOUR
        rows = {Row(ONE, start), Row(THREE, start, DIGESTS[1])}
        others = {Row(TWO, None, *FULL), Row(FOUR, None, None, b"v" * 8)}
        assert sorted(store.marks(None)) == sorted({*rows, *others})
        assert {*store.marks(NOON + 2 * HOUR)} == rows
        assert {*store.marks(NOON - 9 * HOUR)} == set()
        assert store.identity == "ours"
        assert store.digests == 2
        assert [store.forget([TWO, THREE, FOUR]), store.forget([TWO])] == [3, 0]
        assert {*store.marks(None)} == {Row(ONE, start)}
        dropped = store.drop_older(HOUR)
    with opened(NOON + 5 * HOUR) as store:
        assert (dropped, store.known_until(ONE) > 0) == ((0, []), True)
        store.add([Row(key, NOON, *FULL) for key in (ONE, TWO)])
        store.add([(TWO, NOON + 4 * HOUR)])
        count, slices = store.drop_older(2 * HOUR)
        assert count + len(slices) == 1
        assert not store.known_until(ONE)
        assert [store.fact(ONE, name) for name in FACTS] == [None] * 3
        assert [store.fact(TWO, name) for name in FACTS] == [*FULL]
        store.add([Row(TWO, NOON, *FULL)])
        store.clear()
    with opened() as store:
        assert [*store.marks(None)] == []
        assert [store.fact(TWO, name) for name in FACTS] == [None] * 3
        assert not store.known_until(TWO)
