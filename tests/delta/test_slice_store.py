"""The slices by themselves: against a plain dict, with a clock that goes as it likes."""

import json
import multiprocessing
import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scrapy_bloom.delta.slice_store import SliceStore
from scrapy_bloom.delta.slices import SLICES, Shape
from scrapy_bloom.errors import FilterFileError

HOUR = 3600.0
PERIOD = 8 * HOUR
NOON = 1_800_000_000.0

pytestmark = pytest.mark.skipif(os.name != "posix", reason="filter files need Linux or macOS")


def key(number):
    """Return a key."""
    return number.to_bytes(20, "big")


def memory(folder, now, period=PERIOD, **shape):
    """Return an open store whose clock stands at `now`."""
    opened = SliceStore(
        Path(folder) / "memory", Shape(1000, 1e-9, period=period, **shape), clock=lambda: now
    )
    opened.open()
    return opened


def slices_in(folder):
    """Return the slices that the store has, expired ones included."""
    return json.loads((Path(folder) / "memory" / "delta.json").read_text())["slices"]


STEPS = st.lists(
    st.tuples(
        st.floats(0, 6),  # hours that pass
        st.lists(st.integers(0, 9), max_size=3),  # keys marked then
    ),
    max_size=12,
)


@settings(max_examples=8)
@given(STEPS, st.booleans())
def test_a_mark_counts_for_the_period_and_at_most_a_slice_longer(steps, exact):
    """As a dict from keys to the times of their last marks has it."""
    with tempfile.TemporaryDirectory() as folder:
        now, marked = NOON, {}
        for hours, keys in steps:
            now += hours * HOUR
            opened = memory(folder, now, exact=exact)
            for number in range(10):
                age = now - marked.get(number, -1e12)
                if opened.knows(key(number)):
                    assert age <= PERIOD * (1 + 1 / SLICES)
                else:
                    assert age > PERIOD
                # and so for a request that asks for fewer days
                if opened.knows(key(number), 2 * HOUR):
                    assert age <= 2 * HOUR + PERIOD / SLICES
                else:
                    assert age > 2 * HOUR
            opened.add((key(number), now) for number in keys)
            marked |= dict.fromkeys(keys, now)
            opened.close()
            if (Path(folder) / "memory" / "delta.json").exists():
                # what can be asked for, what has just expired, and no more
                assert len(slices_in(folder)) <= 2 * (SLICES + 2)


@settings(max_examples=8)
@given(st.lists(st.tuples(st.floats(-1e5, 1e5), st.integers(0, 9)), max_size=10))
def test_a_wrong_clock_costs_repetitions_and_not_the_memory(days):
    """Whatever the clock says for an opening in between, the next one knows what it knew."""
    with tempfile.TemporaryDirectory() as folder:
        first = memory(folder, NOON)
        first.add([(key(1), NOON)])
        for day, _ in days:
            memory(folder, NOON + day * 24 * HOUR).close()
            opened = memory(folder, NOON + HOUR)
            assert opened.knows(key(1))
            opened.close()


def test_a_slice_from_the_future_expires_as_if_it_were_of_today(tmp_path):
    """Else it would count until then."""
    wrong = memory(tmp_path, NOON + 1000 * PERIOD)
    wrong.add([(key(1), NOON + 1000 * PERIOD)])
    for hours, is_known in ((0, True), (7, True), (8.9, True), (9.1, False), (30, False)):
        opened = memory(tmp_path, NOON + hours * HOUR)
        assert opened.knows(key(1)) is is_known
        opened.close()
    assert slices_in(tmp_path) == []


def test_an_expired_slice_stays_for_one_slice(tmp_path):
    """Then its directory is gone."""
    memory(tmp_path, NOON).add([(key(1), NOON)])
    for hours, count in ((9.5, 1), (10.4, 1), (10.6, 0)):
        opened = memory(tmp_path, NOON + hours * HOUR)
        assert not opened.knows(key(1))
        opened.close()
        assert len([*(tmp_path / "memory").glob("[0-9]*")]) == count


def test_without_a_period_there_is_one_slice_that_never_expires(tmp_path):
    """And with one set later, it expires as its last mark does."""
    memory(tmp_path, NOON, period=None).add([(key(1), NOON)])
    memory(tmp_path, NOON + HOUR, period=None).add([(key(2), NOON + HOUR)])
    assert memory(tmp_path, NOON + 1000 * PERIOD, period=None).knows(key(1))
    assert len(slices_in(tmp_path)) == 1
    assert memory(tmp_path, NOON + PERIOD + HOUR).knows(key(1))
    assert not memory(tmp_path, NOON + PERIOD + 2 * HOUR).knows(key(1))


