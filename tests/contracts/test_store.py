"""What the records of a job and those in memory have in common."""

import random
import re
import sqlite3
from collections import Counter
from copy import deepcopy
from dataclasses import dataclass
from itertools import product
from types import SimpleNamespace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scrapy import Request, pqueues, squeues
from scrapy.settings import BaseSettings

from scrapy_bloom.crawl.records import MemoryRecords, State, rank_of
from scrapy_bloom.crawl.slots import OneLine, Slots
from scrapy_bloom.errors import RequestFileError
from scrapy_bloom.sqlite import kept, schema
from scrapy_bloom.sqlite.budget import JobBudget
from scrapy_bloom.sqlite.job_file import RequestFile, named
from scrapy_bloom.sqlite.records import SqliteRecords
from tests.crawl.engine import query
from tests.fakes import HAS_SCOPES
from tests.seeded import seed_of
from tests.stored import FAILURE, LIFO, UNREADABLE, put, records_in

SEED = seed_of("STORE_SEED")
ORDERS = [*product((True, False), (True, False, None))]
"""Whether the newest of equal requests is next, and of equal start requests."""


def in_memory(order=LIFO, *, by_slot=True, **options):
    return MemoryRecords((Slots if by_slot else OneLine)(**options), order)


class OnDisk:
    """The records of a job, and its file, which can be opened anew as after a kill."""

    def __init__(self, path):
        self.path = path
        self.file = None

    def open(self, *arguments, **options):
        """Drop what was not committed; return the records."""
        self.close()
        self.file = RequestFile.open(self.path)
        self.budget = JobBudget({"*": 9999}, self.file)
        self.budget.begin(records := records_in(self.file, *arguments, **options))
        return records

    def close(self):
        if self.file is not None:
            self.file._connection.close()


@pytest.fixture
def disk(tmp_path):
    disk = OnDisk(tmp_path / "requests.sqlite")
    yield disk
    disk.close()


# Scrapy's order


class Pair:
    """A priority queue of Scrapy's, and both Stores, beside one downloader."""

    def __init__(self, order, *, by_slot):
        self.loads = {}
        self.names = 0
        downloader = SimpleNamespace(
            slots=self.loads, get_slot_key=lambda request: request.meta["download_slot"]
        )
        crawler = SimpleNamespace(
            settings=BaseSettings(),
            engine=SimpleNamespace(downloader=downloader),
            throttler=(HAS_SCOPES and scopes_of(downloader)) or None,
        )
        lines = {True: squeues.LifoMemoryQueue, False: squeues.FifoMemoryQueue, None: None}
        kinds = pqueues.ScrapyPriorityQueue, pqueues.DownloaderAwarePriorityQueue
        self.has_starts = order[1] is not None
        starts = {"start_queue_cls": lines[order[1]]}
        self.scrapys = kinds[by_slot](crawler, lines[order[0]], "", **starts)
        file = RequestFile(sqlite3.connect(":memory:", isolation_level=None, factory=Made))
        of_disk, of_memory = ((Slots if by_slot else OneLine).of(crawler) for _ in range(2))
        in_memory = MemoryRecords(of_memory, order)
        self.ours = [SqliteRecords(file, of_disk, order), in_memory]

    def push(self, slot, priority, is_start):
        self.names += 1
        meta = {"download_slot": slot, "is_start_request": is_start, "name": self.names}
        self.scrapys.push(Request("data:,", priority=priority, meta=meta))
        for store in self.ours:
            start = is_start and self.has_starts
            put(store, self.names, slot=slot, priority=priority, start=start)

    def download(self, slot, count):
        """Let a slot have so many active downloads; with 0 it stays with the downloader, idle."""
        self.loads[slot] = SimpleNamespace(active=set(range(count)))

    def pop(self):
        """What is next is the same in all three."""
        popped = self.scrapys.pop()
        for store in self.ours:
            claimed = store.next()
            assert (claimed and claimed[-1]) == (popped and popped.meta["name"])
            assert len(store) == len(self.scrapys)


class Made(sqlite3.Connection):
    """An empty job, whose payloads are numbers here."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        schema.create(self)


def scopes_of(downloader):
    """Return the throttler of a Scrapy that has one, with the downloader's slots as scopes."""
    return SimpleNamespace(
        get_scopes_key=downloader.get_slot_key,
        get_applied_scopes=lambda request: [downloader.get_slot_key(request)],
        get_scope_load=lambda slot: len(getattr(downloader.slots.get(slot), "active", ())),
    )


# with scopes "" is none of them
names = st.sampled_from(["c" if HAS_SCOPES else "", "a", "b", "b.example", "z"])
priorities = st.one_of(st.integers(-1, 1), st.sampled_from([-(2**61), 2**61 - 1]))
pushes = st.tuples(st.just("push"), names, priorities, st.booleans())
downloads = st.tuples(st.just("download"), names, st.integers(0, 2))


