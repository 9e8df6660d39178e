"""The owner of a filter, in page 1 of layer 0: a job whose committed fingerprints it contains."""

from __future__ import annotations

import os
from pathlib import Path
from struct import Struct
from typing import NamedTuple

from ..files import open_regular
from . import ScalableBloomFilter, layer_path
from .file import OWNER_AT, PAGE, sealed, unsealed

_OWNER = Struct("<16sQ")


class Owner(NamedTuple):
    """The job of a filter, by its random id of 16 bytes, and the number of the last commit of that
    job whose fingerprints the filter may contain."""

    job: bytes
    commit: int

    def to_bytes(self) -> bytes:
        """Return the bytes for page 1, with their SHA-256."""
        return sealed(_OWNER.pack(*self))

    @classmethod
    def from_page(cls, page: bytes) -> Owner | None:
        """Return the owner in page 1, None if it is absent or its checksum is wrong."""
        owner = unsealed(page[OWNER_AT:], _OWNER.size)
        return None if owner is None else cls(*_OWNER.unpack(owner))


def note_owner(bloom_filter: ScalableBloomFilter, owner: Owner) -> None:
    """Write the owner into the file of layer 0, before any later bits; a filter in memory has none.
    Cost: some µs, no sync."""
    layer = bloom_filter._newest_first[-1]
    if layer.owns_file:
        noted = owner.to_bytes()
        layer._memory[PAGE + OWNER_AT : PAGE + OWNER_AT + len(noted)] = noted


def stored_owner(directory: Path) -> Owner | None:
    """Return the owner of the filter in `directory` without opening it, None if there is no filter
    or no owner in it. Raises FilterFileError."""
    try:
        with open_regular(layer_path(directory, 0), read_only=True) as file:
            return Owner.from_page(os.pread(file.fileno(), PAGE, PAGE))
    except FileNotFoundError:
        return None