@pytest.mark.parametrize("period", [PERIOD, None])
def test_a_mark_from_the_future_is_one_of_now(tmp_path, period):
    """What a job has kept while its clock was wrong: it takes no slice of its own, and holds
    no slice back that would expire."""
    marked = memory(tmp_path, NOON, period)
    marked.add([(key(1), NOON)])
    marked.add([(key(number), NOON + number * PERIOD) for number in range(2, 9)])
    assert all(memory(tmp_path, NOON, period).knows(key(number)) for number in range(1, 9))
    assert [each["end"] for each in slices_in(tmp_path)] == [NOON + HOUR if period else NOON]
    assert not memory(tmp_path, NOON + 10 * HOUR).knows(key(2))


def test_an_older_mark_moves_no_end(tmp_path):
    """Else a slice without a period would expire too early when it gets one."""
    later = NOON + 5 * HOUR
    memory(tmp_path, later, None).add([(key(1), later)])
    memory(tmp_path, later, None).add([(key(2), NOON)])
    assert [each["end"] for each in slices_in(tmp_path)] == [later]
    assert memory(tmp_path, later + PERIOD).knows(key(1))


@pytest.mark.parametrize("finer", [{"error_rate": 1e-12}, {"exact": True}])
def test_another_error_rate_takes_a_slice_of_its_own(tmp_path, finer):
    """A filter cannot keep a lower one than it was made for; a higher one it can."""
    marked = memory(tmp_path, NOON)
    marked.add([(key(1), NOON)])
    shape = {"capacity": 1000, "error_rate": 1e-9, "period": PERIOD}
    SliceStore(tmp_path / "memory", Shape(**shape | finer), lambda: NOON).add([(key(2), NOON)])
    marked.open()
    assert len(slices_in(tmp_path)) == marked.count == 2
    assert marked.knows(key(1))
    assert marked.knows(key(2))
    SliceStore(tmp_path / "memory", Shape(**shape | {"error_rate": 1e-3}), lambda: NOON).add(
        [(key(3), NOON)]
    )
    assert len(slices_in(tmp_path)) == 2


def test_a_slice_that_expires_while_it_is_open_counts_no_more(tmp_path):
    """In a crawl of days, as in the next one."""
    memory(tmp_path, NOON).add([(key(1), NOON)])
    now = [NOON]
    opened = SliceStore(tmp_path / "memory", Shape(1000, period=PERIOD), lambda: now[0])
    opened.open()
    assert opened.ends == [NOON + 9 * HOUR]
    for hours, is_known in ((0, True), (9, True), (9.01, False)):
        now[0] = NOON + hours * HOUR
        assert opened.knows(key(1)) is is_known
    assert opened.ends == []


def test_a_request_cannot_ask_for_more_than_the_crawl(tmp_path):
    """What another crawl still keeps is not this one's."""
    memory(tmp_path, NOON).add([(key(1), NOON)])
    now = [NOON]
    opened = SliceStore(tmp_path / "memory", Shape(1000, period=PERIOD), lambda: now[0])
    opened.open()
    now[0] = NOON + 10 * HOUR
    assert not opened.knows(key(1), 2 * PERIOD)


@pytest.mark.parametrize("of_020", [False, True])
@pytest.mark.parametrize("longest", [4 * PERIOD, None])
def test_the_longest_period_decides_what_is_removed(tmp_path, longest, of_020):
    """Each crawl judges by its own; a memory of 0.2.0 knows by its slices for how long they
    were made."""
    memory(tmp_path, NOON, longest).add([(key(1), NOON)])
    path = tmp_path / "memory" / "delta.json"
    if of_020:
        found = json.loads(path.read_text())
        del found["longest"]
        path.write_text(json.dumps(found))
    for hours in (13, 15, 17):
        short = memory(tmp_path, NOON + hours * HOUR)
        assert not short.knows(key(1))
        short.add([(key(hours), NOON + hours * HOUR)])
        short.close()
    opened = memory(tmp_path, NOON + 36 * HOUR, longest)
    assert opened.knows(key(1))
    opened.close()
    for hours, is_kept in ((37, True), (40, True), (42, longest is None)):
        memory(tmp_path, NOON + hours * HOUR).close()
        assert ("0" in {each["name"] for each in slices_in(tmp_path)}) is is_kept


