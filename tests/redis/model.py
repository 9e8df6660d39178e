"""The protocol of RedisDurableScheduler as a small model: a server, workers, and accidents.

The server's script is a generator that yields before each of its writes, so that it can
be aborted at any of them; what it has written by then stays. Each rule that the protocol
needs has a name in RULES and can be left out.

A page whose name says so lives in the memory of the worker that yields it, now and then.
Seeds are in a list on another server, which does not go back in time with the crawl's. A stored
request may need a dictionary, without which a worker cannot read it.
"""

import pickle
import random
from collections import defaultdict, deque
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial

RULES = {
    "push before bits": "abort",
    "claim before pop": "abort kill",
    "acknowledge after the children's answers": "abort kill",
    "numbers tell that the server went back": "back",
    "a worker acknowledges its own claims only": "abort pause",
    "a fenced worker keeps what it has not sent": "pause",
    "a fenced worker forgets what it knew as seen": "back",
    "start() again until start_done": "kill",
    "a fenced worker runs start() again": "back",
    "the end takes start_done": "fail",
    "a push takes the mark back": "failure",
    "an expired worker is in no start()": "kill",
    "replies list unknown claims": "abort",
    "a worker is busy before its first claim": "abort kill",
    "an empty server is an error": "wipe",
    "a resend is the same batch": "lose",
    "marks of start requests after the push": "abort kill",
    "a failure is kept before the claim goes": "abort failure",
    "a retry is pushed before it is forgotten": "abort failure",
    "a retry takes the mark back": "failure",
    "start() is through for one round": "rounds fail",
    "only who has run start() says that it is through": "back refuse kill",
    "who learns of a new round runs start() again": "rounds fail",
    "what comes with a page in memory waits for it": "memory kill",
    "start() is not through while it has a page in memory": "memory kill",
    "a page in memory is not seen where Redis went back": "memory back",
    "seeds stay noted until their push was kept": "seeds back",
    "no end while seeds are noted": "seeds refuse kill",
    "lists that hold less than was counted are an error": "evict",
    "what is pushed is counted after it": "abort",
    "what is claimed is counted before it": "abort",
    "a lobby entry is pushed before it is popped": "abort",
    "the end sees the lobby": "kill",
    "a call names its dictionaries": "dictionaries back",
    "a reply has the dictionaries that its worker lacks": "dictionaries",
    "dictionaries are in the hash that makes the crawl": "dictionaries evict",
    "what is due is pushed before it is not delayed any more": "abort delays",
    "a held slot is parked before it leaves the ring": "abort holds",
    "a parked slot joins the ring before it leaves the parked ones": "abort holds",
    "what goes back is pushed before its claim goes": "abort kill holds",
    "the end waits for what is delayed or parked": "delays holds",
    "until is a maximum": "holds",
    "the first request after a hold holds the slot again": "holds",
    "what is dropped is counted before it goes": "abort drops",
    "a dropped list goes before its name": "abort drops",
    "what is sieved is pushed before it is popped": "abort drops",
    "what is kept has failed before it is popped": "abort drops",
    "no answer ends a hold by hand": "holds hands",
    "a page is counted in its budget before it is pushed": "abort budgets",
    "what is over a budget is kept before it is seen": "abort budgets",
    "what was over a budget is pushed before it is not kept any more": "abort budgets rounds",
    "what failed before the round counts when it is retried": "rounds failure budgets",
}
"""Each with the accidents that it is for."""

LEASE = 60
BACK = 20
"""So far the server goes back where there are seeds."""
BATCH = 3
CLAIMS = 3
DICTIONARIES = 2
"""The most that are kept of those that no request needs yet."""
START = ("start1", "start2", "memory start")
RAW, NOTE = "raw", "note"
"""In the place of a mark: pushed, whether it was seen or not; seen, and not pushed."""


class AbortedError(Exception):
    """The script ended here."""


class ViolatedError(Exception):
    """Something happened that never must."""


class Page(str):
    """A page as it is stored, with the dictionary that it needs, or None."""

    dictionary = None
    delay = not_before = 0

    def at(self, not_before):
        """Return the same page, which is due then."""
        page = Page(self)
        page.__dict__.update(self.__dict__, not_before=not_before)
        return page


def is_slow(page):
    """Return whether a page is of the slot that may be held."""
    return page in ("page1", "page2", "page5", "page8")


def is_limited(page):
    """Return whether a page is of the slot that may have a budget."""
    return page.startswith(("page", "extra"))


@dataclass
class State:
    """What the server holds."""

    crawl: int = 1
    bits: set = field(default_factory=set)
    pending: list = field(default_factory=list)
    lobby: list = field(default_factory=list)
    """What is pending in the list that slots share; counters say which, and may say anything."""
    waiting: int = 0
    """How many are pending, or fewer where a script was aborted."""
    claims: dict = field(default_factory=dict)
    workers: dict = field(default_factory=dict)
    starting: set = field(default_factory=set)
    busy: set = field(default_factory=set)
    batches: dict = field(default_factory=dict)
    marks: set = field(default_factory=set)
    failed: dict = field(default_factory=dict)
    serial: int = 0
    round: int = 1
    start_done: bool = False
    over: bool = False
    dictionaries: list = field(default_factory=list)
    delayed: list = field(default_factory=list)
    """Pages that are not due, each after the call that brought it."""
    slow: list = field(default_factory=list)
    """What is pending of the slot that may be held: it is in the `ring`, or `parked` until then."""
    ring: bool = False
    parked: int | None = None
    hold: tuple | None = None
    """Until when, for how long it was meant, and whether it is by hand."""
    promised: int = 0
    """No claim may take anything of that slot before."""
    promised_by_hand: int = 0
    """Nor before this, which no worker ends."""
    counted: int = 0
    """Pages of the slot with a budget that the round has had."""
    carried: int = 0
    """The last claim before the round."""
    capped: list = field(default_factory=list)

    def count(self, more):
        self.waiting += more


