"""Files that are whole or not there, and directories that one process has."""

import errno
import os
import re
import resource
from threading import Timer

import pytest

from scrapy_bloom import FilterLockedError, ScalableBloomFilter, files
from scrapy_bloom.files import locked_by, make_directory, replace, replacing
from tests.fakes import raising


@pytest.mark.parametrize("with_links", [True, False])
def test_published_file_replaces_nothing(tmp_path, monkeypatch, with_links):
    """A finished file gets its name, unless something has it by then: that is kept."""
    if not with_links:
        monkeypatch.setattr(os, "link", raising(OSError(errno.EPERM, os.strerror(errno.EPERM))))
    theirs = tmp_path / "theirs"
    theirs.write_bytes(b"theirs")
    with pytest.raises(FileExistsError), replacing(theirs, is_new=True):
        pass
    with replacing(tmp_path / "ours", is_new=True) as file:
        file.write(b"ours")
    found = {each.name: each.read_bytes() for each in tmp_path.iterdir()}
    assert found == {"ours": b"ours", "theirs": b"theirs"}


def test_a_replaced_file_is_durable(tmp_path, watch):
    """The content is on the disk before it has the name, and the name before `replace` returns:
    a power cut in between leaves the old content. Made directories are on it, too."""
    path, calls = tmp_path / "name", []

    def synced(descriptor):
        calls.append(os.path.samestat(os.fstat(descriptor), tmp_path.stat()))

    watch(os, "fsync", synced)
    watch(type(path), "rename", lambda *_: calls.append("rename"))
    descriptors = os.listdir("/dev/fd")
    for content in (b"old", b"new"):
        replace(path, content)
        assert path.read_bytes() == content
    assert os.listdir("/dev/fd") == descriptors
    assert [*tmp_path.iterdir()] == [path]
    make_directory(tmp_path / "of" / "it")
    with replacing(tmp_path / "published", is_new=True):
        pass
    assert calls == [*[False, "rename", True] * 2, True, False, False, True]


def test_directory_is_locked_for_a_context(tmp_path, monkeypatch):
    """Another is refused with the holder, at once, and gets it later; nothing is left."""
    monkeypatch.setattr(files, "sleep", raising(AssertionError))
    for left in (None, b"", b"123456789\n"):  # by a killed process
        if left is not None:
            (tmp_path / "name").write_bytes(left)
        with locked_by(tmp_path / "name"):
            match = f"{tmp_path} is in use by process {os.getpid()}, which is"
            with pytest.raises(FilterLockedError, match=match), locked_by(tmp_path / "name"):
                pass
            assert (tmp_path / "name").read_bytes() == b"%d\n" % os.getpid()
        assert [*tmp_path.iterdir()] == []


def test_a_start_waits_for_those_who_test_its_lock(tmp_path, monkeypatch):
    """As commands do that look at a job; but not for ever."""
    path = tmp_path / "name"
    path.touch()
    tests = [path.open("rb") for _ in range(2)]
    files.lock(tests[0], shared=True)
    Timer(0.1, files.unlock, tests[:1]).start()
    files.unlock(files.open_locked(path, path, lambda _: 1))
    files.lock(tests[1], shared=True)
    assert not files.is_held(path)
    monkeypatch.setattr(files, "sleep", lambda _: None)
    with tests[1], pytest.raises(FilterLockedError), locked_by(path):
        pass


def test_a_copy_of_an_open_file_keeps_nobody_out(tmp_path, watch):
    """Such as a process has that was just forked."""
    copies = []
    watch(files, "lock", after=lambda file, **_: copies.append(os.dup(file.fileno())))
    for _ in range(2):
        with locked_by(tmp_path / "name"):
            assert files.is_held(tmp_path / "name")
        assert not files.is_held(tmp_path / "name")
    for each in copies:
        os.close(each)


def test_lock_file_that_is_removed_while_it_is_locked(tmp_path, watch):
    """Its last holder may take the file away after it was opened here: who holds a file that
    has no name any more would keep nobody out, and takes the one that is there."""
    removed = []

    def remove(file):
        if not removed:
            removed.append(file)
            (tmp_path / "name").unlink()

    watch(files, "lock", after=remove)
    with locked_by(tmp_path / "name"):
        assert removed[0].closed
        with pytest.raises(FilterLockedError), locked_by(tmp_path / "name"):
            pass


def test_a_lock_file_that_is_something_else_stays_as_it_is(tmp_path):
    """A hard link to another file, or a file with other contents, as a power cut leaves, is locked,
    and neither emptied nor removed."""
    path, precious = tmp_path / "name", tmp_path / "precious"
    for content in (b"12345\n", b"12 apples", b"1" * 30, bytes(6)):
        precious.write_bytes(content)
        path.hardlink_to(precious)
        if content != b"12345\n":
            precious.unlink()
        with locked_by(path):
            with pytest.raises(FilterLockedError, match="in use by process"), locked_by(path):
                pass
            assert path.read_bytes() == content
        assert path.read_bytes() == content
        path.unlink()


def test_a_temporary_file_is_private_and_goes(tmp_path, umask):
    """Whatever the umask; it is gone after an error, which names the file, and what a kill has left
    of it is gone after the next one with its name, whatever it leads to."""
    path = tmp_path / "name"
    with replacing(path, 0o644) as file:
        (found,) = tmp_path.iterdir()
        assert found.stat().st_mode & 0o777 == 0o600
        file.write(b"content")
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (b"content", 0o644)
    with pytest.raises(OSError, match=str(path)), replacing(path):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with replacing(path, name="one") as file:
        left = tmp_path / os.path.basename(file.name)
        os.link(left, tmp_path / "copy")
    left.symlink_to(tmp_path / "copy")
    (tmp_path / "copy").write_bytes(b"precious")
    with replacing(path, name="one") as file:
        file.write(b"new")
    assert (path.read_bytes(), (tmp_path / "copy").read_bytes()) == (b"new", b"precious")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["copy", "name"]


def test_a_full_disk_is_told_with_the_name_of_a_file(tmp_path):
    """At the start of a crawl, which writes into its lock first."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        with pytest.raises(OSError, match=re.escape(f"{tmp_path}/bloom/0.bloom")):
            ScalableBloomFilter(100, 1e-3, tmp_path / "bloom")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