def test_a_longer_period_is_noted_when_a_crawl_begins(tmp_path):
    """Before there is anything new to mark."""
    memory(tmp_path, NOON).add([(key(1), NOON)])
    memory(tmp_path, NOON + HOUR, 4 * PERIOD).close()
    memory(tmp_path, NOON + 10 * HOUR).close()
    memory(tmp_path, NOON + 20 * HOUR).close()
    assert memory(tmp_path, NOON + 20 * HOUR, 4 * PERIOD).knows(key(1))


def test_a_look_changes_nothing(tmp_path):
    """Whatever has expired or is from the future, and where nothing can be written."""
    folder = tmp_path / "memory"
    memory(tmp_path, NOON).add([(key(1), NOON)])
    memory(tmp_path, NOON + 1000 * PERIOD).add([(key(2), NOON + 1000 * PERIOD)])
    (folder / "lock").unlink()
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    for hours, is_known in ((0, True), (9, True), (9.1, False), (30, False)):
        looking = SliceStore(folder, Shape(period=PERIOD), lambda at=hours: NOON + at * HOUR)
        looking.look()
        assert looking.knows(key(1)) is is_known
        assert looking.knows(key(2))
        looking.close()
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_what_a_kill_has_left_of_a_slice_is_removed(tmp_path):
    """It is no part of the store before `delta.json` names it."""
    memory(tmp_path, NOON).add([(key(1), NOON)])
    (tmp_path / "memory" / "7").mkdir()
    memory(tmp_path, NOON + 3 * HOUR).add([(key(2), NOON + 3 * HOUR)])
    assert sorted(path.name for path in (tmp_path / "memory").glob("[0-9]*")) == ["0", "1"]


@pytest.mark.parametrize("text", ["", "[]", '{"version": 2}', '{"version": 1, "slices": [{}]}'])
def test_an_unreadable_memory_is_refused_and_can_be_cleared(tmp_path, text):
    """And left as it is until then."""
    memory(tmp_path, NOON).add([(key(1), NOON)])
    path = tmp_path / "memory" / "delta.json"
    path.write_text(text)
    with pytest.raises(FilterFileError, match=r"delta\.json cannot be read"):
        memory(tmp_path, NOON)
    assert path.read_text() == text
    again = SliceStore(tmp_path / "memory", Shape(period=PERIOD), lambda: NOON)
    again.clear()
    assert not memory(tmp_path, NOON).knows(key(1))


def test_a_missing_slice_is_refused(tmp_path):
    """With its name."""
    memory(tmp_path, NOON).add([(key(1), NOON)])
    (tmp_path / "memory" / "0" / "0.bloom").unlink()
    with pytest.raises(FilterFileError, match=r"memory/0 is missing"):
        memory(tmp_path, NOON)


def test_a_damaged_slice_is_refused(tmp_path):
    """With its name, and with what can be done about a memory."""
    memory(tmp_path, NOON).add([(key(1), NOON)])
    (tmp_path / "memory" / "0" / "0.bloom").write_bytes(b"torn")
    with pytest.raises(FilterFileError, match=r"memory/0/0\.bloom .* BLOOM_DELTA_RESET = True"):
        memory(tmp_path, NOON)


def _add_many(folder, first):
    for number in range(first, first + 40):
        memory(folder, NOON + number % 3 * HOUR).add([(key(number), NOON)])


def test_processes_write_to_one_memory_at_the_same_time(tmp_path):
    """Each mark of each is there, and a reader is never in the way."""
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_add_many, args=(tmp_path, first)) for first in (0, 100, 200)]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        memory(tmp_path, NOON + 2 * HOUR).close()
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    opened = memory(tmp_path, NOON + 2 * HOUR)
    assert all(opened.knows(key(first + n)) for first in (0, 100, 200) for n in range(40))


def test_slices_are_dropped_by_age(tmp_path):
    """Those that ended before."""
    for hours in (0, 2, 4):
        memory(tmp_path, NOON + hours * HOUR).add([(key(hours), NOON + hours * HOUR)])
    opened = memory(tmp_path, NOON + 5 * HOUR)
    assert [each.start for each in opened.drop_older(2.5 * HOUR)] == [NOON]
    opened.open()
    assert [opened.knows(key(hours)) for hours in (0, 2, 4)] == [False, True, True]
