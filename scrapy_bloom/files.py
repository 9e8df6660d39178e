"""Safe opening of files, files that are whole or not there, durable directories, and locks.

The kernel frees a lock of flock when the process that holds it dies; a lock of lockf would be lost
as soon as any descriptor of the file is closed. All copies of one open file share a flock lock, so
a forked process closes its copy at once: it neither frees the lock nor keeps it.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from time import sleep
from typing import IO, Any
from weakref import WeakKeyDictionary

from .errors import FilterFileError, FilterLockedError

HAS_LOCKS = find_spec("fcntl") is not None  # Windows has none
if HAS_LOCKS:
    import fcntl

_PID = re.compile(rb"(?:\d{1,18}\n)?")

left_to_parent: WeakKeyDictionary[Any, Callable[[Any], None]] = WeakKeyDictionary()
"""What a forked process closes of its parent's, and how."""


def _leave_to_parent() -> None:
    for thing, close in list(left_to_parent.items()):
        close(thing)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_to_parent)


@contextmanager
def locked_by(path: Path) -> Iterator[None]:
    """Lock the directory of the file at `path`, which is made, and removed at the end of the
    context. The process id in it serves the error message only. A file with other contents, as a
    power cut leaves, or another name (a hard link) is locked as it is, and stays. Raises
    FilterLockedError if it is locked already.
    """
    file = open_locked(path, path.parent, _pid_in, create=True)
    is_ours = os.fstat(file.fileno()).st_nlink == 1 and _pid_in(file) is not None
    try:
        with suppress(OSError):  # a full disk: the next file tells of it
            if is_ours:
                file.truncate(0)
                file.write(f"{os.getpid()}\n".encode())
        yield
    finally:
        if not file.closed:  # in a forked process it is
            with suppress(OSError):
                if is_ours:
                    path.unlink()
            unlock(file)


def _pid_in(file: IO[bytes]) -> int | None:
    found = _PID.fullmatch(os.pread(file.fileno(), 20, 0))
    return int(found[0] or 0) if found else None


def open_locked(
    path: Path, place: Path, pid_in: Callable[[IO[bytes]], int | None], *, create: bool = False
) -> IO[bytes]:
    """Open the file at `path`, and lock it. Raises as `open_regular` does, and FilterLockedError if
    a process has the lock; it names the `place`, and the process by `pid_in`."""
    while True:
        file = open_regular(path, create=create)
        try:
            lock(file)
        except BlockingIOError:
            with file:
                pid = pid_in(file)
            this = ", which is this one" if pid == os.getpid() else ""
            raise FilterLockedError(
                f"{place} is in use by process {pid or '(unknown)'}{this}; wait for its end, or"
                " give each crawl a directory of its own"
            ) from None
        with suppress(FileNotFoundError):
            if os.path.samestat(os.stat(path), os.fstat(file.fileno())):
                return file
        file.close()  # it was removed or replaced in between


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


def open_regular(path: Path, *, read_only: bool = False, create: bool = False) -> IO[bytes]:
    """Open a regular file, or `create` an empty one with mode 600. Raises FilterFileError for
    anything else at `path`, what may not be opened, and without flock; FileNotFoundError."""
    if not HAS_LOCKS:
        raise FilterFileError(
            f"{path}: filter files need Linux or macOS; without a path (for Scrapy: without"
            " JOBDIR) the filter works in memory"
        )
    flags = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | (os.O_CREAT if create else 0)
    flags |= os.O_RDONLY if read_only else os.O_RDWR
    try:
        descriptor = os.open(path, flags, 0o600)
        file = os.fdopen(descriptor, "rb" if read_only else "r+b", buffering=0)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise FilterFileError(
            f"{path} cannot be opened ({error.strerror}); remove the cause, or choose another path"
        ) from error
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


def privately(path: str | Path, flags: int) -> int:
    """Open a file as the `opener` of `open`: a new one with mode 600, none through a link."""
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0), 0o600)


@contextmanager
def replacing(
    path: Path, mode: int = 0o600, name: str | None = None, *, is_new: bool = False
) -> Iterator[IO[bytes]]:
    """Give a new file with a random name, private until it takes the place of that at `path`, with
    this `mode`, at the end of the context, durably: after a crash there is the old one or the new
    one. What a kill has left is removed by a call that gives it the same `name`. Raises OSError,
    with `is_new` FileExistsError where there is an old one."""
    made = path.with_name(f".{name or secrets.token_hex(8)}.bloom.tmp")
    made.unlink(missing_ok=True)
    try:
        with open(made, "xb", opener=privately) as file, open(os.dup(file.fileno()), "wb") as own:
            yield file  # which the writer may close
            file.close()
            os.fchmod(own.fileno(), mode)
            os.fsync(own.fileno())
            if is_new:
                _link(made, path)
            else:
                made.rename(path)
    except BaseException as error:
        made.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename in (None, str(made)):
            error.filename = str(path)
        raise
    sync_directory(path.parent)


def _link(made: Path, path: Path) -> None:
    try:
        os.link(made, path)
    except OSError:
        if os.path.lexists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path)) from None
        made.rename(path)  # in a file system without hard links
    else:
        made.unlink()


def replace(path: Path, content: bytes, mode: int = 0o600, name: str | None = None) -> None:
    """Write the file at `path` as `replacing` does."""
    with replacing(path, mode, name) as file:
        file.write(content)


def sync_directory(directory: Path) -> None:
    """Flush the entries of `directory` to the disk."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_directory(directory: Path, mode: int = 0o777) -> None:
    """Make a directory and missing parents, durably; the last has `mode`, less the umask."""
    if not directory.is_dir():
        make_directory(directory.parent)
        directory.mkdir(mode, exist_ok=True)
        sync_directory(directory.parent)


def lock(file: IO[bytes], *, shared: bool = False) -> None:
    """Lock a file for this process. Raises BlockingIOError if another one has locked it."""
    kind = fcntl.LOCK_NB | (fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
    left_to_parent[file] = type(file).close
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
