"""BLOOM_BUDGET in Redis: a round fetches no more pages of a download slot, over kills and
workers."""

import pytest

from scrapy_bloom import SharedFilterError
from scrapy_bloom.crawl.choice import Filter
from scrapy_bloom.crawl.records import KEPT
from scrapy_bloom.redis.client import RedisClient
from scrapy_bloom.redis.desk import RedisDesk
from scrapy_bloom.redis.status import CrawlStatus
from scrapy_bloom.redis.verify import queue_findings
from tests.crawl.engine import name_of, request
from tests.failures import Failed
from tests.redis.workers import capped, fail_all, let_pass, talk

pytestmark = pytest.mark.usefixtures("few_shards")

CAPPED = {"reasons": ["capped"]}


def push(worker, *names, slot="example.com", **options):
    worker.enqueue_all(names, slot=slot, **options)


def names(worker):
    """Fetch all there is; return the names of the pages, sorted."""
    return sorted(worker.drain())


def next_round(worker, join, round_, **settings):
    """End the crawl, and return a worker of its next round."""
    worker.exchange()
    worker.leave(over=True)
    return join(BLOOM_REDIS_ROUND=round_, **settings)


def test_more_pages_of_a_slot_than_its_budget_are_kept_and_not_asked(join):
    """They stay seen, and keep no crawl from its end."""
    worker, other = (join(BLOOM_BUDGET={"*": 3, "big.example": 3}) for _ in range(2))
    push(worker, "start", "a", "b", "c", "b")
    push(other, "d", *"efgh", slot="big.example")
    worker.exchange()
    other.exchange()
    push(other, "c", "i")
    other.exchange()
    assert sorted(names(worker) + names(other)) == ["a", "b", "d", "e", "f", "start"]
    assert (worker.capped, other.capped) == (1, 3)
    assert worker.failed.by_reason() == {"capped": 4}
    assert sorted(capped(worker)) == [*"cghi"]
    assert [each.url for each in worker.failed.requests(urls=["*/h"])] == ["http://example.com/h"]
    worker.exchange()
    assert worker.store.is_quiet
    figures = CrawlStatus(worker.client, worker.key).figures()
    assert (figures["failed"], figures["failed_by_reason"]) == (4, {"capped": 4})
    assert all(each.sound for each in queue_findings(worker.client, worker.key))


def test_only_named_slots_have_a_budget_without_a_star(join):
    worker = join(BLOOM_BUDGET={"none.example": 0})
    push(worker, *"abc")
    push(worker, "d", slot="none.example")
    assert names(worker) == [*"abc"]
    assert capped(worker) == ["d"]


def test_a_new_round_begins_at_0(join):
    """And what the last one has capped stays, until it is retried."""
    budget = {"BLOOM_BUDGET": {"*": 2}}
    worker = join(**budget)
    push(worker, *"abc")
    assert names(worker) == ["a", "b"]
    worker = next_round(worker, join, "two", **budget)
    push(worker, *"bcdef")
    assert names(worker) == ["d", "e"]
    worker = next_round(worker, join, "three", **budget)
    push(worker, *"ghi")
    assert names(worker) == ["g", "h"]
    assert capped(worker) == [*"cfi"]


def test_a_round_that_goes_on_retries_as_far_as_its_own_pages_leave_room(join):
    """Only where it begins, the pages of the last one count."""
    budget = {"BLOOM_BUDGET": {"*": 3}}
    worker = join(**budget)
    push(worker, *"abcdef")
    assert names(worker) == [*"abc"]
    worker = next_round(worker, join, "two", **budget)
    assert worker.failed_at_start.retry() == 0
    push(worker, "g")
    worker.exchange()
    assert worker.failed.retry() == 2
    assert names(worker) == [*"deg"]


def test_all_workers_need_the_same_budget(join, redis_server):
    """Another one is refused and changes nothing; when none is left, the new value holds."""
    worker = join(BLOOM_BUDGET={"*": 2})
    push(worker, *"abc")
    worker.exchange()
    before = redis_server.command("HGETALL", f"{worker.key}:crawl")
    for other in ({}, {"*": 3}, {"*": 2, "a": 1}):
        with pytest.raises(SharedFilterError, match=r'BLOOM_BUDGET = {"\*": 2}, and this one has'):
            join(BLOOM_BUDGET=other, BLOOM_REDIS_ROUND="new")
    assert redis_server.command("HGETALL", f"{worker.key}:crawl") == before
    worker.leave()
    worker = join(BLOOM_BUDGET={"*": 4})
    push(worker, *"def")
    assert names(worker) == ["a", "b", "d", "e"]


