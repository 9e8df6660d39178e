"""Requests of a crawl in Redis that an operator changes, while its workers go on."""

import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from itertools import count, product

import pytest

from scrapy_bloom.crawl.choice import Filter
from scrapy_bloom.crawl.records import KEPT, State
from scrapy_bloom.errors import SharedFilterError
from scrapy_bloom.redis import desk
from scrapy_bloom.redis.client import RedisClient
from scrapy_bloom.redis.desk import RedisDesk
from scrapy_bloom.redis.scripts import CHANGE
from scrapy_bloom.redis.status import CrawlReader
from tests.commands.command_line import environment
from tests.crawl.engine import name_of
from tests.crawl.test_orders import SPIDER, of_pages, random_order, require_whole
from tests.failures import Failed
from tests.patience import wait_until
from tests.redis.test_later import is_sound, let_pass, of_slot
from tests.redis.test_lobby import FIFO, LIFO
from tests.redis.workers import StoreWorker, lobby_from, seeded
from tests.seeded import seed_of

pytestmark = pytest.mark.usefixtures("few_shards")
ORDERS = pytest.mark.parametrize("order", [FIFO, LIFO], ids=["oldest", "newest"])


def drop(worker, keep=False, **selected):
    """Drop what is selected; return the figures."""
    found = RedisDesk(worker.client, worker.key).change(
        Filter(**selected), "fail" if keep else "drop"
    )
    return {
        "dropped": found.states.total(),
        "later": found.states[State.DELAYED],
        "in_flight": found.in_flight,
        "unknown": found.unknown,
    }


def fetched(worker):
    """Let `worker` fetch all that it gets; return the names."""
    names = worker.drain()
    worker.exchange()
    return names


def pending(worker, **selected):
    """Return how many are pending of what is selected."""
    return RedisDesk(worker.client, worker.key).count(Filter(**selected)).by.total()


@ORDERS
@pytest.mark.parametrize("lobby", [0, 256])
def test_the_lists_of_a_slot_go_in_a_step_each(join, monkeypatch, order, lobby):
    """In each priority, parked or not; what is claimed stays, others stay in their order."""
    lobby_from(monkeypatch, lobby)
    worker = join(capacity=2, **order)
    of_slot(worker, "claimed", "first", "second", priority=1)
    worker.exchange()
    for priority in (0, 1):
        of_slot(worker, "gone", *(f"gone{n}-{priority}" for n in range(9)), priority=priority)
    of_slot(worker, "held", *(f"held{n}" for n in range(5)))
    worker.enqueue("late", 1000, slot="gone")
    worker.store.hold("held", 1000, 1)
    of_slot(worker, "stays", *"abcdef")
    assert drop(worker, slots=["gone", "claimed"]) == {
        "dropped": 19,
        "later": 1,
        "in_flight": 2,
        "unknown": 0,
    }
    assert not worker.enqueue("gone1-0") or worker.exchange()
    assert pending(worker, slots=["gone"]) == 0
    assert is_sound(worker)
    worker.exchange()
    assert worker.store.waiting == 11
    assert drop(worker, slots=["h*"])["dropped"] == 5
    worker.store.release("held")
    names = [each for each in fetched(worker) if len(each) == 1]
    assert names == ([*"abcdef"] if order is FIFO else [*"fedcba"])
    assert worker.store.is_quiet
    assert (worker.store.waiting, worker.store.nbytes) == (0, 0)