calls = st.lists(st.one_of(pushes, st.just(("pop",)), downloads), max_size=80)


@pytest.mark.parametrize("by_slot", [True, False])
@example(
    order=LIFO,
    calls=[
        *(("push", slot, 0, False) for slot in "aabbcczz"),
        *(("download", slot, 3 - number) for number, slot in enumerate(("a", "b", "c", "z"))),
        *[("pop",)] * 3,
        *(("download", slot, 1 + number % 2) for number, slot in enumerate(("b", "a", "c"))),
    ],
)
@example(order=LIFO, calls=[("push", slot, 0, False) for slot in "aabccz"])
@given(order=st.sampled_from(ORDERS), calls=calls)
def test_its_order_is_scrapys(order, calls, by_slot):
    """Each is what the installed priority queue of Scrapy's returns."""
    pair = Pair(order, by_slot=by_slot)
    for name, *arguments in calls:
        getattr(pair, name)(*arguments)
    for _ in range(len(pair.scrapys) + 1):
        pair.pop()


# Random calls


@dataclass
class Item:
    """A record, in the plainest words."""

    name: bytes
    slot: str
    rank: int
    place: int = 0
    state: State = State.PENDING
    due: float | None = None


class Walk:
    """Random calls of a Store, and what has to come of them by a look at all records."""

    def __init__(self, chance, disk=None):
        self.chance, self.disk = chance, disk
        self.now, self.pushed, self.places, self.held, self.last = 1000.0, 0, 0, set(), set()
        self.items, self.ids = [], {}
        self.order, self.by_slot = chance.choice(ORDERS), chance.random() < 0.7
        self.open()
        self.commit()

    def open(self):
        open_store = self.disk.open if self.disk else in_memory
        self.store = open_store(self.order, by_slot=self.by_slot)
        self.slots, self.store.slots.asks_last = Slots(lambda slot: 0), self.last.__contains__
        for slot in self.held:
            self.slots.hold(slot)
            self.store.slots.hold(slot)

    def all(self, *states):
        return [item for item in self.items if item.state in states]

    def place(self, item):
        """Make it pending, at the end or the beginning of those of its rank."""
        self.places += 1
        newest = self.order[item.rank & 1]
        item.place = self.places * (-1 if newest else 1)
        item.state, item.due = State.PENDING, None

    def push(self):
        self.pushed += 1
        start = self.order[1] is not None and self.chance.random() < 0.2
        rank = rank_of(self.chance.choice([0, 0, 1, -4]), start=start)
        item = Item(b"%d" % self.pushed, self.chance.choice("aaabc"), rank)
        self.place(item)
        if self.chance.random() < 0.2:
            item.state, item.due = State.DELAYED, self.now + self.chance.randrange(20)
        self.items.append(item)
        self.ids[item.name] = self.store.push(item.slot, rank, item.name, item.due)

    def next(self):
        pending = self.all(State.PENDING)
        if self.by_slot:
            self.slots.recount(Counter(item.slot for item in pending))
            slot = self.slots.next()
            pending = [item for item in pending if item.slot == slot]
        found = min(pending, key=lambda item: (item.rank, item.place), default=None)
        if found and self.by_slot and slot in self.last:
            equal = [item for item in pending if item.rank == found.rank]
            found = max(equal, key=lambda item: item.place)
        wanted = found and (found.slot, found.rank, found.name)
        if self.disk and found:
            wanted = self.ids[found.name], found.slot, found.name
        assert self.store.next() == wanted
        if found:
            found.state = State.CLAIMED

    def finish(self):
        if not (claimed := self.all(State.CLAIMED)):
            return
        item = self.chance.choice(claimed)
        id_ = self.ids[item.name]
        what = self.chance.choice(["done", "done", "fail", "unreadable", "put off"])
        if self.disk is None or what == "done":
            self.items.remove(item)
        if what == "put off":
            item.state, item.due = State.DELAYED, self.now + 3
        if self.disk is None:
            if what == "put off":  # what is in memory is no more when it is taken, and comes again
                self.items.append(item)
                self.store.push(item.slot, item.rank, item.name, item.due)
        elif what == "done":
            self.store.done(id_)
        elif what == "put off":
            self.store.put_off(id_, item.due)
        else:
            item.state, item.due = State.FAILED, UNREADABLE if what == "unreadable" else None
            self.store.fail(id_, item.due or FAILURE)

    def take_due(self):
        self.now += self.chance.randrange(10)
        delayed = [each for each in self.all(State.DELAYED) if each.due <= self.now]
        for item in sorted(delayed, key=lambda item: item.due):
            self.place(item)
        self.store.take_due(self.now)

    def hold(self):
        slot = self.chance.choice("abc")
        self.held ^= {slot}
        for slots in (self.slots, self.store.slots):
            (slots.hold if slot in self.held else slots.release)(slot)

    def turn(self):
        self.last ^= {self.chance.choice("abc")}

    def commit(self):
        if self.disk:
            self.disk.file.commit()
            self.committed = deepcopy((self.items, self.places, self.order, self.by_slot))

    def retry(self):
        """Make one in three of those that have failed pending, by their ids."""
        failed = self.all(State.FAILED)
        if self.disk and (chosen := self.chance.sample(failed, len(failed) // 3)):
            chosen.sort(key=self.items.index)
            assert kept.wake(self.store, [self.ids[item.name] for item in chosen]) == len(chosen)
            for item in chosen:
                self.place(item)

    def reopen(self):
        """Kill the process, and start again, with other settings at times: what was claimed or
        unreadable is in its place again, and so is what waits."""
        if not self.disk:
            return
        self.items, self.places, self.order, self.by_slot = deepcopy(self.committed)
        if self.chance.random() < 0.5:
            self.order, self.by_slot = self.chance.choice(ORDERS), self.chance.random() < 0.7
        for item in self.items:
            if item.state is State.CLAIMED or item.due == UNREADABLE:
                item.state, item.due = State.PENDING, None
        self.open()

    def check(self):
        delayed = [item.due for item in self.all(State.DELAYED)]
        assert len(self.store) == len(self.all(State.PENDING))
        assert self.store.delayed == len(delayed)
        assert self.store.next_due == min(delayed, default=None)
        assert not self.disk or self.store.failed == len(self.all(State.FAILED))


CALLS = {"push": 40, "next": 30, "finish": 15, "take_due": 5, "hold": 4, "turn": 2}
CALLS |= {"commit": 6, "retry": 2, "reopen": 2}


@pytest.mark.parametrize("kind", ["disk", "memory"])
@pytest.mark.parametrize("number", range(30))
def test_random_calls(kind, number, disk):
    """All answers are those of the model, over kills and changed settings."""
    seed = f"{SEED} {kind} {number}"
    print("STORE_SEED", seed)
    walk = Walk(random.Random(seed), disk if kind == "disk" else None)
    for name in walk.chance.choices([*CALLS], [*CALLS.values()], k=300):
        getattr(walk, name)()
        walk.check()
    for slot in walk.held:
        walk.slots.release(slot)
        walk.store.slots.release(slot)
    for _ in range(len(walk.store) + 1):
        walk.next()


DAMAGES = (
    "DELETE FROM request",
    *map("UPDATE request SET {}".format, ("slot = 'x'", "state = 9", "due = 'x'", "due = NULL")),
    "UPDATE budget SET counted = 'x'",
    "UPDATE slot SET name = x'00'",
    "UPDATE job SET last = -(1 << 40)",
)


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_an_error_that_names_the_file_or_does_no_harm(disk, damage, again):
    """No exception but SQLite's, which starts and ledgers name, or one that names the file."""
    store, error = disk.open(), None
    disk.budget.refuses(["a"])
    put(store, b"a", b"b")
    put(store, b"later", due=1.0)
    disk.file.commit()
    query(disk.path, damage)
    try:
        if again:
            store = disk.open()
        store.take_due(2.0)
        while (claimed := store.next()) is not None:
            store.put_off(claimed[0], 3.0)
        put(store, b"c")
        disk.budget.refuses(["a"])
        disk.file.commit()
    except (sqlite3.Error, RequestFileError) as caught:
        error = named("requests.sqlite", caught)
    assert error is None or "requests.sqlite" in str(error)


# Costs


def test_no_statement_scans_the_table(disk):
    """But the one that looks for slots without requests when a round begins."""
    statements = {*schema.AT_START}
    for _ in range(2):
        store = disk.open()
        disk.file._connection.set_trace_callback(statements.add)
        store.recount()
        put(store, b"a", b"b", b"c", b"d")
        put(store, b"later", due=1.0)
        store.take_due(2.0)
        store.slots.asks_last = lambda slot: True
        store.put_off(store.next()[0], 5.0)
        store.slots.asks_last = lambda slot: False
        store.end_hold("a")
        store.done(store.next()[0])
        store.fail(failed := store.next()[0], FAILURE)
        store.put("a", 0, b"capped", State.CAPPED, None)
        store.hold("a", 1.0, 1, 1.0)
        assert kept.wake(store, [failed]) == kept._wake(store, "state > 0 AND state = 4") == 1
        store.stored(failed)
        store.holds()
        store.forget_slots()
        disk.budget.begin_round()
        assert not disk.file.is_empty
        disk.file.commit()
    plans = {}
    for statement in sorted(statements):
        if re.match("SELECT|UPDATE|DELETE FROM (?!slot)|INSERT", statement):
            for *_, plan in disk.file._connection.execute(f"EXPLAIN QUERY PLAN {statement}"):
                if re.match(r"SCAN (TABLE )?request(?! USING (COVERING )?INDEX)", plan):
                    plans[statement] = plan
    assert plans == {}