def test_a_budget_that_is_new_counts_what_is_pending_and_claimed(join, redis_server):
    """Not what was counted before the last budget was taken away."""
    first = join(BLOOM_BUDGET={"*": 2})
    push(first, *"xyz")
    assert names(first) == ["x", "y"]
    first.leave()
    dead = join()
    for each in range(300):
        push(dead, f"host{each}", slot=f"host{each}")
        if each % 50 == 49:
            dead.exchange()
    push(dead, "a", "b", "c", priority=9)
    dead.next()
    dead.exchange()
    later = dead.next().replace(url="http://example.com/later", dont_filter=True)
    later.meta["download_slot"] = "host299"
    dead.store.push(later, (), 1000)
    dead.exchange()
    dead.die()
    worker = join(BLOOM_BUDGET={"*": 5, "host7": 1, "host299": 2})
    push(worker, *"def")
    for each in (7, 8, 299):
        push(worker, f"{each}", slot=f"host{each}")
    worker.exchange()
    assert sorted(capped(worker)) == ["299", "7", "f", "z"]
    worker.leave()
    worker = join()
    assert redis_server.names(f"{worker.key}:counted") == []


def test_a_slot_that_gets_a_limit_later_was_counted_before(join):
    """And a limit that is taken away is gone."""
    worker = join(BLOOM_BUDGET={"one": 1})
    push(worker, *"ab", slot="one")
    push(worker, *"cde", slot="two")
    assert names(worker) == [*"acde"]
    worker.leave()
    worker = join(BLOOM_BUDGET={"*": 4})
    push(worker, *"fghi", slot="one")
    push(worker, *"jk", slot="two")
    assert names(worker) == [*"fghj"]


def test_a_budget_that_is_new_counts_what_is_retried(join):
    worker = join()
    push(worker, *"ab")
    assert fail_all(worker) == ["a", "b"]
    worker.leave()
    worker = join(BLOOM_BUDGET={"*": 1})
    assert worker.failed_at_start.retry() == 1
    assert (len(names(worker)), len(capped(worker))) == (1, 1)


def test_retries_and_redirects_of_a_slot_are_not_counted_and_those_of_others_are(join):
    worker = join(BLOOM_BUDGET={"*": 1})
    push(worker, "a")
    for _ in range(3):
        request = worker.next()
        worker.store.push(request.replace(dont_filter=True), [request])
        worker.store.done(request)
        worker.exchange()
    request = worker.next()
    assert worker.capped == 0
    push(worker, "other", slot="other.example")
    redirected = request.replace(meta={"download_slot": "other.example"}, dont_filter=True)
    worker.store.push(redirected, [request])
    worker.store.done(request)
    worker.exchange()
    assert worker.capped == 1
    assert names(worker) == ["other"]


def test_start_requests_count_and_are_not_counted_twice(join):
    for again in range(2):
        worker = join(BLOOM_BUDGET={"*": 1})
        for name in "ab":
            push(worker, name, dont_filter=True)
            worker.store.mark(name.encode())
        worker.exchange()
        assert worker.capped == (1 - again)
        worker.leave()
    worker = join(BLOOM_BUDGET={"*": 1})
    assert (names(worker), capped(worker)) == (["a"], ["b"])


def test_a_retry_brings_back_what_a_higher_budget_leaves_room_for(join):
    worker = join(BLOOM_BUDGET={"*": 2})
    push(worker, "start", *"abcde")
    assert names(worker) == ["a", "start"]
    assert worker.failed.retry(reasons=["other"]) == 0
    # at once, while workers are at work: there is no room
    assert worker.failed.retry(**CAPPED) == 0
    worker.store.leave(over=True, seconds=1)
    assert worker.failed.retry(**CAPPED) == 4
    worker.close()

    worker = join(BLOOM_BUDGET={"*": 4}, BLOOM_REDIS_ROUND="two")
    assert worker.failed_at_start.desk.retry_ordered() == 2
    push(worker, *"fgh")
    assert (worker.state.round, names(worker)) == ("", ["b", "c"])
    assert capped(worker) == [*"defgh"]
    assert worker.failed_at_start.desk.retry_ordered() == 0
    worker.store.leave(over=True, seconds=1)
    assert worker.failed.retry(urls=["*/e"]) == 1
    assert worker.failed.drop(urls=["*/h"]) == 1
    worker.close()

    worker = join()
    assert worker.state.over
    assert worker.failed_at_start.desk.retry_ordered() == 1
    assert worker.client.call("hget", f"{worker.key}:crawl", "over") == b""
    assert names(worker) == ["e"]
    assert worker.failed_at_start.retry() == 3
    assert names(worker) == [*"dfg"]
    assert capped(worker) == []