@ORDERS
@pytest.mark.parametrize("keep", [False, True])
def test_what_is_selected_by_url_is_read(join, monkeypatch, order, keep):
    """In all lists: what is left keeps its order. With `keep` it has failed."""
    lobby_from(monkeypatch, 3)
    monkeypatch.setattr(desk, "AT_ONCE", 4)
    worker = join(**order)
    for number in range(60):
        meta = {"download_slot": f"slot{number % 7 % 4}"}
        delay = 1000 if number % 10 == 4 else None
        worker.enqueue(f"{number}", delay, meta=meta, priority=number % 2)
        worker.exchange()
    worker.leave()
    worker = join(**order)
    assert CrawlReader(worker.client, worker.key).look().in_flight == 0
    before = pending(worker)
    assert drop(worker, keep, urls=["*/nothing"])["dropped"] == 0
    found = drop(worker, keep, urls=["*[3-6]"])
    assert found == {"dropped": 24, "later": 6, "in_flight": 0, "unknown": 0}
    assert drop(worker, keep, urls=["*[3-6]"])["dropped"] == 0
    assert pending(worker) == before - 24
    assert is_sound(worker)
    failed = worker.failed
    kept = {int(each.url.rpartition("/")[2]): each for each in failed.requests()}
    assert {*kept} == ({n for n in range(60) if n % 10 in (3, 4, 5, 6)} if keep else set())
    assert {(each.reason, each.attempts) for each in kept.values()} <= {("dropped", 0)}
    let_pass(worker, 1000)
    names = sorted(map(int, fetched(worker)))
    assert names == [n for n in range(60) if n % 10 not in (3, 4, 5, 6)]
    worker.enqueue("3")
    assert fetched(worker) == []
    assert worker.store.is_quiet
    assert failed.retry() == len(kept)
    assert {*map(int, fetched(worker))} == {*kept}


@ORDERS
def test_the_order_is_kept_where_nobody_works(join, monkeypatch, order):
    """Whatever is dropped."""
    monkeypatch.setattr(desk, "AT_ONCE", 3)
    worker = join(**order)
    of_slot(worker, "slot", *(f"{n}" for n in range(20)))
    worker.leave()
    worker = join(capacity=40, **order)
    assert drop(worker, urls=["*[05]"])["dropped"] == 4
    left = [n for n in range(20) if n % 5]
    assert [*map(int, fetched(worker))] == (left if order is FIFO else left[::-1])


@pytest.mark.parametrize("keep", [False, True])
def test_nothing_is_lost_where_a_script_is_aborted(join, redis_server, monkeypatch, keep):
    """What is not dropped is fetched, or has failed, and the crawl ends."""
    monkeypatch.setattr(desk, "AT_ONCE", 4)
    lobby_from(monkeypatch, 2)
    real = RedisDesk._run

    def abort(self, script, *arguments):
        if script is not CHANGE or next(calls) != fatal:
            return real(self, script, *arguments)
        worker.abort(arguments, at, script)
        raise InterruptedError

    every = [
        f"{slot}{n}-{'left' if n % 2 else 'gone'}" for slot in ("one", "two") for n in range(4)
    ]
    chance = seeded(seed_of("DESK_SEED"))
    for at, by_slot in product(range(1, 20), [False] if keep else [False, True]):  # noqa: B007
        calls, fatal = count(), 0 if by_slot else chance.randrange(4)
        redis_server.command("FLUSHALL")
        worker = join(**FIFO)
        for slot in ("one", "two"):
            of_slot(worker, slot, *(each for each in every if each.startswith(slot)))
        worker.leave()
        worker = join(**FIFO)
        selected = {"slots": ["one"]} if by_slot else {"urls": ["*-gone"]}
        monkeypatch.setattr(RedisDesk, "_run", abort)
        with suppress(InterruptedError):
            drop(worker, keep, **selected)
        monkeypatch.setattr(RedisDesk, "_run", real)
        assert is_sound(worker)
        if keep:
            names = {*fetched(worker)}
            failed = worker.failed.requests()
            names |= {each.url.rpartition("/")[2] for each in failed}
            assert len(names) == 8
        else:
            drop(worker, **selected)
            names = {*fetched(worker)}
            assert names == {
                name
                for name in every
                if (not name.startswith("one") if by_slot else "left" in name)
            }
        assert worker.store.is_quiet
        worker.close()


def test_more_quarantined_requests_than_a_call_takes_are_all_looked_at(join, redis_server):
    """Those of a slot among them go, and then the others."""
    worker = join()
    pack = (
        "for _, each in ipairs(redis.call('LRANGE', KEYS[1], 0, -1)) do"
        " redis.call('RPUSH', KEYS[2], cmsgpack.pack({'0', ARGV[1], each, 0})) end"
        " return redis.call('DEL', KEYS[1])"
    )
    for turn in range(25):
        for slot, pages in (("stays", 8), ("goes", 2)):
            of_slot(worker, slot, *(f"{slot}{turn}-{n}" for n in range(pages)))
            lists = f"{worker.key}:pending:0:{slot}", f"{worker.key}:quarantined"
            assert redis_server.command("EVAL", pack, 2, *lists, slot) == 1
    assert drop(worker, slots=("goes",))["dropped"] == 50
    drop(worker, slots=("stays",))
    assert redis_server.command("LLEN", f"{worker.key}:quarantined") == 0


