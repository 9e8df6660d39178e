"""What a page yields with dont_filter: given once, however often its callback is repeated."""

import os

import pytest
from scrapy.http import Response

from tests.durable.engine import name_of, request
from tests.durable.rounds import waited_for

pytestmark = pytest.mark.skipif(os.name != "posix", reason="JOBDIR needs Linux or macOS")


def child(name, **options):
    """Return what a callback yields without the filter."""
    return request(name, dont_filter=True, **options)


def in_memory(name):
    return child(name, meta={"function": lambda: None})


def give(job, page, *things):
    """The callback of `page` yields `things`; return the names of what is scheduled."""
    *_, process = job.engine.scraper.spidermw.methods["process_spider_output"]

    async def result():
        for thing in things:
            yield thing

    async def output():
        return [thing async for thing in process(Response(page.url, request=page), result())]

    arrived = waited_for(output())
    for thing in arrived:
        job.scheduler.enqueue_request(thing)
    return [name_of(thing) for thing in arrived]


def page_in_progress(job):
    """Return a stored page that the engine works on."""
    job.push("page", priority=9)
    return job.pop()


def again(job):
    """Return the page that is repeated, and everything before it."""
    while name_of(popped := job.pop()) != "page":
        pass
    return popped


def test_children_are_given_once(make_round, crash_round):
    """A repeated callback gives those that it has not given; the k-th with a fingerprint
    only if the job has k of them."""
    job = make_round()
    page = page_in_progress(job)
    assert give(job, page, child("a"), child("b"), child("b")) == ["a", "b", "b"]
    job.commit()
    give(job, page, child("c"))  # is lost with the process
    resumed = crash_round()
    page = again(resumed)
    given = [child(name) for name in "abbbcd"]
    assert give(resumed, page, *given) == ["b", "c", "d"]
    assert resumed.stat("scheduler/children_skipped") == 3
    resumed.done(page)
    assert sorted(resumed.names()) == ["a", "b", "b", "b", "c", "d"]


def test_a_child_that_is_done_is_not_given_again(make_round, crash_round):
    """It may be fetched and acknowledged long before its page is."""
    job = make_round()
    page = page_in_progress(job)
    give(job, page, child("a"))
    fetched = job.pop()
    assert name_of(fetched) == "a"
    job.done(fetched)
    job.commit()
    resumed = crash_round()
    assert give(resumed, again(resumed), child("a")) == []


def test_two_crashes(make_round, crash_round):
    """What the second start has skipped and given is counted at the third."""
    job = make_round()
    page = page_in_progress(job)
    give(job, page, child("a"))
    job.commit()
    job.drop()
    job = make_round()
    give(job, again(job), child("a"), child("a"), child("b"))
    job.commit()
    resumed = crash_round()
    assert give(resumed, again(resumed), *[child(n) for n in "aaab"]) == ["a"]


def test_a_child_is_taken_with_its_row_or_not_at_all(make_round, crash_round):
    """Whatever part of the transaction a crash leaves."""
    job = make_round()
    page = page_in_progress(job)
    job.commit()
    give(job, page, child("a"))
    job.scheduler.round.file.write()
    resumed = crash_round()
    assert give(resumed, again(resumed), child("a")) == ["a"]


def test_only_the_page_that_is_repeated_leaves_them_out(make_round, crash_round):
    """Another page may yield the same, and so may this one when it is fetched anew."""
    job = make_round()
    page = page_in_progress(job)
    give(job, page, child("a"))
    job.commit()
    resumed = crash_round()
    resumed.push("other", priority=10)
    other = resumed.pop()
    assert give(resumed, other, child("a")) == ["a"]
    page = again(resumed)
    resumed.done(page)  # its callback has yielded nothing
    resumed.commit()
    resumed.push("page", priority=10, dont_filter=True)
    assert give(resumed, again(resumed), child("a")) == ["a"]


def test_what_was_filtered_is_left_to_the_filter(make_round, crash_round):
    """A request without dont_filter is none of those that were taken, or left out."""
    job = make_round()
    page = page_in_progress(job)
    give(job, page, child("a"))
    job.commit()
    resumed = crash_round()
    assert give(resumed, again(resumed), request("a"), child("a")) == ["a"]


def test_children_of_a_page_in_memory_belong_to_the_stored_one_before(make_round, crash_round):
    """It is repeated with that."""
    job = make_round()
    page = page_in_progress(job)
    give(job, page, in_memory("m"))
    middle = job.pop()
    assert name_of(middle) == "m"
    give(job, middle, in_memory("n"))
    last = job.pop()
    give(job, last, child("a"))
    for done in (page, middle):
        job.done(done)
    job.commit()
    resumed = crash_round()
    page = again(resumed)
    assert give(resumed, page, in_memory("m")) == ["m"]
    assert give(resumed, resumed.pop(), in_memory("n")) == ["n"]
    assert give(resumed, resumed.pop(), child("a")) == []


def test_nothing_is_kept_of_pages_that_are_done(make_round):
    """Neither when a page is done in the commit of its children, nor when it is later."""
    job = make_round()
    page = page_in_progress(job)
    give(job, page, child("a"))
    job.commit()
    taken = "SELECT COUNT(*) FROM taken_children"
    assert job.round.file.query(taken) == [(1,)]
    job.done(page)
    job.commit()
    assert job.round.file.query(taken) == [(0,)]
    page = job.pop()
    give(job, page, child("b"))
    job.done(page)
    job.commit()
    assert job.round.file.query(taken) == [(0,)]


def test_a_file_that_fails_stops_the_job(make_round, crash_round, caplog):
    """Nothing more is acknowledged or handed out."""
    job = make_round()
    page = page_in_progress(job)
    give(job, page, child("a"))
    job.commit()
    resumed = crash_round()
    page = again(resumed)
    resumed.round.file._connection.execute("DROP TABLE taken_children")
    give(resumed, page, child("a"))
    assert "The stored requests failed" in caplog.text
    assert resumed.scheduler.next_request() is None
