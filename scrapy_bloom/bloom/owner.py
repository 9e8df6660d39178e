"""The owner of a filter, in page 1 of layer 0: a job whose committed fingerprints it contains."""

from __future__ import annotations

import os
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

from ..files import open_regular
from . import GrowingFilter, layer_path
from .file import OWNER_AT, PAGE, sealed, unsealed

if TYPE_CHECKING:
    from pathlib import Path

_OWNER = Struct("<16sQ")


class Owner(NamedTuple):
    """The job of a filter, by its random id of 16 bytes, and the number of the last commit of that
    job whose fingerprints the filter may contain."""

    job: bytes
    commit: int


def note_owner(bloom_filter: GrowingFilter, owner: Owner) -> None:
    """Write the owner and its SHA-256 into the file of layer 0, before any later bits; a filter in
    memory has none. Cost: some µs, no sync."""
    layer = bloom_filter._newest_first[-1]
    if layer.owns_file:
        noted = sealed(_OWNER.pack(*owner))
        layer._memory[PAGE + OWNER_AT : PAGE + OWNER_AT + len(noted)] = noted


def stored_owner(directory: Path) -> Owner | None:
    """Return the owner of the filter in `directory` without opening it, None if there is no filter,
    or no owner with the right checksum in it. Raises FilterFileError."""
    try:
        with open_regular(layer_path(directory, 0), read_only=True) as file:
            noted = unsealed(os.pread(file.fileno(), PAGE, PAGE + OWNER_AT), _OWNER.size)
    except FileNotFoundError:
        return None
    return None if noted is None else Owner(*_OWNER.unpack(noted))