def test_what_comes_behind_a_parked_list_is_found(join, redis_server):
    """Also when that list, which is the only one of its priority, is dropped."""
    worker = join(**FIFO)
    of_slot(worker, "held", "a", "b", "c")
    worker.store.hold("held", 1000, 1)
    worker.exchange()
    assert worker.next() is None
    pending = f"{worker.key}:pending:0:held"
    # as where its slot had a list behind a mark
    redis_server.command("RENAME", pending, f"{pending}\0")
    redis_server.command("ZADD", f"{worker.key}:parked", 1e15, "0:held\0")
    redis_server.command("ZREM", f"{worker.key}:parked", "0:held")
    of_slot(worker, "held", "d")
    assert is_sound(worker)
    assert drop(worker, urls=["*/[abc]"])["dropped"] == 3
    worker.store.release("held")
    worker.exchange()
    assert fetched(worker) == ["d"]
    assert worker.store.is_quiet


def test_what_comes_between_the_look_and_the_call_stays(join, redis_server, monkeypatch):
    """Another request is the first of the list then, as where a worker has given one back."""
    monkeypatch.setattr(desk, "AT_ONCE", 3)
    worker = join(**FIFO)
    of_slot(worker, "slot", *(f"{n}" for n in range(20)))
    worker.leave()
    worker = join(capacity=40, **FIFO)
    real, calls = RedisDesk._run, count()

    def interfere(self, script, *arguments):
        if script is CHANGE and next(calls) < 3:
            each = f"{worker.key}:pending:0:slot"
            redis_server.command("RPOPLPUSH", each, each)
        return real(self, script, *arguments)

    monkeypatch.setattr(RedisDesk, "_run", interfere)
    drop(worker, urls=["*/?"])
    monkeypatch.setattr(RedisDesk, "_run", real)
    drop(worker, urls=["*/?"])
    assert sorted(map(int, fetched(worker))) == [*range(10, 20)]


def test_what_is_dropped_from_the_lobby_counts_there_no_more(join, redis_server, monkeypatch):
    """Or its slot would get a list of its own too soon."""
    lobby_from(monkeypatch, 0)
    worker = join(capacity=2, **FIFO)
    for number in range(8):
        of_slot(worker, f"slot{number}", f"{number}")
    few = f"{worker.key}:lobby_counts"
    assert int(redis_server.command("BITCOUNT", few)) > 0
    assert drop(worker, urls=["*"])["dropped"] > 0
    assert int(redis_server.command("BITCOUNT", few)) == 0


def test_a_list_and_an_older_one_go_in_one_call(join, redis_server):
    """The mark at the end of the older one is no request."""
    worker = join(**FIFO)
    of_slot(worker, "slot", *"abcdefgh")
    newer, ring = f"{worker.key}:pending:0:slot", f"{worker.key}:slots:0"
    # as where the slot had its share when requests left the lobby
    entry = redis_server.command("RPOP", newer)
    redis_server.command("RENAME", newer, f"{newer}\0")
    redis_server.command("RPUSH", f"{newer}\0", "")
    redis_server.command("RPUSH", newer, entry)
    redis_server.command("LSET", ring, 0, "slot\0")
    count = pending(worker)
    assert count > 1
    assert is_sound(worker)
    assert drop(worker, slots=["slot"])["dropped"] == count
    assert is_sound(worker)
    assert pending(worker) == 0


