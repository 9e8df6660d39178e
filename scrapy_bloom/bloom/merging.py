"""Filters of one origin joined on the disk."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import zip_longest
from pathlib import Path

from ..errors import IncompatibleFilterError
from . import sizing
from .fixed import BloomFilter
from .inspection import open_filter
from .scalable import ScalableBloomFilter

_TOLERANCE = 1.02  # numbers of keys are estimates


def merge(
    destination: Path, sources: Sequence[Path], *, over_capacity: bool = False
) -> tuple[int, int]:
    """Add the keys of the filters at `sources` to the one at `destination`; return how many
    keys that holds before and after, the latter by its bits, and never fewer.

    The sources are only read. Refused with IncompatibleFilterError, and nothing
    changed, unless all have one origin and, without `over_capacity`, each layer has
    room for all, so that the error rate stays under its bound. An interrupted merge has
    added a part, and can be run again.
    """
    paths = [destination, *sources]
    with ExitStack() as stack:
        for path in sources:
            _require_other(path, destination)
        looked_at: list[BloomFilter | ScalableBloomFilter] = []
        for path in paths:
            looked_at.append(open_filter(path, read_only=True))
            stack.callback(looked_at[-1].close)
        for number, layers in enumerate(zip_longest(*(each.layers for each in looked_at))):
            there = [pair for pair in zip(paths, layers, strict=True) if pair[1] is not None]
            _require_one_origin(there)
            if not over_capacity:
                _require_room(number, [layer for _, layer in there])
        bloom_filter = stack.enter_context(open_filter(destination))
        before = len(bloom_filter)
        for other in looked_at[1:]:
            match bloom_filter, other:
                case BloomFilter(), BloomFilter():
                    bloom_filter.update_from(other)
                case ScalableBloomFilter(), ScalableBloomFilter():
                    bloom_filter.update_from(other)
        return before, len(bloom_filter)


def _require_other(path: Path, destination: Path) -> None:
    if path.samefile(destination):
        raise IncompatibleFilterError(f"{path} is the destination itself")
    if path.is_dir() != destination.is_dir():
        raise IncompatibleFilterError(
            f"{path} and {destination} cannot be joined: one is a filter of fixed size in a file,"
            " the other one that grows in a directory"
        )


def _require_one_origin(layers: Sequence[tuple[Path, BloomFilter]]) -> None:
    """Raise IncompatibleFilterError unless these layers, the same one of each filter,
    can become one."""
    (first_path, first), *others = layers
    try:
        for each in others:
            first.require_same_origin(each[1])
    except IncompatibleFilterError as error:
        raise IncompatibleFilterError(f"{each[0]} does not fit {first_path}: {error}") from None


def _require_room(number: int, layers: Sequence[BloomFilter]) -> None:
    """Raise IncompatibleFilterError unless the first of these layers, each with number
    `number`, stays within its capacity when it gets the keys of the others."""
    first, header = layers[0], layers[0].header
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
