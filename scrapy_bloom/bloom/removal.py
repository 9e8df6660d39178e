"""Removal of filters from the disk."""

from __future__ import annotations

from pathlib import Path

from ..errors import FilterFileError, FilterLockedError
from ..files import DirectoryLock, is_held, sync_directory
from . import LOCK, layer_paths, remove_directory, remove_leftovers
from .file import read_state
from .header import MAGIC


def remove(path: Path) -> list[Path]:
    """Remove the filter at `path`, sound or not; return the files that were removed.

    Raises FilterLockedError if a process has it open, FilterFileError if a file is
    no filter file: nothing is removed then.
    """
    if path.is_dir():
        return remove_filter(path)
    _require_ours(path)
    if is_held(path):
        raise FilterLockedError(
            f"{path} is in use by process {read_state(path).pid}; wait until it has closed it"
        )
    path.unlink()
    sync_directory(path.parent)
    return [path]


def remove_filter(directory: Path) -> list[Path]:
    """Remove the filter in `directory`, and the directory if nothing else is in it.

    The newest layer goes first, so what an interruption leaves is a filter.
    """
    _files_of(directory)  # what is no filter gets no lock
    with DirectoryLock(directory, LOCK) as lock:
        files = _files_of(directory)
        for path in files:
            path.unlink()
        remove_leftovers(directory)
        remove_directory(directory, lock)
    sync_directory(directory.parent)
    return files


def _files_of(directory: Path) -> list[Path]:
    """Return the layers, the newest first. Raises FilterFileError if one is none."""
    files = layer_paths(directory)[::-1]
    for path in files:
        _require_ours(path)
    return files


def _require_ours(path: Path) -> None:
    with path.open("rb") as file:
        start = file.read(len(MAGIC))
    if start != MAGIC:
        raise FilterFileError(
            f"{path} is not a filter file of scrapy-bloom: it starts with {start!r}; remove it"
            " yourself if you do not need it"
        )
