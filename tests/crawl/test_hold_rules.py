"""The rules for refusals, in a model of one download slot with eight requests at a time."""

import random
from bisect import insort
from heapq import heappop, heappush
from itertools import count

import pytest

from scrapy_bloom.crawl.holds import FRESH, GIVEN_UP, RECOVERY, Refusal, judge, recovery

CONCURRENT, TRIES, MOST = 8, 3, 10


class Page:
    """A request of the model."""

    def __init__(self, number):
        self.number = number
        self.priority = self.tries = self.returns = 0
        self.refused = False


class Slot:
    """Crawls `pages` of a site, `answers(now, page)`: True, or a Retry-After, 0 for none."""

    def __init__(self, answers, pages, *, newest_first, seed, held=True, latency=0.1):
        self.now, self.serials, self.waiting, self.held = 0.0, count(), [], held
        self.sign = -1 if newest_first else 1
        for number in range(pages):
            self.push(Page(number))
        self.times, self.until, self.pause, self.rows = 0, 0.0, 0.0, 0
        self.done, self.lost, self.asked = {}, [], 0
        chance, under_way = random.Random(seed), []
        while (self.waiting or under_way) and self.now < 9000:
            while self.waiting and len(under_way) < CONCURRENT and self.now >= self.until:
                page = self.pop()
                back = self.now + latency * chance.uniform(0.5, 1.5)
                heappush(under_way, (back, next(self.serials), page, self.times))
                self.asked += 1
            free = self.waiting and len(under_way) < CONCURRENT
            if free and (not under_way or self.until < under_way[0][0]):
                self.now = self.until
                continue
            self.now, _, page, times = heappop(under_way)
            is_probe = 0 < times == self.times
            said = answers(self.now, page.number)
            if said is True:
                self.note_answer(page, is_probe)
            else:
                self.note_refusal(page, said or None, is_probe)

    def push(self, page):
        insort(self.waiting, (-page.priority, self.sign * next(self.serials), page))

    def pop(self):
        if self.times <= 0 or not self.pause:
            return self.waiting.pop(0)[2]
        self.until = self.now + self.pause
        first = [each for each in self.waiting if each[0] == self.waiting[0][0]]
        return self.waiting.pop(len(first) - 1 if self.times % 2 else 0)[2]

    def note_answer(self, page, is_probe):
        self.done[page.number] = self.now
        if is_probe:
            self.times = -recovery(self.rows) if self.times < GIVEN_UP else 0
            self.until = self.now
        elif self.times < 0:
            self.times += 1 if self.times > FRESH else -FRESH

    def note_refusal(self, page, asked, is_probe):
        page.returns += is_probe
        refusal = Refusal(
            asked=asked,
            is_probe=is_probe,
            is_in_flight=self.times > 0 and not is_probe,
            is_suspect=page.tries > 0 or (page.refused and self.times <= 0),
            returns=page.returns,
        )
        uses_try, times, seconds = judge(self.times, refusal, MOST)
        page.refused, page.priority = True, page.priority - 1
        if not self.held or uses_try:
            page.tries += 1
        if page.tries == TRIES:
            self.lost.append(page.number)
        else:
            self.push(page)
        if self.held:
            self.rows += times == 1 != self.times
            self.times = times
        if self.held and seconds is not None:
            self.until, self.pause = max(self.until, self.now + seconds), seconds
        elif self.times >= GIVEN_UP:
            self.until, self.pause = self.now, 0.0


def broken(which):
    return lambda _, page: page not in which or 0


def down(begin, end):
    return lambda now, _: not begin <= now < end or 0


def limited(rate, says):
    seconds = {}

    def answers(now, _):
        seconds[int(now)] = seconds.get(int(now), 0) + 1
        return seconds[int(now)] <= rate or says

    return answers


ORDERS = pytest.mark.parametrize("newest_first", [True, False], ids=["newest first", "oldest"])
SEEDS = pytest.mark.parametrize("seed", range(2))