@pytest.mark.parametrize("budget", [{}, {"*": 2}, {"*": 9}])
@pytest.mark.parametrize("at_work", [False, True])
def test_a_full_server_refuses_a_retry_and_lets_a_drop_pass(own_server, budget, at_work):
    """The refused one has changed no byte: neither of what failed, nor of what is capped."""
    worker = StoreWorker(own_server.url, "crawl", BLOOM_BUDGET={"*": 2})
    worker.enqueue_all("abcd")
    for _ in range(2):
        worker.fail(worker.next())
        worker.exchange()
    worker.leave()
    if at_work:
        worker = StoreWorker(own_server.url, "crawl", BLOOM_BUDGET=budget)
        worker.exchange()

    def state():
        return {name: own_server.command("DUMP", name) for name in own_server.names()}

    before, full = state(), ("CONFIG", "SET", "maxmemory")
    own_server.command(*full, "1")
    with RedisClient(own_server.url, 0.05) as client:
        for starts, urls in product((False, True), ((), ("*",))):
            refused = RedisDesk(client, worker.key, starts=starts)
            with pytest.raises(SharedFilterError, match="maxmemory"):
                refused.change(Filter(KEPT, urls=urls), "retry")
        assert state() == before
        desk = RedisDesk(client, worker.key)
        dropped = desk.change(Filter(KEPT, urls=["*/[ac]"]), "drop").states
        assert dropped == {State.FAILED: 1, State.CAPPED: 1}
        own_server.command(*full, "0")
        assert [each.url[-1] for each in desk.scan(Filter(KEPT))] == ["b", "d"]
        has_no_room = at_work and budget == {"*": 2}
        assert desk.change(Filter(KEPT), "retry").states.total() == 2 - has_no_room
    worker.close()


def test_a_damaged_one_stops_no_other_from_being_dropped(join, redis_server):
    """It stays, in the list of quarantined ones, among delayed ones and in a lobby."""
    worker = join()
    of_slot(worker, "slot", "a", "b")
    worker.enqueue("late", 1000, slot="slot")
    worker.exchange()
    worker.leave()
    for command, name, *more in (
        ("LPUSH", "quarantined", "junk"),
        ("RPUSH", "lobby:0", "junk", "slot\0" + "0"),
        ("ZADD", "later", 1e15, "junk"),
    ):
        redis_server.command(command, f"{worker.key}:{name}", *more)
    assert drop(worker, urls=["*/?", "*/late"])["dropped"] == 3
    assert redis_server.command("LLEN", f"{worker.key}:quarantined") == 1
    assert redis_server.command("LLEN", f"{worker.key}:lobby:0") == 2
    assert redis_server.command("ZCARD", f"{worker.key}:later") == 1
    assert {each.url for each in RedisDesk(worker.client, worker.key).scan(Filter())} == {""}


def test_what_is_behind_the_mark_of_a_parked_list_is_there(join, redis_server):
    """It is counted, listed and dropped, and verify knows that workers will find it."""
    worker = join(**FIFO)
    of_slot(worker, "held", "a", "b", "c")
    worker.store.hold("held", 1000, 1)
    worker.exchange()
    assert worker.next() is None
    own = f"{worker.key}:pending:0:held"
    redis_server.command("RENAME", own, f"{own}\0")
    redis_server.command("RPUSH", f"{own}\0", "")
    redis_server.command("RPUSH", own, redis_server.command("LPOP", f"{own}\0"))
    redis_server.command("ZADD", f"{worker.key}:parked", 1e15, "0:held\0")
    redis_server.command("ZREM", f"{worker.key}:parked", "0:held")
    assert is_sound(worker)
    assert pending(worker) == pending(worker, urls=["*"]) == 3
    assert drop(worker, urls=["*/a"])["dropped"] == 1
    worker.store.release("held")
    worker.exchange()
    assert fetched(worker) == ["b", "c"]
    assert worker.store.is_quiet


