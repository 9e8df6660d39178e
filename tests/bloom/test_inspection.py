"""What is found out about filters on the disk, without touching them."""

import os
import shutil

import pytest

from scrapy_bloom import BloomFilter, FilterFileError, ScalableBloomFilter
from scrapy_bloom.bloom.inspection import describe as describe_with
from scrapy_bloom.bloom.inspection import verify
from tests.test_refused_start import contents


@pytest.fixture
def path(tmp_path):
    """A filter of three layers, closed."""
    with ScalableBloomFilter(20_000, 1e-3, tmp_path / "bloom") as bloom_filter:
        bloom_filter.update(str(n) for n in range(90_000))
        assert len(bloom_filter.layers) == 3
    return tmp_path / "bloom"


def describe(path):
    """The description of a filter whose identity nobody can read."""
    return describe_with(str(path), path, lambda identity: (None, identity))


def unsound(path):
    before = contents(path)
    findings = [finding.text for finding in verify(path) if not finding.sound]
    assert contents(path) == before
    return findings


def test_layers_are_described(path):
    """Every layer with its own figures; the whole with their sums."""
    before = contents(path)
    description = describe(path)
    assert contents(path) == before
    with ScalableBloomFilter.open(path) as bloom_filter:
        for told, layer in zip(description.layers, bloom_filter.layers, strict=True):
            assert told.items == len(layer)
            assert told.error_rate <= told.error_rate_bound == layer.error_rate
            assert told.error_rate == layer.current_error_rate
            assert told.bits == 8 * layer.nbytes
            assert told.probes == layer.header.probes
            assert told.fill_ratio == pytest.approx(layer.fill_ratio)
        assert description.items == len(bloom_filter)
        assert description.items_exact
        assert description.bits == 8 * description.bytes == 8 * bloom_filter.nbytes
        assert description.bits == sum(layer.bits for layer in description.layers)
        assert description.file_bytes == sum(file.stat().st_size for file in path.glob("*.bloom"))
        assert description.fill_ratio == bloom_filter.fill_ratio
        assert description.error_rate == bloom_filter.current_error_rate
        assert (description.clean, description.held_by) == (True, None)
        assert description.capacity == 20_000 + 40_000 + 80_000
        assert description.expected_pages_lost == bloom_filter.expected_false_positives
        assert description.error_rate_bound == bloom_filter.error_rate == 1e-3


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("name", ["new.bloom", "new"])
def test_an_open_filter_is_held_by_its_process(tmp_path, name, exact):
    """Its number of keys is estimated meanwhile, unless it is exact."""
    kind, path = BloomFilter if "." in name else ScalableBloomFilter, tmp_path / name
    with kind(1_000, 1e-3, path, exact=exact) as bloom_filter:
        bloom_filter.update(map(str, range(500)))
        description = describe(path)
        assert description.held_by == os.getpid()
        assert (description.clean, description.items_exact) == (False, exact)
        assert description.items == pytest.approx(500, abs=0 if exact else 25)
        assert description.table_bytes == bloom_filter.table_nbytes
        assert (description.table_bytes > 0) is exact
        text = next(iter(verify(path))).text
        assert "(or in use)" in text
        assert f"by its {'exact table it holds 500' if exact else 'bits it holds about '}" in text
    assert describe(path).held_by is None


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
def test_damage_is_found(path, damage, message):
    """In the header, the size, and the bits, where a page is no longer what chance makes."""
    file = path / "1.bloom"
    data = bytearray(file.read_bytes())
    damage(data)
    file.write_bytes(data)
    (text,) = unsound(path)
    assert message in text


@pytest.mark.parametrize("number", range(3))
def test_torn_state_is_no_reason_for_mistrust(path, number):
    """It is counted again at an opening, which is told. Each file has a finding, the series one."""
    file = path / f"{number}.bloom"
    data = bytearray(file.read_bytes())
    data[4096] ^= 1
    file.write_bytes(data)
    findings = list(verify(path))
    files = [str(path / f"{number}.bloom") for number in range(3)]
    assert [(finding.path, finding.sound) for finding in findings] == [
        (name, True) for name in (*files, "")
    ]
    assert "state page is damaged" in findings[number].text
    assert not describe(path).clean


def test_missing_and_foreign_layers_are_found(path, tmp_path):
    """A gap in the series, and a file of another filter in it."""
    with ScalableBloomFilter(20_000, 1e-3, tmp_path / "other") as other:
        other.update(str(n) for n in range(50_000))
    shutil.copy(tmp_path / "other" / "1.bloom", path / "1.bloom")
    (text,) = unsound(path)
    assert "another filter" in text
    (path / "1.bloom").unlink()
    (text,) = unsound(path)
    assert "1.bloom is missing" in text
    with pytest.raises(FilterFileError, match="missing"):
        describe(path)


def test_files_that_may_only_be_read_are_read(path):
    """No write permission is needed."""
    for file in path.iterdir():
        file.chmod(0o400)
    assert describe(path).items > 80_000
