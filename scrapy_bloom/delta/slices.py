"""What a memory consists of, as its file `delta.json` says it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from math import inf
from typing import TYPE_CHECKING, Any, Protocol

from ..errors import FilterFileError
from ..files import replace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

SLICES = 8
"""So many slices make a period."""
VERSION = 1
MANIFEST = "delta.json"
_LEAST = 1000
"""The least capacity of a slice."""
_UNREADABLE = (ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError)
"""What JSON of any making raises."""


@dataclass
class Slice:
    """The marks of one stretch of time, in the directory `name`.

    Without a period it goes on, and `end` is its last mark. `met` is when it was first found
    to be from the future, `expired` when it was first found to count for no crawl.
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
    def reach(self) -> float:
        """Seconds for which a mark counts, infinite for ever."""
        return inf if self.period is None else self.period

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


class DeltaMemory(Protocol):
    """What earlier rounds have done, on the disk or in Redis. Any method may raise OSError or
    BloomError."""

    shape: Shape
    clock: Callable[[], float]
    name: str
    """As it may be shown."""

    @property
    def is_empty(self) -> bool:
        """True if it is sure to know nothing."""

    @property
    def unchanged_until(self) -> float:
        """When the next slice ends to count."""

    @property
    def count(self) -> int:
        """How many slices count."""

    @property
    def nbytes(self) -> int:
        """Bytes that they take."""

    @property
    def oldest(self) -> float | None:
        """When the oldest of them began, None without any."""

    def look(self) -> None:
        """Open it without a change, to be asked. Raises as `open` does."""

    def open(self) -> None:
        """Make it ready to be asked."""

    def knows(self, key: bytes, period: float | None = None) -> bool:
        """Return True if `key` was marked in the last `period` seconds."""

    def add(self, marks: Iterable[tuple[bytes, float]]) -> None:
        """Add keys with the times when they were marked; adding again changes nothing."""

    def clear(self) -> None:
        """Forget everything."""

    def close(self) -> None:
        """Let go of it. Closing twice is fine."""


@dataclass
class Contents:
    """What `delta.json` says. `longest` is the longest period that a crawl has asked for, in
    seconds, infinite for ever: what is older counts for no crawl."""

    slices: list[Slice]
    identity: str = ""
    longest: float = 0.0


def read(directory: Path, identity: str = "") -> Contents:
    """Return what `directory` holds; nothing, with that `identity`, if there is no memory yet.
    Raises FilterFileError, OSError."""
    path = directory / MANIFEST
    try:
        # an import of 0.2.0 took a time that is no number for what it was
        found: Any = json.loads(path.read_bytes(), parse_constant=lambda _: 0.0)
        if found["version"] != VERSION:
            raise ValueError(f"it has version {found['version']!r}, not {VERSION}")
        slices = [Slice(**each) for each in found["slices"]]
        for each in slices:
            if not each.name.isdecimal():
                raise ValueError(f"a slice has the name {each.name!r}")
        # 0.2.0 did not write it down, but made slices by it
        made = max((inf if s.goes_on else (s.end - s.start) * SLICES for s in slices), default=0.0)
        longest = found.get("longest", made)
        return Contents(slices, str(found["identity"]), inf if longest is None else float(longest))
    except FileNotFoundError:
        return Contents([], identity)
    except _UNREADABLE as error:
        raise FilterFileError(
            f"{path} cannot be read ({error!r}): restore it from a backup, or choose another"
            " BLOOM_DELTA_DIR"
        ) from error


def write(directory: Path, contents: Contents) -> None:
    """Replace the contents of `directory` atomically and durably. Raises OSError."""
    found = {"version": VERSION, **asdict(contents)}
    if contents.longest == inf:  # which JSON has no number for
        found["longest"] = None
    replace(directory / MANIFEST, json.dumps(found, indent=1).encode())
