"""What a shared filter in Redis is and what it knows, without adding to it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ..bloom import sizing
from ..bloom.hashing import first_lanes, positions
from ..bloom.inspection import Description, Finding, Layer
from ..errors import BloomError, SharedFilterError
from ..fingerprints.identity import fingerprinter_in
from .client import RedisClient
from .filter import RedisBloomFilter, stored_header
from .layout import SHARDS, shard_of


class RedisPlace:
    """The filter at `key` on the server at a URL. Raises SharedFilterError if there is
    none, or nobody answers."""

    def __init__(self, client: RedisClient, key: str) -> None:
        if stored_header(client, key) is None:
            raise SharedFilterError(
                f"there is no filter {key!r} in Redis at {client.name}: --key must be the"
                " BLOOM_REDIS_KEY of its crawl"
            )
        self._client = client
        self.filter = RedisBloomFilter.open(client, key)
        self.name = f"{client.name} {key}"

    @classmethod
    @contextmanager
    def open(cls, url: str, key: str) -> Iterator[RedisPlace]:
        """Connect for the length of a context."""
        with RedisClient(url) as client:
            yield cls(client, key)

    @property
    def identity(self) -> str:
        """Whose fingerprints the filter holds."""
        return self.filter.header.identity

    def __contains__(self, fingerprint: bytes) -> bool:
        """Cost: a round trip for each probe."""
        secret = self.filter.header.secret
        number = shard_of(first_lanes(secret + fingerprint)[0])
        shard = self.filter.shards[number]
        for string in range(len(shard.counts)):
            layer = self.filter.header.layer(string)
            start = layer.first_block(number) * sizing.BLOCK_BITS
            probes = positions(secret, fingerprint, layer.blocks, layer.probes)
            name = shard.keys[1 + string]
            if all(self._client.call("getbit", name, probe - start) for probe in probes):
                return True
        return False

    def describe(self) -> Description:
        """Return what there is to know about the filter."""
        shared, header = self.filter, self.filter.header
        name, identity = fingerprinter_in(header.identity)
        layers = [self._layer(number) for number in range(len(shared.layers))]
        return Description(
            place=self.name,
            items=len(shared),
            items_exact=True,
            capacity=sum(layer.capacity for layer in layers),
            layers=layers,
            bits=shared.nbytes * 8,
            bytes=shared.nbytes,
            file_bytes=shared.nbytes,
            fill_ratio=shared.fill_ratio,
            error_rate=shared.current_error_rate,
            error_rate_bound=header.error_rate,
            expected_pages_lost=shared.expected_false_positives,
            has_secret=any(header.secret),
            fingerprinter=name,
            fingerprinter_identity=identity,
            created=header.created,
            software=header.software,
            clean=True,
            held_by=None,
        )

    def _layer(self, number: int) -> Layer:
        """Return a layer, as far as the shards have it: each grows by itself."""
        header = self.filter.header
        shape = header.layer(number)
        shards = [shard for shard in self.filter.shards if len(shard.counts) > number]
        keys = sum(shard.counts[number] for shard in shards)
        blocks = sum(shard.sizes[number] for shard in shards)
        rate = sizing.error_rate_at(blocks, shape.probes, keys)
        return Layer(
            capacity=shape.capacity * len(shards) // SHARDS,
            items=keys,
            error_rate_bound=sizing.layer_error_rate(header.error_rate, number),
            error_rate=rate * len(shards) / SHARDS,
            bits=blocks * sizing.BLOCK_BITS,
            probes=shape.probes,
            fill_ratio=sizing.fill_ratio(blocks, shape.probes, keys),
        )

    def verify(self) -> Finding:
        """Read everything and compare the strings with the counts."""
        try:
            self.filter.check()
        except BloomError as error:
            return Finding(self.name, sound=False, text=str(error))
        return Finding(
            self.name, sound=True, text=f"sizes and bits agree on {len(self.filter):,} items"
        )
