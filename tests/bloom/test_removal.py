"""Filters removed from the disk: all of it, in an order that an interruption does not harm."""

import os
from pathlib import Path

import pytest

from scrapy_bloom import BloomFilter, FilterFileError, FilterLockedError, ScalableBloomFilter
from scrapy_bloom.bloom.removal import remove_filter


@pytest.fixture
def directory(tmp_path):
    """A closed filter of four layers with 1,100 keys."""
    with ScalableBloomFilter(100, 1e-6, tmp_path / "bloom") as made:
        made.update(map(str, range(1_100)))
        assert len(made.layers) == 4
    return tmp_path / "bloom"


@pytest.mark.parametrize("foreign", [[], ["notes.txt"]])
def test_all_of_a_filter_goes_and_nothing_else(directory, foreign):
    """Layers, what a killed growth has left, and the directory if it is empty."""
    (directory / ".ab.0.bloom.tmp").write_bytes(b"half a layer")
    for name in foreign:
        (directory / name).write_text("mine")
    removed = remove_filter(directory)
    assert [path.name for path in removed] == ["3.bloom", "2.bloom", "1.bloom", "0.bloom"]
    assert [path.name for path in directory.glob("*")] == foreign
    assert directory.exists() is bool(foreign)


@pytest.mark.parametrize("survived", range(4))
def test_interrupted_removal_leaves_a_filter(directory, monkeypatch, survived):
    """After any step there is one that knows its oldest keys, or nothing."""
    unlink, removed = Path.unlink, []

    def failing(path, **options):
        if len(removed) == survived:
            raise OSError("interrupted")
        removed.append(path)
        unlink(path, **options)

    monkeypatch.setattr(Path, "unlink", failing)
    with pytest.raises(OSError, match="interrupted"):
        remove_filter(directory)
    monkeypatch.undo()
    with ScalableBloomFilter.open(directory) as left:
        assert len(left.layers) == 4 - survived
        assert all(str(key) in left for key in range(min(1_100, 100 * (2 ** (4 - survived) - 1))))
        left.check()


def test_filter_in_use_stays(directory, tmp_path):
    """Neither a directory nor a file that somebody has open is removed."""
    with ScalableBloomFilter.open(directory) as used:
        with pytest.raises(FilterLockedError, match=f"in use by process {os.getpid()}"):
            remove_filter(directory)
        assert all(str(key) in used for key in range(1_100))
    with BloomFilter(100, 1e-6, tmp_path / "a.bloom"):
        with pytest.raises(FilterLockedError, match=f"in use by process {os.getpid()}"):
            remove_filter(tmp_path / "a.bloom")
        assert (tmp_path / "a.bloom").exists()
    assert remove_filter(tmp_path / "a.bloom") == [tmp_path / "a.bloom"]
    assert [path.name for path in tmp_path.iterdir()] == ["bloom"]


def test_file_that_is_none_of_ours_stays(directory):
    """One file of another program among the layers, and none of them is removed."""
    foreign = directory / "2.bloom"
    foreign.write_bytes(b"not ours")
    with pytest.raises(FilterFileError, match="not a filter file"):
        remove_filter(directory)
    assert len(list(directory.glob("*.bloom"))) == 4
    assert foreign.read_bytes() == b"not ours"
