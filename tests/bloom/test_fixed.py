"""One contract for the fixed and the growing filter, in memory and in files, and what
only one of them can do."""

import random
import subprocess
import sys
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrapy_bloom import (
    BloomError,
    BloomFilter,
    FilterFileError,
    IncompatibleFilterError,
    ScalableBloomFilter,
)

SECRET = bytes(range(16))


@pytest.fixture(params=["fixed", "fixed file", "growing", "growing file"])
def make(request, tmp_path):
    """A maker of filters of one kind; those with a file have always the same one."""
    kind = BloomFilter if "fixed" in request.param else ScalableBloomFilter
    path = tmp_path / "bloom" if "file" in request.param else None
    opened = []

    def make(capacity=1_000, error_rate=1e-6, **arguments):
        opened.append(kind(capacity, error_rate, path, **arguments))
        return opened[-1]

    make.kind, make.path = kind, path
    yield make
    for bloom_filter in opened:
        bloom_filter.close()


def test_add_tells_whether_the_key_was_there(make):
    """False for a new key, True for a known one: as in pybloom, not as in Redis."""
    bloom_filter = make()
    assert bloom_filter.add(b"key") is False
    assert bloom_filter.add(b"key") is True
    assert bloom_filter.add(b"other") is False
    assert b"key" in bloom_filter
    assert b"third" not in bloom_filter
    assert len(bloom_filter) == 2


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


@given(keys=st.lists(st.binary(max_size=40) | st.text(max_size=20), max_size=60))
def test_added_keys_are_always_found(keys):
    """No false negative, whatever the keys; without false positives `add` is exact."""
    for bloom_filter in (BloomFilter(1_000, 1e-15), ScalableBloomFilter(10, 1e-12)):
        seen = set()
        for key in keys:
            encoded = key.encode() if isinstance(key, str) else key
            assert bloom_filter.add(key) is (encoded in seen)
            seen.add(encoded)
        assert all(key in bloom_filter for key in keys)
        assert len(bloom_filter) == len(seen)
        bloom_filter.check()


def test_update_adds_all(make):
    """`update` takes any iterable."""
    bloom_filter = make()
    bloom_filter.update(str(i) for i in range(300))
    assert len(bloom_filter) == 300
    assert all(str(i) in bloom_filter for i in range(300))
    bloom_filter.check()


def test_estimates_rise_with_the_keys(make):
    """Error rate, fill and expected false positives start at nothing and grow."""
    bloom_filter = make(20_000, 1e-3)
    shown = []
    for _ in range(4):
        shown.append(
            (
                bloom_filter.current_error_rate,
                bloom_filter.fill_ratio,
                bloom_filter.expected_false_positives,
            )
        )
        bloom_filter.update(b"%d" % i for i in range(len(bloom_filter), len(bloom_filter) + 5_000))
    assert shown[0] == (0, 0, 0)
    assert all(
        a < b for before, after in pairwise(shown) for a, b in zip(before, after, strict=True)
    )
    assert 0 < bloom_filter.current_error_rate <= 1e-3


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
    """A higher error rate keeps the stored one; a lower one or another secret is
    refused with the reason, and the file stays as it is."""
    if make.path is None:
        pytest.skip("in memory")
    make(1_000, 1e-4, secret=SECRET).close()
    bloom_filter = make(1_000, 1e-2)
    assert bloom_filter.error_rate == pytest.approx(1e-4)
    bloom_filter.close()
    file = make.path if make.path.is_file() else make.path / "0.bloom"
    before = file.read_bytes()
    with pytest.raises(IncompatibleFilterError, match=r"made for error rate 0.0001 .* lower 1e-05"):
        make(1_000, 1e-5)
    with pytest.raises(IncompatibleFilterError, match="another secret"):
        make(1_000, 1e-4, secret=bytes(16))
    assert file.read_bytes() == before
    make(1_000, 1e-4, secret=SECRET).close()


def test_secrets_make_filters_differ(make):
    """Random by default, so nobody can work out which keys collide; fixed if given."""
    if make.path is not None:
        pytest.skip("needs several filters")
    assert make().secret != make().secret
    assert make(secret=SECRET).secret == SECRET


def test_fixed_filter_beyond_capacity_accepts():
    """Too many keys are taken, and the estimate tells what that costs."""
    bloom_filter = BloomFilter(10_000, 1e-4)
    bloom_filter.update(b"%d" % i for i in range(10_000))
    assert bloom_filter.current_error_rate <= 1e-4
    bloom_filter.update(b"%d" % i for i in range(10_000, 30_000))
    assert bloom_filter.current_error_rate > 1e-2
    assert all(b"%d" % i in bloom_filter for i in range(30_000))


