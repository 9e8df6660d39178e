"""The Bloom filter that grows by layers, usable without Scrapy, and its directory: a file for each
layer, numbered from 0, and a lock."""

from __future__ import annotations

from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import BloomError, FilterFileError
from ..files import DirectoryLock, require_file_locks, sync_directory
from . import sizing
from .file import BitStore, read_header, refuse_writing
from .header import Header, new_header, require_wanted
from .layers import Layered, PathArgument

if TYPE_CHECKING:
    from typing_extensions import Self

    from .fixed import BloomFilter

LOCK = "lock"
"""The file whose lock means that a process uses the filter of its directory."""


class ScalableBloomFilter(Layered):
    """A Bloom filter that grows by layers and keeps its error rate under
    `error_rate` however many keys it gets.

    `capacity` is the expected number of keys and the size of the first layer. A full filter gets
    a layer with half the error rate of the last (Almeida et al. 2007). The new layer has twice
    the last capacity, or what is missing to `capacity` if that is more. Up to the first capacity
    the filter needs 32.1 bits a key at 1e-6.

    `path` is a directory with one BloomFilter file a layer (`0.bloom`, `1.bloom`, …) and a `lock`.
    With `exact` each layer has an exact table, as in BloomFilter.

    An existing directory is opened and keeps its error rate and its tables; `capacity` counts for
    its next layer. A lower error rate is refused, and so is `exact` for a filter without tables.
    Raises as BloomFilter does.
    """

    growing: bool | None = True

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
        sizing.check_capacity(capacity)
        sizing.check_error_rate(error_rate)
        rate = sizing.layer_error_rate(error_rate, 0)
        header = new_header(capacity, rate, secret, identity, exact=exact)
        self.capacity = capacity
        if path is None:
            self._use(error_rate, [BitStore.in_memory(header)], None, None)
            return
        path = Path(path)
        with ExitStack() as undo:
            is_new = make_directory(path)
            lock = undo.enter_context(DirectoryLock(path, LOCK))
            if is_new:
                undo.callback(remove_directory, path, lock)
            headers = read_layers(path)
            bound = bound_of(headers[0]) if headers else error_rate
            if headers:
                require_wanted(path, headers[0], bound, error_rate, secret, exact=exact)
            remove_leftovers(path)
            layers = [undo.enter_context(closing(BitStore.open(p))) for p in layer_paths(path)]
            layers = layers or [BitStore.create(header, layer_path(path, 0))]
            self._use(bound, layers, path, lock)
            undo.pop_all()

    @classmethod
    def open(cls, path: PathArgument, *, read_only: bool = False) -> Self:
        """Open the filter in the directory at `path`, with its stored parameters.

        With `read_only`, neither lock nor change the files, even while another process adds to
        them; `add` raises TypeError then.

        Cost: reads two pages a layer. Raises FileNotFoundError, FilterFileError or
        FilterLockedError.
        """
        path = Path(path)
        if not layer_path(path, 0).exists():
            raise FileNotFoundError(f"{path} holds no filter: there is no 0.bloom in it")
        with ExitStack() as undo:
            lock = None
            if not read_only:
                lock = undo.enter_context(DirectoryLock(path, LOCK))
            headers = read_layers(path)
            if not read_only:
                remove_leftovers(path)
            self = cls.__new__(cls)
            self.capacity = headers[0].capacity
            layers = [
                undo.enter_context(closing(BitStore.open(each, read_only=read_only)))
                for each in layer_paths(path)
            ]
            self._use(bound_of(headers[0]), layers, path, lock)
            undo.pop_all()
        return self

    def _use(
        self, bound: float, layers: list[BitStore], path: Path | None, lock: DirectoryLock | None
    ) -> None:
        self.error_rate = bound
        self.path = path
        self._lock = lock
        self._use_layers(tuple(reversed(layers)))

    def update_from(self, other: ScalableBloomFilter) -> None:
        """Add all keys of `other`, a changed copy of this filter: its layers have the same shape,
        secret and identity.

        The number of keys becomes an estimate. A layer may get more keys than its capacity: see
        `current_error_rate`. Raises IncompatibleFilterError that names the difference, or for
        exact filters; OSError or MemoryError if there is no room for more layers.
        """
        for ours, theirs in zip(self.layers, other.layers, strict=False):
            ours.require_same_origin(theirs)
        for theirs in other.layers[len(self.layers) :]:
            self._add_layer(theirs.header)
        for ours, theirs in zip(self.layers, other.layers, strict=False):
            ours.update_from(theirs)

    @property
    def layers(self) -> tuple[BloomFilter, ...]:
        """The layers, oldest first."""
        from .fixed import BloomFilter

        return tuple(map(BloomFilter._of, reversed(self._newest_first)))

    def flush(self) -> None:
        """Sync to the disk. Cost: 10 to 100 ms for 1,000 to 10,000 new keys."""
        for layer in self._newest_first:
            layer.flush()

    def close(self) -> None:
        """Sync, mark as cleanly closed, unlock. A second call does nothing."""
        with ExitStack() as stack:
            if self._lock is not None:
                stack.enter_context(self._lock)
            for layer in self._newest_first:
                stack.callback(layer.close)

    def check(self) -> None:
        """Raise BloomError if a layer is damaged, or does not fit the others by its number of
        keys, secret or error rate. Cost: reads the whole filter."""
        layers = self.layers
        for number, layer in enumerate(layers):
            layer.check()
            require_series(str(layer.path or number), layer.header, number, layers[0].header)
        for layer in layers[:-1]:
            # recounts err by a few percent
            if len(layer) < 0.9 * layer.capacity:
                raise BloomError(f"{layer!r} is not full and has a layer above it")

    def __repr__(self) -> str:
        place = f", path={str(self.path)!r}" if self.path else ""
        return (
            f"<{type(self).__name__} {len(self):,} keys in {len(self._newest_first)} layers,"
            f" error rate {self.error_rate:g}{place}>"
        )

    def _grow(self) -> None:
        header = new_header(
            sizing.layer_capacity(self._newest_first[0].capacity, self.capacity, len(self)),
            sizing.layer_error_rate(self.error_rate, len(self._newest_first)),
            self._secret,
            self.identity,
            exact=self.exact,
        )
        self._add_layer(header)

    def _add_layer(self, header: Header) -> None:
        if not self._newest_first[0].writable:
            refuse_writing()
        if self.path is None:
            store = BitStore.in_memory(header)
        else:
            store = BitStore.create(header, layer_path(self.path, len(self._newest_first)))
        self._use_layers((store, *self._newest_first))


