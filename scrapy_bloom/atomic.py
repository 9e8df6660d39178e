"""Files that are replaced as a whole, and directories that are made durably."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from .files import sync_directory


def privately(path: str | Path, flags: int) -> int:
    """Open a file as the `opener` of `open`: a new one with mode 600, none through a link."""
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0), 0o600)


@contextmanager
def replacing(path: Path, mode: int = 0o600, token: str | None = None) -> Iterator[IO[bytes]]:
    """Give a new file with a random name, private until it takes the place of that at `path`, with
    this `mode`, at the end of the context, durably: after a crash there is the old one or the new
    one. What a kill has left is removed by a call with the same random `token`. Raises OSError."""
    temporary = path.with_name(f".{token or secrets.token_hex(8)}.bloom.tmp")
    temporary.unlink(missing_ok=True)
    with open(temporary, "xb", opener=privately) as file:
        descriptor = os.dup(file.fileno())  # the writer may close `file`
        try:
            yield file
            file.close()
            os.fchmod(descriptor, mode)
            os.fsync(descriptor)
            temporary.rename(path)
        except BaseException as error:
            temporary.unlink(missing_ok=True)
            if isinstance(error, OSError):
                error.filename = error.filename or str(path)
            raise
        finally:
            os.close(descriptor)
    sync_directory(path.parent)


def replace(path: Path, content: bytes) -> None:
    """Write the file at `path` as `replacing` does."""
    with replacing(path) as file:
        file.write(content)


def make_directory(directory: Path, mode: int = 0o777) -> None:
    """Make a directory and its missing parents, durably; `mode` is that of the last one, less the
    umask."""
    if not directory.is_dir():
        make_directory(directory.parent)
        directory.mkdir(mode, exist_ok=True)
        sync_directory(directory.parent)
