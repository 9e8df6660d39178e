"""A shared filter in Redis as commands see it: read, described and verified, never changed."""

from __future__ import annotations

from ..bloom import sizing
from ..bloom.inspection import Description, Finding, Layer
from ..errors import BloomError, SharedFilterError
from ..fingerprint import fingerprinter_in
from .client import RedisClient
from .filter import RedisBloomFilter
from .layout import in_one_slot
from .lifecycle import stored_header


def places_of(client: RedisClient, key: str) -> list[str]:
    """Return the keys at which the filter with that BLOOM_REDIS_KEY may be: beside a crawl, or
    alone. A key that the user has no right to is left out, unless that leaves none."""
    places = [in_one_slot(key), key]
    return [each for each in places if client.may_touch(each)] or places


class FilterView:
    """The filter with the BLOOM_REDIS_KEY `key`. Raises SharedFilterError if there is none, or if
    Redis does not answer."""

    def __init__(self, client: RedisClient, key: str) -> None:
        found = (each for each in places_of(client, key) if stored_header(client, each) is not None)
        if (place := next(found, None)) is None:
            raise SharedFilterError(
                f"there is no filter {key!r} in Redis at {client.name}: --key must be the"
                " BLOOM_REDIS_KEY of its crawl"
            )
        self.client = client
        self.key = key = place
        self.filter = RedisBloomFilter.open(client, key)
        self.name = f"{client.name} {key}"

    def describe(self) -> Description:
        """Return all figures of the filter."""
        shared, header = self.filter, self.filter.header
        layers = [self._layer(number) for number in range(len(shared.layers))]
        known = fingerprinter_in(header.identity)
        return Description.of(self.name, shared, header, known, layers, file_bytes=shared.nbytes)

    def _layer(self, number: int) -> Layer:
        """Return the layer of that number in all shards that have it; each shard grows alone."""
        header, load = self.filter.header, self.filter.loads[number]
        shape = header.layer(number)
        sizes = [shard.sizes[number] for shard in self.filter.shards if len(shard.counts) > number]
        return Layer(
            capacity=int(shape.capacity * load.share),
            items=int(load.keys),
            error_rate_bound=sizing.layer_error_rate(header.error_rate, number),
            error_rate=sizing.total_error_rate([load]),
            bits=sum(sizes) * sizing.BLOCK_BITS,
            probes=shape.probes,
            fill_ratio=sizing.total_fill_ratio([load]),
        )

    def verify(self) -> Finding:
        """Read all strings, and compare them with the counts."""
        try:
            self.filter.check()
        except BloomError as error:
            return Finding(self.name, sound=False, text=str(error))
        return Finding(
            self.name, sound=True, text=f"sizes and bits agree on {len(self.filter):,} items"
        )
