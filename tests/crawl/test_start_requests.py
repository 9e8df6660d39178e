"""Start requests in an unfinished round: each is taken once, and no other is left out."""

import secrets
import time
from collections import Counter

import pytest
from scrapy import Request

from scrapy_bloom.crawl.start_requests import key_of
from tests.crawl.engine import name_of, request, unserializable
from tests.crawl.engine import unfiltered as start


def test_taken_start_requests_are_left_out(make_round, crash_round, caplog):
    """After a kill the round goes on with items and those that it has not taken, and says so."""
    caplog.set_level("INFO")
    job = make_round()
    starting = job.starting(start("a"), start("b"), start("c"))
    next(starting)
    next(starting)
    job.commit()
    resumed = crash_round()
    item, *sent = resumed.starting({"n": 1}, start("a"), start("b"), start("c"))
    assert (item, [name_of(each) for each in sent]) == ({"n": 1}, ["c"])
    (line,) = [r.getMessage() for r in caplog.records if "start request" in r.getMessage()]
    assert ("skipped 2 start" in line, resumed.stat("scheduler/start_skipped")) == (True, 2)
    assert sorted(resumed.names()) == ["a", "b", "c"]


SESSIONS = [
    [{}, {}, {}],
    [{"meta": {"cookiejar": number}} for number in range(6)],
    [{"meta": {"proxy": f"http://{number}"}} for number in range(4)],
    [{"cookies": {"id": number}} for number in range(4)],
    [{"cookies": [{"name": "id", "value": number}]} for number in range(4)],
    [{"headers": {"Cookie": f"id={number}"}} for number in range(4)],
    [{"headers": {"authorization": f"Basic {number}"}} for number in range(4)],
    [{"callback": "parse"}, {"callback": "parse_other"}, {}, {"cookies": {"id": 1}}],
]


@pytest.mark.parametrize("sessions", SESSIONS)
def test_sessions_are_told_apart_in_any_order(job, crash_round, sessions):
    """Start requests for one page differ by whose they are, in any order, equal ones by number."""

    def requests(job):
        for options in sessions:
            callback = options.get("callback")
            method = {"callback": getattr(job.spider, callback)} if callback else {}
            yield start("login", **(options | method))

    def whose(requests):
        return Counter(
            str((each.meta, each.headers, each.cookies, getattr(each.callback, "__name__", None)))
            for each in requests
        )

    starting = job.starting(*requests(job))
    sent = [next(starting), next(starting)]
    job.commit()
    resumed = crash_round()
    sent += resumed.starting(*reversed([*requests(resumed)]))
    assert whose(sent) == whose(requests(resumed))


def test_the_order_of_cookies_does_not_tell_start_requests_apart():
    """They may come out of a set, whose order is another one in each process."""
    one, two = {"name": "a", "value": "1"}, {"name": "b", "value": "2"}
    requests = [Request("data:,", cookies=each) for each in ([one, two], [two, one])]
    assert len({key_of(each, bytes(20)) for each in requests}) == 1


def test_what_differs_in_each_run_does_not_tell_start_requests_apart(job, crash_round):
    """A time, a random header, an address: those are the same requests, by their order."""

    def each():
        meta = {"time": time.time_ns(), "cookiejar": object()}
        options = {"headers": {"User-Agent": secrets.token_hex()}, "cb_kwargs": {**meta}}
        options["priority"] = secrets.randbelow(9)
        return start("a", meta=meta, errback=lambda failure: None, **options)

    popped = next(job.starting(each(), each()))
    job.pop()
    job.commit()
    job.done(popped)
    job.commit()
    assert len(crash_round().start(each(), each())) == 1


def test_a_request_that_was_dropped_is_no_occurrence_that_was_taken(make_round, crash_round):
    """A filtered start request leaves its unfiltered twin alone."""
    job = make_round().pushed("a")
    assert (job.start(request("a"), start("a")), len(job.scheduler)) == (["a", "a"], 2)
    job.commit()
    resumed = crash_round()
    assert (resumed.start(request("a"), start("a")), len(resumed.scheduler)) == (["a"], 2)


