"""Crawls of a small tree by workers on a real server, under accidents that chance chooses, and a
model of what must be true of each: which pages are left, what is held or not due, and what the
budgets have room for.

A page is fetched, has failed, or is over a budget; so is each that a fetched one links to.
Extras are pages without links that nobody finds again, so that an operator may drop them.
"""

import math
import time
from collections import Counter, defaultdict
from dataclasses import replace
from itertools import count

from scrapy_bloom.crawl.choice import Filter
from scrapy_bloom.crawl.delays import DEAD
from scrapy_bloom.crawl.records import KEPT
from tests.crawl.engine import name_of
from tests.failures import Failed
from tests.redis.workers import FIFO, LIFO, anywhere, failing_desk, findings_of, let_pass, seeded

PAGES = 24
SLOTS = 4
STARTS = ("start1", "start2")
FIVES = "*/*[05]"
"""The pattern of every fifth page."""
LONG = 1000
"""Seconds of a hold that no crawl sits out: its clock is moved."""


def links(name):
    """Return the pages that a page links to: two more of a tree, and its root."""
    number = int(name) if name.isdigit() else -1 if name in STARTS else PAGES
    return [str(n) for n in (2 * number + 1, 2 * number + 2, 0) if 0 <= n < PAGES]


class KilledError(Exception):
    """A worker ends between a call that has failed and the same call made again."""


