"""The keys of a filter and of a crawl in Redis, and the shards and layers of a filter.

A filter is cut into 64 shards by the highest bits of a key's block selector, so each
shard holds a run of consecutive blocks of every layer, and what belongs to one key of
the user lies in one shard, whatever the layers. The keys of a shard share a hash tag:
one script can test and set in all layers, and a Cluster spreads the shards over its
nodes. Each shard grows by itself, when its share of the newest layer is full.

    KEY              hash: `header` (JSON), `ready`
    {KEY:17}         hash: state of shard 17: `generation`, the filter that it belongs to; `layers`;
                     `count`, the keys in the newest layer; `0`, `1`, …, those in the others
    {KEY:17}:0       string: bits of shard 17 in layer 0, in Redis's order of bits

Each script compares the generation, and checks before it writes that all strings exist: a shard
that was evicted, flushed or made by another filter is gone, and never tells about keys.

A crawl, whose keys are all in the hash slot of the filter beside it:

    {KEY}                    the filter's header; {KEY}:0 … its shards
    {KEY}:crawl              hash: its fields are below; `waiting` and `waiting_bytes`
                             are too few after an aborted script, never too many, so where
                             nothing is pending they have to be 0; a dictionary has a few kB,
                             and there are at most eight unless Redis went back in time
    {KEY}:progress           list: JSON of the time and the counts, one a second, of a minute
    {KEY}:workers            sorted set: worker, by the end of its lease (ms)
    {KEY}:starting           set: workers that are in start()
    {KEY}:busy               set: workers that may have claims
    {KEY}:batch:WORKER       hash: number and reply of its last call; `answered`, slots that do not
                             answer it, and have answered others since; `paused`, until when (ms)
                             no other one waits for what hosts answer it
    {KEY}:claims:WORKER      hash: claim → priority, slot, entry, losses alone or false, when (ms)
    {KEY}:dispatched:WORKER  set: claims that the engine may have got
    {KEY}:priorities         sorted set: priorities that may have pending requests
    {KEY}:slots:PRIORITY     list: slots that may have some, the next one last
    {KEY}:pending:PRIORITY:SLOT   list: entries, each a digit (losses) and a payload; with a
                             NUL after SLOT a second list, which goes first
    {KEY}:lobby:PRIORITY     list: slot, NUL and entry, of slots with few; without an entry the
                             slot's own list joins the ring there (see lua/include/put.lua)
    {KEY}:lobby_counts       string: four bits a slot, by hash: how many it has in a lobby, or so
    {KEY}:quarantined        list: requests that were lost with two workers
    {KEY}:later              sorted set: requests that are not due, by the time when they are
                             (ms): 4 bytes of a hash of the call that brought it, then priority,
                             NUL, slot, NUL, entry
    {KEY}:holds              hash: slot → until when it is held (ms), how many times in a row (it
                             is not held below 0), its pause (ms), priorities in which it is
                             parked, workers in this row whom it has not answered
    {KEY}:parked             sorted set: PRIORITY:SLOT, with a NUL after it for a second list, of
                             held slots that have left their ring, by the end of the hold, which
                             is below 0 where the slot is dead
    {KEY}:failed             hash: page → priority, slot, entry, reason, attempts, worker,
                             when (ms), what the worker knows of it as JSON, and the claim;
                             where no worker has told it, claim → the same, '' for the JSON
    {KEY}:limits             hash: slot, *, or NUL and a pattern → the most requests in a round
    {KEY}:counted:PARITY     hash: slot, or NUL and a pattern → requests of this round, or of the
                             last one (`counts`)
    {KEY}:capped             sorted set: slots with requests over the budget, by the time of the
                             first (ms)
    {KEY}:capped:SLOT        list: of each priority, with an @ and when it is due (ms) if it is not,
                             with a space and the pattern that was full if it was not the slot,
                             NUL and payload
    {KEY}:start              set: marks of the start requests that were taken
    {KEY}:owners             hash: slot → who has it until when, if one worker may

A list is named in the slots of its priority, in its lobby or among the parked ones, and the
priority of the first two in the priorities, before the list holds anything, and until it is empty.
A worker is among the busy ones before its first claim. A dictionary is kept before any request
that needs it.

The fields of {KEY}:crawl:

    id spider lease round start_done over   which crawl, whose, and its round
    began heard              its first call, and the last one (ms)
    claims done waiting waiting_bytes       the last claim; how many are acknowledged, and pending
    pages items duplicates retries added    figures of the workers
    dictionaries dictionary:ID              ids, and each dictionary
    later swept              1 where any may be delayed or held; where owners were looked at last
    back waking              how many ms the clock has gone back since what is later came; how far
                             the slots have been looked through that were parked before it did
    host                     requests that wait for dead hosts, and how far their next count is
    budget counts            BLOOM_BUDGET; the hash that counts this round, with an `f` while empty
    carried retried          last claim before the round; what the next start is to retry
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from functools import lru_cache
from hashlib import sha256
from math import ceil, sqrt
from struct import Struct

from ..bloom import sizing
from ..bloom.file import PAGE, SCHEME, Header
from ..bloom.hashing import first_lanes, next_lanes
from ..bloom.sizing import NEXT_PROBES, digests
from ..errors import IncompatibleFilterError

SHARD_BITS = 6
SHARDS = 1 << SHARD_BITS
FORMAT = 1

MOST_LAYERS = 64
"""More than a shard can get: 30 layers that double from one key take 64 GB."""

ODD_BYTES = "surrogateescape"
"""How names of slots that are not UTF-8 are decoded, and encoded."""

CRAWL_FORMAT = 1
"""Also in `lua/include/crawl_id.lua`."""

_SELECTOR_BITS = 32
_LARGEST_STRING_BLOCKS = 1 << 16  # 2**31 bits, half of what a string of Redis holds
_STRING_OVERHEAD = 10  # bytes that Redis allocates with those of a string (sdshdr32)
_THREE = Struct("<3I")
_SLACK = 4.0  # standard deviations: shards get unequal numbers of keys


@dataclass(frozen=True)
class LayerShape:
    """The shape of one layer over all shards. It is made for `capacity` keys; up to `share` keys in
    each shard keep its error rate."""

    capacity: int
    share: int
    blocks: int
    probes: int

    @classmethod
    def sized(cls, capacity: int, error_rate: float) -> LayerShape:
        """Return the layer for `capacity` keys, which fall on the shards by chance: each has room
        for four standard deviations more than the mean, which is 3 % for a million keys and 0.3 %
        for a hundred million.

        Strings are as long as their allocation allows. One more digest to probe with saves 5 % of
        the bits: it is used if the strings then fit into the next smaller allocation. So a million
        keys at 1e-6 take 64 KiB a shard instead of 80.
        """
        mean = capacity / SHARDS
        share = ceil(mean + _SLACK * sqrt(mean))
        blocks, probes = sizing.shape(SHARDS * share, error_rate)
        blocks = -(-blocks // SHARDS)
        room, smaller = _rooms(blocks)
        more = probes + NEXT_PROBES
        if smaller and sizing.error_rate_at(SHARDS * smaller, more, SHARDS * share) <= error_rate:
            blocks, probes = smaller, more
        else:
            blocks, share = room, share * room // blocks
        return cls(capacity, share, SHARDS * blocks, probes)

    @classmethod
    def of_local(cls, capacity: int, blocks: int, probes: int) -> LayerShape:
        """Return the shape of a layer that was made without shards."""
        return cls(capacity, max(1, capacity // SHARDS), blocks, probes)

    def first_block(self, shard: int) -> int:
        """Number of the first block in `shard`."""
        return shard * self.blocks >> SHARD_BITS

    def shard_blocks(self, shard: int) -> int:
        """Number of blocks in `shard`. If they cannot be divided evenly, the block where two shards
        meet is in both, each with its own keys' bits."""
        end = -(-((shard + 1) * self.blocks) >> SHARD_BITS)
        return end - self.first_block(shard)

    @property
    def fits(self) -> bool:
        """True if no string is longer than 256 MiB."""
        return self.blocks <= SHARDS * _LARGEST_STRING_BLOCKS

    def fitting(self) -> LayerShape:
        """Return it. Raises ValueError if the strings would be too long for Redis."""
        if not self.fits:
            raise ValueError(
                f"BLOOM_CAPACITY is {self.capacity!r}: that takes {SHARDS} strings of"
                f" {self.blocks // SHARDS * sizing.BLOCK_BITS // 8:,} bytes, and 268,435,456 is the"
                " limit; set a smaller one, the filter grows"
            )
        return self