def test_a_link_back_to_a_start_page_is_new(make_round, crash_round):
    """The filter does not learn of start requests, in this run or in the next."""
    job = make_round().started("a", "b")
    job.commit()
    resumed = crash_round().started("a", "b")
    for each in (job, resumed):
        assert [each.push("a"), each.push("a")] == [True, False]


def test_only_what_leaves_start_is_a_start_request(job, crash_round):
    """Retries, redirects and children copy the meta of a start request, and are none."""
    (first,) = job.starting(start("a", meta={"is_start_request": True}))
    for copy in (first.copy(), first.replace(dont_filter=True), first.replace(priority=-1)):
        job.scheduler.enqueue_request(copy)
    job.commit()
    assert crash_round().start(start("a"), start("a")) == ["a"]


def test_what_other_middlewares_make_of_a_start_request_counts(make_round, crash_round):
    """What one replaces is recognised, and what it adds is one as well."""

    async def replacing(output):
        async for thing in output:
            yield thing.replace(url=f"{thing.url}?session=1")
        yield start("added")

    job = make_round()
    assert job.start(start("a"), middlewares=[replacing]) == ["a?session=1", "added"]
    job.commit()
    assert crash_round().start(start("a"), middlewares=[replacing]) == []
    assert crash_round().start(start("a")) == ["a"]


def test_twins_of_which_one_lives_in_memory_are_told_apart(job, crash_round):
    """What was taken is the second occurrence, so the first one is sent again."""
    job.start(unserializable("a", dont_filter=True), start("a", priority=1))
    job.commit()
    (sent,) = crash_round().starting(unserializable("a", dont_filter=True), start("a", priority=1))
    assert "function" in sent.meta


@pytest.mark.parametrize(
    ("settings", "meta", "sent"),
    [
        ({}, {}, []),
        ({"BLOOM_REPEAT_START": "True"}, {}, ["login", "a"]),
        ({}, {"bloom_repeat_start": True}, ["login"]),
        ({}, {"bloom_repeat_start": False}, []),
    ],
)
def test_start_requests_are_repeated_on_demand(make_round, job, crash_round, settings, meta, sent):
    """The setting repeats all, the meta key one; what was repeated counts as taken."""
    things = (start("login", meta=meta), start("a"))
    job.start(*things)
    job.commit()
    resumed = crash_round(**settings)
    assert resumed.start(*things) == sent
    resumed.close("shutdown")
    again = make_round(resumed.crawler.settings["JOBDIR"])
    assert again.start(*things) == [name for name in sent if meta]


def test_a_million_skipped_requests_do_not_stop_the_reactor(make_round):
    """The reactor has a turn every hundred skipped ones."""
    names = [str(number) for number in range(250)]
    make_round().started(*names).close("shutdown")
    output = make_round().engine.scraper.spidermw.methods["process_start"][0]
    turns = 0

    async def things():
        for name in names:
            yield start(name)

    for turn in anext(output(things()), None).__await__():
        turns += 1
        turn.callback(None)
    assert turns == 2


def test_a_store_that_fails_ends_the_crawl_and_not_start(make_round, job, next_turn):
    """The spider closes with bloom_error, and nothing is skipped that was not taken."""
    starting = job.starting(start("a"), start("b"))
    next(starting)
    job.round.file._connection.execute("PRAGMA query_only = 1")
    assert len(list(starting)) == 1
    next_turn()
    assert job.engine.closed == ["bloom_error"]
    job.drop()
    assert make_round().start(start("a"), start("b")) == ["a", "b"]


def test_the_scrapy_of_older_middlewares_is_served(make_round):
    """Scrapy 2.14 with spider middlewares that know no process_start has another chain."""
    for expected in (["a", "b"], []):
        job = make_round()
        (process,) = job.engine.scraper.spidermw.methods["process_start_requests"]
        sent = process(iter([start("a"), start("b")]), job.spider)
        assert [job.scheduler.enqueue_request(each) and name_of(each) for each in sent] == expected
        job.close("shutdown")
