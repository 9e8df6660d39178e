"""What a memory consists of, as its file `delta.json` says it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..errors import FilterFileError
from ..files import replace

SLICES = 8
"""So many slices make a period."""
VERSION = 1
MANIFEST = "delta.json"
_LEAST = 1000
"""The least capacity of a slice."""


@dataclass
class Slice:
    """The marks of one stretch of time, in the directory `name`.

    Without a period it goes on, and `end` is its last mark. `met` is when it was first found
    to be from the future, `expired` when it was first found to count no more.
    """

    name: str
    start: float
    end: float
    error_rate: float
    exact: bool
    goes_on: bool = False
    met: float | None = None
    expired: float | None = None

    def until(self, now: float, width: float) -> float:
        """Return when it has ended, as far as the clock can be believed."""
        return self.end if self.start <= now or self.met is None else self.met + width


@dataclass(frozen=True)
class Shape:
    """What new slices are made like. `period` is in seconds, None for ever; `identity` is the
    text about the fingerprinter."""

    capacity: int = 1_000_000
    error_rate: float = 1e-6
    exact: bool = False
    period: float | None = None
    identity: str = ""

    @property
    def width(self) -> float:
        """Seconds that a slice takes; without a period they do not matter."""
        return (self.period or 0.0) / SLICES

    @property
    def slice_capacity(self) -> int:
        """Keys that a slice expects."""
        if self.period is None:
            return self.capacity
        return max(self.capacity // SLICES, min(self.capacity, _LEAST))

    @property
    def slice_error_rate(self) -> float:
        """The share of the error rate that a slice has."""
        return self.error_rate / (SLICES + 1)


@dataclass
class Contents:
    """What `delta.json` says."""

    slices: list[Slice]
    identity: str = ""


def read(directory: Path, identity: str = "") -> Contents:
    """Return what `directory` holds; nothing, with that `identity`, if there is no memory yet.
    Raises FilterFileError, OSError."""
    path = directory / MANIFEST
    try:
        found: Any = json.loads(path.read_bytes())
        if found["version"] != VERSION:
            raise ValueError(f"it has version {found['version']!r}, not {VERSION}")
        return Contents([Slice(**each) for each in found["slices"]], str(found["identity"]))
    except FileNotFoundError:
        return Contents([], identity)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise FilterFileError(
            f"{path} cannot be read ({error!r}): restore it from a backup, or choose another"
            " BLOOM_DELTA_DIR"
        ) from error


def write(directory: Path, slices: list[Slice], identity: str) -> None:
    """Let `directory` hold these slices from now on, whenever the process dies. Raises
    OSError."""
    content = {
        "version": VERSION,
        "identity": identity,
        "slices": [asdict(each) for each in slices],
    }
    replace(directory / MANIFEST, json.dumps(content, indent=1).encode())
