"""How a filter lies in Redis, by arithmetic alone."""

from math import ceil, sqrt

import pytest

from scrapy_bloom import IncompatibleFilterError
from scrapy_bloom.bloom import sizing
from scrapy_bloom.bloom.hashing import first_lanes, positions
from scrapy_bloom.redis.layout import SHARDS, LayerShape, RedisHeader, Shard, shard_of

SECRET = bytes(range(16))


def header(capacity=1_000, error_rate=1e-6, layers=None):
    first = LayerShape.sized(capacity, sizing.layer_error_rate(error_rate, 0))
    return RedisHeader(capacity, error_rate, SECRET, layers or (first,))


@pytest.mark.parametrize("blocks", [1, 63, 64, 100, 4032])
@pytest.mark.parametrize("probes", [1, 6, 14, 22])
def test_keys_have_the_bits_that_they_have_in_a_file(blocks, probes):
    """Shards cover all blocks in order, and share those where they meet; shard, block in its
    string and probes add up to the positions of the definition."""
    layer = LayerShape.of_local(1_000, blocks, probes)
    end = 0
    for shard in range(SHARDS):
        first = layer.first_block(shard)
        assert first == (end if (shard * blocks) % SHARDS == 0 else end - 1)
        end = first + layer.shard_blocks(shard)
    assert end == blocks
    made = header(layers=(layer,))
    shards = [Shard("key", number, made) for number in range(SHARDS)]
    for number in range(300):
        key = b"key %d" % number
        salted = SECRET + key
        selector = first_lanes(salted)[0]
        shard = shard_of(selector)
        lanes, origins = shards[shard].pack(salted, selector)
        lanes = [int.from_bytes(lanes[i : i + 2], "little") for i in range(0, len(lanes), 2)]
        block = int.from_bytes(origins[:4], "little")
        assert 0 <= block < layer.shard_blocks(shard)
        origin = (layer.first_block(shard) + block) * sizing.BLOCK_BITS
        expected = positions(SECRET, key, blocks, probes)
        assert [origin + lane for lane in lanes[:probes]] == expected


def size_class(size):
    """Bytes that jemalloc allocates for `size`, from 4 KiB on."""
    doubling = 4096
    while size > 2 * doubling:
        doubling *= 2
    return next(doubling * n // 4 for n in range(4, 9) if doubling * n // 4 >= size)


@pytest.mark.parametrize("error_rate", [0.1, 1e-2, 1e-3, 1e-4, 1e-6, 1e-9, 1e-12])
@pytest.mark.parametrize("capacity", [10**5, 10**6, 2 * 10**6, 5 * 10**6, 10**7, 3 * 10**7, 10**8])
def test_strings_fit_the_allocator(capacity, error_rate):
    """A string fills its allocation, and has room for its part of the keys at the error rate."""
    layer = LayerShape.sized(capacity, error_rate)
    taken = size_class(layer.blocks * 64 + 10)
    keys = SHARDS * layer.share
    assert sizing.error_rate_at(layer.blocks, layer.probes, keys) <= error_rate
    assert layer.probes in (*range(1, 7), *range(14, 100, 8))
    assert size_class((layer.blocks + 64) * 64 + 10) > taken
    assert layer.share >= ceil(capacity / 64 + 4 * sqrt(capacity / 64))


def test_layers_double_under_the_bound():
    """Their error rates add up to less than it; they stop doubling before a string has 512 MB."""
    made = header(50_000, 1e-3)
    layers = [made.layer(number) for number in range(10)]
    assert [layer.capacity for layer in layers] == [50_000 * 2**n for n in range(10)]
    rates = (sizing.error_rate_at(each.blocks, each.probes, SHARDS * each.share) for each in layers)
    assert sum(rates) <= 1e-3
    sizes = [header(2**31).layer(number).shard_blocks(0) * 4096 for number in range(6)]
    assert max(sizes) <= 2**28
    assert sizes[-1] >= 2**27


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (header().to_text(), "", "no filter"),
        (header().to_text(), "[]", "no filter"),
        (header().to_text(), '{"format": 1}', "no filter"),
        ('"format": 1', '"format": 2', "format 2, .* reads 1; "),
        ("mmh3", "md5", "scheme 'md5"),
        ('"shards": 64', '"shards": 32', "shards 32"),
    ],
)
def test_foreign_headers_are_refused(old, new, message):
    """A header of another program or version is refused, naming what differs."""
    with pytest.raises(IncompatibleFilterError, match=message):
        RedisHeader.from_text(header().to_text().replace(old, new).encode(), "here")


def test_a_shard_that_others_grew_is_understood():
    """Layers that it did not know are full but for the newest; after a failover it has fewer, which
    an answer with fewer keys tells."""
    made = header()
    shard, share = Shard("key", 5, made), made.layer(0).share
    shard.learn_newest(1, 7)
    assert shard.counts == [7]
    shard.learn_newest(3, 9)
    assert shard.counts == [share, made.layer(1).share, 9]
    told = ((2, 4), (3, 8), (3, 9), (4, 0))
    assert [shard.has_lost(*each) for each in told] == [True, True, False, False]
    shard.learn_newest(2, 4)
    assert shard.counts == [share, 4]
    shard.forget()
    assert not shard.has_lost(1, 0)


WRITTEN = (
    '{"format": 1, "scheme": "mmh3-x64-128/block-32768/lanes-16/1", "shards": 64, "capacity":'
    ' 1000000, "error_rate": 1e-06, "secret": "000102030405060708090a0b0c0d0e0f", "layers":'
    ' [{"capacity": 1000000, "share": 16125, "blocks": 960, "probes": 22}], "identity":'
    ' "{\\"name\\": \\"x\\"}", "created": "2026-01-02T03:04:05.000006+00:00", "software":'
    ' "scrapy-bloom 0.4.0"}'
)


def test_filters_keep_their_layers():
    """What was written is read and written as it was: the text tells a filter from others."""
    read = RedisHeader.from_text(WRITTEN.encode(), "here")
    assert read.to_text() == WRITTEN
    assert read.generation == "ed4db094444e8c8b"
    assert read.layers == (LayerShape.sized(1_000_000, 5e-7),)
    assert [read.layer(number) for number in (1, 2, 3)] == [
        LayerShape(2_000_000, 36_657, 2_496, 14),
        LayerShape(4_000_000, 77_176, 5_056, 22),
        LayerShape(8_000_000, 148_888, 10_176, 22),
    ]
