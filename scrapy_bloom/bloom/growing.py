"""The Bloom filter that grows by layers, usable without Scrapy."""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from mmh3 import hash128

from ..errors import BloomError, FilterFileError
from ..files import DirectoryLock
from . import sizing
from .file import BitStore, read_header
from .fixed import (
    BloomFilter,
    Key,
    PathArgument,
    new_header,
    require_secret,
    to_bytes,
    too_imprecise,
)
from .hashing import (
    BLOCK_SHIFT,
    FIRST_MASK,
    NEXT_MASK,
    Lanes,
    first_lanes,
    unpack_first,
    unpack_next,
)
from .header import Header
from .sizing import BLOCK_BITS

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self


class ScalableBloomFilter:
    """A Bloom filter that grows by layers and keeps its error rate under
    `error_rate` however many keys it gets.

    `capacity` is the number of keys expected: the size of the first layer. A full
    filter gets a layer of twice the last one's capacity, or of what is missing to
    `capacity` if that is more, with half its error rate (Almeida et al. 2007). Up to
    the first capacity it needs 32.1 bits a key at 1e-6. `path` is a directory that
    holds one BloomFilter file a layer (`0.bloom`, `1.bloom`, …) and a `lock`.

    An existing directory is opened: another capacity goes into the next layer, a
    higher error rate keeps the stored one, a lower one is refused. Raises as
    BloomFilter does.
    """

    growing = True
    """While False, the newest layer takes more keys than its capacity."""

    def __init__(
        self,
        capacity: int,
        error_rate: float,
        path: PathArgument | None = None,
        *,
        secret: bytes | None = None,
        identity: str = "",
    ) -> None:
        sizing.check_capacity(capacity)
        sizing.check_error_rate(error_rate)
        header = _layer_header(0, capacity, error_rate, secret, identity)
        self.capacity = capacity
        if path is None:
            self._use(error_rate, [BloomFilter._of(BitStore.in_memory(header))], None, None)
            return
        path = Path(path)
        with ExitStack() as undo:
            if _make_directory(path):
                undo.callback(_remove_directory, path)
            lock = undo.enter_context(DirectoryLock(path))
            headers = _read_layers(path)
            if headers:
                bound = _bound(headers[0])
                if bound > error_rate:
                    raise too_imprecise(path, bound, error_rate)
                require_secret(path, headers[0], secret)
                layers = _open_layers(path, len(headers))
            else:
                bound = error_rate
                layers = [BloomFilter._of(BitStore.create(header, _layer_path(path, 0)))]
            self._use(bound, layers, path, lock)
            undo.pop_all()

    @classmethod
    def open(cls, path: PathArgument, *, read_only: bool = False) -> Self:
        """Open the filter in the directory at `path`, with the parameters it has.

        With `read_only`, look at it without locking or changing it, even while
        another process adds to it; `add` raises TypeError then.

        Cost: reads two pages a layer. Raises FileNotFoundError, FilterFileError or
        FilterLockedError.
        """
        path = Path(path)
        if not _layer_path(path, 0).exists():
            raise FileNotFoundError(f"{path} holds no filter: there is no 0.bloom in it")
        with ExitStack() as undo:
            lock = None if read_only else undo.enter_context(DirectoryLock(path))
            headers = _read_layers(path, read_only=read_only)
            self = cls.__new__(cls)
            self.capacity = headers[0].capacity
            layers = _open_layers(path, len(headers), read_only=read_only)
            self._use(_bound(headers[0]), layers, path, lock)
            undo.pop_all()
        return self

    def _use(
        self, bound: float, layers: list[BloomFilter], path: Path | None, lock: DirectoryLock | None
    ) -> None:
        self.error_rate = bound
        self.path = path
        self._lock = lock
        self._layers = layers
        self._newest_first = layers[::-1]
        self._few_probes = any(layer._few_probes for layer in layers)
        self._secret = layers[0].secret

    def add(self, key: Key) -> bool:
        """Add `key`; return True if it was already present (or is taken for it).

        Raises OSError or MemoryError if the filter must grow and cannot; the key
        is not added then.
        """
        salted = self._secret + (key if type(key) is bytes else to_bytes(key))
        lanes = unpack_first((hash128(salted, 0) & FIRST_MASK).to_bytes(16, "little"))
        if self._few_probes:
            return self._add(salted, lanes)
        # BloomFilter._holds and _put in line, which saves a fifth of the time
        selector, a, b, c, d, e, f = lanes
        for layer in self._newest_first:
            bits = layer._bits
            o = selector * layer._blocks >> 32 << BLOCK_SHIFT
            if bits[o + a] and bits[o + b] and bits[o + c]:
                rest = [d, e, f]
                for seed in layer._seeds:
                    rest += unpack_next((hash128(salted, seed) & NEXT_MASK).to_bytes(16, "little"))
                if bits[o : o + BLOCK_BITS][rest].all():
                    return True
        newest = self._newest_first[0]
        if newest._count >= newest._capacity and self.growing:
            self._grow()._put(salted, lanes)
            return False
        o = selector * newest._blocks >> 32 << BLOCK_SHIFT
        probes = [o + a, o + b, o + c, o + d, o + e, o + f]
        for seed in newest._seeds:
            g, h, i, j, k, m, n, p = unpack_next(
                (hash128(salted, seed) & NEXT_MASK).to_bytes(16, "little")
            )
            probes += o + g, o + h, o + i, o + j, o + k, o + m, o + n, o + p
        newest._bits[probes] = 1
        newest._count += 1
        return False

    def _add(self, salted: bytes, lanes: Lanes) -> bool:
        """Add a key where layers have fewer probes than the first digest holds."""
        if any(layer._holds(salted, lanes) for layer in self._newest_first):
            return True
        newest = self._newest_first[0]
        if newest._count >= newest._capacity and self.growing:
            newest = self._grow()
        newest._put(salted, lanes)
        return False

    def __contains__(self, key: Key) -> bool:
        salted = self._secret + (key if type(key) is bytes else to_bytes(key))
        lanes = first_lanes(salted)
        for layer in self._newest_first:  # noqa: SIM110 - any() takes 0.4 µs longer
            if layer._holds(salted, lanes):
                return True
        return False

    def update(self, keys: Iterable[Key]) -> None:
        """Add all `keys`."""
        for key in keys:
            self.add(key)

    def __len__(self) -> int:
        """Number of keys added; an estimate after an unclean stop."""
        return sum(len(layer) for layer in self._layers)

    def update_from(self, other: ScalableBloomFilter) -> None:
        """Add all keys of `other`, a copy of this filter that has gone its own way:
        its layers have the same shape, secret and identity.

        The number of keys becomes an estimate. A layer may get more keys than its
        capacity: see `current_error_rate`. Raises IncompatibleFilterError with what
        differs, OSError or MemoryError if there is no room for more layers.
        """
        for ours, theirs in zip(self._layers, other._layers, strict=False):
            ours.require_same_origin(theirs)
        for theirs in other._layers[len(self._layers) :]:
            self._add_layer(theirs.header)
        for ours, theirs in zip(self._layers, other._layers, strict=False):
            ours.update_from(theirs)

    @property
    def layers(self) -> tuple[BloomFilter, ...]:
        """The layers, oldest first."""
        return tuple(self._layers)

    @property
    def current_error_rate(self) -> float:
        """Estimated chance, at the present fill, that a new key is taken for a
        known one. Cost: about 0.1 ms a layer."""
        return sizing.total_error_rate(layer.load for layer in self._layers)

    @property
    def expected_false_positives(self) -> float:
        """How many new keys were probably taken for known ones so far: in the layer
        they went into, and in the older ones. Cost: a few ms a layer."""
        own = sum(layer.expected_false_positives for layer in self._layers)
        return own + sizing.false_positives_in_older(layer.load for layer in self._layers)

    @property
    def fill_ratio(self) -> float:
        """Expected share of bits set, 0 to 1, over all layers."""
        return sizing.total_fill_ratio([layer.load for layer in self._layers])

    @property
    def nbytes(self) -> int:
        """Bytes of the bit arrays."""
        return sum(layer.nbytes for layer in self._layers)

    @property
    def secret(self) -> bytes:
        """The 16 bytes that key the hash, the same in all layers."""
        return self._secret

    @property
    def identity(self) -> str:
        """The text given when the filter was made."""
        return self._layers[0].identity

    @property
    def clean(self) -> bool:
        """False if the filter had not been closed when it was opened."""
        return all(layer.clean for layer in self._layers)

    def flush(self) -> None:
        """Sync to the disk. Cost: 10 to 100 ms for 1,000 to 10,000 new keys."""
        for layer in self._layers:
            layer.flush()

    def close(self) -> None:
        """Sync, mark as cleanly closed, unlock. Closing twice is fine."""
        with ExitStack() as stack:
            if self._lock is not None:
                stack.enter_context(self._lock)
            for layer in self._layers:
                stack.callback(layer.close)

    def check(self) -> None:
        """Raise BloomError unless everything that can be checked holds: each layer
        by itself, their order, secrets and error rates. Reads everything."""
        for number, layer in enumerate(self._layers):
            layer.check()
            _check_layer(str(layer.path or number), layer.header, number, self._layers[0].header)
        for layer in self._layers[:-1]:
            # recounted layers are known to a few percent only
            if len(layer) < 0.9 * layer.capacity:
                raise BloomError(f"{layer!r} is not full and has a layer above it")

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
            f"<{type(self).__name__} {len(self):,} keys in {len(self._layers)} layers,"
            f" error rate {self.error_rate:g}{place}>"
        )

    def _grow(self) -> BloomFilter:
        header = _layer_header(
            len(self._layers),
            sizing.layer_capacity(self._layers[-1].capacity, self.capacity, len(self)),
            self.error_rate,
            self._secret,
            self.identity,
        )
        return self._add_layer(header)

    def _add_layer(self, header: Header) -> BloomFilter:
        if self.path is None:
            store = BitStore.in_memory(header)
        else:
            store = BitStore.create(header, _layer_path(self.path, len(self._layers)))
        layer = BloomFilter._of(store)
        self._layers.append(layer)
        self._newest_first.insert(0, layer)
        self._few_probes |= layer._few_probes
        return layer