@SEEDS
@ORDERS
@pytest.mark.parametrize("which", [range(20), range(300, 320), range(7, 320, 16)])
def test_pages_that_are_refused_for_ever_keep_no_other_waiting(which, newest_first, seed):
    """They fail, and the others take at most 20 s longer than without holds."""
    slot, stock = (
        Slot(broken(which), 320, newest_first=newest_first, seed=seed, held=held)
        for held in (True, False)
    )
    assert sorted(slot.lost) == [*which]
    assert max(slot.done.values()) <= max(stock.done.values()) + 20
    assert slot.now < 480


@SEEDS
@ORDERS
@pytest.mark.parametrize(
    ("begin", "end", "pages"), [(0, 60, 5), (0, 180, 5), (2, 62, 320), (0, 400, 20)]
)
def test_a_host_that_answers_again_loses_no_page(begin, end, pages, newest_first, seed):
    """After a while that holds in a row can outlast."""
    slot = Slot(down(begin, end), pages, newest_first=newest_first, seed=seed)
    assert (slot.lost, len(slot.done)) == ([], pages)


@SEEDS
@ORDERS
@pytest.mark.parametrize("says", [0, 1])
@pytest.mark.parametrize("rate", [1, 2, 4])
@pytest.mark.parametrize("latency", [0.02, 0.1, 1.0, 3.0])
def test_a_limit_loses_no_page(rate, says, latency, newest_first, seed):
    """Also if answers take longer than it takes to be above it again."""
    answers = limited(rate, says)
    slot = Slot(answers, 320, newest_first=newest_first, seed=seed, latency=latency)
    assert (slot.lost, len(slot.done)) == ([], 320)


@SEEDS
@ORDERS
def test_a_page_that_is_left_alone_is_given_up_at_once_and_a_host_after_a_while(newest_first, seed):
    """Nothing tells a broken page from a host that is down but its others."""
    for pages, least, most in ((1, 0, 1), (2, 0, 1), (20, 435, 445)):
        slot = Slot(down(0, 9000), pages, newest_first=newest_first, seed=seed)
        assert len(slot.lost) == pages
        assert least <= slot.now <= most


@pytest.mark.parametrize(
    "times", [0, FRESH, 2 * FRESH, 5 * FRESH, -1, -RECOVERY, 1, 9, 10, GIVEN_UP]
)
def test_retry_after_is_heeded_in_any_state_and_uses_no_try(times):
    """But for a page that was asked alone and refused too often."""
    for is_in_flight in (False, times > 0):
        refusal = Refusal(7.0, is_in_flight=is_in_flight, is_suspect=True)
        row = times if is_in_flight else max(times, 0) + 1
        assert judge(times, refusal, MOST) == (False, row, 7.0)
        assert judge(times, refusal._replace(returns=MOST), MOST) == (False, row, 7.0)
        assert judge(times, refusal._replace(returns=MOST + 1), MOST) == (True, row, 7.0)


def test_several_workers_count_refusals_together():
    """Each may use two tries before it hears of the others; then the first one holds."""
    suspect = Refusal(is_suspect=True)
    assert judge(2 * FRESH, suspect, MOST) == (True, 2 * FRESH, None)
    assert judge(3 * FRESH, suspect, MOST) == judge(5 * FRESH, suspect, MOST) == (False, 1, 5)


def test_only_a_page_that_is_asked_alone_and_has_used_a_try_uses_one_in_a_row_of_holds():
    """Which holds all the same."""
    for is_probe, is_suspect in ((True, True), (True, False), (False, True)):
        refusal = Refusal(is_probe=is_probe, is_in_flight=not is_probe, is_suspect=is_suspect)
        expected = (is_suspect, 3, 20) if is_probe else (False, 2, None)
        assert judge(2, refusal, MOST) == expected
    assert judge(-3, Refusal(is_suspect=True), MOST) == (False, 1, 5)
