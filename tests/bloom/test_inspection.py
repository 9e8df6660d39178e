"""What is found out about filters on the disk, without touching them."""

import os
import shutil

import pytest

from scrapy_bloom import BloomFilter, FilterFileError, ScalableBloomFilter
from scrapy_bloom.bloom.inspection import describe as describe_with
from scrapy_bloom.bloom.inspection import verify
from scrapy_bloom.bloom.place import Place

pytestmark = pytest.mark.skipif(os.name != "posix", reason="filter files need Linux or macOS")


@pytest.fixture
def place(tmp_path):
    """A filter of three layers, closed."""
    with ScalableBloomFilter(20_000, 1e-3, tmp_path / "bloom") as bloom_filter:
        bloom_filter.update(str(n) for n in range(90_000))
        assert len(bloom_filter.layers) == 3
    return Place.find(str(tmp_path))


def contents(folder):
    """Everything in a folder, byte for byte."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def describe(place):
    """The description of a filter whose identity nobody can read."""
    return describe_with(place, lambda identity: (None, identity))


def unsound(place):
    before = contents(place.path)
    findings = [finding.text for finding in verify(place) if not finding.sound]
    assert contents(place.path) == before
    return findings


def test_layers_are_described(place):
    """Every layer with its own figures; the whole with their sums."""
    before = contents(place.path)
    description = describe(place)
    assert contents(place.path) == before
    with ScalableBloomFilter.open(place.path) as bloom_filter:
        assert [layer.items for layer in description.layers] == [
            len(layer) for layer in bloom_filter.layers
        ]
        assert description.capacity == 20_000 + 40_000 + 80_000
        assert description.expected_pages_lost == bloom_filter.expected_false_positives
        assert description.error_rate_bound == bloom_filter.error_rate == 1e-3


@pytest.mark.parametrize("name", ["", "bloom", "bloom/1.bloom"])
def test_places_may_be_named_in_several_ways(place, name):
    """A job directory, the directory of the filter, a file."""
    found = Place.find(os.path.join(place.name, name))
    found.require()
    assert found.job == (None if name.endswith("1.bloom") else place.path.parent)


def test_sound_filter_is_trusted(place):
    """One finding a file, one for the series."""
    findings = list(verify(place))
    assert len(findings) == 4
    assert all(finding.sound for finding in findings)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: data.__setitem__(50, data[50] ^ 1), "damaged header"),
        (lambda data: data.__delitem__(slice(-1, None)), "truncated"),
        (lambda data: data.extend(b"x"), "longer"),
        (lambda data: data.__setitem__(slice(8192, 8192 + 4096), b"\xff" * 4096), "chance"),
        (lambda data: data.__setitem__(slice(-4096, None), bytes(4096)), "chance"),
        (lambda data: data.__setitem__(slice(8192, None), bytes(len(data) - 8192)), "0 bits"),
    ],
    ids=["header", "truncated", "extended", "page of ones", "page of zeros", "all zeros"],
)
def test_damage_is_found(place, damage, message):
    """In the header, the size, and the bits, where a page is no longer what chance makes."""
    path = place.path / "1.bloom"
    data = bytearray(path.read_bytes())
    damage(data)
    path.write_bytes(data)
    (text,) = unsound(place)
    assert message in text


def test_wrong_count_is_found(place):
    """A state page that is sound by itself and does not fit the bits."""
    with ScalableBloomFilter.open(place.path) as bloom_filter:
        bloom_filter.layers[1]._store.count //= 2
    (text,) = unsound(place)
    assert "its bits tell of" in text


def test_torn_state_is_no_reason_for_mistrust(place):
    """It is recounted when the filter is opened; the finding says so."""
    path = place.path / "0.bloom"
    data = bytearray(path.read_bytes())
    data[4096] ^= 1
    path.write_bytes(data)
    findings = list(verify(place))
    assert all(finding.sound for finding in findings)
    assert "state page is damaged" in findings[0].text
    assert not describe(place).clean


def test_missing_and_foreign_layers_are_found(place, tmp_path):
    """A gap in the series, and a file of another filter in it."""
    with ScalableBloomFilter(20_000, 1e-3, tmp_path / "other") as other:
        other.update(str(n) for n in range(50_000))
    shutil.copy(tmp_path / "other" / "1.bloom", place.path / "1.bloom")
    (text,) = unsound(place)
    assert "another filter" in text
    (place.path / "1.bloom").unlink()
    (text,) = unsound(place)
    assert "1.bloom is missing" in text
    with pytest.raises(FilterFileError, match="missing"):
        describe(place)


def test_read_only_filter_takes_no_keys(place):
    """Looking never changes what is looked at, whatever is tried."""
    before = contents(place.path)
    with ScalableBloomFilter.open(place.path, read_only=True) as bloom_filter:
        assert "5" in bloom_filter
        with pytest.raises(TypeError):
            bloom_filter.add("new")
        bloom_filter.flush()
    with BloomFilter.open(place.path / "0.bloom", read_only=True) as layer:
        assert layer.clean
    assert contents(place.path) == before


def test_files_that_may_only_be_read_are_read(place):
    """Neither write permission nor a lock file is needed."""
    (place.path / "lock").unlink()
    for path in place.files:
        path.chmod(0o400)
    assert describe(place).items > 80_000
    assert not (place.path / "lock").exists()