@pytest.mark.parametrize("at_once", [False, True])
def test_what_failed_in_an_earlier_round_counts_when_it_is_retried(join, at_once):
    """What is over the budget then is capped. What failed in the round itself counts once."""
    worker = join()
    push(worker, *"ab")
    assert fail_all(worker) == [*"ab"]
    budget = {"BLOOM_BUDGET": {"*": 4}}
    worker = next_round(worker, join, "two", **budget)
    push(worker, *"cde")
    assert fail_all(worker) == [*"cde"]
    assert worker.failed.retry(urls=["*/[cde]"]) == 3
    assert fail_all(worker) == [*"cde"]
    if not at_once:
        worker.leave()
    assert worker.failed.retry(reasons=["down"]) == (4 if at_once else 5)
    if not at_once:
        worker = join(**budget)
        assert worker.failed_at_start.desk.retry_ordered() == 1
    assert len(fail_all(worker)) == 4
    assert len(capped(worker)) == 1
    worker = next_round(worker, join, "three", BLOOM_BUDGET={"*": 9})
    # the last round has had 4
    assert worker.failed_at_start.retry() == 5
    assert fail_all(worker) == [*"abcde"]


@pytest.mark.parametrize("element", [b"junk", b"x\0" + b"0payload", b"9" * 400 + b"\0payload"])
def test_a_damaged_one_stops_no_other_from_being_asked(join, redis_server, element):
    """It fails as unreadable instead."""
    worker = join(BLOOM_BUDGET={"*": 0})
    push(worker, *"ab")
    worker.leave()
    redis_server.command("LPUSH", f"{worker.key}:capped:example.com", element)
    worker = join(BLOOM_BUDGET={"*": 9})
    worker.exchange()
    assert worker.failed.retry(**CAPPED) == 2
    assert worker.failed.by_reason() == {"unreadable": 1}
    assert sorted(names(worker)) == ["a", "b"]


def fetched(scheduler):
    """Return the names of what the worker fetches, one after the other."""
    found = []
    while (popped := scheduler.next_request()) is not None:
        found.append(name_of(popped))
        scheduler.worker.store.done(popped)
        talk(scheduler)
    return found


def asked(scheduler, names):
    """Return which pages are fetched when these have been pushed."""
    for name in names:
        scheduler.enqueue_request(request(name))
    talk(scheduler)
    return sorted(fetched(scheduler))


def test_a_worker_counts_in_its_stats_and_asks_what_is_retried(build, key, caplog):
    """What is capped does not count for the warning at the end."""

    def start(*names, **settings):
        scheduler = build(**settings)
        return scheduler, asked(scheduler, names)

    scheduler, found = start(*"abcd", BLOOM_BUDGET={"*": 2})
    assert found == ["a", "b"]
    stats = scheduler.stats
    assert (stats.get_value("scheduler/capped"), stats.get_value("scheduler/enqueued")) == (2, 2)
    with pytest.raises(SharedFilterError, match=r"= {.*this one has {}: all need the same"):
        build()
    scheduler.close("finished")
    assert stats.get_value("scheduler/failed") == 0
    assert "failed and" not in caplog.text
    url = scheduler.crawler.settings["BLOOM_REDIS_URL"]
    with RedisClient(url) as client:
        assert Failed(RedisDesk(client, f"{{{key}}}")).retry() == 2
    caplog.set_level("INFO")
    scheduler, found = start(BLOOM_BUDGET={"*": 3})
    assert "Asking 1 request that BLOOM_BUDGET had kept" in caplog.text
    assert found == ["c"]
    scheduler.close("finished")
    scheduler, found = start(BLOOM_BUDGET={"*": 4}, BLOOM_RETRY_FAILED=True)
    assert found == ["d"]


def test_a_round_goes_on_with_what_is_retried_whatever_the_next_is_called(build, key, caplog):
    """A new one begins if the budget has no room for any of it."""

    def start(round_, most, *names):
        caplog.clear()
        scheduler = build(BLOOM_REDIS_ROUND=round_, BLOOM_BUDGET={"*": most})
        state = scheduler.worker._state
        found = asked(scheduler, names)
        scheduler.worker.store.start_done = True
        talk(scheduler)
        scheduler.worker.end(finished=True)
        with RedisClient(scheduler.crawler.settings["BLOOM_REDIS_URL"]) as client:
            Failed(RedisDesk(client, f"{{{key}}}")).retry(**CAPPED)
        return state.round, state.begins, found

    assert start("1", 2, *"abcd") == ("1", True, ["a", "b"])
    assert start("2", 3) == ("1", False, ["c"])
    assert "is in round '1', which is not over" in caplog.text
    assert start("2", 3, "e") == ("2", True, ["e"])
    assert start("3", 3) == ("2", False, ["d"])


