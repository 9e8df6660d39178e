"""Safe opening of files, their creation at full size, and locks.

The kernel frees a lock of flock when the process that holds it dies; a lock of lockf would be lost
as soon as any descriptor of the file is closed. All copies of one open file share a flock lock, so
a forked process closes its copy at once: it neither frees the lock nor keeps it.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from time import sleep
from typing import IO
from weakref import WeakSet

from .errors import FilterFileError, FilterLockedError

HAS_LOCKS = find_spec("fcntl") is not None  # Windows has none
if HAS_LOCKS:
    import fcntl

_PID = re.compile(rb"(?:\d{1,18}\n)?")

_locked: WeakSet[IO[bytes]] = WeakSet()


def _leave_locks_to_parent() -> None:
    for file in list(_locked):
        file.close()
    _locked.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_locks_to_parent)


class DirectoryLock:
    """The lock file `name` of a directory, locked until `release` or the end of the process.

    The process id in it serves the error message only. A file with other contents or another name
    (a hard link) is locked as it is. Raises FilterLockedError if it is locked already.
    """

    def __init__(self, directory: Path, name: str) -> None:
        self._path = directory / name
        while not self._take(directory):
            pass

    def _take(self, directory: Path) -> bool:
        """Return False if the file was removed while this process locked it."""
        self._file = open_regular(self._path, create=True)
        try:
            lock(self._file)
        except BlockingIOError:
            with self._file:
                raise _in_use(directory, self._file) from None
        if not self._is_there():
            self._file.close()
            return False
        has_one_name = os.fstat(self._file.fileno()).st_nlink == 1
        self._is_ours = has_one_name and _PID.fullmatch(self._file.read(20)) is not None
        if self._is_ours:
            self._file.seek(0)
            self._file.truncate(0)
            with suppress(OSError):  # a full disk: the next file tells of it
                self._file.write(f"{os.getpid()}\n".encode())
        return True

    def _is_there(self) -> bool:
        with suppress(FileNotFoundError):
            return os.path.samestat(os.stat(self._path), os.fstat(self._file.fileno()))
        return False

    def release(self, *, remove: bool = False) -> None:
        """Release the lock, and remove its file if `remove`. A second call does nothing."""
        if self._file.closed:
            return
        with suppress(OSError):  # it is locked as it is
            if self._is_ours and remove:
                self._path.unlink()
            elif self._is_ours:
                self._file.truncate(0)
        unlock(self._file)

    def __enter__(self) -> DirectoryLock:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def is_held(path: Path) -> bool:
    """Return True if a process holds the lock of the file at `path`. The test takes a shared lock
    for some microseconds, for which `lock` waits."""
    with suppress(FileNotFoundError), open_regular(path, read_only=True) as file:
        try:
            lock(file, shared=True)
        except BlockingIOError:
            return True
        unlock(file)
    return False


def _in_use(directory: Path, file: IO[bytes]) -> FilterLockedError:
    """Return the refusal of a `directory` whose lock file a process has locked."""
    found = _PID.fullmatch(file.read(20))
    pid = found[0].decode().strip() if found else ""
    what = "; stop it or wait until it has finished (a second crawl takes another directory)"
    if pid == str(os.getpid()):
        what = ", which is this one; give each crawl in it a job directory of its own"
    return FilterLockedError(f"{directory} is in use by process {pid or '(unknown)'}{what}")


def open_regular(path: Path, *, read_only: bool = False, create: bool = False) -> IO[bytes]:
    """Open a regular file, or `create` an empty one with mode 600. Raises FilterFileError that
    names the kind of any other file at `path`, FileNotFoundError, or OSError."""
    require_file_locks(path)
    flags = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | (os.O_CREAT if create else 0)
    flags |= os.O_RDONLY if read_only else os.O_RDWR
    try:
        descriptor = os.open(path, flags, 0o600)
        file = os.fdopen(descriptor, "rb" if read_only else "r+b", buffering=0)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EMLINK):
            what, remedy = "a symbolic link", "give the path of the file itself"
        elif error.errno == errno.EISDIR:
            what, remedy = "a directory", "give the path of a file in it"
        elif error.errno == errno.ENOTDIR:
            above = next(each for each in path.parents if each.exists())
            what, remedy = f"not to be had: {above} is no directory", "move that away"
        elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            access = "reading" if read_only else "reading and writing"
            what = f"not to be opened for {access} ({error.strerror})"
            remedy = "correct its permissions"
        else:
            raise
        raise FilterFileError(f"{path} is {what}; {remedy}, or choose another path") from error
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise FilterFileError(f"{path} is not a regular file; choose another path")
    return file


def allocate(file: IO[bytes], size: int) -> None:
    """Allocate `size` bytes: on a full disk a store into a sparse map is a SIGBUS."""
    if hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(file.fileno(), 0, size)
            return
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
                raise
    zeros = bytes(min(size, 1 << 20))
    while (done := file.tell()) < size:
        file.write(zeros[: size - done])


def publish(temporary: str, path: Path) -> None:
    """Rename a finished file, durably. Raises FileExistsError if the name is taken."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links
        if os.path.lexists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path)) from None
        os.rename(temporary, path)
    else:
        os.unlink(temporary)
    sync_directory(path.parent)


def sync_directory(directory: Path) -> None:
    """Flush the entries of `directory` to the disk."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def require_file_locks(path: Path) -> None:
    """Raise FilterFileError where the system has no flock."""
    if not HAS_LOCKS:
        raise FilterFileError(
            f"{path}: filter files need Linux or macOS; without a path (for Scrapy: without"
            " JOBDIR) the filter works in memory"
        )


def lock(file: IO[bytes], *, shared: bool = False) -> None:
    """Lock a file for this process. Raises BlockingIOError if another one has locked it."""
    kind = fcntl.LOCK_NB | (fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
    _locked.add(file)
    for _ in range(5000):  # of a ms: a command may be stopped while it has the lock
        with suppress(BlockingIOError):
            fcntl.flock(file.fileno(), kind)
            return
        fcntl.flock(file.fileno(), fcntl.LOCK_NB | fcntl.LOCK_SH)  # raises unless that is a test
        fcntl.flock(file.fileno(), fcntl.LOCK_UN)
        sleep(0.001)
    fcntl.flock(file.fileno(), kind)


def unlock(file: IO[bytes]) -> None:
    """Unlock and close. Closing alone is not enough: a forked process that has not run yet may
    share the open file."""
    if not file.closed:
        fcntl.flock(file.fileno(), fcntl.LOCK_UN)
        file.close()
