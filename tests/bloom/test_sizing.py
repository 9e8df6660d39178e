"""The formulas against independent arithmetic and against the promises of the README."""

import math

import pytest

from scrapy_bloom.bloom import exact_table, sizing
from scrapy_bloom.bloom.layers import Layered


@pytest.mark.parametrize("capacity", [1, 999, 100_000, 123_456_789])
@pytest.mark.parametrize("error_rate", [0.999, 0.3, 0.05, 1e-2, 1e-4, 5e-7, 1e-6, 1e-15, 1e-100])
def test_shape_keeps_the_error_rate_within_12_percent_of_the_optimum(capacity, error_rate):
    """A filter at capacity has at most the error rate asked for, at a bounded price if it is large
    and useful; and a page and a probe at least."""
    blocks, probes = sizing.shape(capacity, error_rate)
    assert blocks >= 1 <= probes
    assert sizing.error_rate_at(blocks, probes, capacity) <= error_rate
    if capacity >= 100_000 and 1e-15 <= error_rate <= 0.05:
        optimum = capacity * -math.log(error_rate) / math.log(2) ** 2
        assert blocks * sizing.BLOCK_BITS <= 1.12 * optimum


@pytest.mark.parametrize(
    ("blocks", "probes", "keys"), [(3, 5, 900), (30, 14, 34_000), (7, 1, 90_000)]
)
def test_error_rate_is_the_poisson_mixture(blocks, probes, keys):
    """The sum over the reach of the distribution equals the one over all of it."""
    load = keys / blocks
    total = 0.0
    for j in range(int(load * 4) + 200):
        log_weight = j * math.log(load) - load - math.lgamma(j + 1)
        fill = 1 - (1 - 1 / sizing.BLOCK_BITS) ** (probes * j)
        total += math.exp(log_weight) * fill**probes
    assert sizing.error_rate_at(blocks, probes, keys) == pytest.approx(total, rel=1e-9)


def test_an_exact_table_compares_some_64_remainders():
    """At its capacity, each of which may be that of another key: see docs/exactness.md."""
    full = *sizing.shape(10**6, 1e-6), 10**6
    wrong = sizing.error_rate_at(*full) * 64 * 2.0**-64
    exact = sizing.LayerLoad(*full, table_pages=exact_table.pages_in_table(10**6))
    assert exact.error_rate == pytest.approx(wrong, rel=0.01)


@pytest.mark.parametrize("pages", [0, 2])
def test_expected_false_positives_is_the_integral(pages):
    """Simpson's rule agrees with a sum over every key, exact or not."""
    blocks, probes = sizing.shape(5_000, 1e-3)
    load = sizing.LayerLoad(blocks, probes, 5_000, table_pages=pages)
    by_key = sum(load._replace(keys=n + 0.5).error_rate for n in range(5_000))
    assert load.expected_false_positives == pytest.approx(by_key, rel=1e-4)
    assert load._replace(keys=0).expected_false_positives == 0


def test_layer_error_rates_stay_under_the_bound():
    """However many layers there are, their error rates add up to at most the bound."""
    for bound in (0.6, 1e-2, 1e-6):
        assert sum(sizing.layer_error_rate(bound, layer) for layer in range(200)) <= bound


def loaded(*loads):
    return type("Loaded", (Layered,), {"loads": loads})()


def test_sums_over_layers_are_what_a_crawl_meets():
    """Key by key: each meets all layers there are, the newest as full as it is by then."""
    shapes = [sizing.shape(2_000 * 2**n, 1e-2 / 2**n) for n in range(3)]
    keys = [2_000, 4_000, 5_000]
    layers = [sizing.LayerLoad(*shape, n) for shape, n in zip(shapes, keys, strict=True)]
    met = sum(
        sum(sizing.error_rate_at(*layer[:3]) for layer in layers[:number])
        + sizing.error_rate_at(layer.blocks, layer.probes, held)
        for number, layer in enumerate(layers)
        for held in range(0, layer.keys, 10)
    )
    assert sizing.total_false_positives(layers) == pytest.approx(10 * met, rel=0.01)
    rates = [sizing.error_rate_at(*layer[:3]) for layer in layers]
    assert loaded(*layers).current_error_rate == pytest.approx(sum(rates))
    bits = sum(layer.blocks * sizing.fill_ratio(*layer[:3]) for layer in layers)
    blocks = sum(layer.blocks for layer in layers)
    assert loaded(*layers).fill_ratio == pytest.approx(bits / blocks)


def test_layer_that_few_keys_meet_errs_for_few():
    """A quarter of the shards is a quarter of an error; no chance is above 1."""
    load = sizing.LayerLoad(10, 14, 9_000)
    whole = loaded(load).current_error_rate
    assert loaded(load._replace(share=0.25)).current_error_rate == pytest.approx(whole / 4)
    assert loaded(*[load._replace(keys=10**7)] * 2).current_error_rate == 1


@pytest.mark.parametrize(
    ("last", "wanted", "held", "capacity"),
    [(100, 100, 100, 200), (100, 1_000, 100, 900), (400, 1_000, 700, 800), (100, 50, 100, 200)],
)
def test_layer_capacity(last, wanted, held, capacity):
    """A new layer doubles the last one, or is as large as what is missing."""
    assert sizing.layer_capacity(last, wanted, held) == capacity


def test_estimate_keys_is_exact_where_the_bits_are():
    """The estimate inverts the expected number of set bits."""
    blocks, probes, keys = 20, 14, 20_000
    set_bits = sizing.BLOCK_BITS * sizing.fill_ratio(blocks, probes, keys)
    assert sizing.estimate_keys(probes, [round(set_bits)] * blocks) == pytest.approx(keys, rel=1e-3)
    assert sizing.estimate_keys(probes, [0] * blocks) == 0
    assert sizing.estimate_keys(probes, [sizing.BLOCK_BITS] * blocks) > 0


@pytest.mark.parametrize("number", [0, -1, 1.5, float("nan"), float("inf"), "1e-6", None, True])
def test_bad_numbers_are_named(number):
    """The error names the value and what it must be."""
    with pytest.raises(ValueError, match=r"capacity is .* it must be a positive integer"):
        sizing.shape(number, 1e-6)
    with pytest.raises(ValueError, match=r"error_rate is .* above 0 .* below 1"):
        sizing.shape(1_000, number)
    for capacity, error_rate in ((1e6, 0.5), (1_000, 1)):
        with pytest.raises(ValueError, match="it must be"):
            sizing.shape(capacity, error_rate)
