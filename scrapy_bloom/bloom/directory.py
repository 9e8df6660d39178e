"""The directory of a growing filter: a file for each layer, numbered from 0, and a lock."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from ..errors import FilterFileError
from ..files import DirectoryLock, require_file_locks
from . import sizing
from .file import read_header
from .header import Header

_LOCK = "lock"


def layer_path(directory: Path, number: int) -> Path:
    """Return the path of layer `number`; the file need not exist."""
    return directory / f"{number}.bloom"


def layer_paths(directory: Path) -> list[Path]:
    """Return the files of the existing layers, oldest first."""
    numbered = [path for path in directory.glob("*.bloom") if path.stem.isdecimal()]
    return sorted(numbered, key=lambda path: int(path.stem))


def remove_leftovers(directory: Path) -> None:
    """Remove the temporary files of layers whose creation was killed."""
    for path in directory.glob("*.bloom.tmp"):
        path.unlink()


def lock_path(directory: Path) -> Path:
    """Return the file whose lock means that a process uses the filter."""
    return directory / _LOCK


def lock_directory(directory: Path) -> DirectoryLock:
    """Lock the filter for this process. Raises FilterLockedError if another one has it."""
    return DirectoryLock(directory, _LOCK)


def make_directory(path: Path) -> bool:
    """Make the directory with mode 700; return False if it exists. Raises FilterFileError if
    `path` is no directory, or where the system has no file locks."""
    require_file_locks(path)
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        if not path.is_dir():
            raise FilterFileError(
                f"{path} is not a directory; a growing filter needs one, choose another path"
            ) from None
        return False
    return True


def remove_directory(path: Path, lock: DirectoryLock) -> None:
    """Remove the lock, and the directory if it is empty then."""
    lock.release(remove=True)
    with suppress(OSError):
        path.rmdir()


def read_layers(directory: Path) -> list[Header]:
    """Return the headers of all layers, oldest first, each checked by itself and against layer 0.
    Raises FilterFileError."""
    headers = []
    for number, found in enumerate(layer_paths(directory)):
        path = layer_path(directory, number)
        if found != path:
            raise FilterFileError(
                f"{path} is missing, and there is a {found.name}; restore it from a backup, or"
                " start a new filter"
            )
        headers.append(read_header(path))
        require_series(str(path), headers[-1], number, headers[0])
    return headers


def bound_of(first: Header) -> float:
    """Return the error rate of the growing filter whose layer 0 has the header `first`."""
    return first.error_rate / sizing.layer_error_rate(1.0, 0)


def require_series(name: str, header: Header, number: int, first: Header) -> None:
    """Raise FilterFileError unless `header` fits layer `number` above a layer 0 with the header
    `first`. The message calls the layer `name`."""
    rate = sizing.layer_error_rate(bound_of(first), number)
    for what, found, wanted in (
        ("secret", header.secret.hex(), first.secret.hex()),
        ("identity", header.identity, first.identity),
        ("error rate", header.error_rate, rate),
        ("exact table", header.table_pages > 0, first.table_pages > 0),
    ):
        if found != wanted:
            shown = "" if what == "secret" else f" ({found!r}, not {wanted!r})"
            raise FilterFileError(
                f"{name} is a layer of another filter: its {what} differs{shown}; restore the"
                " right file from a backup, or start a new filter"
            )
