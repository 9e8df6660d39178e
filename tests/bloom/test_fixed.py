"""Filters of one layer, which are overfilled, copied and joined."""

import pytest

from scrapy_bloom import BloomError, BloomFilter, IncompatibleFilterError, ScalableBloomFilter

SECRET = bytes(range(16))


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
    assert joined.expected_false_positives > 2 * a.expected_false_positives > 0
    assert b"b1" not in a
    assert len(a) == 4_000
    joined.check()
    a.update_from(b)
    assert b"b1" in a
    a.check()


@pytest.mark.parametrize("exact", [False, True])
def test_copy_is_independent(tmp_path, exact):
    """A copy is in memory, equal, and goes its own way."""
    with BloomFilter(1_000, 1e-6, tmp_path / "a", exact=exact) as original:
        original.update(map(str, range(700)))
        copy = original.copy()
        assert copy.path is None
        copy.update(map(str, range(650, 800)))
        assert (len(original), len(copy)) == (700, 800)
        assert [str(n) in original for n in range(900)] == [n < 700 for n in range(900)]
        assert [str(n) in copy for n in range(900)] == [n < 800 for n in range(900)]
        assert copy.expected_false_positives >= original.expected_false_positives > 0
    copy.check()


@pytest.mark.parametrize(
    ("other", "what"),
    [
        ({"capacity": 90_000}, r"different blocks \(1[56] and 4[58]\)"),
        ({"error_rate": 1e-3}, "different (blocks|probes)"),
        ({"secret": bytes(16)}, "different secret cannot"),
        ({"identity": "theirs"}, r"different identity \('' and 'theirs'\)"),
        ({"exact": True}, "exact filters cannot be joined"),
    ],
)
@pytest.mark.parametrize("kind", [BloomFilter, ScalableBloomFilter])
def test_filters_of_other_origin_do_not_join(kind, other, what):
    """It tells what differs, and never the secret; with more layers, too, ours is as it was."""
    arguments = {"capacity": 30_000, "error_rate": 1e-3 / 2, "secret": SECRET}
    ours, theirs = kind(**arguments), kind(**{**arguments, **other})
    theirs.update(map(str, range(31_000)))
    with pytest.raises(IncompatibleFilterError, match=what) as caught:
        ours.update_from(theirs)
    assert SECRET.hex() not in str(caught.value)
    assert repr(SECRET) not in str(caught.value)
    assert (len(ours), ours.fill_ratio) == (0, 0)
    if kind is BloomFilter:
        with pytest.raises(IncompatibleFilterError):
            ours | theirs


@pytest.mark.parametrize("keys", [1, 1_000, 60_000, 65_000])
def test_a_filter_that_errs_often_is_sound(keys):
    """Near an error rate of a tenth its bits tell of more keys than it counts."""
    bloom_filter = BloomFilter(60_000, 0.095)
    bloom_filter.update(b"%d" % i for i in range(keys))
    bloom_filter.check()


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