def stored_identity(path: PathArgument) -> str | None:
    """Return the identity of the filter in the directory at `path`, or None if there
    is none, without opening it. Raises FilterFileError."""
    try:
        return read_header(_layer_path(Path(path), 0)).identity
    except FileNotFoundError:
        return None


def _layer_header(
    number: int, capacity: int, bound: float, secret: bytes | None, identity: str
) -> Header:
    return new_header(capacity, sizing.layer_error_rate(bound, number), secret, identity)


def _layer_path(directory: Path, number: int) -> Path:
    return directory / f"{number}.bloom"


def _bound(first: Header) -> float:
    """The bound that layer 0 was made for."""
    return first.error_rate / sizing.layer_error_rate(1.0, 0)


def _read_layers(directory: Path, *, read_only: bool = False) -> list[Header]:
    """Return the headers of all layers, checked one by one and as a series, after
    removing what a growth that was killed has left."""
    if not read_only:
        for leftover in directory.glob("*.bloom.tmp"):
            leftover.unlink()
    numbers = sorted(
        int(match[1])
        for p in directory.iterdir()
        if (match := re.fullmatch(r"(\d+)\.bloom", p.name))
    )
    for expected, number in enumerate(numbers):
        if expected != number:
            raise FilterFileError(
                f"{_layer_path(directory, expected)} is missing, and there is a"
                f" {number}.bloom; restore it from a backup, or start a new filter"
            )
    headers = [read_header(_layer_path(directory, number)) for number in numbers]
    for number, header in enumerate(headers):
        _check_layer(str(_layer_path(directory, number)), header, number, headers[0])
    return headers


