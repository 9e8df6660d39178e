"""Removal of filters from the disk."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from pathlib import Path

from ..errors import FilterFileError
from ..files import sync_directory, unlock
from . import layer_paths, remove_leftovers
from .file import MAGIC, lock_file


def remove_filter(path: Path) -> list[Path]:
    """Remove the filter at `path`, a file or a directory, sound or not; return the files that were
    removed. The directory goes if nothing else is in it.

    The newest layer goes first, so what an interruption leaves is a filter. Raises
    FilterLockedError if a process has it open, FilterFileError if a file is no filter file: nothing
    is removed then.
    """
    with ExitStack() as stack:
        for first in _files_of(path)[-1:]:
            stack.callback(unlock, lock_file(first))
        files = _files_of(path)
        for each in files:
            each.unlink()
        if path.is_dir():
            remove_leftovers(path)
            with suppress(OSError):
                path.rmdir()
    sync_directory(path.parent)
    return files


def _files_of(path: Path) -> list[Path]:
    """Return the file at `path`, or the layers in it, the newest first. Raises FilterFileError if
    one is none."""
    files = layer_paths(path)[::-1] if path.is_dir() else [path]
    for each in files:
        _require_ours(each)
    return files


def _require_ours(path: Path) -> None:
    with path.open("rb") as file:
        start = file.read(len(MAGIC))
    if start != MAGIC:
        raise FilterFileError(
            f"{path} is not a filter file of scrapy-bloom: it starts with {start!r}; remove it"
            " yourself if you do not need it"
        )
