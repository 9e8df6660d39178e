"""The Bloom filter that grows by layers, and its directory: a file for each layer, numbered from 0.
The lock of the first is that of the filter."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from ..errors import FilterFileError
from ..files import make_directory
from . import sizing
from .file import BitStore, Header, new_header, read_header
from .layers import Layered, PathArgument


class GrowingFilter(Layered):
    """A Bloom filter that grows by layers and keeps its error rate under
    `error_rate` however many keys it gets.

    `capacity` is the expected number of keys and the size of the first layer. A full filter gets
    a layer with half the error rate of the last (Almeida et al. 2007). The new layer has twice
    the last capacity, or what is missing to `capacity` if that is more. Up to the first capacity
    the filter needs 32.1 bits a key at 1e-6.

    The filter in the directory `path` is made or opened, as ScalableBloomFilter says.
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
        sizing.check_error_rate(error_rate)
        rate = sizing.layer_error_rate(error_rate, 0)
        header = new_header(capacity, rate, secret, identity, exact=exact)
        if path is None:
            self._use([BitStore.in_memory(header)], capacity)
            return
        path = Path(path)
        if stored_identity(path) is None and not layer_paths(path):
            _make(header, path)
        with opening(path) as layers:
            self._use(layers, capacity)
            self._require(path, error_rate, secret, exact=exact)

    def _use(self, layers: list[BitStore], capacity: int) -> None:
        """Raises FilterFileError unless the layers are those of one filter."""
        first = layers[0].header
        self.capacity = capacity
        self.error_rate = first.error_rate / sizing.layer_error_rate(1.0, 0)
        self.path = layers[0].path and layers[0].path.parent
        self._use_layers(tuple(reversed(layers)))
        for number, layer in enumerate(layers):
            rate = sizing.layer_error_rate(self.error_rate, number)
            wanted = first.secret, first.identity, rate, self.exact
            found = layer.header
            if (found.secret, found.identity, found.error_rate, found.table_pages > 0) != wanted:
                raise FilterFileError(
                    f"{layer.path} is a layer of another filter: restore the right file from a"
                    " backup, or start a new filter"
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
        if self.path is None:
            store = BitStore.in_memory(header)
        elif self._newest_first[0].owns_file:
            store = BitStore.create(header, layer_path(self.path, len(self._newest_first)))
            store.begin()
        else:
            raise TypeError("this filter is read-only; open it without read_only to add keys")
        self._use_layers((store, *self._newest_first))


@contextmanager
def opening(directory: Path, *, read_only: bool = False) -> Iterator[list[BitStore]]:
    """Give the layers in `directory`, oldest first; unless `read_only`, the filter is locked, and
    in use from the end of the context on. An error closes all, and has changed nothing."""
    with ExitStack() as undo:
        layers: list[BitStore] = []
        while further := layer_paths(directory)[len(layers) :]:
            if further[0] != (path := layer_path(directory, len(layers))):
                raise FilterFileError(
                    f"{path} is missing, and there is a {further[0].name}; restore it from a"
                    " backup, or start a new filter"
                )
            layers.append(BitStore.open(path, read_only=read_only))
            undo.callback(layers[-1].close)
        yield layers
        if not read_only:
            for layer in layers:
                layer.begin()
            remove_leftovers(directory)
        undo.pop_all()


def _make(header: Header, directory: Path) -> None:
    """Make the directory, with mode 700, and the first layer in it, unless another process is
    faster. Raises OSError."""
    try:
        make_directory(directory, 0o700)
        with suppress(FileExistsError):
            BitStore.create(header, layer_path(directory, 0)).close()
    except BaseException:
        with suppress(OSError):  # unless it is empty
            directory.rmdir()
        raise


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
    for path in directory.glob(".*.[0-9]*.bloom.tmp"):
        path.unlink()
