"""The Bloom filter of fixed size, usable without Scrapy.

Keys are bytes or str (encoded as UTF-8). `add` returns whether the key was present already, as in
pybloom and pybloomfiltermmap; Redis's BF.ADD returns the reverse.

An added key is always found. Another key is found with probability `current_error_rate`, which
stays under the stated bound up to the capacity and is negligible with an exact table.

Not safe for use from several threads at once. A forked process finds a filter in a file closed.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import BloomError, FilterFileError, IncompatibleFilterError
from . import sizing
from .file import PAGE, BitStore, new_header, read_header
from .layers import Key, Layered, PathArgument

if TYPE_CHECKING:
    from typing_extensions import Self


class Standalone(Layered):
    """What a filter has beside that for use without a dupefilter."""

    path: Path | None

    def update(self, keys: Iterable[Key]) -> None:
        """Add all `keys`. Raises as `add` does."""
        for key in keys:
            self.add(key)

    @property
    def secret(self) -> bytes:
        """The 16 bytes that key the hash. With the secret, collisions can be crafted."""
        return self._secret

    def flush(self) -> None:
        """Sync to the disk. Cost: 10 to 100 ms for 1,000 to 10,000 new keys."""
        for layer in self._newest_first:
            layer.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        place = f", path={str(self.path)!r}" if self.path else ""
        rate = f"{self.error_rate:g}"
        return f"<{type(self).__name__} {len(self):,} keys, error rate {rate}{place}>"


class BloomFilter(Standalone):
    """A page-local Bloom filter for `capacity` keys at `error_rate`, in memory or,
    with `path`, in a mapped file that is made or opened.

    Memory or file: 30.2 bits a key at 1e-6, in pages of 4 KiB. Beyond its capacity the filter
    still accepts keys and `current_error_rate` rises. `secret` (16 bytes, random by default) keys
    the hash; only filters with equal secrets can be joined. `identity` is free text about the
    keys, stored in the file.

    With `exact`, keys that were not added are not found: a table of 9.6 bytes a key checks each
    key that the filter takes for known. The table takes at most 1.1 times the capacity.

    An existing file must have at least this capacity, at most this error rate, the same secret if
    one is given, and a table if `exact`. Raises ValueError for bad arguments;
    IncompatibleFilterError, FilterFileError or FilterLockedError for files; OSError or MemoryError
    if there is no room.
    """

    def __init__(
        self,
        capacity: int,
        error_rate: float,
        path: PathArgument | None = None,
        *,
        secret: bytes | None = None,
        identity: str = "",
        exact: bool = False,
    ) -> None:
        header = new_header(capacity, error_rate, secret, identity, exact=exact)
        if path is None:
            self._use(BitStore.in_memory(header))
            return
        path = Path(path)
        try:
            store = BitStore.open(path)
        except FileNotFoundError:
            store = BitStore.create(header, path)
        with ExitStack() as undo:
            undo.callback(store.close)
            if store.capacity < capacity:
                raise IncompatibleFilterError(
                    f"{path} has capacity {store.capacity:,}, not the {capacity:,} asked for, and"
                    " cannot grow; use a ScalableBloomFilter or another path"
                )
            self._use(store)
            self._require(path, error_rate, secret, exact=exact)
            store.begin()
            undo.pop_all()

    @classmethod
    def open(cls, path: PathArgument, *, read_only: bool = False) -> Self:
        """Open the filter in the file at `path`, with its stored parameters.

        With `read_only`, neither lock nor change the file, even while another process adds to it;
        `add` raises TypeError then.

        Cost: reads two pages; after an unclean stop the whole file, to recount the keys. Raises
        FileNotFoundError, FilterFileError or FilterLockedError.
        """
        store = BitStore.open(Path(path), read_only=read_only)
        if not read_only:
            store.begin()
        return cls._of(store)

    @classmethod
    def _of(cls, store: BitStore) -> Self:
        self = cls.__new__(cls)
        self._use(store)
        return self

    def _use(self, store: BitStore) -> None:
        self._use_layers((store,))
        self._store = store
        self.path = store.path
        """The file of the filter; None if it is in memory."""
        self.header = store.header
        """Shape, hash, secret and identity of the filter; they never change."""
        self.capacity = store.header.capacity
        """Number of keys up to which the error rate stays under `error_rate`."""
        self.error_rate = store.header.error_rate
        """The bound on the error rate at capacity."""

    def copy(self) -> BloomFilter:
        """Return an independent copy in memory. Raises MemoryError if that is not available."""
        ours, copy = self._store, BitStore.in_memory(self.header)
        copy._memory[:] = ours._memory[:]
        copy.count = ours.count
        return BloomFilter._of(copy)

    def update_from(self, other: BloomFilter) -> None:
        """Add all keys of `other`, which must have the same shape, hash, secret and identity, and
        no exact table.

        The number of keys becomes an estimate, between that of the larger filter and the sum.
        Raises IncompatibleFilterError that names the difference, and adds nothing then.
        """
        self.require_same_origin(other)
        fewest, most = max(len(self), len(other)), len(self) + len(other)
        self._store.bits |= other._store.bits
        self._store.count = min(max(fewest, self._store.recount()), most)

    def require_same_origin(self, other: BloomFilter) -> None:
        """Raise IncompatibleFilterError, which names the difference, unless `other` can be joined
        with this filter."""
        if self.exact or other.exact:
            raise IncompatibleFilterError(
                "exact filters cannot be joined: a table keeps digests of its keys, and another"
                " one needs the keys; import what one of them has seen into the other with"
                " 'scrapy bloom add', or join filters made without BLOOM_EXACT (exact=True)"
            )
        for name in ("blocks", "probes", "secret", "identity"):
            ours, theirs = getattr(self.header, name), getattr(other.header, name)
            if ours != theirs:
                what = name if name == "secret" else f"{name} ({ours!r} and {theirs!r})"
                raise IncompatibleFilterError(
                    f"filters with different {what} cannot be joined; make both with the same"
                    " capacity, error rate, secret and identity"
                )

    def read_blocks(self, first: int, count: int) -> bytes:
        """Return the bytes of `count` blocks, a page each, from block `first` on."""
        return bytes(self._store._view[first * PAGE : (first + count) * PAGE])

    def __or__(self, other: BloomFilter) -> BloomFilter:
        """Return a new filter in memory that holds the keys of both."""
        joined = self.copy()
        joined.update_from(other)
        return joined

    @property
    def layers(self) -> tuple[BloomFilter]:
        """The filter itself, its only layer."""
        return (self,)

    def check(self) -> None:
        """Raise BloomError if the file differs from its header, or the number of keys from the
        bits or the exact table. Cost: reads the whole filter."""
        if self.path is not None and read_header(self.path) != self.header:
            raise FilterFileError(f"{self.path} has another header than when it was opened")
        count = len(self)
        if (table := self._store.table) is not None:
            table.check(count)
        set_bits = list(self._store.block_counts())
        bits = sum(set_bits)
        if (bits == 0) != (count == 0):
            raise BloomError(f"{self!r} has {bits:,} bits set for {count:,} keys")
        estimate = sizing.estimate_keys(self.header.probes, set_bits)
        error_rate = self.current_error_rate
        # keys taken for known ones are in the estimate, not in the count
        tolerance = (0.02 + error_rate) * count + 10 * count**0.5
        if error_rate < 0.1 and abs(count - estimate) > tolerance:
            raise BloomError(f"{self!r} counts {count:,} keys, its bits tell of {estimate:,}")


def layers_of(known: Layered) -> tuple[BloomFilter, ...]:
    """Return the layers of a filter, oldest first; of one in Redis none."""
    return tuple(map(BloomFilter._of, reversed(getattr(known, "_newest_first", ()))))
