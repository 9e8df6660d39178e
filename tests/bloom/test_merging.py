"""Filters joined on the disk: what goes in is there, and the numbers stay plausible."""

import os
import shutil

import pytest

from scrapy_bloom import BloomFilter, IncompatibleFilterError, ScalableBloomFilter
from scrapy_bloom.bloom import layer_paths
from scrapy_bloom.bloom.inspection import open_filter
from scrapy_bloom.bloom.merging import merge


def made(kind, path, keys, secret, capacity=3_000):
    """The path of a closed filter of these keys."""
    with kind(capacity, 1e-6, path, secret=secret) as new:
        new.update(map(str, keys))
        assert len(new) == len(keys)
    return path


@pytest.mark.parametrize("suffix", [".bloom", ""])
def test_no_merge_makes_items_fewer_or_more_than_all(tmp_path, suffix):
    """As many as in the larger filter at least, and the sum at most."""
    kind = BloomFilter if suffix else ScalableBloomFilter
    for number in range(6):
        secret = bytes([number]) * 16
        ours = made(kind, tmp_path / f"ours{number}{suffix}", range(1_000), secret)
        part = made(kind, tmp_path / f"part{number}{suffix}", range(300, 500), secret)
        none = made(kind, tmp_path / f"none{number}{suffix}", [], secret)
        more = made(kind, tmp_path / f"more{number}{suffix}", range(900, 1_200), secret)
        assert merge(ours, [none]) == (1_000, 1_000)
        before, with_part = merge(ours, [part, none])
        assert before == 1_000
        assert 1_000 <= with_part <= 1_200
        before, after = merge(ours, [more])
        assert before == with_part
        assert before <= after <= before + 300
        assert merge(none, [part])[1] == 200
        with open_filter(ours, read_only=True) as found:
            assert len(found) == after == pytest.approx(1_200, rel=0.03)
            assert all(str(key) in found for key in range(1_200))
            found.check()


def test_layers_are_joined_one_by_one(tmp_path):
    """A copy that has grown in its own way gives its new layers too; the sources stay."""
    secret = bytes(16)
    ours = made(ScalableBloomFilter, tmp_path / "ours", range(2_500), secret)
    shutil.copytree(ours, tmp_path / "copy")
    with ScalableBloomFilter.open(tmp_path / "copy") as grown:
        grown.update(map(str, range(2_500, 6_000)))
        assert len(grown.layers) == 2
    copy = tmp_path / "copy"
    before = {path: path.read_bytes() for path in layer_paths(copy)}
    assert merge(ours, [copy]) == (2_500, pytest.approx(6_000, rel=0.01))
    assert {path: path.read_bytes() for path in layer_paths(copy)} == before
    with open_filter(ours) as found:
        assert all(str(key) in found for key in range(6_000))
        assert found.clean
        found.check()


def test_refused_merge_changes_nothing(tmp_path):
    """All sources are looked at before the first is joined."""
    secret = bytes(16)
    ours = made(BloomFilter, tmp_path / "ours.bloom", range(2_000), secret)
    fits = made(BloomFilter, tmp_path / "fits.bloom", range(2_000, 2_500), secret)
    full = made(BloomFilter, tmp_path / "full.bloom", range(3_000, 5_900), secret)
    foreign = made(BloomFilter, tmp_path / "foreign.bloom", range(10), bytes(range(16)))
    before = ours.read_bytes()
    grows = made(ScalableBloomFilter, tmp_path / "grows", range(10), secret)
    refused = {
        full: "was made for 3,000",
        foreign: "different secret",
        ours: "destination itself",
        grows: "in a directory",
    }
    for unfit, why in refused.items():
        with pytest.raises(IncompatibleFilterError, match=why) as _refused:
            merge(ours, [fits, unfit])
        assert ours.read_bytes() == before
        if os.path.isdir("/proc/self/fd"):  # also while the error is looked at
            opened = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
            places = [os.readlink(name) for name in opened if os.path.lexists(name)]
            assert not [place for place in places if place.startswith(str(tmp_path))]
    before, after = merge(ours, [full], over_capacity=True)
    assert after == pytest.approx(4_900, rel=0.03)