def stored_identity(path: PathArgument) -> str | None:
    """Return the identity of the filter in the directory at `path` without opening it, or None if
    there is no filter. Raises FilterFileError."""
    try:
        return read_header(layer_path(Path(path), 0)).identity
    except FileNotFoundError:
        return None


def layer_path(directory: Path, number: int) -> Path:
    """Return the path of layer `number`; the file need not exist."""
    return directory / f"{number}.bloom"


def layer_paths(directory: Path) -> list[Path]:
    """Return the files of the existing layers, oldest first."""
    numbered = [path for path in directory.glob("*.bloom") if path.stem.isdecimal()]
    return sorted(numbered, key=lambda path: int(path.stem))


def remove_leftovers(directory: Path) -> None:
    """Remove the temporary files of layers whose creation was killed."""
    for path in directory.glob("*.[0-9]*.bloom.tmp"):
        path.unlink()


def make_directory(path: Path) -> bool:
    """Make the directory with mode 700; return False if it exists. Raises FilterFileError if
    `path` is no directory, or where the system has no file locks."""
    require_file_locks(path)
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        if not path.is_dir():
            raise FilterFileError(f"{path} is not a directory; choose another path") from None
        return False
    sync_directory(path.parent)
    return True


def remove_directory(path: Path, lock: DirectoryLock) -> None:
    """Remove the lock, and the directory if it is empty then."""
    lock.release(remove=True)
    with suppress(OSError):
        path.rmdir()


def read_layers(directory: Path) -> list[Header]:
    """Return the headers of all layers, oldest first, each checked by itself and against layer 0.
    Raises FilterFileError."""
    headers = []
    for number, found in enumerate(layer_paths(directory)):
        path = layer_path(directory, number)
        if found != path:
            raise FilterFileError(
                f"{path} is missing, and there is a {found.name}; restore it from a backup, or"
                " start a new filter"
            )
        headers.append(read_header(path))
        require_series(str(path), headers[-1], number, headers[0])
    return headers


def bound_of(first: Header) -> float:
    """Return the error rate of the growing filter whose layer 0 has the header `first`."""
    return first.error_rate / sizing.layer_error_rate(1.0, 0)


def require_series(name: str, header: Header, number: int, first: Header) -> None:
    """Raise FilterFileError unless `header` fits layer `number` above a layer 0 with the header
    `first`. The message calls the layer `name`."""
    rate = sizing.layer_error_rate(bound_of(first), number)
    for what, found, wanted in (
        ("secret", header.secret.hex(), first.secret.hex()),
        ("identity", header.identity, first.identity),
        ("error rate", header.error_rate, rate),
        ("exact table", header.table_pages > 0, first.table_pages > 0),
    ):
        if found != wanted:
            shown = "" if what == "secret" else f" ({found!r}, not {wanted!r})"
            raise FilterFileError(
                f"{name} is a layer of another filter: its {what} differs{shown}; restore the"
                " right file from a backup, or start a new filter"
            )
