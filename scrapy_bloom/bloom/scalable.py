"""The Bloom filter that grows by layers, usable without Scrapy."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import BloomError
from . import GrowingFilter, opening
from .fixed import BloomFilter, Standalone, layers_of
from .layers import PathArgument

if TYPE_CHECKING:
    from typing_extensions import Self


class ScalableBloomFilter(Standalone, GrowingFilter):
    """A Bloom filter that grows by layers and keeps its error rate under
    `error_rate` however many keys it gets.

    `capacity` is the expected number of keys and the size of the first layer; each further one has
    twice the capacity of the last, and half its error rate.

    `path` is a directory with one BloomFilter file a layer (`0.bloom`, `1.bloom`, …). With `exact`
    each layer has an exact table, as in BloomFilter.

    An existing directory is opened and keeps its error rate and its tables; `capacity` counts for
    its next layer. A lower error rate is refused, and so is `exact` for a filter without tables.
    Raises as BloomFilter does.
    """

    @classmethod
    def open(cls, path: PathArgument, *, read_only: bool = False) -> Self:
        """Open the filter in the directory at `path`, with its stored parameters.

        With `read_only`, neither lock nor change the files, even while another process adds to
        them; `add` raises TypeError then.

        Cost: reads two pages a layer. Raises FileNotFoundError, FilterFileError or
        FilterLockedError.
        """
        self = cls.__new__(cls)
        with opening(Path(path), read_only=read_only) as layers:
            if not layers:
                raise FileNotFoundError(f"{path} holds no filter: there is no 0.bloom in it")
            self._use(layers, layers[0].capacity)
        return self

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
        return layers_of(self)

    def check(self) -> None:
        """Raise BloomError if a layer is damaged, or has too few keys for one below another. Cost:
        reads the whole filter."""
        layers = self.layers
        for layer in layers:
            layer.check()
        for layer in layers[:-1]:
            # recounts err by a few percent
            if len(layer) < 0.9 * layer.capacity:
                raise BloomError(f"{layer!r} is not full and has a layer above it")