def test_fixed_filter_does_not_grow_on_reopening(tmp_path):
    """A file with a smaller capacity than asked is refused, a larger one is fine."""
    BloomFilter(10_000, 1e-4, tmp_path / "a").close()
    with pytest.raises(IncompatibleFilterError, match=r"capacity 10,000, not the 20,000"):
        BloomFilter(20_000, 1e-4, tmp_path / "a")
    with BloomFilter(5_000, 1e-4, tmp_path / "a") as bloom_filter:
        assert bloom_filter.capacity == 10_000


def test_filters_of_one_origin_join():
    """The union knows the keys of both; the parts stay as they were."""
    a = BloomFilter(10_000, 1e-6, secret=SECRET)
    b = BloomFilter(10_000, 1e-6, secret=SECRET)
    a.update(b"a%d" % i for i in range(4_000))
    b.update(b"b%d" % i for i in range(4_000))
    joined = a | b
    assert all(b"a%d" % i in joined and b"b%d" % i in joined for i in range(4_000))
    assert len(joined) == pytest.approx(8_000, rel=0.01)
    expected = a.expected_false_positives + b.expected_false_positives
    assert joined.expected_false_positives == pytest.approx(expected)
    assert b"b1" not in a
    assert len(a) == 4_000
    joined.check()
    a.update_from(b)
    assert b"b1" in a
    a.check()


def test_copy_is_independent(tmp_path):
    """A copy is in memory, equal, and goes its own way."""
    with BloomFilter(1_000, 1e-6, tmp_path / "a") as original:
        original.update(b"%d" % i for i in range(100))
        copy = original.copy()
        assert len(copy) == 100
        assert copy.path is None
        copy.add(b"new")
        assert b"new" not in original
        assert b"5" in copy
        assert copy.expected_false_positives >= original.expected_false_positives > 0
    copy.check()


@pytest.mark.parametrize(
    ("other", "what"),
    [
        ({"capacity": 90_000}, r"different blocks \(15 and 45\)"),
        ({"error_rate": 1e-3}, "different (blocks|probes)"),
        ({"secret": bytes(16)}, "different secret cannot"),
        ({"identity": "theirs"}, r"different identity \('' and 'theirs'\)"),
    ],
)
def test_filters_of_other_origin_do_not_join(other, what):
    """The refusal tells what differs, and never the secret."""
    arguments = {"capacity": 30_000, "error_rate": 1e-3 / 2, "secret": SECRET}
    ours = BloomFilter(**arguments)
    theirs = BloomFilter(**{**arguments, **other})
    theirs.add(b"theirs")
    with pytest.raises(IncompatibleFilterError, match=what) as caught:
        ours | theirs
    assert SECRET.hex() not in str(caught.value)
    assert repr(SECRET) not in str(caught.value)
    with pytest.raises(IncompatibleFilterError):
        ours.update_from(theirs)
    assert b"theirs" not in ours


def test_growth_follows_the_plan(tmp_path):
    """Each layer doubles the last and halves its error rate; old answers stay; the sum
    of the layers' error rates stays under the bound; one file a layer."""
    with ScalableBloomFilter(1_000, 1e-2, tmp_path / "bloom") as bloom_filter:
        for i in range(20_000):
            bloom_filter.add(b"%d" % i)
            if i % 997 == 0:
                assert bloom_filter.current_error_rate <= 1e-2
        assert [layer.capacity for layer in bloom_filter.layers] == [
            1_000,
            2_000,
            4_000,
            8_000,
            16_000,
        ]
        assert [layer.error_rate for layer in bloom_filter.layers] == [
            pytest.approx(1e-2 * 0.5**n) for n in range(1, 6)
        ]
        assert all(b"%d" % i in bloom_filter for i in range(20_000))
        bloom_filter.check()
        names = sorted(path.name for path in (tmp_path / "bloom").iterdir())
        assert names == [*(f"{n}.bloom" for n in range(5)), "lock"]
    for n in range(5):
        with BloomFilter.open(tmp_path / "bloom" / f"{n}.bloom") as layer:
            layer.check()


def test_next_layer_follows_the_capacity_asked_for(tmp_path):
    """Reopened with a larger capacity, the filter grows to it at once when full."""
    with ScalableBloomFilter(1_000, 1e-3, tmp_path / "bloom") as bloom_filter:
        bloom_filter.update(b"%d" % i for i in range(900))
    with ScalableBloomFilter(50_000, 1e-3, tmp_path / "bloom") as bloom_filter:
        assert len(bloom_filter.layers) == 1
        bloom_filter.update(b"%d" % i for i in range(1_200))
        assert bloom_filter.layers[1].capacity == 50_000 - len(bloom_filter.layers[0])
    with ScalableBloomFilter(10, 1e-3, tmp_path / "bloom") as bloom_filter:
        assert len(bloom_filter.layers) == 2
        bloom_filter.check()


def test_filter_that_may_not_grow_overfills():
    """With `growing` off the newest layer takes what comes."""
    bloom_filter = ScalableBloomFilter(1_000, 1e-3)
    bloom_filter.growing = False
    bloom_filter.update(b"%d" % i for i in range(3_000))
    assert len(bloom_filter.layers) == 1
    assert all(b"%d" % i in bloom_filter for i in range(3_000))


