"""The lobby: the list that slots with few requests share, and the counters that say who has few."""

from collections import defaultdict
from dataclasses import replace

import pytest

from tests.redis_backend.test_commit import join  # noqa: F401 - a fixture
from tests.redis_backend.workers import lobby_from, seeded

pytest_plugins = ["tests.redis_backend.fixtures"]
pytestmark = pytest.mark.usefixtures("few_shards")

FIFO = {"SCHEDULER_DISK_QUEUE": "scrapy.squeues.PickleFifoDiskQueue"}
LIFO = {"SCHEDULER_DISK_QUEUE": "scrapy.squeues.PickleLifoDiskQueue"}


def name(request):
    """Return the last word of its URL."""
    return request.url.rpartition("/")[2]


class Slots:
    """What waits in each slot, as one list a slot would have it."""

    def __init__(self, newest_first):
        self.newest_first = newest_first
        self.waiting = defaultdict(list)
        self.numbers = iter(range(10**6))

    def push(self, worker, slot):
        """Let `worker` push one more request of `slot`."""
        worker.enqueue(f"{slot}-{next(self.numbers)}", meta={"download_slot": slot})

    def take(self, slot, page):
        """Require that `page` was the next one."""
        expected = self.waiting[slot].pop(-1 if self.newest_first else 0)
        assert page == expected, (slot, self.waiting[slot])

    def give_back(self, claims):
        """Put these (slot, page) in front again, as they were."""
        for slot, page in reversed(claims):
            self.waiting[slot].insert(len(self.waiting[slot]) * self.newest_first, page)


@pytest.mark.parametrize("kind", [LIFO, FIFO], ids=["newest first", "oldest first"])
@pytest.mark.parametrize("seed", range(int(__import__('os').environ.get('NSEEDS','4'))))
def test_a_slot_keeps_its_order(join, redis_server, monkeypatch, kind, seed):  # noqa: F811
    """Whatever the counters say, where slots are full, and where claims were given back: the
    requests of a slot come in the order of one list, and all of them."""
    chance = seeded(seed)
    lobby_from(monkeypatch, chance.choice([0, 0, 5]))
    slots, claimed = Slots(kind is LIFO), {}

    def answered(entry, _is_new):
        slots.waiting[entry.packed.slot].append(name(worker.codec.load(entry.packed)))

    def heard(reply):
        for claim in reply.claimed:
            page = name(worker.codec.load(claim))
            slots.take(claim.slot, page)
            claimed[claim.number] = claim.slot, page

    def enter():
        worker = join(capacity=chance.randrange(2, 9), **kind)
        worker.store._policy = replace(worker.policy, claims_per_slot=chance.choice([1, 2, 8]))
        worker.store._observers.heard = heard
        worker.store._observers.answered = answered
        return worker

    def finish():
        request = worker.store.next()
        if request is not None:
            worker.store.done(request)
            claimed.pop(worker.store.claims.uncommitted[-1].claim)

    worker = enter()
    pages = chance.choice([20, 200])
    for _ in range(400):
        what = chance.random()
        if what < 0.4 and pages:
            for _ in range(min(pages, chance.randrange(6))):
                pages -= 1
                slots.push(worker, f"s{int(chance.expovariate(0.2))}")
        elif what < 0.75:
            finish()
        elif what < 0.77:
            worker.exchange()
            worker.leave()
            slots.give_back([*claimed.values()])
            claimed.clear()
            worker = enter()
        elif what < 0.8:
            bits = chance.choice([b"", b"\xff" * (1 << 20), chance.randbytes(1 << 20)])
            redis_server.command("SET", f"{worker.key}:few", bits)
        else:
            worker.exchange()
    while any(slots.waiting.values()) or claimed:
        finish()
        worker.exchange()
    worker.exchange()
    assert worker.store.is_quiet
    assert worker.store.waiting == worker.store.nbytes == 0
