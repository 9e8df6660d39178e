"""Files that are damaged, foreign or in use: refused by name, and left as they were."""

import errno
import mmap
import os
import resource
import signal
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from scrapy_bloom import BloomFilter, FilterFileError, FilterLockedError, ScalableBloomFilter, files
from scrapy_bloom.bloom import file as storage_module
from scrapy_bloom.bloom.file import MAGIC, PAGE, Header, State
from tests.fakes import raising
from tests.seeded import seed_of

KEYS = [b"key %d" % i for i in range(500)]


@pytest.fixture
def path(tmp_path):
    """A filter file with 500 keys, closed."""
    path = tmp_path / "a.bloom"
    with BloomFilter(1_000, 1e-6, path) as bloom_filter:
        bloom_filter.update(KEYS)
    return path


def refused(path: Path, match: str | None = None) -> list[FilterFileError]:
    """Assert that the file is refused by name and not changed by that; return the errors."""
    before, errors = path.read_bytes(), []
    for opening in (BloomFilter.open, lambda path: BloomFilter(1_000, 1e-6, path)):
        with pytest.raises(FilterFileError, match=match) as caught:
            opening(path)
        errors.append(caught.value)
        assert str(path) in str(caught.value)
        assert ";" in str(caught.value), "the message names a remedy"
    assert path.read_bytes() == before
    return errors


def test_every_damaged_byte_of_page_0_is_refused(path):
    """Page 0 is checksummed, whichever bit flips: each 16th byte, another first one each run."""
    start = seed_of("SEED")
    print("seed", start)
    sound = path.read_bytes()
    for position in range(start % 16, PAGE, 16):
        damaged = bytearray(sound)
        damaged[position] ^= 1 << position % 8
        path.write_bytes(damaged)
        with pytest.raises(FilterFileError):
            BloomFilter.open(path)
        assert path.read_bytes() == damaged
    path.write_bytes(sound)
    with BloomFilter.open(path) as bloom_filter:
        assert all(key in bloom_filter for key in KEYS)


CUT = (0, 1, 7, 8, 100, PAGE - 1, PAGE, PAGE + 1, 2 * PAGE, 3 * PAGE - 1)
FOREIGN = (b"", b"text\n", b"\x80\x04\x95" * 9_000, bytes(3 * PAGE))


@pytest.mark.parametrize(
    ("spoil", "match"),
    [
        *((lambda sound, size=size: sound[:size], None) for size in CUT),
        *((lambda sound, n=n: sound + bytes(n), "longer than it was") for n in (1, 10 * PAGE + 3)),
        *((lambda _, text=text: text, "not a filter file of scrapy-bloom") for text in FOREIGN),
    ],
)
def test_a_file_that_is_cut_extended_or_foreign_is_refused(path, spoil, match):
    """And it is not touched; when it is mended it can be opened, whoever keeps the errors."""
    sound = path.read_bytes()
    path.write_bytes(spoil(sound))
    kept = refused(path, match)
    path.write_bytes(sound)
    BloomFilter.open(path).close()
    assert len(kept) == 2


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda place, path: place.symlink_to(path), "symbolic link"),
        (lambda place, path: place.mkdir(), "Is a directory"),
        (lambda place, path: os.mkfifo(place), "not a regular file"),
    ],
    ids=["link", "directory", "pipe"],
)
def test_what_is_no_file_is_refused(path, make, what):
    """A link might lead out of the job directory, and a named pipe make the start wait."""
    make(place := path.with_name("place"), path)
    before = signal.signal(signal.SIGALRM, lambda *_: pytest.fail("it waits for a writer"))
    signal.alarm(10)
    try:
        for opening in (
            BloomFilter.open,
            partial(BloomFilter.open, read_only=True),
            partial(BloomFilter, 1_000, 1e-6),
        ):
            with pytest.raises(FilterFileError, match=what):
                opening(path=place)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def test_unreadable_file_is_refused(path, monkeypatch):
    """Without permission the message says so (simulated: root may read anything)."""

    denied = raising(PermissionError(errno.EACCES, os.strerror(errno.EACCES)))
    monkeypatch.setattr(storage_module.os, "open", denied)
    with pytest.raises(FilterFileError, match="Permission denied"):
        BloomFilter.open(path)


def test_missing_file_stays_missing(tmp_path):
    """Opening what is not there creates nothing."""
    for kind in (BloomFilter, ScalableBloomFilter):
        with pytest.raises(FileNotFoundError, match="nowhere"):
            kind.open(tmp_path / "nowhere")
    assert not list(tmp_path.iterdir())