def test_expected_false_positives_counts_all_layers():
    """The sum over new keys of the error rate that each of them met, by hand."""
    bloom_filter = ScalableBloomFilter(1_000, 0.05)
    by_hand = 0.0
    for i in range(12_000):
        if i % 50 == 0:
            rate = bloom_filter.current_error_rate
        if not bloom_filter.add(b"%d" % i):
            by_hand += rate
    assert bloom_filter.expected_false_positives == pytest.approx(by_hand, rel=0.05)


def layered(tmp_path, name="bloom", **arguments):
    """A closed growing filter of three layers in files."""
    with ScalableBloomFilter(1_000, 1e-3, tmp_path / name, **arguments) as bloom_filter:
        bloom_filter.update(b"%d" % i for i in range(5_000))
        assert len(bloom_filter.layers) == 3
    return tmp_path / name


def test_missing_layer_is_refused(tmp_path):
    """Without one of its layers the filter would have forgotten keys."""
    directory = layered(tmp_path)
    (directory / "1.bloom").rename(tmp_path / "elsewhere")
    with pytest.raises(FilterFileError, match=r"1\.bloom is missing, and there is a 2\.bloom"):
        ScalableBloomFilter.open(directory)
    (tmp_path / "elsewhere").rename(directory / "1.bloom")
    ScalableBloomFilter.open(directory).close()


@pytest.mark.parametrize(
    ("other", "what"),
    [
        ({}, "its secret differs"),
        ({"identity": "theirs", "secret": SECRET}, "its identity differs"),
    ],
)
def test_layer_of_another_filter_is_refused(tmp_path, other, what):
    """A layer that was copied in from another filter is recognised."""
    ours = layered(tmp_path, secret=SECRET)
    theirs = layered(tmp_path, "theirs", **other)
    (theirs / "1.bloom").replace(ours / "1.bloom")
    with pytest.raises(FilterFileError, match=what):
        ScalableBloomFilter(1_000, 1e-3, ours)


def test_layer_in_the_wrong_place_is_refused(tmp_path):
    """A layer under another's number is recognised by its error rate."""
    directory = layered(tmp_path)
    (directory / "2.bloom").replace(directory / "1.bloom")
    with pytest.raises(FilterFileError, match="its error rate differs"):
        ScalableBloomFilter.open(directory)


def test_one_damaged_layer_refuses_all_and_changes_none(tmp_path):
    """The other layers are neither marked nor changed when one cannot be read."""
    directory = layered(tmp_path)
    damaged = bytearray((directory / "2.bloom").read_bytes())
    damaged[100] ^= 1
    (directory / "2.bloom").write_bytes(damaged)
    before = {path.name: path.read_bytes() for path in directory.glob("*.bloom")}
    with pytest.raises(FilterFileError, match=r"2\.bloom"):
        ScalableBloomFilter(1_000, 1e-3, directory)
    assert {path.name: path.read_bytes() for path in directory.glob("*.bloom")} == before


def test_file_in_the_place_of_the_directory_is_refused(tmp_path):
    """A growing filter never replaces a file by its directory."""
    (tmp_path / "bloom").write_bytes(b"mine")
    with pytest.raises(FilterFileError, match="not a directory"):
        ScalableBloomFilter(1_000, 1e-3, tmp_path / "bloom")
    assert (tmp_path / "bloom").read_bytes() == b"mine"


def test_check_finds_a_wrong_count():
    """`check` compares the count with the bits."""
    bloom_filter = BloomFilter(10_000, 1e-6)
    bloom_filter.update(b"%d" % i for i in range(1_000))
    bloom_filter._store.count = 2_000
    with pytest.raises(BloomError, match="counts 2,000 keys, its bits tell of "):
        bloom_filter.check()
    bloom_filter._store.count = 0
    with pytest.raises(BloomError, match="bits set for 0 keys"):
        bloom_filter.check()


def test_random_operations_against_a_set(tmp_path):
    """A long random life with closes and reopenings: never a false negative, and the
    count is exact as long as there is no false positive (1e-12)."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    model = set()
    bloom_filter = ScalableBloomFilter(100, 1e-12, tmp_path / "bloom")
    for _ in range(20_000):
        key = b"%d" % rng.randrange(8_000)
        assert (key in bloom_filter) is (key in model)
        if rng.random() < 0.5:
            assert bloom_filter.add(key) is (key in model)
            model.add(key)
        if rng.random() < 0.001:
            bloom_filter.check()
            bloom_filter.close()
            bloom_filter = ScalableBloomFilter(rng.randrange(1, 5_000), 1e-12, tmp_path / "bloom")
            assert len(bloom_filter) == len(model)
    bloom_filter.close()


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