def test_of_what_cannot_be_serialized_a_record_is_kept(build, caplog):
    """It is asked when Redis has counted it; over the budget it is done, and no retry helps."""
    scheduler = build(BLOOM_BUDGET={"*": 2})
    for name in "abbc":
        scheduler.enqueue_request(request(name, meta={"function": lambda: None}))
    assert len(scheduler) == 3
    assert scheduler.next_request() is None
    talk(scheduler)
    assert [name_of(scheduler.next_request()) for _ in "ab"] == ["b", "a"]
    assert scheduler.next_request() is None
    stats = scheduler.stats
    assert (stats.get_value("scheduler/capped"), stats.get_value("scheduler/enqueued")) == (1, 2)
    talk(scheduler)
    assert len(scheduler) == 0
    failed = Failed(scheduler.worker._desk)
    (found,) = failed.requests()
    assert (name_of(found), found.reason, found.attempts) == ("c", "unserializable", 0)
    assert found.exception == "callback parse, slot 'example.com'"
    assert failed.retry() == 0
    scheduler.close("finished")
    assert "1 request failed and stays in the crawl: 1 unserializable." in caplog.text
    assert "such as" not in caplog.text
    with RedisClient(scheduler.crawler.settings["BLOOM_REDIS_URL"]) as client:
        books = next(queue_findings(client, scheduler.worker.key)).text
        assert "1 failed one can be read" in books
    scheduler = build(BLOOM_BUDGET={"*": 2}, BLOOM_RETRY_FAILED=True)
    assert "such as http://example.com/c (callback parse, slot 'example.com')" in caplog.text
    assert Failed(scheduler.worker._desk).drop() == 1
    assert Failed(scheduler.worker._desk).by_reason() == {}
    scheduler.close("finished")


def test_a_page_does_not_wait_for_what_is_over_the_budget(build):
    """And lives in memory only."""
    scheduler = build(BLOOM_BUDGET={"*": 1})
    scheduler.enqueue_request(request("a"))
    talk(scheduler)
    page = scheduler.next_request()
    scheduler.enqueue_request(request("b", meta={"function": lambda: None}))
    talk(scheduler)
    talk(scheduler)
    assert page not in scheduler.ledger.in_flight
    assert not scheduler.worker.store.claims.all


def test_urls_that_are_pushed_by_hand_count(join):
    """In a crawl that has a budget, whatever the settings of the command say."""
    worker = join(BLOOM_BUDGET={"*": 2})
    pages = [request(each).url for each in "abbc"]
    assert worker.push_from_outside(*pages) == (2, 1, 1)
    assert names(worker) == ["a", "b"]


# by pattern

EARLY, LATE = "*/[a-m]", "*m/[n-z]"


def test_a_request_counts_in_slot_and_pattern_or_in_none(join):
    """In one call, also of several workers; the one that is full has a name."""
    limits = {"BLOOM_BUDGET": {"example.com": 3, EARLY: 2, "*": 1}}
    worker, other = (join(**limits) for _ in range(2))
    push(worker, *"abc")
    push(other, "d", slot="*/[a-m]")  # a slot with the name of the pattern
    push(other, "x", "y", slot="*/[a-m]")
    worker.exchange()
    other.exchange()
    push(other, *"ez0")
    other.exchange()
    assert sorted(names(worker) + names(other)) == ["a", "b", "x", "z"]
    assert (worker.full, other.full) == (
        {b"*/[a-m]": 1},
        {b"*/[a-m]": 2, "*/[a-m]": 1, "example.com": 1},
    )
    full = {name_of(each): each.exception for each in worker.failed.requests(**CAPPED)}
    pattern = "BLOOM_BUDGET has no room for pattern '*/[a-m]'"
    assert full == {
        **dict.fromkeys("cde", pattern),
        "y": pattern.replace("pattern", "slot"),
        "0": "BLOOM_BUDGET has no room for slot 'example.com'",
    }
    assert worker.failed.desk.count(Filter(KEPT)).by == {"example.com": 3, "*/[a-m]": 2}
    assert all(each.sound for each in queue_findings(worker.client, worker.key))


