"""A growing Bloom filter in Redis that many processes share.

It hashes, sizes and grows as ScalableBloomFilter does, each of its 64 shards by itself.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from ..bloom import sizing
from ..bloom.file import PAGE, new_header
from ..bloom.hashing import first_lanes
from ..bloom.layers import Key, Layered, to_bytes
from ..errors import BloomError, IncompatibleFilterError, SharedFilterError
from ..speed import RecentKeys
from . import scripts
from .client import RedisClient
from .layout import SHARDS, LayerShape, RedisHeader, Shard, shard_keys, shard_of
from .lifecycle import gone

if TYPE_CHECKING:
    from collections.abc import Callable

KNOWN_KEYS = 100_000
"""Keys in the cache of those that were seen; fingerprints take about 13 MB."""
_MODES = {True: scripts.GROW, False: scripts.FILL, None: scripts.LOOK}


class RedisBloomFilter(Layered):
    """The filter at `key`, made if there is none: for `capacity` keys at `error_rate`,
    growing beyond, in 64 shards.

    If several processes `add` a new key at the same moment, exactly one of them learns that it is
    new. A key counts as new if a call was repeated and its first attempt may have added it. Raises
    ValueError for bad arguments, IncompatibleFilterError for a filter with other parameters,
    SharedFilterError for one that cannot be reached or is gone. `loading` is the header of a filter
    that is yet to be made, by `filling`; then the constructor makes no call.

    Redis may go back in time: it restarts from a snapshot, or a replica takes over that lacks the
    last writes. It may have lost keys that this process remembers as seen, whose pages would never
    be fetched. So that cache is cleared, and `on_forget` called, as soon as `RedisClient.servers`
    has changed, or a shard has fewer keys than before. If nothing was lost, that costs the round
    trips that the cache would have saved. It relies on a recent answer of Redis: see `confirm`.
    """

    growing: bool | None = True
    """If not, the newest layer takes any number of keys; with None no key any more."""
    exact = False
    """Its keys are bits only: Redis keeps no exact table."""
    table_nbytes = 0
    false_positives_avoided = 0
    deleted = False
    """True after `delete`, until a key is added."""

    def __init__(
        self,
        client: RedisClient,
        key: str,
        capacity: int,
        error_rate: float,
        *,
        identity: str = "",
        loading: RedisHeader | None = None,
    ) -> None:
        self.client = client
        self.key = key
        self.name = f"the filter {key!r} in Redis at {client.name}"
        self.capacity = capacity
        self.error_rate = error_rate
        self.on_forget: Callable[[], None] = lambda: None
        self._identity = identity
        self.known: RecentKeys[bytes] = RecentKeys(KNOWN_KEYS)
        """The cache of keys that were seen, by an answer of Redis."""
        if loading is None:
            self._join()
        else:
            self._use(loading)

    @classmethod
    def open(cls, client: RedisClient, key: str) -> RedisBloomFilter:
        """Open the filter at `key` with the parameters it has. Raises KeyError if there
        is none."""
        header = stored_header(client, key)
        if header is None:
            raise KeyError(f"there is no filter {key!r} in Redis at {client.name}")
        return cls(client, key, header.capacity, header.error_rate, identity=header.identity)

    def add(self, key: Key) -> bool:
        """Add `key`; return True if it was already present (or is taken for it).

        Cost: one round trip; none for a key that this process has seen lately, see `confirm`.
        Raises SharedFilterError after the client's patience; the key may be in the filter then.
        Raises BloomError for a new key if the filter takes none.
        """
        key = key if type(key) is bytes else to_bytes(key)
        if self._remembers(key):
            return True
        if self.deleted:
            self._join()
        seen = self._ask(key, _MODES[self.growing])
        if self.growing is None and not seen:
            raise BloomError(
                f"{self.name} holds {len(self):,} keys, and was made for {self.capacity:,}: let it"
                " grow (BLOOM_ON_FULL = 'grow')"
            )
        self.known.add(key)
        return seen

    def __contains__(self, key: Key) -> bool:
        key = key if type(key) is bytes else to_bytes(key)
        if self._remembers(key):
            return True
        seen = not self.deleted and self._ask(key, scripts.LOOK)
        if seen:
            self.known.add(key)
        return seen

    def locate(self, key: bytes) -> tuple[Shard, bytes, bytes, bytes]:
        """Return the shard of `key`, its probes, its blocks and the shapes of the layers, as
        scripts take them."""
        salted = self.header.secret + key
        selector = first_lanes(salted)[0]
        shard = self.shards[shard_of(selector)]
        return shard, *shard.pack(salted, selector), shard.shape

    def learn(self, shard: Shard, layers: int, count: int) -> None:
        """Apply the layers and the count of `shard` that a script has returned."""
        self._count -= sum(shard.counts)
        shard.learn_newest(layers, count)
        self._count += sum(shard.counts)

    def confirm(self) -> None:
        """Clear the cache of keys that were seen if Redis may have lost them.

        Cost: a round trip, unless Redis has answered in the last 0.05 s or, if that is longer, ten
        times the duration of the answer. Never raises: while no server can be reached, the cache
        stays.
        """
        if time.monotonic() < self.client.confirmed_until or not self.client.confirm():
            return
        if self.client.servers != self._servers and self._is_there():
            self._forget()

    def __len__(self) -> int:
        """Number of keys that all processes have added, as of the last answers."""
        return self._count

    @property
    def capacities(self) -> list[int]:
        """The capacities of the layers that any shard has, oldest first."""
        return [layer.capacity for layer in self.layers]

    @property
    def layers(self) -> tuple[LayerShape, ...]:
        """The layers that any shard has, oldest first."""
        longest = max(len(shard.counts) for shard in self.shards)
        return tuple(self.header.layer(number) for number in range(longest))

    @property
    def nbytes(self) -> int:
        """Bytes of the strings."""
        return PAGE * sum(sum(shard.sizes[: len(shard.counts)]) for shard in self.shards)

    @property
    def loads(self) -> list[sizing.LayerLoad]:
        """The shape and keys of each layer, over the shards that have it."""
        loads = []
        for number, layer in enumerate(self.layers):
            keys = [shard.counts[number] for shard in self.shards if len(shard.counts) > number]
            share = len(keys) / len(self.shards)
            blocks = max(1, int(layer.blocks * share))
            loads.append(sizing.LayerLoad(blocks, layer.probes, sum(keys), share))
        return loads

    def refresh(self) -> None:
        """Read the counts of all shards: 64 round trips. Raises SharedFilterError."""
        for shard in self.shards:
            counts = self.client.run(scripts.READ_SHARD, shard.all_keys, self.generation)
            if counts is None:
                raise gone(self.name)
            shard.learn(counts)
        self._count = sum(sum(shard.counts) for shard in self.shards)

    def delete(self) -> None:
        """Delete the filter for all processes; `add` makes a new one. 65 round trips."""
        delete_shards(self.client, self.key, self.header)
        self.known.clear()
        self.deleted, self.growing = True, bool(self.growing)

    def close(self) -> None:
        """Close the connection; the filter stays in Redis."""
        self.client.close()

    def check(self) -> None:
        """Raise SharedFilterError unless the strings have their sizes, and about as many bits as
        the counts imply. Reads all strings."""
        self.refresh()
        for shard in self.shards:
            for number, count in enumerate(shard.counts):
                name = shard.keys[1 + number]
                bits = self.client.call("get", name)
                if len(bits) != PAGE * shard.sizes[number]:
                    raise SharedFilterError(f"{name} has {len(bits):,} bytes")
                set_bits = [
                    int.from_bytes(bits[start : start + PAGE], "big").bit_count()
                    for start in range(0, len(bits), PAGE)
                ]
                layer = self.header.layer(number)
                estimate = sizing.estimate_keys(layer.probes, set_bits)
                # a block that is in two shards has bits of the keys of both
                if (
                    layer.blocks % len(self.shards) == 0
                    and abs(estimate - count) > 0.02 * count + 10 * count**0.5
                ):
                    raise SharedFilterError(
                        f"{name} counts {count:,} keys, its bits tell of {estimate:,}"
                    )

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {len(self):,} keys, {self.name}>"

    def _join(self) -> None:
        """Use the filter at the key; make it if there is none. Several processes may do so at
        once."""
        wanted = fresh_header(self.capacity, self.error_rate, self._identity)
        text = wanted.to_text()
        _, found, ready = self.client.run(scripts.MAKE_HEADER, [self.key], text, "")
        header = RedisHeader.from_text(found, self.name)
        for setting, stored, asked in (
            ("BLOOM_CAPACITY", header.capacity, wanted.capacity),
            ("BLOOM_ERROR_RATE", header.error_rate, wanted.error_rate),
        ):
            if stored != asked:
                raise IncompatibleFilterError(
                    f"{self.name} was made with {setting} = {stored!r}, and this worker has"
                    f" {asked!r}: all workers need the same; set it to {stored!r}, or use another"
                    " BLOOM_REDIS_KEY"
                )
        if ready == scripts.LOADING.encode():
            raise SharedFilterError(
                f"{self.name} is being loaded; wait for the end, or, if the loading was killed,"
                " remove it with 'scrapy bloom clear' and load it again"
            )
        self._use(header)
        if not ready:
            with self._making(is_ours=found == text.encode()):
                self.make_shards()
        self.refresh()
        self._servers = self.client.servers
        self.deleted = False

    @contextmanager
    def filling(self) -> Iterator[None]:
        """Make the header of a new filter, which cannot be opened before the context ends. If the
        context fails, the filter is removed. Raises IncompatibleFilterError if the key exists,
        SharedFilterError."""
        text = self.header.to_text()
        answer = self.client.run(scripts.MAKE_HEADER, [self.key], text, scripts.LOADING)
        if answer[1] != text.encode():
            raise IncompatibleFilterError(
                f"the key {self.key!r} in Redis at {self.client.name} is there already; remove it,"
                " a filter with 'scrapy bloom clear', or choose another one"
            )
        with self._making(is_ours=True):
            yield

    @contextmanager
    def _making(self, *, is_ours: bool) -> Iterator[None]:
        """Allow processes to open the filter after the context. If that fails, it is removed if
        this process has made its header."""
        try:
            yield
            text = self.header.to_text()
            answer = self.client.run(scripts.MAKE_HEADER, [self.key], text, scripts.READY)
            if answer[1] != text.encode():
                raise gone(self.name)
        except BaseException:
            if is_ours:
                with suppress(SharedFilterError):
                    delete_shards(self.client, self.key, self.header)
            raise

    def make_shards(self) -> None:
        """Make empty shards. 64 round trips."""
        for shard in self.shards:
            self.client.run(scripts.MAKE_SHARD, shard.all_keys, self.generation, shard.sizes[0], 0)

    def _use(self, header: RedisHeader) -> None:
        self.header = header
        """The parameters of the filter, which never change."""
        self.generation = header.generation
        """Its id among all that may be made at its key."""
        self.shards = [Shard(self.key, number, header) for number in range(SHARDS)]
        """With their counts as of the last answers."""
        self._count = 0
        self._servers = self.client.servers

    def _remembers(self, key: bytes) -> bool:
        if key not in self.known.urls:
            return False
        self.confirm()
        return key in self.known.urls

    def _ask(self, key: bytes, mode: str) -> bool:
        """Return True if Redis had `key` before this call, False also if that is in doubt."""
        doubtful = False
        while True:
            shard, *arguments = self.locate(key)
            (answer, layers, count), repeated = self.client.insist(
                scripts.TEST_AND_SET, shard.keys, self.generation, mode, *arguments
            )
            doubtful = doubtful or (repeated and mode != scripts.LOOK)
            if answer == scripts.GONE:
                raise gone(self.name)
            if self.client.servers != self._servers or shard.has_lost(layers, count):
                self._forget()
            self.learn(shard, layers, count)
            if answer != scripts.GROWN:
                return bool(answer == scripts.SEEN and not doubtful)

    def _is_there(self) -> bool:
        """Return True if Redis answers and has the filter; else this is an outage."""
        try:
            shard = self.shards[0]
            return self.client.run(scripts.READ_SHARD, shard.all_keys, self.generation) is not None
        except SharedFilterError:
            return False

    def _forget(self) -> None:
        self._servers = self.client.servers
        self.known.clear()
        for shard in self.shards:
            shard.forget()
        self.on_forget()


def fresh_header(capacity: int, error_rate: float, identity: str) -> RedisHeader:
    """Return the header of a new filter, with a secret of its own. Raises ValueError."""
    local = new_header(capacity, error_rate, None, identity)
    first = LayerShape.sized(capacity, sizing.layer_error_rate(error_rate, 0)).fitting()
    return RedisHeader.like(local, error_rate, (first,), local.created)


def stored_header(client: RedisClient, key: str) -> RedisHeader | None:
    """Return the header of the filter at `key`, None if the key does not exist. Raises
    IncompatibleFilterError if it is no filter, SharedFilterError."""
    kind, text, _ = client.run(scripts.MAKE_HEADER, [key], "", "")
    if kind == b"none":
        return None
    return RedisHeader.from_text(text, f"the key {key!r} in Redis at {client.name}")


def delete_filter(client: RedisClient, key: str) -> bool:
    """Delete the filter at `key`, whole or not, also if its header is gone; return True if any of
    its keys existed. 65 round trips. Raises what `stored_header` raises."""
    return delete_shards(client, key, stored_header(client, key)) > 0


def delete_shards(client: RedisClient, key: str, header: RedisHeader | None) -> int:
    """Delete the filter with that header at `key`, or all shards if there is no header; return how
    many keys were deleted. Keys of another filter stay."""
    deleted = 0
    generation = header.generation if header else ""
    for shard in range(SHARDS):
        deleted += client.run(scripts.DELETE, shard_keys(key, shard), "generation", generation)
    if header:
        deleted += client.run(scripts.DELETE, [key], "header", header.to_text())
    return deleted
