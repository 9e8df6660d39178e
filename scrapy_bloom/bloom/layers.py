"""The loops over layers and probes, which decide the speed of a filter.

Most of the time is waiting for cache lines. The first probe rejects half of the absent keys, so
the first three probes are tested one by one; for the others the block is copied, in one read.
Bits are set in one call, which waits for all of their lines at once. The code of hashing.py is in
line: calls would take half of the time.
"""

from __future__ import annotations

from contextlib import ExitStack
from os import PathLike
from pathlib import Path
from struct import Struct

from mmh3 import hash128, hash_bytes

from ..errors import IncompatibleFilterError
from . import sizing
from .file import PAGE, BitStore
from .sizing import BLOCK_BITS, FIRST_PROBES, NEXT_PROBES

BLOCK_SHIFT = 15  # a block has 2**15 bits
unpack_first = Struct("<I6H").unpack
unpack_next = Struct("<8H").unpack
LANE_MASK = 0x7FFF
FIRST_MASK = int.from_bytes(b"\xff\xff\xff\xff" + b"\xff\x7f" * FIRST_PROBES, "little")
NEXT_MASK = int.from_bytes(b"\xff\x7f" * NEXT_PROBES, "little")

Key = bytes | str
"""Text is encoded as UTF-8."""

PathArgument = str | PathLike[str]


def to_bytes(key: Key) -> bytes:
    """Return `key` as the filters hash it. Raises TypeError for other types."""
    if isinstance(key, str):
        return key.encode()
    if isinstance(key, (bytes, bytearray, memoryview)):
        return bytes(key)
    raise TypeError(f"key is {key!r}, a {type(key).__name__}: keys are bytes or str")


