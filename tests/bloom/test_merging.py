"""Filters joined on the disk: what goes in is there, and the numbers stay plausible."""

import os
import shutil

import pytest

from scrapy_bloom import BloomFilter, IncompatibleFilterError, ScalableBloomFilter
from scrapy_bloom.bloom.merging import merge
from scrapy_bloom.bloom.place import Place

pytestmark = pytest.mark.skipif(os.name != "posix", reason="filter files need Linux or macOS")


def place(kind, path, keys, secret, capacity=3_000):
    """The place of a closed filter of these keys."""
    with kind(capacity, 1e-6, path, secret=secret) as made:
        made.update(map(str, keys))
        assert len(made) == len(keys)
    return Place.find(str(path))


@pytest.mark.parametrize("suffix", [".bloom", ""])
def test_no_merge_makes_items_fewer_or_more_than_all(tmp_path, suffix):
    """Whatever chance makes of the bits: at least as many items as in the larger filter,
    at most the sum, and exactly those of a filter that nothing is added to."""
    kind = BloomFilter if suffix else ScalableBloomFilter
    for number in range(6):
        secret = bytes([number]) * 16
        ours = place(kind, tmp_path / f"ours{number}{suffix}", range(1_000), secret)
        part = place(kind, tmp_path / f"part{number}{suffix}", range(300, 500), secret)
        none = place(kind, tmp_path / f"none{number}{suffix}", [], secret)
        more = place(kind, tmp_path / f"more{number}{suffix}", range(900, 1_200), secret)
        assert merge(ours, [none]) == (1_000, 1_000)
        before, with_part = merge(ours, [part, none])
        assert before == 1_000
        assert 1_000 <= with_part <= 1_200
        before, after = merge(ours, [more])
        assert before == with_part
        assert before <= after <= before + 300
        assert merge(none, [part])[1] == 200
        with ours.open(read_only=True) as found:
            assert len(found) == after == pytest.approx(1_200, rel=0.03)
            assert all(str(key) in found for key in range(1_200))
            found.check()


def test_layers_are_joined_one_by_one(tmp_path):
    """A copy that has grown in its own way gives its new layers too; the sources stay."""
    secret = bytes(16)
    ours = place(ScalableBloomFilter, tmp_path / "ours", range(2_500), secret)
    shutil.copytree(ours.path, tmp_path / "copy")
    with ScalableBloomFilter.open(tmp_path / "copy") as grown:
        grown.update(map(str, range(2_500, 6_000)))
        assert len(grown.layers) == 2
    copy = Place.find(str(tmp_path / "copy"))
    before = {path: path.read_bytes() for path in copy.files}
    assert merge(ours, [copy]) == (2_500, pytest.approx(6_000, rel=0.01))
    assert {path: path.read_bytes() for path in copy.files} == before
    with ours.open() as found:
        assert all(str(key) in found for key in range(6_000))
        assert found.clean
        found.check()


def test_refused_merge_changes_nothing(tmp_path):
    """All sources are looked at before the first is joined."""
    secret = bytes(16)
    ours = place(BloomFilter, tmp_path / "ours.bloom", range(2_000), secret)
    fits = place(BloomFilter, tmp_path / "fits.bloom", range(2_000, 2_500), secret)
    full = place(BloomFilter, tmp_path / "full.bloom", range(3_000, 5_900), secret)
    foreign = place(BloomFilter, tmp_path / "foreign.bloom", range(10), bytes(range(16)))
    before = ours.path.read_bytes()
    for unfit, why in ((full, "was made for 3,000"), (foreign, "different secret")):
        with pytest.raises(IncompatibleFilterError, match=why):
            merge(ours, [fits, unfit])
        assert ours.path.read_bytes() == before
    before, after = merge(ours, [full], over_capacity=True)
    assert after == pytest.approx(4_900, rel=0.03)