@dataclass(frozen=True)
class Call:
    """One group commit."""

    worker: str
    number: int
    entries: tuple = ()
    """(page, mark) of each that is new, without a page for one that is done in memory."""
    done: tuple = ()
    """(claim, page) of each that is acknowledged."""
    failed: tuple = ()
    """The same of each that has failed."""
    held: tuple = ()
    wanted: int = 0
    round: int = 1
    starting: bool = False
    start_done: bool = False
    action: str = ""
    named: tuple = ()
    """The dictionaries that the worker knows."""
    offered: tuple = ()
    """Those that it was asked for, and one that it proposes."""
    holds: tuple = ()
    """For how long it holds the slot, 0 to release it."""
    returned: tuple = ()
    """Claims that go back, since the slot is held."""


class Server:
    """Runs the script, perhaps not to its end."""

    def __init__(self, chance, without):
        self.chance, self.without = chance, without
        self.now = 0
        self.state = State()
        self.snapshots = []
        self.acknowledged = set()
        """Pages of claims that were acknowledged at any time."""
        self.dropped, self.kept = set(), set()
        """Pages that an operator has dropped at any time, or dropped and kept as failed ones."""
        self.budget = None
        self.aborted, self.capped_in = 0, set()
        """How many calls were aborted, and the rounds in which a page was capped."""

    def snapshot(self):
        self.snapshots.append((self.now, pickle.dumps(self.state)))

    def go_back(self, most=None):
        """Return to one of the last snapshots, not older than that."""
        found = [each for each in self.snapshots if most is None or each[0] >= self.now - most]
        if found:
            at = self.snapshots.index(found[self.chance.randrange(-min(3, len(found)), 0)])
            del self.snapshots[at + 1 :]
            self.state = pickle.loads(self.snapshots[-1][1])

    def open(self, round_):
        """Begin that round if the last one is over; return whether it has."""
        s = self.state
        begins = s.over and s.round != round_
        if begins:
            s.marks.clear()
            s.round, s.start_done, s.over = round_, False, False
            s.counted, s.carried = 0, s.serial
        return begins

    def lose_everything(self):
        self.state = State(crawl=self.state.crawl + 1)

    def run(self, call, crawl, abort_at=None):
        """Return the reply. Raises AbortedError after `abort_at` writes."""
        return self._finish(self._script(self.state, call, crawl), abort_at)

    def retry(self, abort_at=None):
        """Make what has failed pending again. Raises AbortedError as `run` does."""
        return self._finish(self._retry(self.state), abort_at)

    def drop(self, abort_at=None):
        """Drop the list of the slow slot, or sieve others. Raises AbortedError as `run` does."""
        way = self.chance.choice([self._drop_list, self._sieve, self._drop_delayed])
        return self._finish(way(self.state), abort_at)

    def retry_capped(self, abort_at=None):
        """Make pending what was over the budget and has room; raises AbortedError as `run` does."""
        return self._finish(self._retry_capped(self.state), abort_at)

    def hold_by_hand(self, pause):
        """Hold the slow slot, or release it."""
        return self._finish(self._hold(self.state, pause, by_hand=True), None)

    def _finish(self, script, abort_at):
        writes = 0
        while True:
            try:
                next(script)
            except StopIteration as end:
                return end.value
            if writes == abort_at:
                self.aborted += 1
                raise AbortedError
            writes += 1

    def _script(self, s, call, crawl):
        rules, w = self.without, call.worker
        if s.crawl != crawl and "an empty server is an error" not in rules:
            return {"gone": True}
        lacking = {*call.named} - {*s.dictionaries, *call.offered}
        if lacking and "a call names its dictionaries" not in rules:
            return {"lacking": lacking}
        stored, reply = s.batches.get(w, (0, None))
        if s.workers.get(w, 0 if call.number > 1 else self.now) < self.now:
            return {"fenced": True}
        yield from self._keep(s, call)
        if stored == call.number:
            return reply
        if stored < call.number - 1 and "numbers tell that the server went back" not in rules:
            return {"fenced": True}
        yield
        s.workers[w] = self.now + LEASE
        s.claims.setdefault(w, {})
        if call.starting:
            yield
            s.starting.add(w)
        elif w in s.starting:
            yield
            s.starting.discard(w)
        for pause in call.holds:
            yield from self._hold(s, pause)
        answers = []
        for page, mark in call.entries:
            if mark == NOTE or page is None:
                yield
                (s.bits if page else s.marks).add(page or mark)
                answers.append("noted")
                continue
            if mark is not None and mark in s.marks:
                answers.append("taken")
                continue
            if mark is None and page in s.bits:
                answers.append("seen")
                continue
            if mark is None and "push before bits" in rules:
                yield
                s.bits.add(page)
            is_counted = self.budget is not None and is_limited(page)
            if is_counted and s.counted >= self.budget:
                yield from self._cap(s, page)
                answers.append("capped")
                continue
            counts_first = "a page is counted in its budget before it is pushed" not in rules
            if is_counted and counts_first:
                yield
                s.counted += 1
            is_start = mark not in (None, RAW)
            if is_start and "marks of start requests after the push" in rules:
                yield
                s.marks.add(mark)
            if s.over and "a push takes the mark back" not in rules:
                yield
                s.over = False
            if page.delay:
                yield from self._delay(s, page, (w, call.number, len(answers)))
            else:
                yield from self._push(s, page, None)
            if mark is None:
                yield
                s.bits.add(page)
            elif is_start:
                yield
                s.marks.add(mark)
            if is_counted and not counts_first:
                yield
                s.counted += 1
            answers.append("new")
        for claim, page in call.done:
            if "a worker acknowledges its own claims only" in rules:
                owners = [(o, c) for o, held in s.claims.items() for c in held if held[c] == page]
            else:
                owners = [(w, claim)] if claim in s.claims[w] else []
            for owner, found in owners:
                if (owner, found) != (w, claim) or s.claims[w][claim] != page:
                    raise ViolatedError("a foreign claim was acknowledged")
                yield
                del s.claims[w][claim]
                self.acknowledged.add(page)
        for claim, page in call.failed:
            if claim not in s.claims[w]:
                continue
            yield from self._in_turn(
                "a failure is kept before the claim goes",
                partial(s.failed.update, {claim: page}),
                partial(s.claims[w].pop, claim),
            )
        for claim in call.returned:
            if claim not in s.claims[w]:
                continue
            yield from self._in_turn(
                "what goes back is pushed before its claim goes",
                self._push(s, s.claims[w][claim], 0),
                partial(s.claims[w].pop, claim),
            )
        yield from self._give_back(s)
        yield from self._move_due(s)
        if call.action == "leave":
            yield from self._bury(s, w, len(s.claims[w]))
            return None
        unknown = {}
        if "replies list unknown claims" not in rules:
            unknown = {c: p for c, p in s.claims[w].items() if c not in call.held}
        claimed = {}
        early = "a worker is busy before its first claim" not in rules
        while (s.pending or s.lobby or s.ring) and len(claimed) + len(unknown) < call.wanted:
            asks_slow = s.ring and not ((s.pending or s.lobby) and self.chance.random() < 0.5)
            if asks_slow and not s.slow:
                yield
                s.ring = False
                continue
            if asks_slow and s.hold and s.hold[0] > self.now:
                yield from self._park(s)
                continue
            if asks_slow and s.hold and s.hold[2]:
                yield
                s.hold = None
            if asks_slow and s.hold:
                # the others wait for what comes of it
                if "the first request after a hold holds the slot again" not in rules:
                    yield
                    s.hold = self.now + s.hold[1], s.hold[1], False
                probes = self.now + s.hold[1]
            elif not asks_slow and s.lobby and self.chance.random() < 0.3:
                yield from self._leave_lobby(s)
                continue
            source = s.pending if s.pending and self.chance.random() < 0.5 else s.lobby or s.pending
            source = s.slow if asks_slow else source
            page = source[0]
            if page.not_before > self.now:
                raise ViolatedError("asked before it was due")
            if asks_slow and max(s.promised, s.promised_by_hand) > self.now:
                raise ViolatedError("a held slot was asked")
            if asks_slow and s.hold:
                s.promised = probes
            if early and w not in s.busy:
                yield
                s.busy.add(w)
            yield from self._in_turn(
                "what is claimed is counted before it",
                partial(s.count, -1),
                self._claim(s, s.claims[w], source),
            )
            claimed[s.serial] = page
            if not early and w not in s.busy:
                yield
                s.busy.add(w)
        if w in s.busy and not s.claims[w]:
            yield
            s.busy.discard(w)
        is_empty = not s.pending and (not s.lobby or "the end sees the lobby" in rules)
        is_empty = is_empty and not s.ring
        if "the end waits for what is delayed or parked" not in rules:
            is_empty = is_empty and not s.delayed and s.parked is None
        if is_empty and s.waiting:
            if s.waiting > 0 and "lists that hold less than was counted are an error" not in rules:
                return {"gone": True}
            yield
            s.waiting = 0
        in_round = call.round == s.round or "start() is through for one round" in rules
        if call.start_done and in_round and not s.start_done:
            yield
            s.start_done = True
        still = is_empty and not s.busy and not s.starting
        quiet = still and (s.start_done or "the end takes start_done" in rules)
        if call.action == "over" and quiet:
            yield
            s.over = True
        reply = {
            "answers": answers,
            "claimed": unknown | claimed,
            "still": still,
            "quiet": quiet,
            "over": s.over,
            "start_done": s.start_done,
            "round": s.round,
            "dictionaries": [each for each in s.dictionaries if each not in call.named],
            "held_until": s.hold[0] if s.hold and s.hold[0] > self.now else None,
        }
        if "a reply has the dictionaries that its worker lacks" in rules:
            reply["dictionaries"] = [each for each in call.offered if each in s.dictionaries]
        yield
        s.batches[w] = (call.number, reply)
        return reply

    def _claim(self, s, claims, source):
        yield
        s.serial += 1
        yield from self._in_turn(
            "claim before pop",
            partial(claims.update, {s.serial: source[0]}),
            partial(source.pop, 0),
        )

    def _keep(self, s, call):
        is_first = {*s.dictionaries} <= {*call.named} and len(s.dictionaries) < DICTIONARIES
        for each in call.offered:
            if each not in s.dictionaries and (each in call.named or is_first):
                yield
                s.dictionaries.append(each)

    def _in_turn(self, rule, *steps):
        """Take the steps, each a write or a part of the script, the last first without the rule."""
        for step in steps[:: -1 if rule in self.without else 1]:
            if callable(step):
                yield
                step()
            else:
                yield from step

    def _cap(self, s, page):
        self.capped_in.add(s.round)
        yield from self._in_turn(
            "what is over a budget is kept before it is seen",
            partial(s.capped.append, page),
            partial(s.bits.add, page),
        )

    def _retry_capped(self, s):
        while s.capped and s.counted < self.budget:
            yield
            s.counted += 1
            yield
            s.over = False
            yield from self._in_turn(
                "what was over a budget is pushed before it is not kept any more",
                self._push(s, s.capped[0], None),
                partial(s.capped.pop, 0),
            )

    def _retry(self, s):
        rule = "what failed before the round counts when it is retried"
        for claim, page in list(s.failed.items()):
            is_counted = claim <= s.carried and self.budget is not None and is_limited(page)
            if is_counted and rule not in self.without:
                yield
                if s.counted >= self.budget:
                    s.capped.append(page)
                    yield
                    del s.failed[claim]
                    continue
                s.counted += 1
            if s.over and "a retry takes the mark back" not in self.without:
                yield
                s.over = False
            yield from self._in_turn(
                "a retry is pushed before it is forgotten",
                self._push(s, page, None),
                partial(s.failed.pop, claim),
            )

    def _push(self, s, page, place):
        yield from self._in_turn(
            "what is pushed is counted after it", self._put(s, page, place), partial(s.count, 1)
        )

    def _put(self, s, page, place):
        yield
        if is_slow(page):
            if not s.slow:
                s.ring = True
                yield
            source = s.slow
        else:
            source = s.lobby if place is None and self.chance.random() < 0.5 else s.pending
        source.insert(len(source) if place is None else place, page)

    def _delay(self, s, page, serial):
        """A resend finds the page there, and makes it later."""
        yield
        page = page.at(self.now + page.delay)
        if any(each == serial for each, _ in s.delayed):
            s.delayed = [(each, page if each == serial else other) for each, other in s.delayed]
            return
        s.delayed.append((serial, page))
        yield
        s.waiting += 1

    def _move_due(self, s):
        """Push what is due, and bring the slot back whose hold is over."""
        for each in [each for each in s.delayed if each[1].not_before <= self.now][:2]:
            yield from self._in_turn(
                "what is due is pushed before it is not delayed any more",
                self._push(s, each[1], None),
                partial(s.delayed.remove, each),
            )
            s.waiting -= 1  # it was counted
        if s.parked is not None and s.parked <= self.now:
            yield from self._unpark(s)

    def _hold(self, s, pause, by_hand=False):
        yield
        was_by_hand = s.hold is not None and s.hold[2] and s.hold[0] > self.now
        if pause:
            until = self.now + pause
            s.promised = max(s.promised, until)
            if by_hand:
                s.promised_by_hand = max(s.promised_by_hand, until)
            if not s.hold or s.hold[0] < until or "until is a maximum" in self.without:
                s.hold = until, pause, False
            s.hold = *s.hold[:2], by_hand or was_by_hand
            return
        if by_hand:
            s.promised_by_hand = 0
        elif was_by_hand and "no answer ends a hold by hand" not in self.without:
            return
        if s.parked is not None:
            yield from self._unpark(s)
        yield
        s.hold, s.promised = None, 0

    def _park(self, s):
        """Let the held slot leave the ring."""
        rule = "a held slot is parked before it leaves the ring"
        yield from self._in_turn(
            rule, partial(vars(s).update, parked=s.hold[0]), partial(vars(s).update, ring=False)
        )

    def _unpark(self, s):
        rule = "a parked slot joins the ring before it leaves the parked ones"
        ring = s.ring or bool(s.slow)
        yield from self._in_turn(
            rule, partial(vars(s).update, ring=ring), partial(vars(s).update, parked=None)
        )

    def _drop_list(self, s):
        """Drop all of the slow slot; whoever meets the name of an empty list takes it out."""
        if not s.slow:
            return
        steps = ["count", "go", "name"]
        if "what is dropped is counted before it goes" in self.without:
            steps = ["go", "count", "name"]
        if "a dropped list goes before its name" in self.without:
            steps = ["count", "name", "go"]
        for step in steps:
            yield
            if step == "count":
                s.waiting -= len(s.slow) if s.slow else self._gone
            elif step == "go":
                self._gone = len(s.slow)
                self.dropped.update(s.slow)
                s.slow.clear()
            else:
                s.ring, s.parked = False, None

    def _sieve(self, s):
        """Drop some of a list, let some fail, and move the others to its end."""
        source = self.chance.choice([s.pending, s.lobby, s.slow])
        for page in source[:3]:
            verdict = self.chance.choice(["leave", "drop", "keep"])
            if verdict == "leave":
                steps = ["push", "pop"]
                if "what is sieved is pushed before it is popped" in self.without:
                    steps.reverse()
            else:
                steps = ["count", "keep", "pop"] if verdict == "keep" else ["count", "pop"]
                if "what is dropped is counted before it goes" in self.without:
                    steps = [*steps[1:], "count"]
                if "what is kept has failed before it is popped" in self.without:
                    steps.sort(key=["count", "pop", "keep"].index)
            for step in steps:
                yield
                if step == "push":
                    source.append(page)
                elif step == "count":
                    s.waiting -= 1
                elif step == "keep":
                    self.kept.add(page)
                    s.serial += 1
                    s.failed[s.serial] = page
                else:
                    if verdict == "drop":
                        self.dropped.add(page)
                    source.pop(0)
        if source is s.slow and not s.slow:
            yield
            s.ring, s.parked = False, None

    def _drop_delayed(self, s):
        for each in s.delayed[:1]:
            yield
            s.waiting -= 1
            yield
            s.delayed.remove(each)
            self.dropped.add(each[1])

    def _leave_lobby(self, s):
        """Put an entry into the list of its slot, which is full, or another worker's."""
        yield from self._in_turn(
            "a lobby entry is pushed before it is popped",
            partial(s.pending.append, s.lobby[0]),
            partial(s.lobby.pop, 0),
        )

    def _give_back(self, s):
        """Give back what expired workers hold, a few claims a call."""
        for w, until in list(s.workers.items()):
            if until < self.now:
                yield from self._bury(s, w, 2)

    def _bury(self, s, w, most):
        if w in s.starting and "an expired worker is in no start()" not in self.without:
            yield
            s.starting.discard(w)
        for claim, page in list(s.claims[w].items())[:most]:
            yield from self._push(s, page, 0)
            yield
            del s.claims[w][claim]
        if not s.claims[w]:
            yield
            s.batches.pop(w, None)
            yield
            s.busy.discard(w)
            yield
            del s.workers[w]