@ORDERS
# with that seed an entry comes behind the mark of a list of older ones
@pytest.mark.parametrize(("lobby", "seed"), [(3, None), (3, 453686142), (256, None)])
def test_workers_go_on_meanwhile(join, monkeypatch, order, lobby, seed):
    """Between any two calls of drops: each request is fetched, dropped or has failed, once."""
    lobby_from(monkeypatch, lobby)
    monkeypatch.setattr(desk, "AT_ONCE", 3)
    chance = seeded(seed or seed_of("DESK_SEED"))
    workers = [join(capacity=3, **order) for _ in range(2)]
    pushed, done, claimed = [], Counter(), []

    def finish():
        while claimed:
            owner, request = claimed.pop()
            owner.store.done(request)
            done[name_of(request)] += 1

    def act(share=1.0):
        at = chance.randrange(len(workers))
        worker, action = workers[at], chance.random()
        if action < 0.5 * share:
            number = len(pushed)
            slot = f"slot{min(chance.randrange(9), chance.randrange(9))}"
            pushed.append(number)
            delay = chance.choice([None, None, None, 1000])
            meta = {"download_slot": slot}
            worker.enqueue(f"{number}", delay, meta=meta, priority=chance.randrange(2))
        elif action < 0.7:
            if (request := worker.next()) is not None:
                claimed.append((worker, request))
        elif action < 0.8:
            finish()
        elif action < 0.83:
            worker.store.hold(f"slot{chance.randrange(9)}", 1000, 1)
        elif action < 0.86:
            worker.exchange()
            worker.exchange()
            claimed[:] = [each for each in claimed if each[0] is not worker]
            worker.leave()
            workers[at] = join(capacity=3, **order)
        worker = workers[at]
        worker.exchange()

    def pause(self):
        for _ in range(chance.randrange(3)):
            act()

    monkeypatch.setattr(RedisDesk, "_pause", pause)
    dropped = 0
    for _ in range(12):
        for _ in range(20):
            act()
        selected = chance.choice(
            [{"slots": [f"slot{chance.randrange(4)}"]}, {"urls": [f"*{chance.randrange(10)}"]}]
        )
        dropped += drop(workers[0], keep=chance.random() < 0.4, **selected)["dropped"]
        assert is_sound(workers[0])
    monkeypatch.undo()
    for _ in range(60):
        let_pass(workers[0], 1001)
        for worker in workers:
            while (request := worker.next()) is not None:
                claimed.append((worker, request))
            finish()
            worker.exchange()
            for slot in range(9):
                worker.store.hold(f"slot{slot}", 0, 1)
                worker.store.release(f"slot{slot}")
            worker.exchange()
        if all(worker.store.is_quiet for worker in workers):
            break
    assert all(worker.store.is_quiet for worker in workers)
    failed = Failed(RedisDesk(workers[0].client, workers[0].key)).requests()
    kept = {each.url.rpartition("/")[2] for each in failed}
    assert len(kept) == len(failed)
    assert not kept & {*done}
    assert {*done.values()} == {1}
    assert len(done) + dropped == len(pushed)
    assert workers[0].store.waiting == 0


@pytest.mark.torture
def test_forty_kills_of_workers_and_commands(run, tmp_path, redis_server, key):
    """Each page is fetched, dropped and kept, capped or failed, and none is gone."""
    pages, kills = 6000, 40
    chance = seeded(seed_of("DESK_SEED"))
    (tmp_path / "slow.py").write_text(SPIDER)
    (tmp_path / "go").touch()
    python = [sys.executable, "-m", "scrapy"]
    place = [redis_server.url, "--key", key]
    settings = {
        "DUPEFILTER_CLASS": "scrapy_bloom.RedisBloomDupeFilter",
        "SCHEDULER": "scrapy_bloom.RedisDurableScheduler",
        "BLOOM_REDIS_URL": redis_server.url,
        "BLOOM_REDIS_KEY": key,
        "BLOOM_REDIS_LEASE": 1,
    }
    crawl = [*python, "runspider", "slow.py", *of_pages(pages)]
    for name_and_value in settings.items():
        crawl += ["-s", "{}={}".format(*name_and_value)]
    slowly = [*crawl, "-s", 'DOWNLOAD_SLOTS={"slow": {"concurrency": 4, "delay": 0.05}}']

    def start(command):
        with (tmp_path / "log").open("ab") as log:
            return subprocess.Popen(command, cwd=tmp_path, env=environment(), stderr=log)

    workers = [start(slowly) for _ in range(2)]
    wait_until(lambda: redis_server.command("EXISTS", f"{{{key}}}:crawl"))
    while kills > 0:
        tool = start([*python, "bloom", *random_order(chance, place)])
        time.sleep(chance.uniform(0, 3))
        if chance.random() < 0.6:
            kills -= tool.poll() is None
            tool.kill()
        tool.wait()
        if chance.random() < 0.6:
            at = chance.randrange(len(workers))
            workers[at].kill()
            workers[at].wait()
            workers[at] = start(slowly)
            kills -= 1
    for worker in workers:
        worker.kill()
        worker.wait()
    run(tmp_path, "queue", "release", *place, "slow")
    assert start(crawl).wait() == 0
    require_whole(run, tmp_path, place, pages)
    # in a process of its own: this one has shards of another size
    assert start([*python, "bloom", "verify", *place]).wait() == 0
