"""The arithmetic of blocked Bloom filters: n keys, m bits, k probes, error rate p.

A blocked filter (Putze, Sanders and Singler 2007, "Cache-, Hash- and Space-Efficient Bloom
Filters") hashes a key to one block and sets the key's k bits in it. The number of keys in a block
is nearly Poisson distributed, so the error rate is a Poisson mixture, higher than the classic
(1 - e^(-kn/m))^k. All sizes here come from the mixture; the classic formula is a yardstick only.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from math import ceil, exp, lgamma, log, log1p, log2, sqrt
from typing import NamedTuple

BLOCK_BITS = 32_768
"""Bits in a block: one 4 KiB page."""

FIRST_PROBES = 6
"""Probes from the first 128-bit hash of a key, beside the block."""

NEXT_PROBES = 8
"""Probes from each further one."""

TIGHTENING = 0.5
"""Each layer of a growing filter gets this share of the remaining error rate."""

BUCKETS_IN_PAGE = 8
"""Of an exact table."""

_BUCKETS_READ = 1.19  # for an absent key, in a table at its capacity
_SAME_REMAINDER = 2.0**-64  # probability for two keys
_GROWTH = 2
_SPARE_BITS = 1.08  # bits worth paying for fewer hashes, relative to the optimum
_LOG_BIT_CLEAR = log1p(-1 / BLOCK_BITS)


def shape(capacity: int, error_rate: float) -> tuple[int, int]:
    """Return `(blocks, probes)` of a filter for `capacity` keys at `error_rate`.

    The probes fill whole 128-bit hashes: 6, 14, 22, … The result is the smallest number whose bits
    stay within 8 % of the classic optimum, else the number that needs the fewest bits.
    """
    check_capacity(capacity)
    check_error_rate(error_rate)
    affordable = ceil(capacity * classic_bits_per_key(error_rate) * _SPARE_BITS / BLOCK_BITS)
    most = ceil(max(1.0, -log2(error_rate))) + NEXT_PROBES
    choices = range(FIRST_PROBES, most + 1, NEXT_PROBES)
    for probes in choices:
        if error_rate_at(affordable, probes, capacity) <= error_rate:
            return _blocks_needed(capacity, probes, error_rate), probes
    return min((_blocks_needed(capacity, probes, error_rate), probes) for probes in choices)


def digests(probes: int) -> int:
    """Return the number of 128-bit hashes that yield `probes` positions."""
    return 1 + max(0, -(-(probes - FIRST_PROBES) // NEXT_PROBES))


def check_capacity(capacity: int, name: str = "capacity") -> None:
    """Raise ValueError unless `capacity` is a positive integer."""
    if not isinstance(capacity, int) or isinstance(capacity, bool) or capacity < 1:
        raise ValueError(
            f"{name} is {capacity!r}: it must be a positive integer, the keys expected"
        )


ERROR_RATES = "above 0 (1e-300) and below 1, such as 1e-6"


def is_error_rate(number: float) -> bool:
    """Return True if a filter can have that error rate."""
    return 1e-300 < number < 1


def check_error_rate(error_rate: float, name: str = "error_rate") -> None:
    """Raise ValueError unless `error_rate` is a number that `is_error_rate` takes."""
    if not isinstance(error_rate, (int, float)) or not is_error_rate(error_rate):
        raise ValueError(f"{name} is {error_rate!r}: it must be a number {ERROR_RATES}")


def classic_bits_per_key(error_rate: float) -> float:
    """Bits a key of an unblocked filter with the best number of probes (Bloom 1970)."""
    return -log(error_rate) / log(2) ** 2


def layer_error_rate(bound: float, layer: int) -> float:
    """Error rate of a growing filter's layer: `bound * (1 - r) * r**layer`.

    The sum of the rates of any number of layers stays under `bound` (Almeida, Baquero, Preguiça
    and Hutchison 2007, "Scalable Bloom Filters").
    """
    return bound * (1 - TIGHTENING) * TIGHTENING**layer


def layer_capacity(last: int, wanted: int, present: int) -> int:
    """Capacity of the layer after one of capacity `last`, with `present` of the `wanted` keys."""
    return max(_GROWTH * last, wanted - present)


def error_rate_at(blocks: int, probes: int, keys: float) -> float:
    """Probability of taking a new key for a known one, with `keys` in the filter. Cost: 0.1 ms.

    It is the mean of (1 - (1 - 1/B)^(kj))^k over Poisson(keys / blocks) keys j in a block.
    """
    if keys <= 0:
        return 0.0
    load = keys / blocks
    reach = 9 * sqrt(load) + 9
    low = max(0, int(load - reach))
    weight = exp(low * log(load) - load - lgamma(low + 1))
    clear = exp(probes * low * _LOG_BIT_CLEAR)
    clear_step = exp(probes * _LOG_BIT_CLEAR)
    total = 0.0
    for keys_in_block in range(low + 1, ceil(load + reach) + 1):
        total += weight * (1 - clear) ** probes
        weight *= load / keys_in_block
        clear *= clear_step
    return min(total, 1.0)


def fill_ratio(blocks: int, probes: int, keys: float) -> float:
    """Expected share of the bits that are set, 0 to 1."""
    return 1 - exp(probes * keys / blocks * _LOG_BIT_CLEAR)


class LayerLoad(NamedTuple):
    """The shape of one layer of a growing filter, and its number of keys.

    `share` is the part of all looked-up keys that reach the layer: below 1 for a layer that only
    some shards of a filter have.
    """

    blocks: int
    probes: int
    keys: float
    share: float = 1.0
    table_pages: int = 0

    @property
    def error_rate(self) -> float:
        """Probability of taking a new key for one in this layer: with an exact table, also that a
        key in its bucket has the same remainder (docs/exactness.md). Cost: 0.1 ms."""
        rate = error_rate_at(self.blocks, self.probes, self.keys)
        if self.table_pages:
            compared = _BUCKETS_READ * self.keys / (BUCKETS_IN_PAGE * self.table_pages)
            rate *= compared * _SAME_REMAINDER
        return rate

    @property
    def expected_false_positives(self) -> float:
        """Expected number of false positives while the layer was filled: the integral of its error
        rate over the number of keys (Simpson's rule). Cost: a few ms."""
        step = self.keys / 32
        rates = [self._replace(keys=step * number).error_rate for number in range(1, 33)]
        return step / 3 * (4 * sum(rates[::2]) + 2 * sum(rates[1:-1:2]) + rates[-1])


def total_false_positives(layers: Iterable[LayerLoad]) -> float:
    """Expected number of false positives while the layers were filled, oldest first: each key was
    looked up in the older ones, full as they are, and in its own. Cost: a few ms a layer."""
    total = older = 0.0
    for layer in layers:
        total += older * layer.keys + layer.expected_false_positives
        older += layer.error_rate
    return total


def estimate_keys(probes: int, set_bits: Iterable[int]) -> int:
    """Estimate the number of keys from the count of set bits in each block (Swamidass and Baldi
    2007). The relative error is under 1 % from a few hundred keys on, unless a block is full."""
    full = log(0.5 / BLOCK_BITS)
    logs = sum(log1p(-n / BLOCK_BITS) if n < BLOCK_BITS else full for n in set_bits)
    return round(logs / (probes * _LOG_BIT_CLEAR))


def _blocks_needed(capacity: int, probes: int, error_rate: float) -> int:
    """Return the least number of blocks for `capacity` keys at `error_rate`, by bisection from the
    classic optimum, which is a lower bound."""

    def suffices(blocks: int) -> bool:
        return error_rate_at(blocks, probes, capacity) <= error_rate

    low = int(capacity * classic_bits_per_key(error_rate) / BLOCK_BITS)
    return bisect_left(range(2**60), True, low + 1, key=suffices)