class Worker:
    """One process."""

    def __init__(self, world, name):
        self.world, self.name = world, name
        self.crawl = world.server.state.crawl
        self.known = set()
        self.unsent = deque()
        self.tail = 0
        self.ended = None
        self.start = None
        """What is left of a run of start(), None before the first."""
        self.began = None
        self.is_through = self.failed = False
        if world.server.state.start_done:
            self._need_not_run()
        self.round = world.server.state.round
        self.is_new = True
        self.waits = world.accidents and world.has_rounds and world.chance.random() < 0.5
        self.stores_nothing = "memory" in world.kinds and world.chance.random() < 0.6
        self.memory = {}
        """Pages in memory: how much each has yielded, the claims that came with it, its mark as a
        start request, and whether Redis may have forgotten something of it."""
        self.pusher = None
        self.extra = world.chance.random() < 0.5
        self.dictionaries = []
        self.proposal = None
        self._enter()

    def _enter(self):
        self.identity = f"{self.name}.{next(self.world.identities)}"
        self.number = 0
        self.batch = None
        self.stock, self.engine = {}, {}
        self.done = []
        self.holds, self.returned = [], []
        self.probes = {}
        """Claims of a slot that is held for each of them alone, and until when."""
        self.quiet = False

    @property
    def is_idle(self):
        busy = self.unsent or self.batch or self.stock or self.engine or self.done or self.memory
        busy = busy or self.holds or self.returned
        return not busy and self.start is not None and not self.start

    def actions(self):
        yield self.call
        if self.world.strikes("dictionaries", 0.2) and self.proposal is None:
            yield self.propose
        if self.world.strikes("holds", 0.05):
            yield lambda: self.hold(self.world.chance.randrange(40))
        if self.start:
            yield self.take_start
        if self.stock:
            yield self.hand_out
        for claim in self.engine:
            yield lambda claim=claim: self.fetch(claim)
        for page in self.memory:
            yield lambda page=page: self.fetch_in_memory(page)
        if self.world.seeds or self.world.noted:
            yield self.move_seeds
        if (
            self.extra
            and self.start is not None
            and (self.quiet or self.world.chance.random() < 0.03)
        ):
            yield self.think_of_more
        noted = self.world.seeds or self.world.noted
        if noted and "no end while seeds are noted" in self.world.without:
            noted = self.world.seeds
        if self.is_idle and self.quiet and not noted and not self.waits:
            yield self.finish

    def enqueue(self, page, mark=None):
        self.quiet = False
        if mark is None:
            if page in self.known:
                return
            self.known.add(page)
        if page.startswith("memory") and self.stores_nothing:
            together = "what comes with a page in memory waits for it" not in self.world.without
            self.memory[page] = [0, {*self.engine} if together else set(), mark, False]
            return
        page = Page(page)
        if self.dictionaries:
            page.dictionary = self.dictionaries[-1]
        if self.world.strikes("delays", 0.4):
            page.delay = self.world.chance.randrange(1, 40)
        self.tail += 1
        self.unsent.append((self.tail, page, mark))

    def propose(self):
        """Make a dictionary, which is used once it was kept."""
        self.proposal = f"dictionary{next(self.world.identities)}"

    def hold(self, pause):
        """Hold the slow slot, or release it: none of it is asked until then."""
        self.holds.append(pause)
        if pause:
            self._put_back(None)

    def _put_back(self, until):
        for claim in [claim for claim, page in self.stock.items() if is_slow(page)]:
            if until is None or self.probes.get(claim) != until:
                del self.stock[claim]
                self.returned.append(claim)

    def take_start(self):
        if self.world.strikes("fail", 0.1):
            self.start.clear()
            self.failed = True
            return
        page = self.start.popleft()
        self.enqueue(page, (page, 1))
        self.is_through = not self.start and self.began == (self.identity, self.round)

    def hand_out(self):
        claim = min(self.stock)
        page = self.stock.pop(claim)
        if page.dictionary in (None, *self.dictionaries):
            self.world.ask(page, self.round)
            self.engine[claim] = [page, 0]
        elif not self.world.wiped_dictionaries:
            raise ViolatedError(f"{page} cannot be read")
        else:
            self.world.may_miss.add((page, self.round))
            self.done.append((self.tail, claim, page, True))

    def fetch(self, claim):
        """Yield one child, or be done, or fail."""
        page, yielded = self.engine[claim]
        children = self.world.links[page]
        if yielded < len(children):
            self.enqueue(children[yielded])
            self.engine[claim][1] += 1
            return
        if any(claim in claims for _, claims, *_ in self.memory.values()):
            return
        del self.engine[claim]
        fails = self.world.strikes("failure", 0.2)
        if not fails:
            self.world.fetched.add((page, self.round))
        else:
            self.world.may_miss.add((page, self.round))
        self.done.append((self.tail, claim, page, fails))

    def fetch_in_memory(self, page):
        """Yield one child, or be done: then it is seen, unless Redis may have forgotten what
        came of it."""
        yielded, _, mark, is_doubtful = self.memory[page]
        children = self.world.links[page]
        if yielded < len(children):
            self.memory[page][0] += 1
            self.enqueue(children[yielded])
            return
        del self.memory[page]
        self.world.fetched.add((page, self.round))
        if not is_doubtful:
            self.tail += 1
            self.unsent.append((self.tail, *((None, mark) if mark else (page, NOTE))))

    def move_seeds(self):
        """Take a seed, push it, and strike it off when the push was kept."""
        world, now = self.world, self.world.server.now
        if self.pusher is None:
            self.pusher = (f"pusher{next(world.identities)}", 0, {})
        name, number, pushed = self.pusher
        due = [seed for seed, (until, _) in world.noted.items() if until < now][:1]
        entries = ()
        if due or world.seeds:
            seed = due[0] if due else world.seeds.pop()
            world.noted[seed] = (now + 3 * LEASE, self.name)
            entries = ((Page(seed), RAW),)
        self.pusher = None
        reply = world.deliver(self, Call(name, number + 1, entries))
        if reply is None or reply.get("fenced") or reply.get("gone"):
            return
        self.quiet = False
        keep = BACK if "seeds stay noted until their push was kept" not in world.without else -1
        pushed.update({seed: now for seed, _ in entries})
        for seed in [seed for seed, then in pushed.items() if then + keep < now]:
            del pushed[seed]
            world.noted.pop(seed, None)
        self.pusher = (name, number + 1, pushed)

    def think_of_more(self):
        """A timer of the spider's adds a page that no link leads to."""
        self.extra = False
        self.enqueue(f"extra{self.name}")

    def _build(self, action=""):
        answered = self.unsent[0][0] - 1 if self.unsent else self.tail
        if "acknowledge after the children's answers" in self.world.without:
            answered = self.tail
        ready = [each for each in self.done if each[0] <= answered]
        self.done = [each for each in self.done if each[0] > answered]
        self._acknowledged = ready
        entries = list(self.unsent)[:BATCH]
        held = (*self.stock, *self.engine, *(claim for _, claim, _, _ in self.done))
        self.number += 1
        holds, self.holds = tuple(self.holds), []
        returned, self.returned = tuple(self.returned), []
        proposal, self.proposal = self.proposal, None
        return Call(
            self.identity,
            self.number,
            tuple((page, mark) for _, page, mark in entries),
            tuple((claim, page) for _, claim, page, fails in ready if not fails),
            tuple((claim, page) for _, claim, page, fails in ready if fails),
            held,
            max(0, CLAIMS - len(self.stock)) if not action else 0,
            round=self.round,
            starting=bool(self.start),
            start_done=self.is_through
            and not self._starts_in_memory
            and len(self.unsent) == len(entries),
            action=action,
            named=tuple(self.dictionaries),
            offered=(proposal,) if proposal else (),
            holds=holds,
            returned=returned,
        )

    @property
    def _starts_in_memory(self):
        rule = "start() is not through while it has a page in memory"
        return rule not in self.world.without and any(each[2] for each in self.memory.values())

    def call(self):
        """Send the batch, or send it again."""
        if self.batch is None:
            self.batch = self._build()
        elif "a resend is the same batch" in self.world.without:
            self.number -= 1
            self.done += self._acknowledged
            self.holds += self.batch.holds
            self.returned += self.batch.returned
            self.batch = self._build()
        reply = self.world.deliver(self, self.batch)
        if reply is None:
            return
        self._take(reply)

    def _take(self, reply):
        if "lacking" in reply:
            offered = {*self.batch.offered, *reply["lacking"]}
            self.batch = replace(self.batch, offered=tuple(sorted(offered)))
            return
        call, self.batch = self.batch, None
        if len(reply.get("answers", call.entries)) != len(call.entries):
            raise ViolatedError("an answer to another batch")
        if reply.get("gone"):
            self.ended = "error"
        elif reply.get("fenced"):
            self._be_fenced()
        else:
            for (page, mark), answer in zip(call.entries, reply["answers"], strict=True):
                self.unsent.popleft()
                if answer == "new" and mark is None and page.startswith("extra"):
                    self.world.pushed.add(page)
            self.dictionaries += reply["dictionaries"]
            if (until := reply["held_until"]) is not None:
                self._put_back(until)
                self.probes = dict.fromkeys(reply["claimed"], until)
            self.stock.update(reply["claimed"])
            self._hear(reply)
            self.quiet = reply["quiet"] or reply["over"] or (reply["still"] and self.failed)

    def _hear(self, reply):
        """Run start() unless it is through, or this worker has run it."""
        without = self.world.without
        is_other_round = reply["round"] != self.round
        if is_other_round:
            self.round, self.is_through = reply["round"], False
            for each in self.memory.values():
                each[3] = each[3] or each[2]
        if reply["over"] and self.is_new and not (self.waits or self.world.has_seeds):
            self.ended = "over"
        begins = not (reply["start_done"] or self.start) and self.began != (
            self.identity,
            self.round,
        )
        if is_other_round and "who learns of a new round runs start() again" in without:
            begins, self.began = False, (self.identity, self.round)
        if self.is_new and "start() again until start_done" in without and self.world.has_begun:
            begins, self.began = False, (self.identity, self.round)
            self.is_through = True
        self.is_new = False
        if begins:
            self.world.has_begun = True
            self.began = (self.identity, self.round)
            self.start, self.is_through, self.failed = deque(START), False, False
        elif self.start is None:
            self._need_not_run()

    def _need_not_run(self):
        self.start = deque()
        if "only who has run start() says that it is through" in self.world.without:
            self.is_through = True

    def _be_fenced(self):
        if "a fenced worker forgets what it knew as seen" not in self.world.without:
            self.known = {page for _, page, mark in self.unsent if mark is None}
        if "a fenced worker keeps what it has not sent" in self.world.without:
            self.unsent.clear()
        is_doubtful = "a page in memory is not seen where Redis went back" not in self.world.without
        if is_doubtful:
            self.unsent = deque(e for e in self.unsent if e[1] and e[2] != NOTE)
        for each in self.memory.values():
            each[1], each[3] = set(), is_doubtful
        began = self.began
        self._enter()
        if "a fenced worker runs start() again" in self.world.without and began:
            self.began = (self.identity, self.round)
        else:
            self.is_through = False

    def finish(self):
        """The engine closes the spider."""
        # who has seen start() fail leaves it to others
        marks = not self.failed or "the end takes start_done" in self.world.without
        self.batch = self._build("over" if marks else "leave")
        if self.batch.action == "leave":
            self.ended = "left"
        reply = self.world.deliver(self, self.batch)
        if reply and "lacking" in reply:
            self._take(reply)
            reply = self.world.deliver(self, self.batch)
        if reply is None or "lacking" in reply:
            return
        fenced = reply.get("fenced") or reply.get("gone")
        self._take(reply)
        if not fenced:
            self.ended = "finished"
            if self.crawl != self.world.server.state.crawl:
                raise ViolatedError("the end of a crawl that is gone")


