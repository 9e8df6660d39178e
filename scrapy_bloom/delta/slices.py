"""The slices of a delta store, and their list in `delta.json`."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from math import inf
from typing import TYPE_CHECKING, Any

from ..errors import FilterFileError
from ..files import replace

if TYPE_CHECKING:
    from pathlib import Path

SLICES = 8
"""Number of slices in a period."""
VERSION = 1
MANIFEST = "delta.json"
_LEAST = 1000
"""Least capacity of a slice."""
_UNREADABLE = (ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError)
"""The exceptions of malformed JSON and of JSON with an unexpected structure."""


@dataclass
class Slice:
    """The marks between two times, in the directory `name`. Times are in seconds since the epoch.

    Without a period the slice `goes_on`, and `end` is its last mark. `met` is when it was first
    found to be from the future, `expired` when it was first found to count for no crawl.
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
        """Return the end of the slice; for one from the future, as if made when first found."""
        return self.end if self.start <= now or self.met is None else self.met + width


@dataclass(frozen=True)
class Shape:
    """The parameters of new slices. `period` is in seconds, None without expiry; `identity` is the
    text about the fingerprinter."""

    capacity: int = 1_000_000
    error_rate: float = 1e-6
    exact: bool = False
    period: float | None = None
    identity: str = ""

    @property
    def reach(self) -> float:
        """Seconds for which a mark counts, infinite without expiry."""
        return inf if self.period is None else self.period

    @property
    def width(self) -> float:
        """Seconds of a slice, 0 without a period."""
        return (self.period or 0.0) / SLICES

    @property
    def slice_capacity(self) -> int:
        """Number of keys that a slice is made for."""
        if self.period is None:
            return self.capacity
        return max(self.capacity // SLICES, min(self.capacity, _LEAST))

    @property
    def slice_error_rate(self) -> float:
        """The error rate of a slice: a share of the store's."""
        return self.error_rate / (SLICES + 1)


@dataclass
class Contents:
    """The contents of `delta.json`. `longest` is the longest period of any crawl so far, in
    seconds, infinite without expiry: older slices count for no crawl."""

    slices: list[Slice]
    identity: str = ""
    longest: float = 0.0


def read(directory: Path, identity: str = "") -> Contents:
    """Return the contents of `directory`; no slices and this `identity` if there is no store yet.
    Raises FilterFileError, OSError."""
    path = directory / MANIFEST
    try:
        # 0.2.0 could import NaN or infinity as a time
        found: Any = json.loads(path.read_bytes(), parse_constant=lambda _: 0.0)
        if found["version"] != VERSION:
            raise ValueError(f"it has version {found['version']!r}, not {VERSION}")
        slices = [Slice(**each) for each in found["slices"]]
        for each in slices:
            if not each.name.isdecimal():
                raise ValueError(f"a slice has the name {each.name!r}")
        # 0.2.0 did not store `longest`, but the length of its slices shows it
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
    if contents.longest == inf:  # JSON has no infinity
        found["longest"] = None
    replace(directory / MANIFEST, json.dumps(found, indent=1).encode())
