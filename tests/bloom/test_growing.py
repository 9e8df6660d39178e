"""How a filter grows, and which directories of layers it takes for its own."""

import errno
import os
import shutil
from functools import partial
from pathlib import Path

import pytest

from scrapy_bloom import (
    BloomError,
    BloomFilter,
    FilterFileError,
    FilterLockedError,
    ScalableBloomFilter,
)
from scrapy_bloom.bloom.file import PAGE, State
from tests.fakes import raising
from tests.test_refused_start import contents

SECRET = bytes(range(16))


@pytest.mark.parametrize(("error_rate", "probes"), [(0.3, 6), (1e-15, 14)])
@pytest.mark.parametrize("name", [None, "bloom"])
def test_growth_comes_with_the_first_key_too_many(tmp_path, name, error_rate, probes):
    """It goes to a layer of twice the capacity and half the error rate; known keys make none."""
    path = name and tmp_path / name
    with ScalableBloomFilter(50, error_rate, path) as bloom_filter:
        assert bloom_filter.layers[0].header.probes == probes
        new = (key for key in map(str, range(10_000)) if key not in bloom_filter)
        for layers, capacity in enumerate((50, 100, 200), 1):
            for count in range(capacity):
                key = next(new)
                assert not bloom_filter.add(key)
                assert key in bloom_filter
                assert bloom_filter.add(key)
                assert [len(layer) for layer in bloom_filter.layers] == [
                    *(50 * 2**full for full in range(layers - 1)),
                    count + 1,
                ]
        rates = [layer.error_rate for layer in bloom_filter.layers]
        assert rates == pytest.approx([error_rate / 2, error_rate / 4, error_rate / 8])
        bloom_filter.check()


def test_a_filter_of_more_than_ten_layers_opens_as_it_was(tmp_path):
    """The tenth comes after the ninth, whatever the names of the files begin with."""
    made = []
    for _ in range(2):
        with ScalableBloomFilter(1, 1e-2, tmp_path / "bloom") as bloom_filter:
            bloom_filter.update(map(str, range(1_500)))
            made.append([len(layer) for layer in bloom_filter.layers])
    assert made[0] == made[1]
    assert len(made[0]) == 11


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


@pytest.mark.parametrize(("error_rate", "exact"), [(0.05, False), (0.5, True)])
def test_expected_false_positives_counts_all_layers(error_rate, exact):
    """The sum over new keys of the error rate that each of them met, by hand."""
    bloom_filter = ScalableBloomFilter(1_000, error_rate, exact=exact)
    by_hand = 0.0
    for i in range(12_000):
        if i % 20 == 0:
            rate = bloom_filter.current_error_rate
        if not bloom_filter.add(b"%d" % i):
            by_hand += rate
    assert bloom_filter.expected_false_positives == pytest.approx(by_hand, rel=0.05)


def test_lock_of_the_first_layer_is_what_keeps_others_out(tmp_path):
    """Nothing is changed then, nor is what a killed growth has left."""
    directory = tmp_path / "bloom"
    ScalableBloomFilter(1_000, 1e-3, directory).close()
    (directory / ".ab.1.bloom.tmp").write_bytes(b"half a layer")
    with BloomFilter.open(directory / "0.bloom"):
        before = contents(directory)
        for opening in (ScalableBloomFilter.open, partial(ScalableBloomFilter, 1_000, 1e-3)):
            with pytest.raises(
                FilterLockedError, match=f"bloom is in use by process {os.getpid()}"
            ):
                opening(path=directory)
        ScalableBloomFilter.open(directory, read_only=True).close()
        assert contents(directory) == before
    with ScalableBloomFilter.open(directory):
        assert [*directory.iterdir()] == [directory / "0.bloom"]


@pytest.mark.parametrize("has_left", [True, False])
def test_the_slower_of_two_that_make_a_filter_opens_it(tmp_path, watch, has_left):
    """If the faster one has closed it, else it is refused."""
    open_it, made = partial(ScalableBloomFilter, 1_000, 1e-3, tmp_path / "bloom"), []

    def forestall(*_):
        if not made:
            made.append(None)
            made[0] = open_it()
            made[0].add(b"theirs")
            if has_left:
                made[0].close()

    watch(os, "link", forestall)
    if has_left:
        with open_it() as found:
            assert b"theirs" in found
    else:
        with pytest.raises(FilterLockedError):
            open_it()
        made[0].close()


