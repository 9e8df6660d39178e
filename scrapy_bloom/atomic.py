"""Files that are replaced as a whole."""

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
def replacing(path: Path, mode: int = 0o600, name: str | None = None) -> Iterator[IO[bytes]]:
    """Give a new file with a random name, private until it takes the place of that at `path`, with
    this `mode`, at the end of the context, durably: after a crash there is the old one or the new
    one. What a kill has left is removed by a call that gives it the same `name`. Raises OSError."""
    made = path.with_name(f".{name or secrets.token_hex(8)}.bloom.tmp")
    made.unlink(missing_ok=True)
    try:
        with open(made, "xb", opener=privately) as file, open(os.dup(file.fileno()), "wb") as own:
            yield file  # which the writer may close
            file.close()
            os.fchmod(own.fileno(), mode)
            os.fsync(own.fileno())
            made.rename(path)
    except BaseException as error:
        made.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename in (None, str(made)):
            error.filename = str(path)
        raise
    sync_directory(path.parent)


def replace(path: Path, content: bytes, mode: int = 0o600, name: str | None = None) -> None:
    """Write the file at `path` as `replacing` does."""
    with replacing(path, mode, name) as file:
        file.write(content)