class Layered:
    """`add` and `in` of a filter, and the figures of its layers: of a file, of memory,
    or of Redis, whose filter has them by its own ways.

    A key is present if all its bits are set in any layer, from the newest on, and the layer's
    table, if any, contains the key. A new key goes into the newest layer: bits, remainder, count,
    in this order. So after a crash the key is complete or new: a key counted without its bits
    would be counted again.
    """

    growing: bool | None = False
    """If not, the newest layer takes any number of keys; with None up to its error rate."""

    false_positives_avoided = 0
    """Number of new keys, since the filter was opened, whose bits were set but which the exact
    table did not contain."""

    error_rate: float
    """The bound on the probability of taking a new key for a known one."""

    _secret: bytes
    _newest_first: tuple[BitStore, ...]

    def _use_layers(self, newest_first: tuple[BitStore, ...]) -> None:
        self._newest_first = newest_first
        self._secret = newest_first[0].header.secret

    def add(self, key: Key) -> bool:
        """Add `key`; return True if it was present already, or by a false positive.

        Raises TypeError if the filter is read-only, OSError or MemoryError if it cannot grow,
        BloomError if it is full and may not grow. The key is not added then.
        """
        if type(key) is not bytes:
            key = to_bytes(key)
        salted = self._secret + key
        avoided = 0
        selector, a, b, c, d, e, f = unpack_first(
            (hash128(salted, 0) & FIRST_MASK).to_bytes(16, "little")
        )
        for layer in self._newest_first:
            bits = layer.bits
            o = selector * layer.blocks >> 32 << BLOCK_SHIFT
            if bits[o + a] and bits[o + b] and bits[o + c]:
                rest = [d, e, f]
                for seed in layer.seeds:
                    rest += unpack_next((hash128(salted, seed) & NEXT_MASK).to_bytes(16, "little"))
                if bits[o : o + BLOCK_BITS][rest].all():
                    if layer.table is None or layer.table.holds(selector, key):
                        return True
                    avoided = 1
        newest = self._newest_first[0]
        if newest.count >= newest.capacity:
            if self.growing:
                self._grow()
                return Layered.add(self, key)
            newest.require_room(is_bound=self.growing is None)
        if newest is not layer:
            bits = newest.bits
            o = selector * newest.blocks >> 32 << BLOCK_SHIFT
        probes = [o + a, o + b, o + c, o + d, o + e, o + f]
        for seed in newest.seeds:
            a, b, c, d, e, f, g, h = unpack_next(
                (hash128(salted, seed) & NEXT_MASK).to_bytes(16, "little")
            )
            probes += o + a, o + b, o + c, o + d, o + e, o + f, o + g, o + h
        bits[probes] = 1
        if (table := newest.table) is not None:
            table.add(selector, key)
            self.false_positives_avoided += avoided
        newest.count += 1
        return False

    def __contains__(self, key: Key) -> bool:
        if type(key) is not bytes:
            key = to_bytes(key)
        salted = self._secret + key
        # most absent keys need one or two of the lanes: mask only those
        selector, a, b, c, d, e, f = unpack_first(hash_bytes(salted, 0))
        mask = LANE_MASK
        for layer in self._newest_first:
            bits = layer.bits
            o = selector * layer.blocks >> 32 << BLOCK_SHIFT
            if bits[o + (a & mask)] and bits[o + (b & mask)] and bits[o + (c & mask)]:
                rest = [d & mask, e & mask, f & mask]
                for seed in layer.seeds:
                    rest += unpack_next((hash128(salted, seed) & NEXT_MASK).to_bytes(16, "little"))
                if bits[o : o + BLOCK_BITS][rest].all() and (
                    layer.table is None or layer.table.holds(selector, key)
                ):
                    return True
        return False

    def __len__(self) -> int:
        """Number of keys added; an estimate after an unclean stop or a join. With exact tables
        the number is exact, or too high after a power failure."""
        return sum(layer.count for layer in self._newest_first)

    @property
    def exact(self) -> bool:
        """True if the layers have exact tables."""
        return self._newest_first[0].table is not None

    @property
    def capacities(self) -> list[int]:
        """The capacities of the layers, oldest first."""
        return [layer.capacity for layer in reversed(self._newest_first)]

    @property
    def current_error_rate(self) -> float:
        """Estimated probability, at the present fill, of taking a new key for a known one: at most
        the sum of those of the layers. Cost: about 0.1 ms a layer."""
        return min(1.0, sum(layer.share * layer.error_rate for layer in self.loads))

    @property
    def expected_false_positives(self) -> float:
        """Expected number of new keys taken for known ones so far, in all layers. Cost: some ms."""
        return sizing.total_false_positives(self.loads)

    @property
    def fill_ratio(self) -> float:
        """Expected share of bits set, 0 to 1, over all layers."""
        loads = self.loads
        filled = sum(n.blocks * sizing.fill_ratio(n.blocks, n.probes, n.keys) for n in loads)
        return filled / sum(n.blocks for n in loads)

    @property
    def nbytes(self) -> int:
        """Bytes of the bit arrays."""
        return PAGE * sum(layer.blocks for layer in self._newest_first)

    @property
    def table_nbytes(self) -> int:
        """Bytes of the exact tables, 0 without. A table in a file needs memory only for the pages
        in use."""
        return PAGE * sum(layer.header.table_pages for layer in self._newest_first)

    @property
    def identity(self) -> str:
        """The text given when the filter was made."""
        return self._newest_first[-1].header.identity

    @property
    def clean(self) -> bool:
        """False if the filter was found unclosed when it was opened: its keys were recounted."""
        return not any(layer.found for layer in self._newest_first)

    def close(self) -> None:
        """Sync, mark as cleanly closed, unlock. A second call does nothing."""
        with ExitStack() as stack:
            for layer in reversed(self._newest_first):  # the first, with the lock of all, goes last
                stack.callback(layer.close)

    @property
    def loads(self) -> list[sizing.LayerLoad]:
        """The shapes and numbers of keys of the layers, oldest first."""
        return [layer.load for layer in reversed(self._newest_first)]

    def _require(self, path: Path, error_rate: float, secret: bytes | None, *, exact: bool) -> None:
        """Raise IncompatibleFilterError unless the filter, at `path`, has at most this error rate,
        the secret if one is given, and tables if it is to be `exact`."""
        if self.error_rate > error_rate:
            what = f"was made for error rate {self.error_rate:g}, not the lower {error_rate:g}"
        elif secret not in (None, self._secret):
            what = "has another secret than the one given"
        elif exact and not self.exact:
            what = "has no exact table (BLOOM_EXACT), and only their bits are left of its keys"
        else:
            return
        raise IncompatibleFilterError(
            f"{path} {what}: ask for what it has, or start a new job or filter"
        )

    def _grow(self) -> None:
        """Add an empty layer, the newest."""
        raise NotImplementedError
