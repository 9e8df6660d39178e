"""What a page yields with dont_filter: given once, however often its callback is repeated."""

from collections import UserList
from pathlib import Path

import pytest
from scrapy import Request
from scrapy.http import Response
from scrapy.utils.asyncgen import as_async_generator, collect_asyncgen

from tests.contracts.places import send_again
from tests.crawl.engine import ChangedSpider, name_of, query, request, unserializable
from tests.crawl.engine import unfiltered as child
from tests.crawl.rounds import waited_for
from tests.failures import Failed


def in_memory(name):
    return unserializable(name, dont_filter=True)


def give(job, page, *things):
    """The callback of `page` yields `things`; return the names of what is scheduled."""
    *_, process = job.engine.scraper.spidermw.methods["process_spider_output"]
    output = process(Response(page.url, request=page), as_async_generator(things))
    arrived = waited_for(collect_asyncgen(output))
    for thing in arrived:
        job.scheduler.enqueue_request(thing)
    return [name_of(thing) for thing in arrived]


def page_in_progress(job):
    job.push("page", priority=9)
    return job.pop()


def again(job):
    """Return the page that is repeated, and everything before it."""
    while name_of(popped := job.pop()) != "page":
        pass
    return popped


class Compact(Request):
    """Has its own form, without defaults."""

    def to_dict(self, *, spider=None):
        return {name: value for name, value in super().to_dict(spider=spider).items() if value}


def test_a_class_that_leaves_out_defaults_gives_its_children_once(job, crash_round):
    made = Compact("http://example.com/c", dont_filter=True)
    assert give(job, page_in_progress(job), made) == ["c"]
    job.commit()
    resumed = crash_round()
    assert give(resumed, again(resumed), made.copy()) == []


def test_children_are_given_once(job, crash_round, monkeypatch):
    """The k-th with a fingerprint is left out only if the job has k of them, whatever Scrapy
    measures or their time, in whatever order a release has its keys, or a process the values of a
    set. The filter has the others. One that has no text, or is changed later, stops nothing."""
    measured = [
        {"download_latency": n, "bloom_not_before": -n, "bloom_repeat_start": True, "tags": tags}
        for n, tags in ((1, {0, 8}), (2, {8, 0}))
    ]
    headers, odd = {"Referer": "http://example.com"}, {"has no form": {1: 1, "a": 1}}
    page = page_in_progress(job)
    first = [
        child("f"),
        child("a", meta=measured[0], headers=headers),
        *(child("b", cb_kwargs=odd) for _ in "bb"),
        child("e", cb_kwargs={"is half-built": UserList.__new__(UserList)}),
    ]
    assert give(job, page, *first) == ["f", "a", "b", "b", "e"]
    first[0].callback = print
    job.commit()
    give(job, page, child("c"))  # is lost with the process
    resumed = crash_round()
    monkeypatch.setattr(Request, "attributes", Request.attributes[::-1])
    page = again(resumed)
    # what is in no fingerprint tells children apart that come in another order
    given = [child("a", cb_kwargs={"n": 2}), child("a", meta=measured[0], headers={"A": "b"})]
    given += (child(name, cb_kwargs=odd) for name in "dcbbb")
    given += [child("a", meta=measured[1], headers=headers), request("a"), first[-1]]
    assert give(resumed, page, *given) == ["a", "a", "d", "c", "b", "a", "e"]
    assert resumed.stat("scheduler/children_skipped") == 3
    monkeypatch.undo()
    resumed.done(page)
    assert sorted(resumed.names()) == [*"aaaabbbcdeef"]


def test_only_the_page_that_is_repeated_leaves_them_out(job, crash_round):
    """Another page may yield the same, and so may this one when it is fetched anew."""
    give(job, page_in_progress(job), child("a"))
    job.commit()
    resumed = crash_round().pushed("other", priority=10)
    other = resumed.pop()
    assert give(resumed, other, child("a")) == ["a"]
    page = again(resumed)
    send_again(resumed, page)
    resumed.done(page)
    page = again(resumed)
    assert give(resumed, page, child("a")) == []
    resumed.done(page)
    resumed.commit()
    resumed.push("page", priority=10, dont_filter=True)
    assert give(resumed, again(resumed), child("a")) == ["a"]


def test_pages_in_memory_that_are_alike(job, crash_round):
    """What came of one goes with the last of them, for each may be repeated, or with the round."""
    page = page_in_progress(job)
    give(job, page, in_memory("m"), in_memory("m"))
    first, second = job.pop(), job.pop()
    give(job, first, child("a"))
    job.done(first)
    job.commit()
    resumed, over = crash_round(), crash_round().started()
    over.finish()
    assert (
        query(Path(over.crawler.settings["JOBDIR"]), "SELECT * FROM taken WHERE source != 0") == []
    )
    repeated = again(resumed)
    give(resumed, repeated, in_memory("m"), in_memory("m"))
    assert give(resumed, resumed.pop(), child("a")) == []
    assert give(resumed, resumed.pop(), child("a")) == ["a"]
    give(job, second, child("a"))
    for done in (second, page):
        job.done(done)
    job.commit()
    assert job.round.file.query("SELECT * FROM taken WHERE source != 0") == []


@pytest.mark.parametrize("change", [None, Failed.retry, Failed.drop])
def test_a_page_that_could_not_be_read_back(make_round, job, tmp_path, change):
    """It keeps its children until it can be read back, or is asked again; they go with it."""
    job.push("page", priority=9, callback=job.spider.parse_other)
    give(job, job.pop(), child("a"))
    job.commit()
    job.drop()
    without = make_round(spider=ChangedSpider)
    assert without.finish("shutdown") == ["a"]
    assert without.stat("scheduler/unreadable") == 1
    assert change is None or change(Failed(tmp_path / "job")) == 1
    resumed = make_round()
    taken = resumed.round.file.query("SELECT COUNT(*) FROM taken WHERE source != 0")
    assert taken == [(change is not Failed.drop,)]
    assert change is Failed.drop or give(resumed, again(resumed), child("a")) == []
    assert resumed.pop() is None