class World:
    """A crawl of a random site under random accidents."""

    def __init__(self, seed, without=(), accidents=True, only=()):
        self.chance = random.Random(seed)
        self.without = set(without)
        self.server = Server(self.chance, self.without)
        self.identities = iter(range(10**9))
        self.links = self._site()
        self.fetched, self.pushed = set(), set()
        self.asked = defaultdict(set)
        """By round: the pages of the slot with a budget that were asked."""
        self.has_begun = False
        self.went_back = self.lost_everything = self.evicted = False
        self.wiped_dictionaries = False
        self.accidents = accidents
        kinds = ("kill", "pause", "lose", "abort", "back", "refuse", "fail", "failure")
        self.kinds = set(self.chance.sample(kinds, 4))
        shares = {"wipe": 0.1, "evict": 0.1, "rounds": 0.3, "memory": 0.5, "seeds": 0.3}
        shares |= {"delays": 0.4, "holds": 0.4, "drops": 0.2, "hands": 0.2, "budgets": 0.3}
        self.kinds |= {kind for kind, share in shares.items() if self.chance.random() < share}
        if "evict" in self.kinds:
            self.kinds -= {"abort"}  # what an aborted script has not counted is not missed
        if only:
            self.kinds = {*only}
        elif without:
            self.kinds = {kind for rule in without for kind in RULES[rule].split()}
        elif self.chance.random() < 0.5:
            self.kinds |= {"dictionaries", *self.chance.choices(["", "forget"], [4, 1])}
        if "budgets" in self.kinds:
            self.server.budget = self.chance.randrange(8)
        self.round = 1
        self.has_rounds = accidents and "rounds" in self.kinds
        self.has_seeds = "seeds" in self.kinds
        self.seeds = [f"seed{n}" for n in range(self.has_seeds * self.chance.randrange(1, 5))]
        self._all_seeds = [*self.seeds]
        self.noted = {}
        """Seeds that were taken: until when, and by whom."""
        self.may_miss = set()
        self.workers = []
        self.paused = {}

    def _site(self):
        count = self.chance.randrange(3, 12)
        pages = [f"page{n}" for n in range(count)]
        links = {
            page: [
                *(pages[2 * n + 1 : 2 * n + 3]),
                *self.chance.choices(pages, k=self.chance.randrange(3)),
            ]
            for n, page in enumerate(pages)
        }
        links["start1"] = pages[:1]
        links["start2"] = [pages[-1], pages[0]]
        links["memory start"] = ["below the start"]
        links["memory page"] = ["below"]
        links["below"] = links["below the start"] = []
        links[self.chance.choice(pages)].append("memory page")
        for n in range(4):
            links[f"seed{n}"] = self.chance.choices(pages, k=1)
        for n in range(500):
            links[f"extra{n}"] = []
        return links

    def ask(self, page, round_):
        """A slot has no more pages asked than its budget, unless the server has forgotten some."""
        if self.server.budget is None or not is_limited(page):
            return
        self.asked[round_].add(str(page))
        forgets = self.went_back or self.lost_everything or self.evicted
        if len(self.asked[round_]) > self.server.budget and not forgets:
            raise ViolatedError(f"{self.asked[round_]} are more than {self.server.budget}")

    def deliver(self, worker, call):
        """Return the reply, or None if the worker does not get it."""
        server, chance = self.server, self.chance
        if self.strikes("refuse", 0.1):
            return None
        abort_at = chance.randrange(12) if self.strikes("abort", 0.2) else None
        try:
            reply = server.run(call, worker.crawl, abort_at)
        except AbortedError:
            return None
        finally:
            if self.strikes("back", 0.2):
                server.snapshot()
        return None if self.strikes("lose", 0.2) else reply

    def strikes(self, kind, share):
        """Return True if that accident happens now."""
        return self.accidents and kind in self.kinds and self.chance.random() < share

    def run(self):
        """Return what went wrong, or None."""
        try:
            return self._run()
        except ViolatedError as violation:
            return str(violation)

    def _run(self):
        for _ in range(self.chance.randrange(20, 250)):
            self._step()
        self.accidents = False
        for worker in self.workers:
            worker.waits = False
        self.paused.clear()
        self.server.now += 1
        if not self._living():
            self._start()
        # who comes to a crawl that seems to be over must be right in going
        if not self._goes_on() or not self._goes_on(self._start()):
            return "endless"
        dropped = set()
        if self.chance.random() < 0.5:
            dropped = set(self.server.state.failed.values())
        elif self.server.state.failed:
            self.server.retry()
            if not self._goes_on(self._start()):
                return "endless"
        unreadable = self.wiped_dictionaries and set(self.server.state.failed.values())
        dropped |= unreadable or set()
        if any(worker.ended == "error" for worker in self.workers):
            excused = self.lost_everything or self.evicted
            return None if excused else "an error without a cause"
        self._require_start(self.server.state.round)
        self._require_budget(self.server.state.round)
        dropped |= self.server.dropped | {*self.server.state.capped}
        missed = self._reachable(dropped) - {page for page, _ in self.fetched} - dropped
        return f"lost {sorted(missed)}" if missed else None

    def _require_start(self, round_):
        """A round that is over has all of start()."""
        missed = {(page, round_) for page in START} - self.fetched - self.may_miss
        gone = self.server.dropped | self.server.kept
        missed = {each for each in missed if each[0] not in gone}
        if missed and not self.lost_everything:
            raise ViolatedError(f"lost {sorted(missed)}")

    def _require_budget(self, round_):
        """A round with pages over its budget has had all of it, but for one an aborted call."""
        forgets = {"back", "wipe", "evict", "drops", "forget"} & self.kinds
        if round_ in self.server.capped_in and not forgets:
            least = self.server.budget - self.server.aborted
            if len(self.asked[round_]) < least:
                raise ViolatedError(f"{self.asked[round_]} are less than {least}")

    def _goes_on(self, worker=None):
        """Return whether `worker` comes to an end, or all of them."""
        for _ in range(4000):
            if worker.ended if worker else not self._living():
                return True
            self._step()
        return False

    def _reachable(self, dropped):
        found, todo = set(), [*START]
        unasked = self.server.dropped | self.server.kept | {*self.server.state.capped}
        # what was acknowledged before the server went back may have been dropped since
        unasked -= set() if self.went_back else self.server.acknowledged
        unasked |= {*dropped} if self.wiped_dictionaries else set()
        if not self.went_back and not self.lost_everything:
            todo += self.pushed
        if not self.lost_everything:
            todo += self._all_seeds
        while todo:
            page = todo.pop()
            if page not in found:
                found.add(page)
                todo += [] if page in unasked else self.links[page]
        return found

    def _living(self):
        return [worker for worker in self.workers if not worker.ended]

    def _start(self):
        self.round += self.has_rounds and self.accidents and self.chance.random() < 0.5
        before = self.server.state.round
        if self.server.open(self.round):
            self._require_start(before)
        self.workers.append(Worker(self, str(len(self.workers))))
        return self.workers[-1]

    def _step(self):
        chance, server = self.chance, self.server
        in_keys_of_their_own = "dictionaries are in the hash that makes the crawl" in self.without
        server.now += chance.randrange(3)
        living = self._living()
        if self.accidents and len(living) < 3 and (not living or chance.random() < 0.05):
            self._start()
        elif living and self.strikes("kill", 0.04):
            chance.choice(living).ended = "killed"
        elif living and self.strikes("pause", 0.04):
            self.paused[chance.choice(living).name] = server.now + chance.randrange(3 * LEASE)
        elif self.strikes("back", 0.01):
            server.go_back(BACK if self.has_seeds else None)
            self.went_back = True
        elif self.strikes("wipe", 0.005):
            server.lose_everything()
            self.lost_everything = True
        elif in_keys_of_their_own and self.strikes("evict", 0.05):
            server.state.dictionaries.clear()
        elif self.strikes("evict", 0.01) and (server.state.pending or server.state.lobby):
            server.state.pending.clear()
            server.state.lobby.clear()
            self.evicted = True
        elif self.strikes("forget", 0.01):
            server.state.dictionaries.clear()
            self.wiped_dictionaries = True
        elif self.accidents and chance.random() < 0.01:
            server.now += LEASE // 2
        elif self.strikes("failure", 0.004):
            with suppress(AbortedError):
                server.retry(chance.randrange(6))
        elif self.strikes("budgets", 0.02):
            with suppress(AbortedError):
                server.retry_capped(chance.randrange(6) if self.strikes("abort", 0.5) else None)
        if self.strikes("drops", 0.2):
            with suppress(AbortedError):
                server.drop(chance.randrange(6) if self.strikes("abort", 0.7) else None)
        if self.strikes("hands", 0.03):
            server.hold_by_hand(chance.choice([0, *range(1, 60)]))
        awake = [w for w in self._living() if self.paused.get(w.name, 0) <= server.now]
        if awake:
            chance.choice([*chance.choice(awake).actions()])()
