"""Filters with an exact table: what was not added is not found, whatever happens to them."""

import random
import re
import sys
from math import sqrt

import pytest

from scrapy_bloom import BloomError, BloomFilter, IncompatibleFilterError, ScalableBloomFilter
from scrapy_bloom.bloom import exact_table, layers, sizing
from scrapy_bloom.bloom.file import PAGE, BitStore, read_header
from scrapy_bloom.bloom.hashing import positions
from scrapy_bloom.bloom.inspection import verify
from tests.seeded import seed_of

SECRET = bytes(range(16))
KINDS = [BloomFilter, ScalableBloomFilter]
SECTOR = 512


# What was added, and nothing else


def test_parts_of_two_remainders_are_none():
    """Bytes across two slots are no key and do not hide one behind them; nor are empty ones."""
    memory = BitStore.in_memory(BloomFilter(100, 0.5, exact=True).header)
    tested = memory.table
    tested._remainder = bytes
    assert not tested.holds(0, bytes(8))
    tested.add(0, b"12345678")
    tested.add(0, b"abcdefgh")
    assert tested.holds(0, b"12345678")
    assert tested.holds(0, b"abcdefgh")
    assert not tested.holds(0, b"5678abcd")
    for remainder in (b"5678abcd", b"dddddddd"):
        tested.add(0, remainder)
        assert tested.holds(0, remainder)


@pytest.mark.parametrize("error_rate", [0.5, 1e-6])
def test_crafted_collisions_are_told_apart(monkeypatch, error_rate):
    """Two keys that MurmurHash3 cannot tell apart are two keys to the table."""
    monkeypatch.setattr(layers, "hash128", lambda salted, seed: 0x1234567 << seed)
    monkeypatch.setattr(layers, "hash_bytes", lambda *_: (0x1234567).to_bytes(16, "little"))
    tested = BloomFilter(1_000, error_rate, exact=True)
    assert not tested.add(b"a")
    assert b"a" in tested
    assert b"b" not in tested
    assert not tested.add(b"b")
    assert tested.add(b"b")
    assert tested.false_positives_avoided == 1


def test_remainders_are_keyed():
    """They come of BLAKE2b, of the secret and the key; files depend on the very bytes."""
    for secret, expected in ((SECRET, "f8ca983f28dc2f95"), (bytes(16), "ab1e340c9128bcb5")):
        table = BloomFilter(100, 0.5, secret=secret, exact=True)._store.table
        assert table._remainder(b"key").hex() == expected


