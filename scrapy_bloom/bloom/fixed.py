"""The Bloom filter of fixed size, usable without Scrapy.

Keys are bytes or str (encoded as UTF-8). `add` answers whether the key was there
already, as in pybloom and pybloomfiltermmap; Redis's BF.ADD answers the reverse.
A key that was added is always found; one that was not is found with a chance of
`current_error_rate`, which stays under the stated bound up to the capacity. Not safe
for use from several threads at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from mmh3 import hash128

from ..errors import BloomError, IncompatibleFilterError
from . import sizing
from .file import BitStore, read_header
from .hashing import (
    BLOCK_SHIFT,
    FIRST_MASK,
    FIRST_PROBES,
    NEXT_MASK,
    Lanes,
    check_secret,
    digests,
    new_secret,
    unpack_first,
    unpack_next,
)
from .header import PAGE, Header
from .sizing import BLOCK_BITS

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

Key = bytes | str
PathArgument = str | PathLike[str]


class BloomFilter:
    """A page-local Bloom filter for `capacity` keys at `error_rate`, in memory or,
    with `path`, in a mapped file that is made or opened.

    Memory or file: 30.2 bits a key at 1e-6, in pages of 4 KiB. Beyond its capacity
    it goes on accepting keys and `current_error_rate` rises. `secret` (16 bytes,
    random by default) keys the hash; filters can only be joined if they share it.
    `identity` is free text about the keys that is kept in the file.

    An existing file must offer what is asked: at least this capacity, at most this
    error rate, the same secret if one is given. Raises ValueError for bad arguments,
    IncompatibleFilterError, FilterFileError, FilterLockedError for files, OSError or
    MemoryError if there is no room.
    """

    def __init__(
        self,
        capacity: int,
        error_rate: float,
        path: PathArgument | None = None,
        *,
        secret: bytes | None = None,
        identity: str = "",
    ) -> None:
        header = new_header(capacity, error_rate, secret, identity)
        if path is None:
            self._use(BitStore.in_memory(header))
            return
        path = Path(path)
        try:
            found = read_header(path)
        except FileNotFoundError:
            self._use(BitStore.create(header, path))
            return
        if found.capacity < capacity:
            raise IncompatibleFilterError(
                f"{path} has capacity {found.capacity:,}, not the {capacity:,} asked for, and"
                " cannot grow; use a ScalableBloomFilter or another path"
            )
        if found.error_rate > error_rate:
            raise too_imprecise(path, found.error_rate, error_rate)
        require_secret(path, found, secret)
        self._use(BitStore.open(path))

    @classmethod
    def open(cls, path: PathArgument, *, read_only: bool = False) -> Self:
        """Open the filter in the file at `path`, with the parameters it has.

        With `read_only`, look at it without locking or changing it, even while
        another process adds to it; `add` raises TypeError then.

        Cost: reads two pages, or everything to recount the keys after an unclean
        stop. Raises FileNotFoundError, FilterFileError or FilterLockedError.
        """
        return cls._of(BitStore.open(Path(path), read_only=read_only))

    @classmethod
    def _of(cls, store: BitStore) -> Self:
        self = cls.__new__(cls)
        self._use(store)
        return self

    def _use(self, store: BitStore) -> None:
        header = store.header
        self._closed = False
        self._store = store
        self._header = header
        self._bits = store.bits
        self._blocks = header.blocks
        self._capacity = header.capacity
        self._probes = header.probes
        self._few_probes = header.probes < FIRST_PROBES
        self._seeds = range(1, digests(header.probes))
        self._secret = header.secret
        self._count = self._accounted = store.count
        self._expected_false_positives = store.expected_false_positives
        if not store.clean:
            self._recount()
            self._expected_false_positives = 0.0
            self._accounted = 0

    # `_holds` and `_put` in line, in both: half of the time would go into calls

    def add(self, key: Key) -> bool:
        """Add `key`; return True if it was already present (or is taken for it)."""
        salted = self._secret + (key if type(key) is bytes else to_bytes(key))
        lanes = unpack_first((hash128(salted, 0) & FIRST_MASK).to_bytes(16, "little"))
        if self._few_probes:
            if self._holds(salted, lanes):
                return True
            self._put(salted, lanes)
            return False
        selector, a, b, c, d, e, f = lanes
        bits = self._bits
        o = selector * self._blocks >> 32 << BLOCK_SHIFT
        if bits[o + a] and bits[o + b] and bits[o + c]:
            rest = [d, e, f]
            for seed in self._seeds:
                rest += unpack_next((hash128(salted, seed) & NEXT_MASK).to_bytes(16, "little"))
            if bits[o : o + BLOCK_BITS][rest].all():
                return True
        probes = [o + a, o + b, o + c, o + d, o + e, o + f]
        for seed in self._seeds:
            a, b, c, d, e, f, g, h = unpack_next(
                (hash128(salted, seed) & NEXT_MASK).to_bytes(16, "little")
            )
            probes += o + a, o + b, o + c, o + d, o + e, o + f, o + g, o + h
        bits[probes] = 1
        self._count += 1
        return False

    def __contains__(self, key: Key) -> bool:
        salted = self._secret + (key if type(key) is bytes else to_bytes(key))
        lanes = unpack_first((hash128(salted, 0) & FIRST_MASK).to_bytes(16, "little"))
        if self._few_probes:
            return self._holds(salted, lanes)
        selector, a, b, c, d, e, f = lanes
        bits = self._bits
        o = selector * self._blocks >> 32 << BLOCK_SHIFT
        if not (bits[o + a] and bits[o + b] and bits[o + c]):
            return False
        rest = [d, e, f]
        for seed in self._seeds:
            rest += unpack_next((hash128(salted, seed) & NEXT_MASK).to_bytes(16, "little"))
        return bits[o : o + BLOCK_BITS][rest].all()

    def update(self, keys: Iterable[Key]) -> None:
        """Add all `keys`."""
        for key in keys:
            self.add(key)

    def __len__(self) -> int:
        """Number of keys added; an estimate after an unclean stop or a join."""
        return self._count

    def copy(self) -> BloomFilter:
        """Return an independent copy in memory."""
        copy = BloomFilter._of(BitStore.in_memory(self._header))
        copy.update_from(self)
        copy._count = copy._accounted = self._count
        return copy

    def update_from(self, other: BloomFilter) -> None:
        """Add all keys of `other`, which must be of the same origin: equal shape,
        hash, secret and identity.

        The number of keys becomes an estimate. Raises IncompatibleFilterError with
        what differs.
        """
        self.require_same_origin(other)
        expected = self.expected_false_positives + other.expected_false_positives
        self._bits |= other._bits
        self._recount()
        self._accounted = self._count
        self._expected_false_positives = expected

    def require_same_origin(self, other: BloomFilter) -> None:
        """Raise IncompatibleFilterError, with what differs, unless `other` can be joined
        with this filter."""
        for name in ("blocks", "probes", "secret", "identity"):
            ours, theirs = getattr(self._header, name), getattr(other._header, name)
            if ours != theirs:
                shown = "" if name == "secret" else f" ({ours!r} and {theirs!r})"
                raise IncompatibleFilterError(
                    f"filters with different {name}{shown} cannot be joined; make both with the"
                    " same capacity, error rate, secret and identity"
                )

    def read_blocks(self, first: int, count: int) -> bytes:
        """Return `count` blocks of bits, pages, from block `first` on."""
        return self._store.read_blocks(first, count)

    def __or__(self, other: BloomFilter) -> BloomFilter:
        """Return a new filter in memory that holds the keys of both."""
        joined = self.copy()
        joined.update_from(other)
        return joined

    @property
    def header(self) -> Header:
        """What never changes in it."""
        return self._header

    @property
    def capacity(self) -> int:
        """Number of keys up to which the error rate stays under `error_rate`."""
        return self._header.capacity

    @property
    def error_rate(self) -> float:
        """The bound on the error rate at capacity."""
        return self._header.error_rate

    @property
    def load(self) -> sizing.LayerLoad:
        """Its shape and its keys, for the sums over the layers of a growing filter."""
        return sizing.LayerLoad(self._blocks, self._probes, self._count)

    @property
    def current_error_rate(self) -> float:
        """Estimated chance, at the present fill, that a new key is taken for a
        known one. Cost: about 0.1 ms."""
        return sizing.error_rate_at(self._blocks, self._probes, self._count)

    @property
    def expected_false_positives(self) -> float:
        """How many new keys were probably taken for known ones so far: the sum of
        the error rate over the keys added. Cost: a few ms."""
        self._expected_false_positives += sizing.expected_false_positives(
            self._blocks, self._probes, self._accounted, self._count
        )
        self._accounted = self._count
        return self._expected_false_positives

    @property
    def fill_ratio(self) -> float:
        """Expected share of bits set, 0 to 1."""
        return sizing.fill_ratio(self._blocks, self._probes, self._count)

    @property
    def nbytes(self) -> int:
        """Bytes of the bit array."""
        return self._blocks * PAGE

    @property
    def secret(self) -> bytes:
        """The 16 bytes that key the hash. Who knows them can craft collisions."""
        return self._secret

    @property
    def identity(self) -> str:
        """The text given when the filter was made."""
        return self._header.identity

    @property
    def path(self) -> Path | None:
        """The file, or None in memory."""
        return self._store.path

    @property
    def clean(self) -> bool:
        """False if the file had not been closed when it was opened; its keys were
        recounted then."""
        return self._store.clean

    def flush(self) -> None:
        """Sync to the disk. Cost: 10 to 100 ms for 1,000 to 10,000 new keys."""
        self._save_state()
        self._store.flush()

    def close(self) -> None:
        """Sync, mark as cleanly closed, unlock. Closing twice is fine."""
        if not self._closed:
            self._closed = True
            self._save_state()
            self._bits = _ClosedBits()  # type: ignore[assignment]
            self._store.close()

    def check(self) -> None:
        """Raise BloomError unless everything that can be checked holds: the file
        and its header, the count against the bits. Reads everything."""
        self._store.check()
        set_bits = list(self._store.block_counts())
        if (sum(set_bits) == 0) != (self._count == 0):
            raise BloomError(f"{self!r} has {sum(set_bits):,} bits set for {self._count:,} keys")
        estimate = sizing.estimate_keys(self._probes, set_bits)
        error_rate = self.current_error_rate
        # keys taken for known ones are not counted, yet the bits tell of them too
        tolerance = (0.02 + error_rate) * self._count + 10 * self._count**0.5
        if error_rate < 0.1 and abs(estimate - self._count) > tolerance:
            raise BloomError(f"{self!r} counts {self._count:,} keys, its bits tell of {estimate:,}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        place = f", path={str(self.path)!r}" if self.path else ""
        return (
            f"<{type(self).__name__} {self._count:,} of {self.capacity:,} keys,"
            f" error rate {self.error_rate:g}{place}>"
        )

    # Most of the time goes into waiting for cache lines. Half of the keys that are not
    # there are turned away by the first probe, so the first three are tried one by one;
    # for the rest the block is copied, which reads it in one go. Bits are set in one
    # call, which waits for all of their lines at once. See bench_probes.py.
    # `add`, `__contains__` and ScalableBloomFilter.add have these methods in line.

    def _holds(self, salted: bytes, lanes: Lanes) -> bool:
        selector, a, b, c, d, e, f = lanes
        bits = self._bits
        o = selector * self._blocks >> 32 << BLOCK_SHIFT
        if self._few_probes:
            return bits[[o + lane for lane in lanes[1 : 1 + self._probes]]].all()
        if not (bits[o + a] and bits[o + b] and bits[o + c]):
            return False
        rest = [d, e, f]
        for seed in self._seeds:
            rest += unpack_next((hash128(salted, seed) & NEXT_MASK).to_bytes(16, "little"))
        return bits[o : o + BLOCK_BITS][rest].all()

    def _put(self, salted: bytes, lanes: Lanes) -> None:
        bits = self._bits
        o = lanes[0] * self._blocks >> 32 << BLOCK_SHIFT
        probes = [o + lane for lane in lanes[1 : 1 + self._probes]]
        for seed in self._seeds:
            a, b, c, d, e, f, g, h = unpack_next(
                (hash128(salted, seed) & NEXT_MASK).to_bytes(16, "little")
            )
            probes += o + a, o + b, o + c, o + d, o + e, o + f, o + g, o + h
        bits[probes] = 1
        self._count += 1

    def _recount(self) -> None:
        self._count = sizing.estimate_keys(self._probes, self._store.block_counts())

    def _save_state(self) -> None:
        self._store.count = self._count
        self._store.expected_false_positives = self.expected_false_positives


class _ClosedBits:
    """What a closed filter has in place of its bits."""

    def _refuse(self, *_: object) -> NoReturn:
        raise ValueError("this filter is closed; open it again to use it")

    __getitem__ = __setitem__ = __ior__ = _refuse


def to_bytes(key: Key) -> bytes:
    """Return `key` as the filters hash it. Raises TypeError if it is no key."""
    if isinstance(key, str):
        return key.encode()
    if isinstance(key, (bytes, bytearray, memoryview)):
        return bytes(key)
    raise TypeError(f"key is {key!r}, a {type(key).__name__}: keys are bytes or str")


def new_header(capacity: int, error_rate: float, secret: bytes | None, identity: str) -> Header:
    """Return the header of a filter made now. Raises ValueError for bad arguments."""
    blocks, probes = sizing.shape(capacity, error_rate)
    if secret is None:
        secret = new_secret()
    check_secret(secret)
    packages = ("scrapy-bloom", "mmh3", "bitarray")
    return Header(
        capacity=capacity,
        error_rate=error_rate,
        blocks=blocks,
        probes=probes,
        secret=secret,
        identity=identity,
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        software=", ".join(f"{package} {_version(package)}" for package in packages),
    )


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "(not installed)"


def require_secret(path: Path, found: Header, secret: bytes | None) -> None:
    """Raise IncompatibleFilterError if a secret is given and is not the file's."""
    if secret is not None and found.secret != secret:
        raise IncompatibleFilterError(
            f"{path} has another secret than the one given; leave the secret out, or use"
            " another path"
        )


def too_imprecise(path: Path, stored: float, asked: float) -> IncompatibleFilterError:
    """Return the error for a filter whose error rate is above the one asked for."""
    return IncompatibleFilterError(
        f"{path} was made for error rate {stored:g} and cannot keep the lower {asked:g} asked for;"
        f" ask for {stored:g} or more, or start a new filter"
    )
