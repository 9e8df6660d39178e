"""Filters of one origin joined on the disk."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import zip_longest

from ..errors import IncompatibleFilterError
from . import sizing
from .fixed import BloomFilter
from .growing import ScalableBloomFilter
from .inspection import layers_of
from .place import AnyFilter, Place

_TOLERANCE = 1.02  # numbers of keys are estimates


def merge(
    destination: Place, sources: Sequence[Place], *, over_capacity: bool = False
) -> tuple[int, int]:
    """Add the keys of `sources` to `destination`; return how many keys that holds
    before and after, the latter by its bits, and never fewer.

    The sources are only read. Refused with IncompatibleFilterError, and nothing
    changed, unless all have one origin and, without `over_capacity`, each layer has
    room for all, so that the error rate stays under its bound. An interrupted merge has
    added a part, and can be run again.
    """
    destination.require()
    with ExitStack() as stack:
        others: list[AnyFilter] = []
        for place in sources:
            place.require()
            _require_other(place, destination)
            others.append(place.open(read_only=True))
            stack.callback(others[-1].close)
        looked_at = destination.open(read_only=True)
        stack.callback(looked_at.close)
        together = zip_longest(*[layers_of(each) for each in (looked_at, *others)])
        for number, layers in enumerate(together):
            names = [destination.name, *(place.name for place in sources)]
            there = [pair for pair in zip(names, layers, strict=True) if pair[1] is not None]
            _require_one_origin(there)
            if not over_capacity:
                _require_room(number, [layer for _, layer in there])
        bloom_filter = destination.open()
        stack.callback(bloom_filter.close)
        before = len(bloom_filter)
        for other in others:
            match bloom_filter, other:
                case BloomFilter(), BloomFilter():
                    bloom_filter.update_from(other)
                case ScalableBloomFilter(), ScalableBloomFilter():
                    bloom_filter.update_from(other)
        return before, len(bloom_filter)


def _require_other(place: Place, destination: Place) -> None:
    if place.path.samefile(destination.path):
        raise IncompatibleFilterError(f"{place.name} is the destination itself")
    if place.is_file != destination.is_file:
        raise IncompatibleFilterError(
            f"{place.name} and {destination.name} cannot be joined: one is a filter of fixed size"
            " in a file, the other one that grows in a directory"
        )


def _require_one_origin(layers: Sequence[tuple[str, BloomFilter]]) -> None:
    """Raise IncompatibleFilterError unless these layers, the same one of each filter,
    can become one."""
    first_name, first = layers[0]
    for name, layer in layers[1:]:
        _require_same_origin(first_name, first, name, layer)


def _require_same_origin(
    first_name: str, first: BloomFilter, name: str, layer: BloomFilter
) -> None:
    try:
        first.require_same_origin(layer)
    except IncompatibleFilterError as error:
        raise IncompatibleFilterError(f"{name} does not fit {first_name}: {error}") from None


def _require_room(number: int, layers: Sequence[BloomFilter]) -> None:
    """Raise IncompatibleFilterError unless the first of these layers, each with number
    `number`, stays within its capacity when it gets the keys of the others."""
    first = layers[0]
    header = first.header
    keys = sizing.estimate_keys(header.probes, _joined_counts(layers))
    if keys > _TOLERANCE * first.capacity + 100:
        rate = sizing.error_rate_at(header.blocks, header.probes, keys)
        raise IncompatibleFilterError(
            f"layer {number} would hold about {keys:,} keys, and was made for {first.capacity:,}:"
            f" its error rate would be {rate:.2g}, above its bound {first.error_rate:g}; accept"
            " that with --over-capacity"
        )


def _joined_counts(layers: Sequence[BloomFilter]) -> Iterator[int]:
    """Yield how many bits would be set in each block."""
    for number in range(layers[0].header.blocks):
        joined = 0
        for layer in layers:
            joined |= int.from_bytes(layer.read_blocks(number, 1), "little")
        yield joined.bit_count()