def test_estimates_are_of_wrong_answers():
    """With remainders of two bytes it errs as often as `current_error_rate` says."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sizing, "_SAME_REMAINDER", 2.0**-16)
        whole = exact_table.ExactTable._remainder
        short = lambda table, key: whole(table, key)[:2] + bytes(6)  # noqa: E731
        patch.setattr(exact_table.ExactTable, "_remainder", short)
        tested = BloomFilter(40_000, 0.5, exact=True, secret=SECRET)
        tested.update(b"key %d" % number for number in range(40_000))
        trials = 300_000
        found = sum(b"absent %d" % number in tested for number in range(trials))
        estimate = tested.current_error_rate
    assert found > 50
    assert abs(found - trials * estimate) <= 4 * sqrt(trials * estimate)


def test_wrong_answers_are_as_rare_as_promised():
    """In a crawl of 1e9."""
    for error_rate, bound in ((0.5, 2e-8), (0.01, 1e-9), (1e-6, 1e-9)):
        layers, held, room = [], 0, 1_000_000
        while held < 10**9:
            rate = sizing.layer_error_rate(error_rate, len(layers))
            keys = min(room, 10**9 - held)
            pages = exact_table.pages_in_table(room)
            layers.append(sizing.LayerLoad(*sizing.shape(room, rate), keys, table_pages=pages))
            held, room = held + keys, 2 * room
        assert 0 < sizing.total_false_positives(layers) < bound


def test_avoided_false_positives_are_counted():
    """One for each new key that the filter took for known, and none for a look."""
    tested, plain = (ScalableBloomFilter(4_000, 0.9, secret=SECRET, exact=e) for e in (True, False))
    wrong = 0
    for number in range(10_000):
        key = b"%d" % number
        wrong += any(
            layer._store.bits[
                positions(SECRET, key, layer.header.blocks, layer.header.probes)
            ].all()
            for layer in tested.layers
        )
        assert key not in tested
        tested.add(key)
        plain.add(key)
    assert tested.false_positives_avoided == wrong > 100
    assert plain.false_positives_avoided == 0


# Full tables


@pytest.mark.parametrize("error_rate", [0.5, 1e-6])
@pytest.mark.parametrize("kind", KINDS)
def test_full_table_refuses(kind, error_rate):
    """Beyond 95 % a table that may not grow takes no key and says so; what it has stays."""
    tested = kind(1_000, error_rate, exact=True)
    tested.growing = False
    room = int(3 * 8 * 63 * 0.95)
    tested.update(map(str, range(room)))
    (layer,) = tested.layers
    before = layer.read_blocks(0, layer.header.blocks)
    for _ in range(2):
        with pytest.raises(BloomError, match=r"holds 1,436 keys, all .* for 1,000 .* BLOOM_ON_"):
            tested.add("new")
    assert len(tested) == room
    assert "new" not in tested
    assert layer.read_blocks(0, layer.header.blocks) == before
    assert all(tested.add(str(number)) for number in range(room))
    tested.check()
    if kind is ScalableBloomFilter:
        tested.growing = True
        assert not tested.add("new")
        assert len(tested.layers) == 2


# Files


def exact_file(path, keys, **options):
    with BloomFilter(options.pop("capacity", 1_000), 0.5, path, exact=True, **options) as made:
        made.update(keys)
    return path


@pytest.mark.parametrize("kind", KINDS)
def test_mode_stays(tmp_path, kind):
    """One with a table keeps it, asked for or not; one without gets none."""
    with kind(1_000, 0.5, tmp_path / "exact", exact=True) as made:
        made.update(map(str, range(1_200)))
        assert made.exact
    for options in ({}, {"exact": True}, {"exact": False}):
        with kind(1_000, 0.5, tmp_path / "exact", **options) as found:
            assert found.exact
            assert all(str(number) in found for number in range(1_200))
            assert not any(f"absent {number}" in found for number in range(1_000))
    with kind(1_000, 0.5, tmp_path / "plain") as made:
        made.add("key")
    plain = tmp_path / "plain"
    before = {p: p.read_bytes() for p in [plain, *plain.glob("*")] if p.is_file()}
    words = r"plain has no exact table.*BLOOM_EXACT.*only their bits.*new job"
    with pytest.raises(IncompatibleFilterError, match=words):
        kind(1_000, 0.5, plain, exact=True)
    assert {p: p.read_bytes() for p in before} == before


def test_new_key_touches_one_page_of_the_table(tmp_path):
    """And one of the bits: a filter larger than memory reads and writes no more for it."""
    path = exact_file(tmp_path / "exact", map(str, range(5_000)), capacity=10_000)
    blocks = read_header(path).blocks
    with BloomFilter.open(path) as tested:
        for number in range(50):
            before = path.read_bytes()
            assert not tested.add(f"new {number}")
            after = path.read_bytes()
            pages = range(0, len(after), PAGE)
            changed = [n // PAGE for n in pages if after[n : n + PAGE] != before[n : n + PAGE]]
            bits = [n for n in changed if n < 2 + blocks]
            assert len(changed) - len(bits) == 1
            assert len(bits) <= 1


# Crashes


def snapshots(path, tested, keys):
    """Yield keys, the one being added, and the file, as at each line of each `add`."""
    modules = {layers.__file__, exact_table.__file__}
    seen, at = [], [0]

    def trace(frame, event, argument):
        if frame.f_code.co_filename not in modules:
            return None
        seen.append((at[0], path.read_bytes()))
        return trace

    for number, key in enumerate(keys):
        at[0] = number
        before = sys.gettrace()
        sys.settrace(trace)
        try:
            assert not tested.add(key)
        finally:
            sys.settrace(before)
    for number, content in seen:
        yield keys[:number], keys[number], content


@pytest.mark.parametrize(("error_rate", "probes"), [(0.5, 6), (1e-15, 14)])
def test_killed_at_any_line_of_an_add(tmp_path, monkeypatch, error_rate, probes):
    """Returned keys are there, the one in progress as a whole or not, and the number is exact. The
    buckets have room for three keys, so that they overflow all the time."""
    monkeypatch.setattr(exact_table, "SLOTS", 3)
    path, left = tmp_path / "filter", tmp_path / "left"
    states = 0
    with BloomFilter(40, error_rate, path, exact=True) as tested:
        assert tested.header.probes == probes
        tested.update(map(str, range(20)))
        for had, adding, content in snapshots(path, tested, [f"new {n}" for n in range(4)]):
            states += 1
            left.write_bytes(content)
            with BloomFilter.open(left) as found:
                keys = [*map(str, range(20)), *had]
                assert all(key in found for key in keys)
                assert len(found) == len(keys) + (adding in found)
                assert not any(f"absent {n}" in found for n in range(20))
                found.add(adding)
                assert len(found) == len(keys) + 1
                found.check()
            left.unlink()
    assert states > 4 * 20


def test_power_cuts_cost_repetitions_and_no_page(tmp_path):
    """Whichever sectors reach the disk: what was never added is not known."""
    seed = seed_of("SEED")
    print("seed", seed)
    chance = random.Random(seed)
    path, left = tmp_path / "filter", tmp_path / "left"
    keys = list(map(str, range(1_400)))
    with BloomFilter(1_000, 0.5, path, exact=True) as tested:
        states = []
        for start in range(0, 1_400, 200):
            tested.update(keys[start : start + 200])
            tested.flush()
            states.append((start + 200, path.read_bytes()))
    repeated = 0
    for _ in range(60):
        flushed, early = chance.choice(states[:-1])
        late = states[-1][1]
        sectors = [
            (chance.choice((early, late)))[n : n + SECTOR]
            for n in range(2 * PAGE, len(late), SECTOR)
        ]
        torn = early[PAGE : PAGE + chance.randrange(48)]
        left.write_bytes(early[:PAGE] + torn.ljust(PAGE, b"\0") + b"".join(sectors))
        with BloomFilter.open(left) as found:
            assert all(key in found for key in keys[:flushed])
            assert not any(f"absent {number}" in found for number in range(300))
            found.growing = False
            repeated += sum(key not in found for key in keys)
    assert repeated > 100


def test_damage_is_found(tmp_path):
    """Buckets that chance does not explain, that count too many keys, a wrong number."""
    path = exact_file(tmp_path / "a.bloom", map(str, range(5_000)), capacity=5_000)
    blocks = read_header(path).blocks
    sound = path.read_bytes()
    assert [finding.text for finding in verify(path) if finding.sound] == [
        "header, size, state, bits and exact table agree on 5,000 items"
    ]
    start = PAGE * (2 + blocks)
    for damaged, message in (
        (sound[:start] + bytes(PAGE) + sound[start + PAGE :], "8 buckets .* chance"),
        (sound[:start] + b"\xc8" + sound[start + 1 :], "with 200 keys|counts 200 keys"),
        (sound[:start] + bytes([sound[start] - 1]) + sound[start + 1 :], "holds 4,999 keys"),
        (sound[:-PAGE], "truncated"),
        (sound[: 2 * PAGE] + bytes(blocks * PAGE) + sound[start:], "0 bits"),
    ):
        path.write_bytes(damaged)
        (finding,) = verify(path)
        assert not finding.sound
        assert re.search(message, finding.text), finding.text
        assert path.read_bytes() == damaged