def test_a_retry_asks_slot_and_pattern(join):
    """One whose pattern is full keeps no other from being asked: at work, and at a start."""
    worker = join(BLOOM_BUDGET={"*": 9, EARLY: 1, LATE: 1})
    push(worker, *"abcxyz0")
    push(worker, *"de", slot="other")
    assert names(worker) == ["0", "a", "x"]
    assert worker.failed.retry(**CAPPED) == 0
    worker.store.leave(over=True, seconds=1)
    assert worker.failed.retry(**CAPPED) == 6
    worker.close()
    worker = join(BLOOM_BUDGET={"*": 9, EARLY: 1, LATE: 2}, BLOOM_REDIS_ROUND="two")
    assert worker.failed_at_start.desk.retry_ordered() == 1
    assert len(names(worker)) == 1
    worker.leave()
    # what does not match any more has room
    worker = join(BLOOM_BUDGET={"*": 9, "*/[ab]": 1, LATE: 2})
    worker.exchange()
    assert worker.failed.retry(slots=["other"]) == 2
    assert worker.failed.retry(**CAPPED) == 2
    assert len(names(worker)) == 4
    assert len(capped(worker)) == 1


@pytest.mark.parametrize("budget", ["?", "{", ""])
def test_an_unknown_budget_stops_no_command(join, redis_server, budget):
    """As a start leaves it that was aborted: the next one sets its own."""
    worker = join(BLOOM_BUDGET={"*": 9, EARLY: 1})
    push(worker, *"ab")
    assert names(worker) == ["a"]
    redis_server.command("HSET", f"{worker.key}:crawl", "budget", budget)
    assert worker.failed.drop() == 1
    worker.leave()
    worker = join(BLOOM_BUDGET={"*": 9, EARLY: 2})
    push(worker, *"cd")
    assert names(worker) == ["c"]


def test_what_failed_in_an_earlier_round_counts_in_its_pattern(join):
    worker = join()
    push(worker, *"abx")
    assert fail_all(worker) == [*"abx"]
    worker = next_round(worker, join, "two", BLOOM_BUDGET={"*/[a-m]": 2})
    push(worker, "c")
    assert names(worker) == ["c"]
    assert worker.failed.retry(reasons=["down"]) == 2
    assert len(names(worker)) == 2
    (left,) = worker.failed.requests()
    assert left.reason == "capped"


def test_a_pattern_counts_in_each_round_and_from_its_change_on(join):
    """And what is pending, claimed or later, where the budget is new."""
    worker = join()
    push(worker, "a", "b", "x")
    worker.next()
    worker.exchange()
    push(worker, "c", delay=1000)
    worker.exchange()
    worker.die()
    worker = join(BLOOM_BUDGET={EARLY: 4})
    push(worker, *"de")
    assert names(worker) == ["a", "b", "d", "x"]
    assert capped(worker) == ["e"]
    worker.leave()
    for limits, pushed, found in (
        ({EARLY: 4, "*": 99}, "f", ""),
        ({"*/[a-n]": 1, "*": 99}, "gh", "g"),
        ({EARLY: 1, "*": 99}, "ij", "i"),
    ):
        worker = join(BLOOM_BUDGET=limits)
        push(worker, *pushed)
        assert "".join(names(worker)) == found
        if "i" not in found:
            worker.leave()
    let_pass(worker, 1000)
    assert names(worker) == ["c"]
    worker = next_round(worker, join, "two", BLOOM_BUDGET={EARLY: 1, "*": 99})
    push(worker, *"kl")
    assert names(worker) == ["k"]


def test_a_redirect_counts_where_it_lands(join):
    worker = join(BLOOM_BUDGET={"example.com": 3, EARLY: 1, LATE: 1})
    push(worker, "a")
    page = worker.next()
    for name in "abxy":
        worker.store.push(request(name, dont_filter=True), [page])
    worker.store.done(page)
    worker.exchange()
    push(worker, *"cz01")
    worker.exchange()
    assert sorted(capped(worker)) == ["c", "y", "z"]
    assert names(worker) == ["0", "1", "a", "b", "x"]


def test_what_is_pushed_or_cannot_be_serialized_counts_in_its_pattern(build, join):
    """Also by hand, whatever the settings of the command say, and by a worker in memory."""
    scheduler = build(BLOOM_BUDGET={"*/[a-m]": 2, "*": 9})
    for name in "axbc":
        scheduler.enqueue_request(request(name, meta={"function": lambda: None}))
    talk(scheduler)
    assert sorted(fetched(scheduler)) == ["a", "b", "x"]
    assert scheduler.stats.get_value("scheduler/capped/*/[a-m]") == 1
    scheduler.close("finished")
    worker = join(BLOOM_BUDGET={EARLY: 3, "*": 9})
    pages = [request(each).url for each in "dezz"]
    assert worker.push_from_outside(*pages) == (2, 1, 1)
    assert names(worker) == ["d", "z"]