@dataclass(frozen=True)
class RedisHeader:
    """The parameters of a filter, which never change. `layers` are its first ones; the others
    follow from them."""

    capacity: int
    error_rate: float
    secret: bytes
    layers: tuple[LayerShape, ...]
    identity: str = ""
    created: str = ""
    software: str = ""

    def layer(self, number: int) -> LayerShape:
        """Return the shape of layer `number`, made or not: twice the capacity of the one before as
        long as the strings allow it, and the error rate of its number."""
        if number < len(self.layers):
            return self.layers[number]
        return _next_layer(self, number)

    def to_text(self) -> str:
        """Return the form that Redis keeps."""
        first = {"format": FORMAT, "scheme": SCHEME, "shards": SHARDS}
        return json.dumps({**first, **asdict(self), "secret": self.secret.hex()})

    @classmethod
    def like(
        cls, local: Header, error_rate: float, layers: tuple[LayerShape, ...], created: str
    ) -> RedisHeader:
        """Return the header of a filter of `layers` whose first one has `local` in a file."""
        made = local.identity, created, local.software
        return cls(local.capacity, error_rate, local.secret, layers, *made)

    @classmethod
    def from_text(cls, text: bytes, place: str) -> RedisHeader:
        """Return the header in `text`; errors name `place`."""
        if not text:
            raise IncompatibleFilterError(f"{place} is no filter; use another BLOOM_REDIS_KEY")
        try:
            fields = json.loads(text)
            found = [fields.pop(name) for name in ("format", "scheme", "shards")]
            layers = tuple(LayerShape(**layer) for layer in fields.pop("layers"))
            secret = bytes.fromhex(fields.pop("secret"))
            header = cls(layers=layers, secret=secret, **fields)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise IncompatibleFilterError(
                f"{place} is no filter of this version of scrapy-bloom ({error!r} in its header);"
                " use another BLOOM_REDIS_KEY"
            ) from None
        for name, value, known in zip(
            ("format", "scheme", "shards"), found, (FORMAT, SCHEME, SHARDS), strict=True
        ):
            if value != known:
                raise IncompatibleFilterError(
                    f"{place} has {name} {value!r}, this version of scrapy-bloom reads {known!r};"
                    f" use the version that made it ({header.software!r}), or another"
                    " BLOOM_REDIS_KEY"
                )
        return header

    @property
    def generation(self) -> str:
        """The id of this filter among all that may be made at its key."""
        return sha256(self.to_text().encode()).hexdigest()[:16]


