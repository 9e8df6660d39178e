"""Filters copied between a job directory and Redis. A layer has the same blocks in both; Redis
cuts them into shards."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from datetime import datetime, timezone
from itertools import accumulate, pairwise
from pathlib import Path

from bitarray import bitarray

from ..bloom import layer_path, sizing
from ..bloom.file import PAGE, BitStore, Header, lock_file
from ..bloom.fixed import BloomFilter
from ..bloom.layers import PathArgument
from ..bloom.removal import remove_filter
from ..bloom.scalable import ScalableBloomFilter
from ..errors import IncompatibleFilterError
from ..files import sync_directory
from .client import RedisClient
from .filter import RedisBloomFilter
from .layout import SHARDS, LayerShape, RedisHeader
from .lifecycle import gone
from .scripts import MAKE_SHARD

_CHUNK_BLOCKS = 256  # 1 MiB
_REVERSED = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))


def load_into_redis(path: PathArgument, url: str, key: str) -> int:
    """Copy the filter in the directory `path` (of a job: `JOBDIR/bloom`) to `key` in
    Redis, and return the number of its keys.

    Workers that go on with it need its BLOOM_CAPACITY and BLOOM_ERROR_RATE. Cost: 10 ms a MB.
    Raises what opening either filter raises, and IncompatibleFilterError if `key` exists or the
    filter is exact; then Redis is left as it was.
    """
    with (
        open_inexact(path) as local,
        lock_file(layer_path(Path(path), 0)),
        RedisClient(url) as client,
    ):
        shared = to_fill(client, key, local)
        with shared.filling():
            put_layers(shared, local)
        return len(local)


def put_layers(
    shared: RedisBloomFilter, local: ScalableBloomFilter, beat: Callable[[], object] = lambda: None
) -> None:
    """Make the shards of `shared` with the layers of `local`. Calls `beat` before each MB; it may
    raise."""
    client, header = shared.client, shared.header
    counts = [
        _keys_in_shards(layer, shape)
        for layer, shape in zip(local.layers, header.layers, strict=True)
    ]
    for number, shard in enumerate(shared.shards):
        shard.learn([keys[number] for keys in counts])
        shapes = zip(shard.sizes, shard.counts, strict=False)
        arguments = [argument for shape in shapes for argument in shape]
        client.run(MAKE_SHARD, shard.all_keys, header.generation, *arguments)
        for string, layer in enumerate(local.layers):
            first = header.layers[string].first_block(number)
            _put(client, shard.keys[1 + string], layer, first, shard.sizes[string], beat)
    shared.refresh()


def save_from_redis(url: str, key: str, path: PathArgument) -> int:
    """Copy the filter at `key` in Redis to the new directory `path`, for a job
    `JOBDIR/bloom`, and return the number of its keys.

    Keys that workers add meanwhile may be missing in the copy. Cost: 10 ms a MB. Raises KeyError if
    there is no filter, FileExistsError if `path` exists, and what opening either filter raises;
    then no files are left.
    """
    path = Path(path)
    if path.exists():
        raise FileExistsError(f"{path} is there already; move it away, or choose another path")
    with RedisClient(url) as client:
        shared = RedisBloomFilter.open(client, key)
        unfinished = path.with_name(path.name + ".loading")
        if unfinished.exists():
            remove_filter(unfinished)
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished.mkdir(mode=0o700)
        with ExitStack() as undo:
            undo.callback(remove_filter, unfinished)
            for number, layer in enumerate(shared.layers):
                _save_layer(shared, number, layer, unfinished / f"{number}.bloom")
            unfinished.rename(path)
            undo.pop_all()
        sync_directory(path.parent)
        return len(shared)


def open_inexact(path: PathArgument) -> ScalableBloomFilter:
    """Open the filter in the directory `path` to read it. Raises IncompatibleFilterError if it is
    exact, and what opening it raises."""
    local = ScalableBloomFilter.open(path, read_only=True)
    if local.exact:
        local.close()
        raise IncompatibleFilterError(
            f"{path} is exact (BLOOM_EXACT), and a filter in Redis has no exact table: go on with"
            " that filter in one process, or crawl without BLOOM_EXACT"
        )
    return local


def to_fill(client: RedisClient, key: str, local: ScalableBloomFilter) -> RedisBloomFilter:
    """Return the filter at `key` that gets the layers of `local`, which is yet to be made. Raises
    ValueError if it does not fit."""
    first = local.layers[0].header
    layers = tuple(
        LayerShape.of_local(layer.capacity, layer.header.blocks, layer.header.probes).fitting()
        for layer in local.layers
    )
    created = datetime.now(timezone.utc).isoformat(timespec="microseconds")
    header = RedisHeader.like(first, local.error_rate, layers, created)
    return RedisBloomFilter(client, key, header.capacity, header.error_rate, loading=header)


def _keys_in_shards(layer: BloomFilter, shape: LayerShape) -> list[int]:
    """Return how many keys of `layer` are in each shard: an estimate by its bits, and the exact
    number in sum."""

    def estimate(shard: int) -> int:
        first = shape.first_block(shard)
        blocks = (layer.read_blocks(first + at, 1) for at in range(shape.shard_blocks(shard)))
        bits = (int.from_bytes(block, "little").bit_count() for block in blocks)
        return sizing.estimate_keys(shape.probes, bits)

    estimates = [*map(estimate, range(SHARDS))]
    total, whole = len(layer), sum(estimates) or 1
    return [
        total * end // whole - total * start // whole
        for start, end in pairwise(accumulate(estimates, initial=0))
    ]


def _put(
    client: RedisClient,
    name: str,
    layer: BloomFilter,
    first: int,
    blocks: int,
    beat: Callable[[], object],
) -> None:
    """Fill the string `name` with some blocks of `layer`, piece by piece."""
    for done in range(0, blocks, _CHUNK_BLOCKS):
        beat()
        piece = layer.read_blocks(first + done, min(_CHUNK_BLOCKS, blocks - done))
        # a byte of Redis begins with its highest bit, one of ours with its lowest
        client.call("setrange", name, done * PAGE, piece.translate(_REVERSED))


def _save_layer(shared: RedisBloomFilter, number: int, layer: LayerShape, path: Path) -> None:
    header = shared.header
    local = Header(
        capacity=layer.capacity,
        error_rate=sizing.layer_error_rate(header.error_rate, number),
        blocks=layer.blocks,
        probes=layer.probes,
        secret=header.secret,
        identity=header.identity,
        created=header.created,
        software=header.software,
    )
    store = BitStore.create(local, path)
    store.begin()
    try:
        for shard in shared.shards:
            if len(shard.counts) > number:
                first = layer.first_block(shard.number)
                _get(shared.client, shard.keys[1 + number], store, first, shard.sizes[number])
                store.count += shard.counts[number]
    finally:
        store.close()


def _get(client: RedisClient, name: str, store: BitStore, first: int, blocks: int) -> None:
    """Add the blocks in the string `name` to `store`."""
    for done in range(0, blocks, _CHUNK_BLOCKS):
        stop = min(done + _CHUNK_BLOCKS, blocks)
        piece = client.call("getrange", name, done * PAGE, stop * PAGE - 1)
        if len(piece) != (stop - done) * PAGE:
            raise gone(f"{name} in Redis at {client.name}")
        added = bitarray(endian="little")
        added.frombytes(piece.translate(_REVERSED))
        start = (first + done) * sizing.BLOCK_BITS
        store.bits[start : start + len(added)] |= added
