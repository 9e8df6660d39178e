"""What a page yields with dont_filter: given once, however often its callback is repeated."""

import os

import pytest
from scrapy import Request
from scrapy.http import Response

from tests.crawl.engine import ChangedSpider, name_of, request, unserializable
from tests.crawl.rounds import waited_for
from tests.failures import Failed

pytestmark = pytest.mark.skipif(os.name != "posix", reason="JOBDIR needs Linux or macOS")


def child(name, **options):
    """Return what a callback yields without the filter."""
    return request(name, dont_filter=True, **options)


def in_memory(name):
    return unserializable(name, dont_filter=True)


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


def begun(make_round, *things):
    """Return a job, and a page in progress that has given `things`, which is committed."""
    job = make_round()
    page = page_in_progress(job)
    give(job, page, *things)
    job.commit()
    return job, page


def again(job):
    """Return the page that is repeated, and everything before it."""
    while name_of(popped := job.pop()) != "page":
        pass
    return popped


def give_again(job, *things):
    """The callback of the repeated page yields `things`; return what is scheduled."""
    return give(job, again(job), *things)


def test_children_are_given_once(make_round, crash_round):
    """The k-th with a fingerprint is left out only if the job has k of them."""
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


def test_children_are_given_once_under_two_releases_of_scrapy(make_round, crash_round, monkeypatch):
    """`to_dict()` has its keys in another order in each."""
    begun(make_round, child("a"))
    monkeypatch.setattr(Request, "attributes", Request.attributes[::-1])
    assert give_again(crash_round(), child("a"), child("b")) == ["b"]


def test_only_the_page_that_is_repeated_leaves_them_out(make_round, crash_round):
    """Another page may yield the same, and so may this one when it is fetched anew."""
    _, page = begun(make_round, child("a"))
    resumed = crash_round().pushed("other", priority=10)
    other = resumed.pop()
    assert give(resumed, other, child("a")) == ["a"]
    page = again(resumed)
    resumed.done(page)  # its callback has yielded nothing
    resumed.commit()
    resumed.push("page", priority=10, dont_filter=True)
    assert give(resumed, again(resumed), child("a")) == ["a"]


def test_what_was_filtered_is_left_to_the_filter(make_round, crash_round):
    """A request without dont_filter is none of those that were taken, or left out."""
    begun(make_round, child("a"))
    assert give_again(crash_round(), request("a"), child("a")) == ["a"]


def test_another_order_loses_nothing(make_round, crash_round):
    """What is in no fingerprint tells children apart that come in another order."""
    one, two = (child("api", headers={"Page": str(n)}, cb_kwargs={"n": n}) for n in (1, 2))
    begun(make_round, one)
    give_again(resumed := crash_round(), two.copy(), one.copy())
    numbers = []
    while (popped := resumed.pop()) is not None:
        numbers.append(popped.cb_kwargs["n"])
    assert sorted(numbers) == [1, 2]


def test_what_scrapy_measures_does_not_tell_them_apart(make_round, crash_round):
    """A callback that hands on the meta of its response."""
    begun(make_round, child("a", meta={"download_latency": 0.1, "depth": 1}))
    latency = {"download_latency": 0.2, "depth": 1}
    assert give_again(crash_round(), child("a", meta=latency)) == []


def test_one_object_that_two_pages_give(make_round, crash_round):
    """It is a child of each."""
    job = make_round()
    page = page_in_progress(job)
    job.push("other", priority=8)
    other = job.pop()
    same = child("a")
    give(job, page, same)
    give(job, other, same)
    job.commit()
    resumed = crash_round()
    pages = {name_of(popped): popped for popped in (resumed.pop(), resumed.pop())}
    assert give(resumed, pages["page"], child("a")) == []
    assert give(resumed, pages["other"], child("a")) == []


def test_pages_in_memory_that_are_alike(make_round, crash_round):
    """What came of one is forgotten with the last of them, since each may be repeated."""
    job = make_round()
    page = page_in_progress(job)
    give(job, page, in_memory("m"), in_memory("m"))
    first, second = job.pop(), job.pop()
    give(job, first, child("a"))
    job.done(first)
    job.commit()
    resumed = crash_round()
    repeated = again(resumed)
    give(resumed, repeated, in_memory("m"), in_memory("m"))
    assert give(resumed, resumed.pop(), child("a")) == []
    assert give(resumed, resumed.pop(), child("a")) == ["a"]
    give(job, second, child("a"))
    for done in (second, page):
        job.done(done)
    job.commit()
    assert job.round.file.query("SELECT * FROM taken_children") == []


def test_a_page_in_memory_that_does_not_come_again(make_round, crash_round):
    """What came of it is forgotten with the round, and not left out in the next one."""
    job = make_round().started()
    page = page_in_progress(job)
    give(job, page, in_memory("m"))
    give(job, job.pop(), child("a"))
    job.commit()
    resumed = crash_round().started()
    resumed.names()
    folder = resumed.crawler.settings["JOBDIR"]
    resumed.close()
    job = make_round(folder).started().pushed("page", dont_filter=True)
    give(job, job.pop(), in_memory("m"))
    assert give(job, job.pop(), child("a")) == ["a"]


def unreadable_page(make_round):
    """Return a job that cannot read a page back which has given a child."""
    job = make_round()
    job.push("page", priority=9, callback=job.spider.parse_other)
    give(job, job.pop(), child("a"))
    job.commit()
    job.drop()
    return make_round(spider=ChangedSpider)


def test_a_page_that_could_not_be_read_back(make_round):
    """It keeps its children until it can be read back."""
    without = unreadable_page(make_round)
    assert without.names() == ["a"]
    assert without.stat("scheduler/unreadable") == 1
    without.close("shutdown")
    assert give_again(make_round(), child("a")) == []


@pytest.mark.parametrize("change", [Failed.retry, Failed.drop])
def test_an_unreadable_page_is_asked_again_or_forgotten(make_round, tmp_path, change):
    """Its children go with it."""
    unreadable_page(make_round).finish("shutdown")
    assert change(Failed(tmp_path / "job")) == 1
    resumed = make_round()
    taken = resumed.round.file.query("SELECT COUNT(*) FROM taken_children")
    if change is Failed.retry:
        assert taken == [(1,)]
        assert give(resumed, again(resumed), child("a")) == []
    else:
        assert taken == [(0,)]
        assert resumed.pop() is None


def test_a_file_that_fails_stops_the_job(make_round, crash_round, caplog):
    """Nothing more is acknowledged or handed out."""
    _, page = begun(make_round, child("a"))
    resumed = crash_round()
    page = again(resumed)
    resumed.round.file._connection.execute("DROP TABLE taken_children")
    give(resumed, page, child("a"))
    assert "The stored requests failed" in caplog.text
    assert resumed.scheduler.next_request() is None
