"""One contract for the fixed and the growing filter, in memory and in files, exact or not."""

import subprocess
import sys
from functools import partial
from itertools import count
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrapy_bloom import BloomError, BloomFilter, IncompatibleFilterError, ScalableBloomFilter
from scrapy_bloom.bloom import exact_table
from tests.test_refused_start import contents

SECRET = bytes(range(16))


@pytest.fixture(
    params=["fixed", "fixed file", "growing", "growing file", "fixed exact", "growing exact file"]
)
def make(request, kept, tmp_path):
    """A maker of filters of one kind; those with a file have always the same one."""
    kind = BloomFilter if "fixed" in request.param else ScalableBloomFilter
    path = tmp_path / "bloom" if "file" in request.param else None

    def make(capacity=1_000, error_rate=1e-6, **arguments):
        exact = "exact" in request.param
        return kept(kind(capacity, error_rate, path, exact=exact, **arguments))

    make.kind, make.path = kind, path
    return make


def test_text_is_its_utf8(make):
    """A str and its UTF-8 bytes are the same key."""
    bloom_filter = make()
    bloom_filter.add("käse")
    assert "käse".encode() in bloom_filter
    assert bloom_filter.add(bytearray("käse".encode())) is True
    for key in (1, None, ("a",)):
        with pytest.raises(TypeError, match="keys are bytes or str"):
            bloom_filter.add(key)
        with pytest.raises(TypeError, match="keys are bytes or str"):
            key in bloom_filter  # noqa: B015


MOVES = st.lists(
    st.tuples(st.sampled_from(["add"] * 8 + ["look", "reopen"]), st.integers(0, 300)), max_size=400
)


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("kind", [BloomFilter, ScalableBloomFilter])
@given(
    capacity=st.integers(1, 60),
    error_rate=st.sampled_from([0.5, 0.9, 1e-6]),
    moves=MOVES,
    in_file=st.booleans(),
)
def test_it_is_a_set(kind, exact, capacity, error_rate, moves, in_file, tmp_path_factory):
    """Verdicts and number are those of Python's set, over closes and reopenings: without false
    positives, or with a table whose buckets of three keys overflow."""
    path = tmp_path_factory.mktemp("set") / "bloom" if in_file else None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exact_table, "SLOTS", 3)
        opened = partial(kind, capacity, error_rate if exact else 1e-15, path, exact=exact)
        tested, known = opened(), set()
        is_bounded = exact and kind is BloomFilter
        room = tested._newest_first[0].table.limit if is_bounded else inf
        for move, number in moves:
            key = b"%d" % number
            assert (key in tested) is (key in known)
            if move == "reopen" and in_file:
                tested.close()
                tested = opened()
                assert tested.clean
            elif move == "add" and len(known) == room and key not in known:
                with pytest.raises(BloomError, match="all that a filter for"):
                    tested.add(key)
            elif move == "add":
                assert tested.add(key) is (key in known)
                known.add(key)
            assert len(tested) == len(known)
        assert {n for n in range(400) if b"%d" % n in tested} == {*map(int, known)}
        tested.check()
        tested.close()


def test_closed_filter_says_so(make):
    """After `close` a use is an error that names the remedy; closing twice is fine."""
    with make() as bloom_filter:
        bloom_filter.add(b"key")
    bloom_filter.close()
    with pytest.raises(ValueError, match="closed; open it again"):
        bloom_filter.add(b"key")
    with pytest.raises(ValueError, match="closed; open it again"):
        b"key" in bloom_filter  # noqa: B015
    assert len(bloom_filter) == 1
    assert bloom_filter.clean
    assert bloom_filter.expected_false_positives > 0


def test_reopened_filter_is_the_same(make):
    """Keys, count, secret, identity and estimates survive a close and an open."""
    if make.path is None:
        pytest.skip("in memory")
    bloom_filter = make(error_rate=1e-3, identity="whose")
    bloom_filter.update(b"%d" % i for i in range(3_000))
    bloom_filter.flush()
    names = ["secret", "identity", "error_rate", "capacity", "nbytes", "fill_ratio"]
    names += ["current_error_rate", "expected_false_positives", "clean"]
    before = [getattr(bloom_filter, name) for name in names], len(bloom_filter)
    bloom_filter.close()
    with make.kind.open(make.path) as bloom_filter:
        assert ([getattr(bloom_filter, name) for name in names], len(bloom_filter)) == before
        assert all(b"%d" % i in bloom_filter for i in range(3_000))
        bloom_filter.check()


def test_reopening_with_other_parameters(make):
    """A higher error rate keeps the stored one; a lower one or another secret is refused."""
    if make.path is None:
        pytest.skip("in memory")
    make(1_000, 1e-4, secret=SECRET).close()
    bloom_filter = make(1_000, 1e-2)
    assert bloom_filter.error_rate == pytest.approx(1e-4)
    bloom_filter.close()
    file = make.path if make.path.is_file() else make.path / "0.bloom"
    before = file.read_bytes()
    with pytest.raises(IncompatibleFilterError, match=r"made for error rate 0.0001.* lower 1e-05"):
        make(1_000, 1e-5)
    with pytest.raises(IncompatibleFilterError, match="another secret"):
        make(1_000, 1e-4, secret=bytes(16))
    assert file.read_bytes() == before
    make(1_000, 1e-4, secret=SECRET).close()


def test_a_filter_that_may_only_be_read(make):
    """It sees what others add, keeps none of them out, and changes nothing, whatever is tried."""
    if make.path is None:
        pytest.skip("in memory")
    make(100).close()
    with make.kind.open(make.path, read_only=True) as reading:
        with make(100) as writing:
            new = (str(number) for number in count() if str(number) not in writing)
            while len(writing) < 100:
                writing.add(key := next(new))
                assert key in reading
        assert not any(f"absent {number}" in reading for number in range(500))
        before = contents(make.path.parent)
        for attempt in (reading.add, lambda key: reading.update([key])):
            with pytest.raises(TypeError, match="read-only"):
                attempt("new")
        reading.flush()
    assert contents(make.path.parent) == before


def test_secrets_make_filters_differ(make):
    """Random by default, so nobody can work out which keys collide; fixed if given."""
    if make.path is not None:
        pytest.skip("needs several filters")
    assert make().secret != make().secret
    assert make(secret=SECRET).secret == SECRET


def test_filters_need_no_scrapy():
    """Neither the public filters nor anything in their room imports Scrapy."""
    code = (
        "import sys; sys.modules['scrapy'] = None\n"
        "from importlib import import_module; from pkgutil import iter_modules\n"
        "from scrapy_bloom import BloomFilter, ScalableBloomFilter, bloom\n"
        "ScalableBloomFilter(10, 1e-6).add(b'key')\n"
        "for module in iter_modules(bloom.__path__):\n"
        "    import_module(f'scrapy_bloom.bloom.{module.name}')\n"
        "allowed = {'bloom', 'errors', 'files', 'jobdir'}\n"
        "rooms = {name.split('.')[1] for name in sys.modules if name.startswith('scrapy_bloom.')}\n"
        "assert rooms <= allowed, rooms"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