@lru_cache(maxsize=1_000)
def _next_layer(header: RedisHeader, number: int) -> LayerShape:
    capacity = sizing.layer_capacity(header.layer(number - 1).capacity, 0, 0)
    error_rate = sizing.layer_error_rate(header.error_rate, number)
    while not (layer := LayerShape.sized(capacity, error_rate)).fits:
        capacity //= 2
    return layer


def _rooms(blocks: int) -> tuple[int, int]:
    """Return how many blocks fit into the allocation of a string of `blocks`, and into the next
    smaller one: jemalloc, the allocator of servers, has four size classes per doubling."""
    size = blocks * PAGE + _STRING_OVERHEAD
    step = 1 << (size - 1).bit_length() - 3
    allocated = -(-size // step) * step
    return (allocated - _STRING_OVERHEAD) // PAGE, (allocated - step - _STRING_OVERHEAD) // PAGE


def in_one_slot(key: str) -> str:
    """Return the key of the filter of a crawl: its shards, and all other keys that begin with it,
    are in one hash slot."""
    return f"{{{key}}}"


def is_in_one_slot(key: str) -> bool:
    """Return True if a filter with that key may have a crawl beside it."""
    return key.startswith("{")


def crawl_id(generation: str) -> str:
    """Return the id of the crawl beside the filter of that generation."""
    return f"{CRAWL_FORMAT}:{generation}"


def shard_of(selector: int) -> int:
    """Return the shard of the keys with that block selector."""
    return selector >> (_SELECTOR_BITS - SHARD_BITS)


def shard_keys(key: str, shard: int) -> list[str]:
    """Return the keys of a shard of the filter at `key`: its state, and the strings of all layers
    that it can get."""
    tag = f"{key}:{shard}" if is_in_one_slot(key) else f"{{{key}:{shard}}}"
    return [tag, *(f"{tag}:{layer}" for layer in range(MOST_LAYERS))]


class Shard:
    """One shard, as a process knows it, and its arguments for scripts.

    `counts` are the keys in its layers, oldest first. `keys` are the names of its state and of the
    strings of these layers and the next, `sizes` their blocks, `shape` their shapes for
    TEST_AND_SET; `all_keys` are the names for as many layers as any filter may have.
    """

    def __init__(self, key: str, number: int, header: RedisHeader) -> None:
        self.number = number
        self._header = header
        self.all_keys = shard_keys(key, number)
        self.counts: list[int] = []
        self.learn([0])
        self.forget()

    def learn(self, counts: list[int]) -> None:
        """Set the counts of its layers."""
        layers = len(counts) + 1
        if len(counts) != len(self.counts):
            shapes = [self._header.layer(number) for number in range(layers)]
            self.keys = self.all_keys[: 1 + layers]
            self.sizes = [shape.shard_blocks(self.number) for shape in shapes]
            self.shape = b"".join(
                _THREE.pack(shape.probes, shape.share, size)
                for shape, size in zip(shapes, self.sizes, strict=True)
            )
            self._blocks = [(shape.blocks, shape.first_block(self.number)) for shape in shapes]
            self._probes = max(shape.probes for shape in shapes)
            self._seeds = range(1, digests(self._probes))
            self._lanes = Struct(f"<{self._probes}H")
            self._origins = Struct(f"<{layers}I")
        self.counts = counts

    def has_lost(self, layers: int, count: int) -> bool:
        """Return True if an earlier answer had more than `count` keys in the newest of `layers`
        layers. Keys are never removed, so the server has lost some then."""
        return self._heard > (layers, count)

    def forget(self) -> None:
        """Drop the last answer: the shard may have fewer keys now."""
        self._heard = (0, 0)

    def learn_newest(self, layers: int, count: int) -> None:
        """Set the count of the newest of `layers` layers; unknown layers before it are full."""
        self._heard = (layers, count)
        if layers == len(self.counts):
            self.counts[-1] = count
        else:
            known = self.counts[: min(len(self.counts), layers) - 1]
            full = [self._header.layer(n).share for n in range(len(known), layers - 1)]
            self.learn([*known, *full, count])

    def pack(self, salted: bytes, selector: int) -> tuple[bytes, bytes]:
        """Return the probes of a key, and its blocks, as TEST_AND_SET takes them."""
        lanes: tuple[int, ...] = first_lanes(salted)[1:]
        for seed in self._seeds:
            lanes += next_lanes(salted, seed)
        blocks = [(selector * blocks >> 32) - first for blocks, first in self._blocks]
        return self._lanes.pack(*lanes[: self._probes]), self._origins.pack(*blocks)
