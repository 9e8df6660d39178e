"""What a filter on disk is and whether it can be trusted, without locking or changing it.

A running job can be looked at: its bits are read as they are, and its keys counted by
them, since the count in the file is that of the last flush.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from statistics import median

from ..errors import BloomError
from ..files import is_held
from . import sizing
from .file import BitStore, read_state
from .fixed import BloomFilter
from .growing import ScalableBloomFilter
from .place import AnyFilter, Place


@dataclass(frozen=True)
class Layer:
    """One filter file."""

    capacity: int
    items: int
    error_rate_bound: float
    error_rate: float
    bits: int
    probes: int
    fill_ratio: float


@dataclass(frozen=True)
class Description:
    """A filter: `items` are exact if it was closed cleanly or has an exact table, else
    estimated from the bits; `held_by` is the process that uses it now; `bytes` are those
    of the bits, in memory as in the file, `table_bytes` those of the exact table."""

    place: str
    items: int
    items_exact: bool
    capacity: int
    layers: list[Layer]
    bits: int
    bytes: int
    table_bytes: int
    file_bytes: int
    fill_ratio: float
    error_rate: float
    error_rate_bound: float
    expected_pages_lost: float
    has_secret: bool
    fingerprinter: str | None
    fingerprinter_identity: str | None
    created: str
    software: str
    clean: bool
    held_by: int | None


@dataclass(frozen=True)
class Finding:
    """What was found out about a file, or (`path` empty) about the whole."""

    path: str
    sound: bool
    text: str


def describe(
    place: Place, fingerprinter_in: Callable[[str], tuple[str | None, str | None]]
) -> Description:
    """Return what there is to know about the filter at `place`. What its identity tells
    of a fingerprinter, the name and that one's own identity, `fingerprinter_in` reads.

    Cost: reads headers only, or all bits of a filter that is not closed. Raises
    JobDirectoryError if there is none, FilterFileError if it is not sound.
    """
    with place.open(read_only=True) as bloom_filter:
        layers = layers_of(bloom_filter)
        header = layers[0].header
        name, identity = fingerprinter_in(bloom_filter.identity)
        return Description(
            place=place.name,
            items=len(bloom_filter),
            items_exact=bloom_filter.clean or bloom_filter.exact,
            capacity=sum(layer.capacity for layer in layers),
            layers=[
                Layer(
                    capacity=layer.capacity,
                    items=len(layer),
                    error_rate_bound=layer.error_rate,
                    error_rate=layer.current_error_rate,
                    bits=layer.nbytes * 8,
                    probes=layer.header.probes,
                    fill_ratio=layer.fill_ratio,
                )
                for layer in layers
            ],
            bits=bloom_filter.nbytes * 8,
            bytes=bloom_filter.nbytes,
            table_bytes=bloom_filter.table_nbytes,
            file_bytes=sum(layer.header.file_bytes for layer in layers),
            fill_ratio=bloom_filter.fill_ratio,
            error_rate=bloom_filter.current_error_rate,
            error_rate_bound=bloom_filter.error_rate,
            expected_pages_lost=bloom_filter.expected_false_positives,
            has_secret=any(header.secret),
            fingerprinter=name,
            fingerprinter_identity=identity,
            created=header.created,
            software=header.software,
            clean=bloom_filter.clean,
            held_by=None if bloom_filter.clean else holder(place),
        )


def holder(place: Place) -> int | None:
    """Return the process that has the filter open, 0 if only somebody has, or None."""
    if not is_held(place.lock):
        return None
    if place.is_file:
        return read_state(place.path).pid
    text = place.lock.read_text(errors="replace").strip()
    return int(text) if text.isdecimal() else 0


def verify(place: Place) -> Iterator[Finding]:
    """Yield a finding for each file of the filter at `place`, and one for the whole.

    Reads everything, changes nothing. The filter can be trusted if all are sound.
    """
    place.require()
    sound = True
    for path in place.files:
        finding = _check_layer(path)
        sound = sound and finding.sound
        yield finding
    if sound and not place.is_file:
        try:
            with closing(ScalableBloomFilter.open(place.path, read_only=True)) as bloom_filter:
                bloom_filter.check()
        except (BloomError, OSError) as error:
            yield Finding("", sound=False, text=str(error))
        else:
            layers = len(bloom_filter.layers)
            yield Finding("", sound=True, text=f"the series of layers is complete ({layers})")


def layers_of(bloom_filter: AnyFilter) -> tuple[BloomFilter, ...]:
    """Return the layers of a filter; one of fixed size is its own only one."""
    return (bloom_filter,) if isinstance(bloom_filter, BloomFilter) else bloom_filter.layers


def _check_layer(path: Path) -> Finding:
    try:
        return Finding(str(path), sound=True, text=_state_of(path))
    except (BloomError, OSError) as error:
        return Finding(str(path), sound=False, text=str(error))


def _state_of(path: Path) -> str:
    """Return what the checks of a sound layer have shown; raise BloomError otherwise."""
    with closing(BitStore.open(path, read_only=True)) as store:
        counts = list(store.block_counts())
        low, high = _likely_bits(counts, store.header.probes)
        if store.table is not None:
            _require_likely_buckets(path, store.table.counts())
    odd = [number for number, count in enumerate(counts) if not low <= count <= high]
    if odd:
        raise BloomError(
            f"{path} has {len(odd):,} blocks that chance does not explain, the first is block"
            f" {odd[0]:,} with {counts[odd[0]]:,} bits set ({low:,} to {high:,} are likely): it was"
            " damaged or polluted; restore it from a backup, or start a new filter"
        )
    with BloomFilter.open(path, read_only=True) as layer:
        layer.check()
        items, clean, exact = len(layer), layer.clean, layer.exact
    if clean:
        parts = "state, bits and exact table" if exact else "state and bits"
        return f"header, size, {parts} agree on {items:,} items"
    held = f"by its {'exact table' if exact else 'bits'} it holds"
    held += f" {items:,} items" if exact else f" about {items:,} items"
    if read_state(path).pid == 0:
        return f"the state page is damaged; {held}"
    return f"not closed cleanly (or in use); {held}"


def _require_likely_buckets(path: Path, counts: bytes) -> None:
    """Raise BloomError if a bucket has fewer keys than chance gives it."""
    keys = median(counts)
    reach = 6 * sqrt(keys) + 5
    odd = [number for number, count in enumerate(counts) if keys - count > reach]
    if odd:
        raise BloomError(
            f"{path} has {len(odd):,} buckets in its exact table that chance does not explain, the"
            f" first is bucket {odd[0]:,} with {counts[odd[0]]} keys: it was damaged; restore it"
            " from a backup, or start a new filter"
        )


def _likely_bits(counts: list[int], probes: int) -> tuple[int, int]:
    """Return how few and how many bits a block has that got a random share of the
    keys: ten standard deviations off, which is never seen."""
    keys = sizing.estimate_keys(probes, [round(median(counts))])
    reach = 10 * sqrt(keys) + 20
    low, high = (
        round(sizing.fill_ratio(1, probes, max(0.0, bound)) * sizing.BLOCK_BITS)
        for bound in (keys - reach, keys + reach)
    )
    return low, high