def layered(tmp_path, name="bloom", **arguments):
    """A closed growing filter of three layers in files."""
    with ScalableBloomFilter(1_000, 1e-3, tmp_path / name, **arguments) as bloom_filter:
        bloom_filter.update(b"%d" % i for i in range(5_000))
        assert len(bloom_filter.layers) == 3
    return tmp_path / name


@pytest.mark.parametrize("number", [0, 2])
def test_layer_that_fails_to_close_does_not_keep_the_others_open(tmp_path, watch, number):
    """All others are marked as closed, and all are unlocked."""
    directory = layered(tmp_path)
    bloom_filter = ScalableBloomFilter.open(directory)
    error = OSError(errno.EIO, os.strerror(errno.EIO))
    watch(bloom_filter._newest_first[number], "close", after=raising(error))
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        bloom_filter.close()
    for path in directory.glob("*.bloom"):
        with BloomFilter.open(path) as layer:
            assert layer.clean
    ScalableBloomFilter.open(directory).close()


def test_flush_reaches_all_layers(tmp_path):
    """Also the older ones, which an opened filter may have had to count again."""
    directory = layered(tmp_path)
    for path in directory.glob("*.bloom"):
        with path.open("r+b") as file:
            file.seek(PAGE)
            file.write(bytes(PAGE))
    with ScalableBloomFilter.open(directory) as bloom_filter:
        counts = [len(layer) for layer in bloom_filter.layers]
        bloom_filter.flush()
        paths = [directory / f"{number}.bloom" for number in range(3)]
        states = [State.from_page(path.read_bytes()[PAGE : 2 * PAGE]) for path in paths]
        assert [state.keys for state in states] == counts


def test_check_notices_a_layer_that_was_left_too_early(tmp_path):
    """Only the newest layer may have room."""
    with ScalableBloomFilter(1_000, 1e-3, tmp_path / "bloom") as bloom_filter:
        bloom_filter.update(b"%d" % i for i in range(500))
        bloom_filter.check()
        bloom_filter._grow()
        with pytest.raises(BloomError, match="is not full and has a layer above it"):
            bloom_filter.check()


def foreign(**arguments):
    """Return a function that puts a layer of another filter into the place of one."""
    return lambda path: (layered(path.parents[1], "theirs", **arguments) / "1.bloom").replace(path)


@pytest.mark.parametrize(
    ("spoil", "what"),
    [
        (Path.unlink, r"1\.bloom is missing, and there is a 2\.bloom"),
        (lambda path: shutil.copy(path.with_name("2.bloom"), path), "another filter"),
        (lambda path: path.write_bytes(b"X" + path.read_bytes()[1:]), r"1\.bloom is not a filter"),
        (foreign(), "another filter: restore"),
        (foreign(identity="theirs", secret=SECRET), "another filter"),
        (foreign(exact=True, secret=SECRET), "another filter"),
    ],
    ids=["missing", "misplaced", "damaged", "secret", "identity", "table"],
)
def test_a_layer_that_is_spoilt_refuses_all_until_it_is_mended(tmp_path, spoil, what):
    """Without it the filter would have forgotten keys. The others are neither marked nor changed,
    and all can be opened again, by a process that keeps the error, too."""
    directory = layered(tmp_path, secret=SECRET)
    path = directory / "1.bloom"
    sound = path.read_bytes()
    for name in (".ab.1.bloom.tmp", ".ab.my.bloom.tmp"):
        (directory / name).touch()
    spoil(path)
    before, kept = contents(directory), []
    for opening in (ScalableBloomFilter.open, partial(ScalableBloomFilter, 1_000, 1e-3)):
        with pytest.raises(FilterFileError, match=what) as refused:
            opening(path=directory)
        kept.append(refused.value)
    assert contents(directory) == before
    path.write_bytes(sound)
    ScalableBloomFilter.open(directory).close()
    assert [*directory.glob("*.tmp")] == [directory / ".ab.my.bloom.tmp"]
    assert len(kept) == 2


def test_file_in_the_place_of_the_directory_is_refused(tmp_path):
    """A growing filter never replaces a file by its directory."""
    (tmp_path / "bloom").write_bytes(b"mine")
    with pytest.raises(FilterFileError, match="Not a directory"):
        ScalableBloomFilter(1_000, 1e-3, tmp_path / "bloom")
    assert (tmp_path / "bloom").read_bytes() == b"mine"