def test_file_in_use_is_refused_with_its_holder(path):
    """Two writers would not see each other's keys, whether opened or just made."""
    for opened, used in (
        (BloomFilter.open(path), path),
        (BloomFilter(1_000, 1e-6, path.with_name("new")), path.with_name("new")),
    ):
        with opened, pytest.raises(FilterLockedError, match=f"process {os.getpid()}"):
            BloomFilter.open(used)
        BloomFilter.open(used).close()


def test_file_that_is_replaced_while_it_is_opened_is_not_used(path, watch):
    """What was locked is what is used: it is the one that is there now, if it is free."""
    other = path.with_name("other.bloom")
    BloomFilter(1_000, 1e-6, other).close()
    watch(files, "lock", after=lambda _: other.exists() and other.replace(path))
    with BloomFilter.open(path) as opened:
        assert len(opened) == 0
        opened.add(b"new")
        with pytest.raises(FilterLockedError):
            BloomFilter.open(path)
    assert b"new" in BloomFilter.open(path, read_only=True)


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.parametrize("kind", [BloomFilter, ScalableBloomFilter])
def test_close_unlocks_whoever_else_has_the_descriptors(tmp_path, kind):
    """A process that is being started has copies of them, and of the locks."""
    bloom_filter = kind(1_000, 1e-6, tmp_path / "filter")
    copies = []
    for name in os.listdir("/dev/fd"):
        with suppress(OSError):
            if os.readlink(f"/proc/self/fd/{name}").startswith(str(tmp_path)):
                copies.append(os.dup(int(name)))
    assert copies
    bloom_filter.close()
    kind.open(tmp_path / "filter").close()
    for copy in copies:
        os.close(copy)


def test_close_while_a_traceback_holds_the_bits(path):
    """As after Ctrl-C in the middle of `add`: it is closed cleanly and unlocked."""
    with BloomFilter.open(path) as bloom_filter:
        held = bloom_filter._store.bits
    assert held.any()
    with BloomFilter.open(path) as bloom_filter:
        assert bloom_filter.clean
        assert len(bloom_filter) == len(KEYS)


@pytest.mark.parametrize("kind", [BloomFilter, ScalableBloomFilter])
def test_bits_reach_the_disk_before_what_is_said_about_them(tmp_path, monkeypatch, kind):
    """A power cut between them leaves keys that are counted again."""
    synced = []

    class Noting(mmap.mmap):
        def flush(self, *where):
            synced.append((where, State.from_page(self[PAGE : 2 * PAGE])))
            super().flush(*where)

    monkeypatch.setattr(storage_module.mmap, "mmap", Noting)
    bloom_filter = kind(1_000, 1e-6, tmp_path / "filter")
    bloom_filter.update(KEYS)
    for end, held in ((bloom_filter.flush, 0), (bloom_filter.close, len(KEYS))):
        synced.clear()
        end()
        (where, before), (page, state) = synced
        assert (where, page) == ((), (PAGE, PAGE))
        assert (before.keys, before.clean) == (held, False)
        assert (state.keys, state.clean) == (len(KEYS), end == bloom_filter.close)


@pytest.mark.parametrize("kind", [BloomFilter, ScalableBloomFilter])
def test_failed_close_is_not_clean(tmp_path, monkeypatch, kind):
    """The error is told, the filter unlocked, and its keys are counted again."""

    class Failing(mmap.mmap):
        def flush(self, *where):
            if failing:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            super().flush(*where)

    path, failing = tmp_path / "filter", False
    kind(1_000, 1e-6, path).close()
    monkeypatch.setattr(storage_module.mmap, "mmap", Failing)
    bloom_filter = kind.open(path)
    bloom_filter.update(KEYS)
    failing = True
    for attempt in (bloom_filter.flush, bloom_filter.close):
        with pytest.raises(OSError, match=os.strerror(errno.EIO)):
            attempt()
    bloom_filter.close()
    with pytest.raises(ValueError, match="closed"):
        bloom_filter.add(b"new")
    monkeypatch.undo()
    with kind.open(path) as found:
        assert not found.clean
        assert len(found) == pytest.approx(len(KEYS), rel=0.02)
        assert all(key in found for key in KEYS)


