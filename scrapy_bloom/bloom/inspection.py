"""Description and verification of a filter on the disk, without locking or changing it.

A filter in use can be described: its keys are estimated from its bits, since the count in
the file is that of the last flush.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from math import sqrt
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from ..errors import BloomError
from ..files import is_held, open_regular
from . import layer_path, layer_paths, sizing
from .file import State
from .fixed import BloomFilter
from .scalable import ScalableBloomFilter


class Layer(NamedTuple):
    """One layer of a filter."""

    capacity: int
    items: int
    error_rate_bound: float
    error_rate: float
    bits: int
    probes: int
    fill_ratio: float

    @classmethod
    def of(cls, load: sizing.LayerLoad, capacity: int, error_rate_bound: float, bits: int) -> Layer:
        """Return the layer with this load."""
        rate = load.share * load.error_rate
        fill = sizing.fill_ratio(load.blocks, load.probes, load.keys)
        return cls(capacity, int(load.keys), error_rate_bound, rate, bits, load.probes, fill)


class Description:
    """A filter of any kind, whose header tells when it was made, and by what. `items` are exact if
    it was closed cleanly or has an exact table, else estimated from the bits. `held_by` is the
    process that has it open. `bytes` are those of the bits, in memory as in the file, `table_bytes`
    those of the exact table."""

    def __init__(
        self,
        place: str,
        bloom_filter: Any,
        header: Any,
        fingerprinter: tuple[str | None, str | None],
        layers: list[Layer],
        *,
        file_bytes: int,
        clean: bool = True,
        held_by: int | None = None,
    ) -> None:
        self.place = place
        self.items = len(bloom_filter)
        self.items_exact: bool = clean or bloom_filter.exact
        self.capacity = sum(layer.capacity for layer in layers)
        self.layers = layers
        self.bits: int = bloom_filter.nbytes * 8
        self.bytes: int = bloom_filter.nbytes
        self.table_bytes: int = bloom_filter.table_nbytes
        self.file_bytes = file_bytes
        self.fill_ratio: float = bloom_filter.fill_ratio
        self.error_rate: float = bloom_filter.current_error_rate
        self.error_rate_bound: float = bloom_filter.error_rate
        self.expected_pages_lost: float = bloom_filter.expected_false_positives
        self.has_secret = any(header.secret)
        self.fingerprinter, self.fingerprinter_identity = fingerprinter
        self.created: str = header.created
        self.software: str = header.software
        self.clean = clean
        self.held_by = held_by

    @property
    def figures(self) -> dict[str, Any]:
        """All of it, for JSON."""
        return {**vars(self), "layers": [layer._asdict() for layer in self.layers]}


@dataclass(frozen=True)
class Finding:
    """The result of the checks of a file, or (`path` empty) of the whole filter."""

    path: str
    sound: bool
    text: str

    @classmethod
    def of(cls, path: str, check: Callable[[], str]) -> Finding:
        """Return what `check` has found, or the error that it raises."""
        try:
            return cls(path, sound=True, text=check())
        except (BloomError, OSError) as error:
            return cls(path, sound=False, text=str(error))


def describe(
    name: str, path: Path, fingerprinter_in: Callable[[str], tuple[str | None, str | None]]
) -> Description:
    """Return the description of the filter at `path`, which calls it `name`.
    `fingerprinter_in` returns the name and the identity of the fingerprinter that the
    filter's identity tells of.

    Cost: reads headers only, or all bits of a filter that is not closed. Raises
    FileNotFoundError if there is none, FilterFileError if it is not sound.
    """
    with open_filter(path, read_only=True) as bloom_filter:
        layers = bloom_filter.layers
        return Description(
            name,
            bloom_filter,
            layers[0].header,
            fingerprinter_in(bloom_filter.identity),
            [
                Layer.of(layer.loads[0], layer.capacity, layer.error_rate, layer.nbytes * 8)
                for layer in layers
            ],
            file_bytes=sum(layer.header.file_bytes for layer in layers),
            clean=bloom_filter.clean,
            held_by=None if bloom_filter.clean else holder(path),
        )


def holder(path: Path) -> int | None:
    """Return the process that has the filter at `path` open, 0 if its number is not known,
    None if it is not open."""
    file = layer_path(path, 0) if path.is_dir() else path
    return _pid_in(file) if is_held(file) else None


def _pid_in(path: Path) -> int:
    with open_regular(path, read_only=True) as file:
        return State.read(file).pid


def verify(path: Path) -> Iterator[Finding]:
    """Yield a finding for each file of the filter at `path`, and one for the whole.

    Reads everything, changes nothing. The filter can be trusted if all are sound.
    """
    sound = True
    for file in layer_paths(path) if path.is_dir() else [path]:
        finding = Finding.of(str(file), partial(_state_of, file))
        sound = sound and finding.sound
        yield finding
    if sound and path.is_dir():
        yield Finding.of("", partial(_series_at, path))


def _series_at(path: Path) -> str:
    """Return the result of the checks of the whole. Raises BloomError."""
    with ScalableBloomFilter.open(path, read_only=True) as bloom_filter:
        bloom_filter.check()
        return f"the series of layers is complete ({len(bloom_filter.layers)})"


def _state_of(path: Path) -> str:
    """Return the results of the checks of a sound layer. Raises BloomError."""
    with BloomFilter.open(path, read_only=True) as layer:
        store, items, clean, exact = layer._store, len(layer), layer.clean, layer.exact
        counts = list(store.block_counts())
        low, high = _likely_bits(counts, store.header.probes)
        if store.table is not None:
            _require_likely_buckets(path, store.table.counts())
        if odd := [number for number, count in enumerate(counts) if not low <= count <= high]:
            raise BloomError(
                f"{path} has {len(odd):,} blocks that chance does not explain, the first is block"
                f" {odd[0]:,} with {counts[odd[0]]:,} bits set ({low:,} to {high:,} are likely): it"
                " was damaged or polluted; restore it from a backup, or start a new filter"
            )
        layer.check()
    if clean:
        parts = "state, bits and exact table" if exact else "state and bits"
        return f"header, size, {parts} agree on {items:,} items"
    what, about = ("exact table", "") if exact else ("bits", "about ")
    why = "not closed cleanly (or in use)" if _pid_in(path) else "the state page is damaged"
    return f"{why}; by its {what} it holds {about}{items:,} items"


def _require_likely_buckets(path: Path, counts: bytes) -> None:
    """Raise BloomError if a bucket has fewer keys than chance gives it."""
    keys = median(counts)
    reach = 6 * sqrt(keys) + 5
    if odd := [number for number, count in enumerate(counts) if keys - count > reach]:
        raise BloomError(
            f"{path} has {len(odd):,} buckets in its exact table that chance does not explain, the"
            f" first is bucket {odd[0]:,} with {counts[odd[0]]} keys: it was damaged; restore it"
            " from a backup, or start a new filter"
        )


def _likely_bits(counts: list[int], probes: int) -> tuple[int, int]:
    """Return the bounds of the bits set in a block with a random share of the keys: ten
    standard deviations below and above."""
    keys = sizing.estimate_keys(probes, [round(median(counts))])
    reach = 10 * sqrt(keys) + 20
    low, high = (
        round(sizing.fill_ratio(1, probes, max(0.0, bound)) * sizing.BLOCK_BITS)
        for bound in (keys - reach, keys + reach)
    )
    return low, high


def open_filter(path: Path, *, read_only: bool = False) -> BloomFilter | ScalableBloomFilter:
    """Open the filter at `path`, which is one file, or the directory of a growing filter.
    Raises as `BloomFilter.open` does."""
    if path.is_dir():
        return ScalableBloomFilter.open(path, read_only=read_only)
    return BloomFilter.open(path, read_only=read_only)