class Story:
    """A crawl in which these kinds of accidents happen.

    abort: calls of workers and operators fail at any of their commands, and are made again. lose:
    answers are lost. kill, sleep: workers end, also after a call that has failed, or lose their
    lease. back: the server goes back to an earlier state. fail: pages fail, and are asked again.
    budgets, holds, delays, drops: as an operator or a spider wants. dead: workers say that a host
    is, and operators retry. hands: holds by hand. counters: those of the lobby are anything.
    dictionaries: workers propose some, and the server loses them. slots: each has a worker of its
    own. orders: SCHEDULER_DISK_QUEUE is another for later workers. grows: the filter does.
    """

    def __init__(self, join, server, seed, kinds):
        self.chance, self.kinds = seeded(seed), {*kinds.split()}
        self.is_exact = not self.kinds & {"abort", "kill", "sleep", "back", "slots"}
        self.server, self._join = server, join
        self.passed, self.budget, self.fives = 0.0, math.inf, math.inf
        self.settings = self.chance.choice([FIFO, LIFO]) | {
            "BLOOM_REDIS_MAX_ATTEMPTS": 1000,
            "BLOOM_REDIS_SLOT_WORKERS": int("slots" in self.kinds),
            "BLOOM_CAPACITY": 2 if "grows" in self.kinds else 1000,
        }
        if "budgets" in self.kinds:
            self.budget, self.fives = self.chance.randrange(1, 6), self.chance.randrange(1, 5)
            self.settings["BLOOM_BUDGET"] = {"*": self.budget, "starts": 9, FIVES: self.fives}
        self.extras, self.numbers = [], count()
        self.slots, self.not_before = {}, {}
        self.promised, self.by_hand = defaultdict(float), {}
        self.asked, self.done, self.failed, self.silent = defaultdict(set), Counter(), set(), set()
        self.in_engine, self.dropped, self.aborted = [], 0, 0
        self.has_accidents, self.snapshot, self.is_at_desk = True, None, False
        self.workers = [self.enter() for _ in range(2)]

    @property
    def now(self):
        """The time of the crawl, whose clock is moved at times."""
        return time.monotonic() + self.passed

    def strikes(self, kind, share):
        return self.has_accidents and kind in self.kinds and self.chance.random() < share

    @property
    def desk(self):
        """The desk of an operator, of which scripts fail as those of workers do."""
        worker = self.workers[0]

        def fail(script, arguments):
            if self.strikes("abort", 0.4):
                self.aborted += worker.abort(arguments, anywhere(self.chance), script)

        return failing_desk(worker, fail)

    def enter(self):
        """Return a new worker, which begins with start()."""
        if "orders" in self.kinds:
            self.settings |= self.chance.choice([FIFO, LIFO])
        worker = self._join(self._attempt, capacity=self.chance.randrange(1, 6), **self.settings)
        worker.store._policy = replace(
            worker.policy,
            claims_per_slot=self.chance.choice([1, 2, 8]),
            keeps_slot=50 * ("slots" in self.kinds),
            longest_probe=20,
        )
        worker.store._observers.heard = lambda reply: self._heard(worker, reply)
        worker.ran_start = None
        return worker

    def run_start(self, worker):
        if worker.ran_start != worker.store.worker:
            worker.ran_start = worker.store.worker
            for name in STARTS:
                worker.enqueue(name, slot="starts", dont_filter=True)
                worker.store.mark(name.encode())
            worker.store.start_done = True

    def _attempt(self, worker, arguments):
        if self.strikes("counters", 0.3):
            some = self.chance.choice([b"", b"\xff" * 1024, self.chance.randbytes(1024)])
            at = self.chance.randrange(1 << 20)
            self.server.command("SETRANGE", f"{worker.key}:lobby_counts", at, some)
        # those that only a killed worker has known are gone for good
        if "kill" not in self.kinds and self.strikes("dictionaries", 0.1):
            self.server.command("HDEL", f"{worker.key}:crawl", "dictionaries")
        before = self.now
        if self.strikes("abort", 0.4):
            self.aborted += worker.abort(arguments, anywhere(self.chance))
            if self.strikes("kill", 0.2):
                for slot, seconds, times in worker.store._unsent_holds:
                    self._promise(slot, seconds and 0, times, before)
                raise KilledError(worker)
        if self.strikes("lose", 0.3):
            worker.call(arguments)
        answer = worker.call(arguments)
        if answer[0] == b"done":
            for slot, seconds, times in worker.store._unsent_holds:
                self._promise(slot, seconds, times, before)
        return answer

    def _promise(self, slot, seconds, times, before):
        if seconds is None:
            if self.by_hand.get(slot, 0) <= before or times == 0:
                self.promised[slot] = 0
                self.by_hand.pop(slot, None)
            return
        if times >= DEAD:
            self.silent.add(slot)
        # a hold that is shorter than the request to a silent host ends when its worker dies
        if seconds >= LONG or (seconds > 0 and slot not in self.silent):
            # the clock of the server has whole milliseconds
            most = 5 if times >= DEAD else seconds  # until another worker agrees
            until = before + min(seconds, most) - 0.002
            self.promised[slot] = max(self.promised[slot], until)

    def _heard(self, worker, reply):
        assert worker.store.claims.spare <= worker.store._capacity
        for claim in reply.claimed:
            name = name_of(worker.codec.load(claim))
            assert self.now >= self.not_before.get(name, 0), f"{name} is early"
            assert self.now >= self.promised[claim.slot], f"{claim.slot} is held"

    def _enqueue(self, worker, name, slot):
        self.slots[name] = slot = self.slots.get(name, slot)
        delay = self.chance.choice([0.02, LONG]) if self.strikes("delays", 0.3) else None
        self.not_before[name] = min(self.not_before.get(name, math.inf), self.now + (delay or 0))
        worker.enqueue(name, delay, slot=slot, priority=len(name) % 2)

    def _finish(self):
        while self.in_engine:
            worker, request = self.in_engine.pop()
            name = name_of(request)
            if self.strikes("fail", 0.2):
                self.failed.add(name)
                worker.fail(request)
                continue
            for each in links(name):
                self._enqueue(worker, each, f"s{int(each) % SLOTS}")
            worker.store.done(request)
            self.done[name] += 1

    def _fetch(self, worker):
        if (request := worker.next()) is not None:
            self.in_engine.append((worker, request))
            name = name_of(request)
            slot = self.slots.get(name)
            self.asked[slot].add(name)
            if slot and "back" not in self.kinds:
                assert len(self.asked[slot]) <= self.budget, f"{slot} is over its budget"
                self.asked[FIVES].update([name] * (name[-1] in "05"))
                assert len(self.asked[FIVES]) <= self.fives, "fives are over their budget"

    def _lose(self, worker):
        self.in_engine = [each for each in self.in_engine if each[0] is not worker]

    def _kill(self, worker):
        self._lose(worker)
        worker.die()
        self.workers[self.workers.index(worker)] = self.enter()

    def step(self):
        try:
            self._step()
        except KilledError as error:
            self._kill(*error.args)

    def _step(self):
        chance, at = self.chance, self.chance.randrange(len(self.workers))
        worker, what = self.workers[at], chance.random()
        slot = f"s{chance.randrange(SLOTS)}"
        self.run_start(worker)
        if what < 0.1:
            name = f"x{next(self.numbers)}"
            self.extras.append(name)
            self._enqueue(worker, name, chance.choice([slot, "x"]))
        elif what < 0.5:
            self._fetch(worker)
        elif what < 0.75:
            self._finish()
        elif self.strikes("kill", 0.2):
            self._kill(worker)
        elif self.strikes("sleep", 0.15):
            worker.die()
        elif self.strikes("holds", 0.5):
            if seconds := chance.choice([0.005, LONG, None]):
                worker.store.hold(slot, seconds, chance.randrange(1, 4))
            else:
                worker.store.release(slot)
        elif self.strikes("dead", 0.3):
            worker.store.hold(slot, LONG, DEAD)
        elif self.kinds & {"hands", "drops", "fail", "dead"} and chance.random() < 0.3:
            self._operate(slot)
        elif self.strikes("dictionaries", 0.3):
            worker.codec.dictionaries.proposal = chance.randbytes(200)
        elif self.strikes("back", 0.2):
            self._go_back() if self.snapshot else self._remember()
        elif self.kinds & {"holds", "delays", "hands", "dead"} and chance.random() < 0.2:
            self.let_pass(LONG)
        elif chance.random() < 0.1:
            worker.send_all()
            worker.exchange()
            self._lose(worker)
            worker.leave()
            self.workers[at] = self.enter()
        else:
            worker.exchange()

    def let_pass(self, seconds):
        let_pass(self.workers[0], seconds)
        self.passed += seconds

    def _hold_by_hand(self, slot):
        seconds = self.chance.choice([LONG, None])
        before = self.now
        if self.desk.hold([slot], seconds) >= 0 and seconds:
            self.by_hand[slot] = before + seconds
            self._promise(slot, seconds, 0, before)
        else:
            self.by_hand.pop(slot, None)
            self.promised[slot] = 0

    def _drop(self):
        some = {"urls": [f"*/x*{self.chance.randrange(10)}"]}
        chosen = self.chance.choice([{"slots": ["x"]}, some])
        way = self.chance.choice(["drop", "fail"])
        found = self.desk.change(Filter(**chosen), way).states.total()
        self.dropped += found * (way == "drop")

    def _operate(self, slot):
        """Let an operator do something, unless one is at it: between calls workers go on."""
        if self.is_at_desk:
            return
        self.is_at_desk = True
        if self.strikes("hands", 0.5):
            self._hold_by_hand(slot)
        if self.strikes("drops", 0.5):
            self._drop()
        if self.strikes("dead", 0.3):
            self.desk.change(Filter(KEPT, reasons=["host"], slots=[slot]), "retry")
            self.promised[slot] = 0
            self.by_hand.pop(slot, None)
        for kind, reason in (("fail", "callback"), ("budgets", "capped")):
            if self.strikes(kind, 0.5):
                Failed(self.desk).retry(reasons=[reason])
        assert not self.is_exact or findings_of(self.workers[0]) == []
        self.is_at_desk = False

    def pause(self):
        """Let some things happen between two calls of an operator."""
        for _ in range(self.chance.randrange(3) if self.has_accidents else 0):
            self.step()

    def _names(self):
        return self.server.names(self.workers[0].key)

    def _remember(self):
        self.snapshot = {each: self.server.command("DUMP", each) for each in self._names()}

    def _go_back(self):
        self.server.command("DEL", *self._names())
        for name, dump in self.snapshot.items():
            if dump is not None:
                self.server.command("RESTORE", name, 0, dump)
        self.snapshot = None
        self.promised.clear()
        self.by_hand.clear()

    def _let_leases_run_out(self):
        """Do that to those under whose names no worker goes on."""
        workers = f"{self.workers[0].key}:workers"
        living = {each.store.worker.encode() for each in self.workers}
        for name in {*self.server.command("ZRANGE", workers, 0, -1)} - living:
            self.server.command("ZADD", workers, 1, name)

    def tell(self, steps=250):
        """Let so much happen, and then nothing but the crawl itself; require what must be true."""
        for _ in range(steps):
            self.step()
        self.has_accidents = False
        if "dead" in self.kinds:
            self._come_to_the_end("s0")
            assert findings_of(self.workers[0]) == []
        self._come_to_the_end()
        self.failed = self._names_of("callback")
        self._require(self._names_of("capped"))
        if self.failed:
            listed = len(self.workers[0].failed.names(reasons=["callback"]))  # one twice, perhaps
            assert Failed(self.desk).retry(reasons=["callback"]) == listed
            self._come_to_the_end()
            assert self._names_of("callback") == set()
            assert self.failed <= {*self.done} | self._names_of("capped")
        assert findings_of(self.workers[0]) == []
        for worker in self.workers:
            worker.leave(over=True)
        assert self._join(**self.settings).state.over

    def _names_of(self, reason):
        found = self.workers[0].failed.names(reasons=[reason])
        assert not self.is_exact or len(found) == len({*found})
        return {*found}

    def _come_to_the_end(self, dead=None):
        for slot in {*self.promised, "s0"}:
            self.desk.hold([slot], None)
        self.promised.clear()
        self.by_hand.clear()
        for _ in range(200):
            self.let_pass(LONG)
            self._let_leases_run_out()
            for worker in self.workers:
                self.run_start(worker)
                for _ in range(20):
                    self._fetch(worker)
                self._finish()
                if dead:
                    worker.store.hold(dead, 1000 * LONG, DEAD)
                worker.send_all()
                worker.exchange()
            if all(each.store.is_quiet for each in self.workers):
                for each in self.workers:
                    assert (each.store.waiting, each.store.later) == (0, 0)
                    assert each.store.nbytes == 0 or dead
                return
        raise AssertionError("this crawl has no end")

    def _require(self, capped):
        """Require that nothing that can be reached is lost, and that the budgets were used."""
        found, todo = set(), [*STARTS]
        while todo:
            name = todo.pop()
            if name not in found:
                found.add(name)
                # where the server went back, one that was done may have failed since, and its links
                # be forgotten
                is_done = self.done[name] and name not in capped | self.failed
                todo += links(name) if is_done else ()
        if not self.kinds & {"kill", "back", "drops"}:
            found.update(self.extras)  # else who has one may end before it is stored
        assert found - {*self.done} - capped - self.failed == set()
        if not self.kinds & {"back", "drops"}:
            for name in capped:
                is_full = len(self.asked[self.slots[name]]) + self.aborted >= self.budget
                fives = name[-1] in "05" and len(self.asked[FIVES]) + self.aborted >= self.fives
                assert is_full or fives
        if self.is_exact:
            assert {*self.done.values()} == {1}
            extras = {*self.extras}
            kept = extras & ({*self.done} | capped | self._names_of("dropped") | self.failed)
            assert len(kept) + self.dropped == len(extras)