def test_file_size_limit_is_a_clean_error(tmp_path):
    """It is an OSError, never a signal, and an existing filter goes on."""
    bloom_filter = ScalableBloomFilter(1_000, 1e-6, tmp_path / "bloom")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8 * PAGE, hard))
    try:
        with pytest.raises(OSError, match="cannot allocate"):
            bloom_filter.update(b"%d" % i for i in range(100_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    known = len(bloom_filter)
    assert known >= 1_000
    assert all(b"%d" % i in bloom_filter for i in range(known))
    names = {path.name for path in (tmp_path / "bloom").iterdir()}
    assert names == {f"{i}.bloom" for i in range(len(bloom_filter.layers))}
    bloom_filter.update(b"%d" % i for i in range(100_000))
    bloom_filter.check()
    bloom_filter.close()


@pytest.mark.parametrize("refusal", [errno.EOPNOTSUPP, errno.EINVAL])
def test_file_system_without_allocation(tmp_path, monkeypatch, refusal):
    """Blocks are written then, so that the map never hits a hole on a full disk, and before the
    header, also where a buffer is larger than the file."""
    monkeypatch.setattr("scrapy_bloom.files.open", partial(open, buffering=1 << 20), raising=False)
    unsupported = raising(OSError(refusal, os.strerror(refusal)))
    monkeypatch.setattr(storage_module.os, "posix_fallocate", unsupported)
    with BloomFilter(100_000, 1e-6, tmp_path / "a.bloom") as bloom_filter:
        bloom_filter.update(KEYS)
    status = (tmp_path / "a.bloom").stat()
    assert status.st_size == status.st_blocks * 512


def test_creation_never_replaces_a_file(tmp_path):
    """A file that appears while ours is being made is kept, and ours given up."""
    path = tmp_path / "a.bloom"
    header = BloomFilter(1_000, 1e-6).header
    path.write_bytes(b"theirs")
    with pytest.raises(FileExistsError):
        storage_module.BitStore.create(header, path)
    assert [p.name for p in tmp_path.iterdir()] == ["a.bloom"]
    assert path.read_bytes() == b"theirs"


def test_check_notices_that_the_file_is_another_by_now(path):
    """A header that was written over, or a whole other file in the place of ours."""
    other = path.with_name("other.bloom")
    BloomFilter(1_000, 1e-6, other).close()
    with BloomFilter.open(path) as bloom_filter:
        bloom_filter.check()
        ours = path.read_bytes()
        path.write_bytes(other.read_bytes()[:PAGE] + ours[PAGE:])
        with pytest.raises(FilterFileError, match="another header than when it was opened"):
            bloom_filter.check()
        path.write_bytes(ours)
        bloom_filter.check()
        other.replace(path)
        with pytest.raises(FilterFileError, match="another header than when it was opened"):
            bloom_filter.check()


def test_header_round_trip_and_room(tmp_path):
    """What goes into page 0 comes out, up to what a page holds."""
    header = Header(1_000, 0.1, 1, 6, bytes(16), "é" * 500, "now", "this")
    page = header.to_page()
    assert len(page) == PAGE
    assert page.startswith(MAGIC)
    file = tmp_path / "x"
    file.write_bytes(page.ljust(header.file_bytes))
    assert storage_module.read_header(file) == header
    with pytest.raises(ValueError, match="identity has 4000 characters"):
        Header(1_000, 0.1, 1, 6, bytes(16), "x" * 4_000).to_page()


def test_opening_and_closing_reads_no_bits(tmp_path, monkeypatch):
    """A clean filter is opened and closed without looking at its bits."""
    with ScalableBloomFilter(200_000, 1e-6, tmp_path / "bloom") as bloom_filter:
        bloom_filter.update(b"%d" % i for i in range(1_000))
    monkeypatch.setattr(storage_module.BitStore, "block_counts", None)
    with ScalableBloomFilter.open(tmp_path / "bloom") as bloom_filter:
        assert len(bloom_filter) == 1_000


@pytest.mark.skipif(sys.platform != "linux", reason="simulates another system on Linux")
def test_system_without_file_locks(tmp_path, monkeypatch):
    """Where fcntl is missing the filter works in memory and refuses a path."""
    monkeypatch.setattr(files, "HAS_LOCKS", False)
    BloomFilter(1_000, 1e-6).add(b"key")
    with pytest.raises(FilterFileError, match="Linux or macOS"):
        ScalableBloomFilter(1_000, 1e-6, tmp_path / "bloom")
    assert not list(tmp_path.iterdir())