def _check_layer(name: str, header: Header, number: int, first: Header) -> None:
    expected = sizing.layer_error_rate(_bound(first), number)
    for what, found, wanted in (
        ("secret", header.secret.hex(), first.secret.hex()),
        ("identity", header.identity, first.identity),
        ("error rate", header.error_rate, expected),
    ):
        if found != wanted:
            shown = "" if what == "secret" else f" ({found!r}, not {wanted!r})"
            raise FilterFileError(
                f"{name} is a layer of another filter: its {what} differs{shown}; restore the"
                " right file from a backup, or start a new filter"
            )


def _open_layers(directory: Path, count: int, *, read_only: bool = False) -> list[BloomFilter]:
    paths = [_layer_path(directory, number) for number in range(count)]
    with ExitStack() as undo:
        layers = [undo.enter_context(BloomFilter.open(path, read_only=read_only)) for path in paths]
        undo.pop_all()
    return layers


def _make_directory(path: Path) -> bool:
    """Return True if the directory is new."""
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        if not path.is_dir():
            raise FilterFileError(
                f"{path} is not a directory; a growing filter needs one, choose another path"
            ) from None
        return False
    return True


def _remove_directory(path: Path) -> None:
    with suppress(OSError):
        (path / "lock").unlink(missing_ok=True)
        path.rmdir()
