"""What a job's feeds hold, whatever becomes of the process."""

import gzip
import json
import logging
import os
import re
import resource
import sqlite3
from datetime import datetime, timedelta
from functools import partial
from io import BytesIO
from itertools import count
from operator import itemgetter
from pathlib import Path
from types import SimpleNamespace

import pytest
from scrapy import Request, exporters, signals
from scrapy.extensions import feedexport
from scrapy.extensions.feedexport import FeedExporter, FTPFeedStorage
from scrapy.http import Response
from scrapy.utils.test import get_crawler
from twisted.internet.defer import Deferred

from scrapy_bloom import DurableFeedExporter, DurableScheduler, FeedError, JobDirectoryError
from scrapy_bloom.crawl.failed_request import item_refused
from scrapy_bloom.feeds.durable_feeds import DurableFeeds
from scrapy_bloom.feeds.file import FeedFile
from scrapy_bloom.feeds.outbox import Outbox
from scrapy_bloom.feeds.waiting import WaitingFeed, overwrites
from scrapy_bloom.sqlite.listing import stopped_job
from scrapy_bloom.sqlite.status import JobStatus
from tests.crawl.engine import Job, query, request
from tests.crawl.feed_jobs import FeedJob, Shelf
from tests.crawl.test_rounds import phases
from tests.failures import Failed
from tests.fakes import Engine, raising
from tests.world import feeds as world_feeds
from tests.world.feeds import GZIP

GOES_ON = request("never")
"""A start request that is not done, so that the round is not over."""


class Shy(dict):
    """An item that cannot be pickled."""

    __reduce_ex__ = raising(TypeError("shy"))


@pytest.fixture
def job(tmp_path, monkeypatch, opened):
    """Return a function that opens a job with these feeds, which commits when it is told to."""
    monkeypatch.setattr(DurableScheduler, "commit_seconds", 1000)

    def make(feeds, *start, later=False, **settings):
        feeds = {uri if ":" in uri else tmp_path / uri: options for uri, options in feeds.items()}
        return opened(FeedJob(tmp_path, feeds, **settings), *start, later=later)

    return make


def numbers(path):
    """Return the numbers in a feed of JSON or JSON lines."""
    data = path.read_bytes()
    if path.suffix == ".json":
        return [each["n"] for each in json.loads(data)]
    lines = (gzip.decompress(data) if path.suffix == ".gz" else data).splitlines()
    return [json.loads(line)["n"] for line in lines]


# -- one item, one commit ----------------------------------------------------------


@pytest.mark.parametrize("left", ["torn", "zeros"])
def test_what_was_written_and_not_recorded_is_not_written_twice(tmp_path, job, left):
    """A torn line, and a file of which a power cut has left a page, and zeros behind it."""
    a, path = job({"a.jl": "jsonlines"}, GOES_ON), tmp_path / "a.jl"
    late = a.page("p0", {"n": 0})  # is done after what comes later
    a.pages(p1={"n": 1}).done(late)
    a.pages(p2={"n": 2, "text": "x" * 9000}).drop()
    data = path.read_bytes()
    path.write_bytes(data[:-3] if left == "torn" else data[:4096].ljust(len(data), b"\0"))
    job({"a.jl": "jsonlines"})
    assert numbers(path) == [1, 0, 2]


def test_many_items_of_one_request_wait_on_the_disk(tmp_path, job, traced):
    """They take no memory there, and leave it when they are in the file."""
    a, text = job({"a.jl": "jsonlines"}), "x" * 20_000
    page = a.page("1", {"n": 0, "text": text})
    traced.start()
    a.items(page, *({"n": n, "text": text} for n in range(1, 500)))
    grown, _ = traced.get_traced_memory()
    assert grown < 2_000_000
    a.done(page)
    a.commit()
    a.commit()
    assert query(tmp_path / "job", "SELECT COUNT(*) FROM items") == [(0,)]


# -- whose item it is --------------------------------------------------------------


@pytest.mark.parametrize("answers_two", [False, True])
def test_an_item_of_nobody_is_final_when_all_is_done(tmp_path, job, answers_two):
    """And what was in progress is acknowledged no sooner, or what waits in memory. So is one of a
    response that answers two requests: a middleware may give out one object again and again."""
    a = job({"a.jl": "jsonlines"}, GOES_ON)
    one, two = a.page("1"), a.page("2")
    a.push("child", meta={"function": lambda: None})
    response = a.origins.process_response(two, a.response(one)) if answers_two else None
    a.item({"n": 0}, response)
    a.done(one)
    a.done(two)
    a.commit()
    assert not (tmp_path / "a.jl").exists()
    assert query(tmp_path / "job", "SELECT COUNT(*) FROM request") == [(3,)]
    a.done(a.pop())
    a.commit()
    assert numbers(tmp_path / "a.jl") == [0]
    assert query(tmp_path / "job", "SELECT COUNT(*) FROM request") == [(1,)]


def test_items_of_start_are_not_written_again_at_a_resume(tmp_path, job):
    """As many equal ones as the round has, and no fewer, in whatever order a process has a set; one
    with a time is written again, unless the feed leaves that out."""

    def given(at, tags):
        same, odd = {"n": 1, "tags": tags}, {"n": 2, "has no form": {1: 1, "a": 1}}
        return [GOES_ON, same, dict(same), odd, {"n": 3, "at": at}]

    feeds = {"a.jl": "jsonlines", "b.jl": {"format": "jsonlines", "fields": ["n"]}}
    a = job(feeds, *given(1, {0, 8}))
    a.commit()
    a.drop()
    b = job(feeds, *given(2, {8, 0}), {"n": 1, "tags": {0, 8}}, {"n": 4})
    b.commit()
    b.item({"n": 1})  # from an extension, say, and no start item
    b.finish()
    assert numbers(tmp_path / "a.jl") == [1, 1, 2, 3, 3, 1, 4, 1]
    assert numbers(tmp_path / "b.jl") == [1, 1, 2, 3, 1, 4, 1]


# -- files -------------------------------------------------------------------------


@pytest.mark.parametrize("uri", ["a.jl", "a.jl.gz"])
@pytest.mark.parametrize("overwrite", [False, True])
def test_what_was_there_before_the_round(tmp_path, job, overwrite, uri):
    """Stays, or goes with `overwrite`; what the round itself has written stays, also when Ctrl-C
    comes during the last page, until a start has said `finished`."""
    feeds, path = {uri: {"format": "jsonlines", "overwrite": overwrite}}, tmp_path / uri
    path.write_bytes(b'{"n": 0}\n')
    if uri.endswith("gz"):
        feeds[uri]["postprocessing"] = [GZIP]
        path.write_bytes(gzip.compress(path.read_bytes()))
    before = [] if overwrite else [0]
    job(feeds, GOES_ON).pages(p1={"n": 1}).close("shutdown")
    assert numbers(path) == [*before, 1]
    job(feeds).pages(p2={"n": 2}).finish("shutdown")
    job(feeds).close()
    assert numbers(path) == [*before, 1, 2]
    job(feeds).pages(p3={"n": 3}).close()
    assert numbers(path) == ([3] if overwrite else [0, 1, 2, 3])


@pytest.mark.parametrize("stores_empty", [True, False])
def test_an_empty_feed_is_as_scrapy_has_it(tmp_path, job, stores_empty):
    """A file with a head and a foot, or none without FEED_STORE_EMPTY."""
    path = tmp_path / "a.json"
    a = job({"a.json": {"format": "json", "store_empty": stores_empty}})
    assert not a.exporter.durable.is_in_place  # marks of pages wait for it
    a.close()
    assert (json.loads(path.read_bytes()) == []) if stores_empty else not path.exists()


@pytest.mark.parametrize("fails", ["_begin", "before_commit"])
def test_a_start_whose_feeds_cannot_begin_stores_none(tmp_path, job, monkeypatch, fails):
    """Also none that is empty, to which the next start would append its own."""
    call = getattr(DurableFeeds, fails)
    feeds = {"a.json": {"format": "json", "postprocessing": [GZIP]}}

    def call_and_fail(durable, *arguments):
        call(durable, *arguments)
        if durable._feeds:
            raise sqlite3.OperationalError("database or disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(DurableFeeds, fails, call_and_fail)
        job(feeds).close("bloom_error")
    assert not (tmp_path / "a.json").exists()
    job(feeds).pages(p1={"n": 1}).close()
    assert json.loads(gzip.decompress((tmp_path / "a.json").read_bytes())) == [{"n": 1}]


CSV = {"a.csv": "n,m\r\n1,1\r\n2,2\r\n,3\r\n", "shelf:a.csv": "m,n\r\n1,1\r\nm,n\r\n2,2\r\n3,\r\n"}


@pytest.mark.parametrize(("uri", "text"), CSV.items())
def test_csv_has_one_head(tmp_path, job, uri, text):
    """That of the item first seen, though another is acknowledged first, whatever the first item
    after a stop has. What is appended has it again, with the columns of the first item there."""
    feeds = {uri.replace("a.csv", f"{tmp_path}/a.csv"): "csv"}
    a = job(feeds, GOES_ON)
    a.page("0", {"n": 0, "m": 0})
    a.pages(p1={"m": 1, "n": 1}).close("shutdown")
    job(feeds).pages(p2={"n": 2, "m": 2}, p3={"k": 3, "m": 3}).close("shutdown")
    assert (tmp_path / "a.csv").read_bytes().decode() == text


@pytest.mark.parametrize(
    "options",
    [
        {"format": "jsonlines", "encoding": "utf-16"},
        {"format": "csv", "encoding": "utf-16"},
        {"format": "csv", "encoding": "utf-8-sig", "item_export_kwargs": {"delimiter": ";"}},
        {"format": "csv", "item_export_kwargs": {"include_headers_line": False}},
        {"format": "csv", "fields": {"a": "A"}},
    ],
)
def test_parts_make_what_the_exporter_writes(tmp_path, job, options):
    """Byte for byte, also when the items come from two runs."""
    items = [{"a": 1, "b": "x"}, {"a": 2, "b": "é,"}, {"a": 3, "b": ""}]
    kinds = {"csv": exporters.CsvItemExporter, "jsonlines": exporters.JsonLinesItemExporter}
    given = {"fields_to_export": options.get("fields"), "encoding": options.get("encoding")}
    given |= options.get("item_export_kwargs", {})
    whole = kinds[options["format"]](file := BytesIO(), **given)
    whole.start_exporting()
    for item in items:
        whole.export_item(item)
    whole.finish_exporting()
    job({"a": options}, GOES_ON).pages(p1=items[0]).drop()
    job({"a": options}).pages(p2=items[1], p3=items[2]).close("shutdown")
    assert (tmp_path / "a").read_bytes() == file.getvalue()


def test_an_item_that_cannot_be_exported_takes_no_head_with_it(tmp_path, job):
    """The csv head is written by the exporter once."""
    odd = type("Odd", (), {"__str__": raising(ValueError("odd"))})()
    a = job({"a.csv": "csv"})
    a.done(a.page("1", {"n": odd}, {"n": 1}))
    a.close()
    assert (tmp_path / "a.csv").read_bytes() == b"n\r\n1\r\n"


# -- somebody else's hands -----------------------------------------------------------


CHANGES = {
    "changed": lambda data: b"X" + data[1:],
    "appended to": lambda data: data + b"more\n",
    "cut off": lambda data: data[:-1],
    "removed": None,
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("options", [{}, {"postprocessing": [GZIP]}])
def test_a_file_that_somebody_else_has_changed_is_refused(tmp_path, job, caplog, change, options):
    """With ways out, and it stays as it is. Without the feed the job goes on, and says so."""
    path = tmp_path / "a.jl"
    feeds = {"a.jl": {"format": "jsonlines", **options}}
    job(feeds, GOES_ON).pages(p1={"n": 1}).close("shutdown")
    after = CHANGES[change] and CHANGES[change](path.read_bytes())
    path.unlink()
    if after is not None:
        path.write_bytes(after)
    with pytest.raises(FeedError, match=r"a\.jl.* Put the file back .*leave the feed out"):
        job(feeds, later=True).open()
    job({"b.jl": "jsonlines"}).pages(p2={"n": 2}).finish()
    assert numbers(tmp_path / "b.jl") == [2]
    assert "a.jl stays as it is" in caplog.text
    assert (path.read_bytes() if path.exists() else None) == after


def test_items_without_text_end_no_feed(tmp_path):
    """As an exporter writes them that leaves some out: what comes behind them is written, too."""
    file = FeedFile(tmp_path / "a")
    file.prepare(empty=True)
    file.append(iter([b""] * 40 + [b"x"]))
    assert (tmp_path / "a").read_bytes() == b"x"


def test_somebody_who_writes_to_the_file_meanwhile_stops_the_crawl(tmp_path, job, caplog):
    """Nothing is written over; the job can be resumed when the file is as it was."""
    a = job({"a.jl": "jsonlines"}, GOES_ON).pages(p1={"n": 1})
    (tmp_path / "a.jl").write_bytes(b'{"n": 1}\nmore\n')
    a.pages(p2={"n": 2})
    assert a.scheduler.ledger.stopped
    assert "another program writes to it" in caplog.text
    a.close("bloom_error")
    assert (tmp_path / "a.jl").read_bytes() == b'{"n": 1}\nmore\n'
    (tmp_path / "a.jl").write_bytes(b'{"n": 1}\n')
    job({"a.jl": "jsonlines"}).close("shutdown")
    assert numbers(tmp_path / "a.jl") == [1, 2]
    b = job({"a.jl": "jsonlines"}, later=True)
    Job.open(b)  # and a pipeline is slow to open
    with (tmp_path / "a.jl").open("a") as file:
        file.write("more\n")
    b.send(signals.spider_opened)
    assert (tmp_path / "a.jl").read_bytes() == b'{"n": 1}\n{"n": 2}\nmore\n'
    b.pages(p3={"n": 3})
    assert b.scheduler.ledger.stopped


@pytest.mark.parametrize("is_ours", [True, False])
def test_a_file_of_the_same_length_in_its_place_is_not_written_to(tmp_path, job, caplog, is_ours):
    """Another program has put it there while the crawl ran."""
    path = tmp_path / "a.jl"
    a = job({"a.jl": "jsonlines"}, GOES_ON).pages(p1={"n": 1})
    if not is_ours:
        (tmp_path / "theirs").write_bytes(b"their 7\n\n"[:9])
        (tmp_path / "theirs").replace(path)
    before = path.read_bytes()
    a.pages(p2={"n": 2})
    assert a.scheduler.ledger.stopped is not is_ours
    assert path.read_bytes().startswith(before)
    assert (path.read_bytes() == before) is not is_ours


@pytest.mark.parametrize(
    ("options", "pages", "expected"),
    [
        (
            {"format": "csv", "item_export_kwargs": {"quoting": 3, "escapechar": "\\"}},
            ({"n": 1}, {"n": 2}, {"n": 3}),
            b"n\r\n1\r\n2\r\n3\r\n",
        ),
        (
            {"format": "csv", "encoding": "latin-1"},
            ({"n": "\u20ac"}, {"n": 2}, {"n": 3}),
            b"n\r\n2\r\n3\r\n",
        ),
        (
            {"format": "jsonlines", "item_export_kwargs": {"skipkeys": True}},
            ({"n": 1, (1, 2): 3}, {"n": 2}, {"n": 3}),
            b'{"n": 1, "2": null}\n{"n": 2}\n{"n": 3}\n',
        ),
        (
            {"format": "csv", "fields": ["n"]},
            ({"n": 1, b"x": 3}, {"n": 2}, {"n": 3}),
            b"n\r\n1\r\n2\r\n3\r\n",
        ),
    ],
)
def test_odd_names_and_first_items_cost_no_other(tmp_path, job, options, pages, expected):
    """As in Scrapy's feeds, over a stop: an exporter that refuses an empty row or the first item, a
    name that JSON does not have."""
    first, second, third = pages
    job({"a.out": options}, GOES_ON).pages(p1=first, p2=second).close("shutdown")
    job({"a.out": options}).pages(p3=third).finish()
    assert (tmp_path / "a.out").read_bytes() == expected


def test_what_others_write_to_a_feed_that_waits_is_not_replaced(tmp_path, job, caplog):
    """Neither while it is first made, nor later; without that the job goes on."""
    feeds, path = {"a.own": "own"}, tmp_path / "a.own"
    path.touch()

    class Overtaken(world_feeds.OwnExporter):
        def finish_exporting(self):
            path.write_bytes(before + b"more\n")

    for number in (1, 2):
        before = path.read_bytes()
        a = job(feeds, GOES_ON).pages(**{f"p{number}": {"n": number}})
        a.exporter.exporters["own"] = Overtaken
        a.close("shutdown")
        assert path.read_bytes() == before + b"more\n"
        path.write_bytes(before)
        job(feeds).close("shutdown")
    assert numbers(path) == [1, 2]
    assert caplog.text.count("1 feed could not be stored: ") == 2


@pytest.mark.parametrize(
    ("owner", "name"),
    [(DurableFeeds, "recover"), (DurableFeeds, "before_commit"), (Outbox, "add_item")],
)
def test_ctrl_c_before_scrapy_handles_it_loses_no_item(tmp_path, job, monkeypatch, owner, name):
    """Twisted may hold it back: the crawl must not go on without its feeds, and a page of which
    some feeds may have an item is not acknowledged."""
    feeds = {"a.jl": "jsonlines", "b.jl": "jsonlines"}
    job(feeds, GOES_ON).pages(p1={"n": 1}).drop()
    with monkeypatch.context() as patched:
        patched.setattr(owner, name, raising(KeyboardInterrupt))
        b = job(feeds)
        if owner is Outbox:
            b.done(b.page("p2", {"n": 2}))
        assert b.scheduler.ledger.stopped
        assert b.pop() is None
        b.close("bloom_error")
    c = job(feeds)
    assert c.pop().url.endswith("never")
    c.pages(p2={"n": 2})
    assert numbers(tmp_path / "a.jl") == numbers(tmp_path / "b.jl") == [1, 2]


def test_what_was_rolled_back_is_not_counted_when_a_feed_is_completed(tmp_path, job):
    """Its pages come again, and have their room then."""
    a = job({"a.jl": "jsonlines"}, GOES_ON, BLOOM_BUDGET={"*": 9}).pages(p1={"n": 1})
    a.page("p2", {"n": 2})
    counted = query(tmp_path / "job", "SELECT * FROM budget")
    a.push("p3")
    a.scheduler.ledger.stop(OSError("disk is full"))
    a.close("bloom_error")
    assert query(tmp_path / "job", "SELECT * FROM budget") == counted


@pytest.mark.parametrize("batches", [{}, {"batch_item_count": 2}])
@pytest.mark.parametrize("name", ["time", "mark"])
def test_a_uri_is_evaluated_once_a_round(tmp_path, job, monkeypatch, batches, name):
    """Times and spider arguments differ after a resume, which goes on with its file, or batch."""
    hours = (timedelta(hours=number) for number in count())
    clock = SimpleNamespace(now=lambda tz: datetime.now(tz) + next(hours))
    monkeypatch.setattr(feedexport, "datetime", clock)
    percent = "%20" * hasattr(feedexport, "apply_uri_params")
    uri = f"{percent}{'%(batch_id)d-' * bool(batches)}%({name})s.jl"
    for mark, pages in ("first", {"p1": {"n": 1}}), ("second", {"p2": {"n": 2}, "p3": {"n": 3}}):
        a = job({uri: {"format": "jsonlines", **batches}}, later=True)
        a.spider.mark = mark
        a.open(GOES_ON).pages(**pages)
        a.close("shutdown") if mark == "first" else a.finish()
    found = [numbers(path) for path in sorted(tmp_path.glob("*.jl"))]
    assert found == ([[1, 2], [3]] if batches else [[1, 2, 3]])


BATCHED = {"a%(batch_id)d.jl": {"format": "jsonlines", "batch_item_count": 1}}


def test_a_full_disk_tears_no_item(tmp_path, job, monkeypatch):
    """The feed is whole when the crawl has ended; what is missing is written by the next start."""
    write, feed = os.write, {"a.jl": "jsonlines"}

    def on_a_full_disk(descriptor, data):
        write(descriptor, data[:9])
        raise OSError("no space left")

    a = job(feed, GOES_ON).pages(p1={"n": 1})
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", on_a_full_disk)
        a.pages(p2={"n": 2}, p3={"n": 3})
    assert a.scheduler.ledger.stopped
    a.close("bloom_error")
    assert numbers(tmp_path / "a.jl") == [1]
    job(feed).finish()
    assert numbers(tmp_path / "a.jl") == [1, 2, 3]


# -- feeds come and go ---------------------------------------------------------------


class Parameters:
    """An object that is called, as `uri_params` may be."""

    def __call__(self, params, spider):
        return {**params, "spider_name": spider.name}


def test_a_feed_is_compared_by_what_is_the_same_in_each_process(tmp_path, job):
    """Not by addresses and the order of a set; a change is refused, with both values."""
    names = ("Page", "OddPages", "Shelf", "OwnExporter", "ItemSpider")
    classes = [f"tests.world.feeds.{name}" for name in names]
    options = {"format": "jsonlines", "item_classes": {*classes, Parameters}}

    def feeds(**changed):
        values = {**options, "uri_params": partial(Parameters.__call__, None), **changed}
        return {"a.jl": values, "b.jl": {"format": "jsonlines", "uri_params": Parameters()}}

    job(feeds(), GOES_ON).close("shutdown")
    stored = "".join(text for (text,) in query(tmp_path / "job", "SELECT facts FROM feeds"))
    assert " at 0x" not in stored
    assert [stored.index(name) for name in sorted(classes)] == sorted(map(stored.index, classes))
    job(feeds(), GOES_ON).close("shutdown")
    for changed, told in (
        ({"indent": 4}, "was begun with indent 0, and now has 4"),
        ({"uri_params": Parameters()}, "was begun with uri_params"),
        ({"uri_params": partial(print)}, "of .*__call__', and now has 'functools.partial of"),
        ({"item_classes": {*classes}}, "was begun with item_classes"),
    ):
        with pytest.raises(FeedError, match=told):
            job(feeds(**changed), later=True).open()


@pytest.mark.parametrize("uri", ["a.jl", "a.jl.gz", "shelf:a", os.fsdecode(b"caf\xe9.jl")])
def test_a_removed_feed_is_finished_and_goes_on_when_it_comes_back(tmp_path, job, caplog, uri):
    """An added one begins within the round. -O removes nothing that the round has written."""
    caplog.set_level(logging.INFO, "scrapy_bloom.feeds.durable_feeds")  # Scrapy's shows the name
    options = {"format": "jsonlines", "overwrite": True}
    path = tmp_path / ("a.jl" if ":" in uri else uri)
    uri = f"shelf:{path}" if ":" in uri else uri
    with_feed = {uri: options | ({"postprocessing": [GZIP]} if "gz" in uri else {})}
    job(with_feed, GOES_ON).pages(p1={"n": 1}).close("shutdown")
    job(with_feed).pages(p2={"n": 2}).drop()
    assert JobStatus(tmp_path / "job").figures()["feeds"][0]["uri"].endswith(uri)
    for number in (3, 4):
        without = job({"b.jl": "jsonlines"})
        assert numbers(path) == [1, 2]
        without.pages(**{f"p{number}": {"n": number}}).close("shutdown")
    assert "b.jl begins now" in caplog.text
    job(with_feed).pages(p5={"n": 5}).finish()
    assert numbers(path) == [1, 2, 5]
    assert numbers(tmp_path / "b.jl") == [3, 4]
    assert job({}).scheduler.round.number == 2


@pytest.mark.parametrize("killed", [True, False])
@pytest.mark.parametrize(
    ("name", "batch"), [("a.jl", None), ("a.json", None), ("a%(batch_id)d.jl", 2)]
)
def test_a_feed_that_is_spelt_otherwise_goes_on(tmp_path, monkeypatch, opened, name, batch, killed):
    """With what the round has written. Where its first name leads elsewhere by now the start is
    refused, and changes nothing."""
    form = "json" if name == "a.json" else "jsonlines"
    options = {"format": form, "overwrite": True, "batch_item_count": batch}
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to(tmp_path)
    for number, folder in enumerate(("", "./link/", f"{tmp_path}/", f"file://{tmp_path}/"), 1):
        if number == 3:
            monkeypatch.chdir("/")
            before = {path: path.read_bytes() for path in tmp_path.glob("a*")}
            with pytest.raises(FeedError, match=r"is the file of '.*a.*: name it as before until"):
                opened(FeedJob(tmp_path, {folder + name: options}), GOES_ON)
            assert {path: path.read_bytes() for path in tmp_path.glob("a*")} == before
            monkeypatch.chdir(tmp_path)
        a = opened(FeedJob(tmp_path, {folder + name: options}), GOES_ON)
        a.pages(**{f"p{number}": {"n": number}})
        a.drop() if killed else a.close("shutdown")
    opened(FeedJob(tmp_path, {name: options})).finish()
    found = [n for path in sorted(tmp_path.glob("a*")) for n in numbers(path)]
    assert found == [1, 2, 3, 4]


@pytest.mark.parametrize("uri", ["a.jl", "a.json"])
def test_a_job_that_goes_on_without_feeds_completes_what_it_has(tmp_path, job, monkeypatch, uri):
    """With what was final at the kill, though not written. The next round's -O comes after that. A
    start whose FEEDS Scrapy does not take would say finished, too, and is refused."""
    feeds = {uri: {"format": uri[2:].replace("jl", "jsonlines"), "overwrite": True}}
    with monkeypatch.context() as patch:
        patch.setattr(DurableFeeds, "after_commit", lambda _: None)
        job(feeds).pages(p1={"n": 1}).drop()
    with pytest.raises(JobDirectoryError, match=r"feeds that are not complete, .* correct FEEDS"):
        job({"s4://a/b": "json"})
    job({}).pages(p2=Shy(n=2)).close()
    assert (phases(tmp_path / "job"), numbers(tmp_path / uri)) == ([(1, "over")], [1])
    job(feeds).pages(p3={"n": 3}, p4=Shy(n=object())).close()
    job({}).close()  # a round of its own
    assert numbers(tmp_path / uri) == [3]
    assert not (tmp_path / "job" / "feeds").exists()


@pytest.mark.parametrize("uri", ["a.jl", "a.json"])
def test_a_filter_that_fails_behind_a_commit_loses_no_item(tmp_path, job, monkeypatch, uri):
    """The feeds are told of the commit all the same, and forget what it has recorded."""
    feeds = {uri: {"format": uri[2:].replace("jl", "jsonlines")}}
    a = job(feeds).pages(p1={"n": 1})
    monkeypatch.setattr(a.scheduler.ledger._dupefilter, "release", raising(OSError("full")))
    a.pages(p2={"n": 2}).close("bloom_error")
    job(feeds).close()
    assert numbers(tmp_path / uri) == [1, 2]


@pytest.mark.parametrize("uri", ["a.jl", "a.json"])
def test_what_is_retried_goes_on_with_the_feeds_of_its_round(tmp_path, job, uri):
    """Also with -O, though the round was over but for it."""
    feeds = {uri: {"format": uri[2:].replace("jl", "jsonlines"), "overwrite": True}}
    job(feeds).pages(p1={"n": 1}, p2=Shy(n=object())).close()
    b = job(feeds, BLOOM_RETRY_FAILED=True)
    b.items(popped := b.pop(), {"n": 2})
    b.done(popped)
    b.close()
    assert numbers(tmp_path / uri) == [1, 2]
    job(feeds).pages(p3={"n": 3}).close()
    assert numbers(tmp_path / uri) == [3]


# -- stored at the end ---------------------------------------------------------------


@pytest.mark.parametrize(("batch", "without"), [(None, False), (1, False), (None, True)])
def test_a_storage_that_fails_is_tried_again(run, tmp_path, job, caplog, batch, without):
    """By the next start, which does nothing else if that was all, also `without` FEEDS; so is a
    full batch at the end."""
    options = {"format": "jsonlines", "overwrite": True, "batch_item_count": batch}
    feeds = {f"shelf:{tmp_path}/shelf/%(batch_id)d.jl": options}
    (tmp_path / "shelf").write_text("no directory")
    a = job(feeds).pages(p1={"n": 1})
    a.close()
    assert "1 feed could not be stored" in caplog.text
    told = run(tmp_path, "info", "job").fields["job"]
    assert told == "stopped, round 1, but feeds are to be stored: start it again"
    assert a.stat("feedexport/failed_count/Shelf") == (2 if batch else 1)
    if without:
        job({}).close()
        assert phases(tmp_path / "job") == [(1, "to be stored")]
    (tmp_path / "shelf").unlink()
    job({} if without else feeds).close()
    assert numbers(tmp_path / "shelf" / "1.jl") == [1]
    assert (job(feeds).scheduler.round.number, phases(tmp_path / "job")) == (2, [(2, "running")])


ZIPPED = {"a.jl.gz": {"format": "jsonlines", "postprocessing": [GZIP]}}


def test_what_a_kill_has_left_is_no_part_of_a_feed(tmp_path, job, monkeypatch):
    """The whole feed was written beside its place and did not come to it, once and again."""
    for number in (1, 2):
        a = job(ZIPPED, GOES_ON).pages(**{f"p{number}": {"n": number}})
        with monkeypatch.context() as patch:
            patch.setattr(Path, "rename", raising(OSError("no space left")))
            if number == 2:
                patch.setattr(Path, "unlink", lambda *_, **__: None)
            a.close("shutdown")
    job(ZIPPED).close("shutdown")
    assert numbers(tmp_path / "a.jl.gz") == [1, 2]
    assert {path.name for path in tmp_path.iterdir()} == {"a.jl.gz", "job"}
    job(ZIPPED).finish()
    job(ZIPPED).pages(p3={"n": 3}).close()
    assert numbers(tmp_path / "a.jl.gz") == [1, 2, 3]


def test_items_that_wait_leave_the_disk_with_the_round(tmp_path, job):
    """The job is as small as before."""
    job({"a.json": "json"}).pages(p1={"n": 1, "text": "x" * 2_000_000}).close()
    assert numbers(tmp_path / "a.json") == [1]
    assert (tmp_path / "job" / "requests.sqlite").stat().st_size < 500_000


def test_a_new_feed_is_on_the_disk_with_its_name(tmp_path, job, watch):
    """What is in it and its directory are synced."""
    synced = set()
    watch(os, "fsync", lambda descriptor: synced.add(os.fstat(descriptor).st_ino))
    job({"new/a.jl": "jsonlines"}, GOES_ON).pages(p1={"n": 1})
    path = tmp_path / "new" / "a.jl"
    assert {path.stat().st_ino, path.parent.stat().st_ino} <= synced


class Picky(world_feeds.OwnExporter):
    """Refuses some items."""

    error = ValueError("not this one")

    def export_item(self, item):
        if item["n"] == 2:
            raise self.error
        super().export_item(item)


def choosing(_):
    """Make an item filter that takes what has a number, and raises for other items."""
    return SimpleNamespace(accepts=itemgetter("n"))


NOT_JSON = TypeError("Object of type bytes is not JSON serializable")
ERRORS = [ValueError("no"), ConnectionError("no")]


@pytest.mark.parametrize("kinds", [{}, {"BLOOM_FAILED_KINDS": ["download"]}])
@pytest.mark.parametrize(
    ("form", "item", "error", "batch"),
    [
        ("jsonlines", {"n": b"2"}, NOT_JSON, None),
        ("json", {}, KeyError("n"), None),
        ("json", Shy(n=2), TypeError("shy"), None),
        ("own", Shy(n=2), TypeError("shy"), None),
        *(("own", {"n": 2}, error, batch) for error in ERRORS for batch in (None, 1)),
    ],
    ids=str,
)
def test_a_page_whose_item_a_feed_refuses_has_failed(
    tmp_path, job, monkeypatch, form, item, error, batch, kinds
):
    """And stays in the job, with what its feeds have of it: though an exporter of the user's writes
    when the feed is stored. The one that writes a batch ends the one that gets each item; another
    one goes on."""
    monkeypatch.setattr(Picky, "error", error)
    uri = str(tmp_path / f"%(batch_id)d.{form}")
    options = {"format": form, "batch_item_count": batch, "item_filter": choosing}
    a = job({uri: options}, later=True, **kinds)
    a.exporter.exporters["own"] = Picky
    a.open().pages(p1={"n": 1}).pages(p2=item, p3={"n": 3}).close()
    found = [numbers(path) for path in sorted(tmp_path.glob(f"*.{form}"))]
    assert found == ([[1], [3]] if batch else [[1, 3]])
    failed = [(r.url[-2:], r.reason, r.exception) for r in Failed(tmp_path / "job").requests()]
    assert failed == ([] if kinds else [("p2", "feed", f"{type(error).__name__}: {error}")])
    assert a.stat("scheduler/failed_in_memory") is None


@pytest.mark.parametrize("error", ERRORS)
def test_what_is_refused_when_a_feed_is_stored_does_not_keep_the_others(
    tmp_path, job, caplog, monkeypatch, error
):
    """As an exporter may do that has not refused it before; the log names it."""
    monkeypatch.setattr(Picky, "error", error)
    a = job({"a.own": "own"}).pages(p1={"n": 1}, p2={"n": 2}, p3={"n": 3})
    a.exporter.exporters["own"] = Picky
    a.close()
    assert numbers(tmp_path / "a.own") == [1, 3]
    assert "has refused an item, whose page is done: {'n': 2}" in caplog.text


def test_a_feed_whose_items_are_gone_is_not_stored_without_them(tmp_path, job, caplog):
    """The start is refused, and the feed stays as it was, also when it is left out. So it is where
    its exporter or storage is gone, or another one."""
    feeds = {"a.own": "own", f"shelf:{tmp_path}/b.jl": "jsonlines"}
    job(feeds, GOES_ON).pages(p1={"n": 1}).close("shutdown")
    for setting, now, error in [
        ("FEED_EXPORTERS", {}, "begun with exporter '.*OwnExporter', and now has None: change it"),
        ("FEED_EXPORTERS", {"own": exporters.CsvItemExporter}, "exporter .* now has '.*Csv"),
        ("FEED_STORAGES", {}, "begun with storage '.*Shelf', and now has '.*FileFeedStorage': c"),
        ("FEED_STORAGES", {"shelf": raising(OSError("full"))}, "b.jl' has no storage: .*full"),
    ]:
        with pytest.raises(FeedError, match=error):
            job({}, **{setting: now})
    before = (tmp_path / "a.own").read_bytes()
    of_a = "SELECT id FROM batches WHERE facts LIKE '%/a.own%'"
    query(tmp_path / "job", f"DELETE FROM items WHERE -feed IN ({of_a})")
    with stopped_job(tmp_path / "job" / "requests.sqlite") as left:
        assert left.items >= 0
    with pytest.raises(FeedError, match=r"items of .*a\.own were removed .*, so feed"):
        job(feeds)
    job({}).close()
    assert (tmp_path / "a.own").read_bytes() == before
    assert "a.own stays as it is: items of " in caplog.text
    assert query(tmp_path / "job", "SELECT COUNT(*) FROM feeds") == [(1,)]


def test_batches_go_on_with_their_numbers(tmp_path, job):
    """A batch is full however many runs it takes, and a stored one is left alone."""
    feeds = {str(tmp_path / "%(batch_id)d.json"): {"format": "json", "batch_item_count": 2}}
    a = job(feeds, GOES_ON).pages(p1={"n": 1}, p2={"n": 2}, p3={"n": 3})
    a.commit()
    a.drop()
    (tmp_path / "1.json").write_text("moved away")
    job(feeds).pages(p4={"n": 4}, p5={"n": 5}).finish()
    assert (tmp_path / "1.json").read_text() == "moved away"
    assert [numbers(tmp_path / f"{n}.json") for n in (2, 3)] == [[3, 4], [5]]
    assert not (tmp_path / "4.json").exists()


def test_full_batches_of_a_removed_feed_are_stored_once(tmp_path, job, monkeypatch):
    """Though the process has died before the store, which may append."""
    uri = f"shelf:{tmp_path}/%(batch_id)d"
    a = job({uri: {"format": "jsonlines", "batch_item_count": 1}}, GOES_ON)
    for number in (1, 2):
        a.done(a.page(str(number), {"n": number}))
    with monkeypatch.context() as patch:
        patch.setattr(WaitingFeed, "write", lambda _: None)
        a.commit()
    a.drop()
    job({"b.jl": "jsonlines"})
    assert [numbers(tmp_path / str(number)) for number in (1, 2)] == [[1], [2]]


def test_a_full_batch_is_not_stored_while_that_cannot_be_recorded(tmp_path, job, next_turn):
    """A crawl that has failed waits for its downloads, and may be killed meanwhile."""
    feeds = {str(tmp_path / "%(batch_id)d.json"): {"format": "json", "batch_item_count": 1}}
    a = job(feeds, GOES_ON)
    a.done(a.page("1", {"n": 1}))
    a.scheduler.ledger.commit()
    a.scheduler.ledger.stop(OSError("disk is full"))
    next_turn()
    a.drop()
    job(feeds).finish()
    assert numbers(tmp_path / "1.json") == [1]


def test_a_batch_that_cannot_be_stored_holds_back_no_other(tmp_path, job, caplog):
    """It is stored when the crawl stops."""
    a = job(BATCHED, GOES_ON)
    (tmp_path / "a1.jl").mkdir()
    a.pages(p1={"n": 1}, p2={"n": 2}).commit()
    assert numbers(tmp_path / "a2.jl") == [2]
    (tmp_path / "a1.jl").rmdir()
    a.close("shutdown")
    assert numbers(tmp_path / "a1.jl") == [1]
    assert f"Error storing jsonlines feed (1 items) in: {tmp_path}/a1.jl" in caplog.text
    assert a.stat("feedexport/failed_count/FileFeedStorage") == 1


def test_a_batch_whose_upload_hangs_holds_back_no_other(job, monkeypatch, next_turn):
    """They are stored side by side, and by the next start, which does not wait for its end."""
    uploads = []
    monkeypatch.setattr(Shelf, "store", lambda self, file: uploads.append(file) or Deferred())
    feeds = {"shelf:a%(batch_id)d": {"format": "json", "batch_item_count": 1}}
    (a := job(feeds, GOES_ON).pages(p1={"n": 1}, p2={"n": 2})).commit()
    assert len(uploads) == 2
    a.drop()
    job(feeds)
    next_turn()
    assert len(uploads) == 4


def test_many_batches_at_once_and_after_each_other(tmp_path, job, next_turn):
    """Few files are open, and of those that are stored nothing is kept."""
    open_files = len([*Path("/proc/self/fd").iterdir()])
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    feeds = {str(tmp_path / "%(batch_id)d.jl"): {"format": "jsonlines", "batch_item_count": 1}}
    a = job(feeds, GOES_ON)
    resource.setrlimit(resource.RLIMIT_NOFILE, (open_files + 30, most))
    try:
        a.done(a.page("1", *({"n": n} for n in range(60))))
        for _ in range(70):
            a.commit()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    a.pages(p2={"n": 60}, p3={"n": 61})
    a.commit()
    assert not a.exporter.durable._feeds[0]._full
    assert query(tmp_path / "job", "SELECT facts FROM batches UNION SELECT item FROM items") == []
    assert [numbers(tmp_path / f"{n + 1}.jl") for n in range(62)] == [[n] for n in range(62)]
    # nor is one stored twice that the last commit fills
    a.done(a.page("4", {"n": 62}))
    a.close("shutdown")
    next_turn()
    assert a.stat("feedexport/success_count/FileFeedStorage") == 63


# -- in whose place ------------------------------------------------------------------


STOCK_EXPORTER = "scrapy.extensions.feedexport.FeedExporter"


class OwnExporter(FeedExporter):
    """Somebody's."""


LOSES = r"items: not durable in a\.jl, b\.csv: "
MARKS = "BLOOM_DELTA marks pages as done of which a feed has refused an item, since "
NO_SUBCLASS = r".*\.OwnExporter is no subclass of .*DurableFeedExporter; make it one"
OWN = {STOCK_EXPORTER: None, OwnExporter: 0}
DELTA = {"JOBDIR": "", "BLOOM_DELTA": "item"}


@pytest.mark.parametrize(
    ("settings", "exporter", "warning"),
    [
        ({}, DurableFeedExporter, ""),
        ({"JOBDIR": ""}, FeedExporter, ""),
        (DELTA, DurableFeedExporter, ""),
        ({"JOBDIR": "", "BLOOM_REDIS_URL": "redis://localhost"}, DurableFeedExporter, ""),
        ({"EXTENSIONS": {STOCK_EXPORTER: 5}}, DurableFeedExporter, ""),
        ({"EXTENSIONS": {STOCK_EXPORTER: None}}, type(None), f"{LOSES}EXTENSIONS has no subclass "),
        ({"EXTENSIONS": OWN}, OwnExporter, LOSES + NO_SUBCLASS),
        ({"BLOOM_DURABLE_FEEDS": False}, FeedExporter, ""),
        ({"BLOOM_DURABLE_FEEDS": False, **DELTA}, FeedExporter, f"{MARKS}BLOOM_DURABLE_FEEDS is"),
        ({"EXTENSIONS": OWN, **DELTA}, OwnExporter, MARKS + NO_SUBCLASS),
    ],
)
def test_whose_exporter_it_is(tmp_path, caplog, settings, exporter, warning):
    """Ours with a durable job, in Redis, and where pages are marked; the user's stays. Feeds that
    are off are named, with the way out, but where a setting of ours turns them off."""
    settings = {
        "ADDONS": {"scrapy_bloom.Addon": 300},
        "FEEDS": {Path("a.jl"): {"format": "jl"}, "b.csv": {"format": "csv"}},
        "JOBDIR": str(tmp_path),
        "FEED_STORE_EMPTY": False,
    } | settings
    crawler = get_crawler(settings_dict=settings)
    assert type(crawler.get_extension(FeedExporter)) is exporter
    crawler.spider = crawler._create_spider("x")
    crawler.signals.send_catch_log(signals.spider_opened, spider=crawler.spider)
    crawler.signals.send_catch_log(signals.engine_started)
    told = [" ".join(r.getMessage().split()) for r in caplog.records if r.levelname == "WARNING"]
    assert len(told) == bool(warning)
    assert re.match(warning, "".join(told))


def test_standard_output_and_devices_stay_scrapys(tmp_path, job, caplog, capfdbinary):
    """With a warning. So does a pipe that a parameter names."""
    os.mkfifo(tmp_path / "test.pipe")
    reader = os.open(tmp_path / "test.pipe", os.O_RDONLY | os.O_NONBLOCK)
    feeds = "stdout:", "a.jl", "/dev/null", "%(name)s.pipe"
    a = job(dict.fromkeys(feeds, "jsonlines"))
    a.crawler.signals.send_catch_log(signals.engine_started)
    assert f"not durable in /dev/null, {tmp_path}" in caplog.text.rpartition("; write to")[0]
    a.page("1", {"n": 1})
    a.commit()
    assert not (tmp_path / "a.jl").exists()
    a.close("shutdown")
    with open(reader) as pipe:
        assert pipe.read() == '{"n": 1}\n'


@pytest.mark.parametrize("kind", ["jsonlines", "json"])
def test_a_pipe_that_is_met_later_is_refused(tmp_path, job, caplog, kind):
    """It could block the crawl for ever."""
    feed = {"format": kind, "batch_item_count": 1, "overwrite": True}
    a = job({"a%(batch_id)d": feed}, GOES_ON)
    os.mkfifo(tmp_path / "a2")
    with open(os.open(tmp_path / "a2", os.O_RDWR)):
        a.pages(p1={"n": 1}, p2={"n": 2}).close("shutdown")
    assert "a2 is not a regular file" in caplog.text
    assert (tmp_path / "a2").is_fifo()


def test_what_overwrites_is_stored_as_a_whole():
    """As S3 and GCS do whatever the option says, and FTP without it."""
    for kind in (feedexport.S3FeedStorage, feedexport.GCSFeedStorage):
        assert overwrites(kind.__new__(kind), {"overwrite": False})
    assert overwrites(FTPFeedStorage("ftp://e.com/a"), {})
    assert not overwrites(FTPFeedStorage("ftp://e.com/a"), {"overwrite": False})


def test_without_a_job_it_is_scrapys(tmp_path):
    """Put there by hand. An item that is refused is told of."""
    crawler = get_crawler(settings_dict={"FEEDS": {str(tmp_path / "a.jl"): {"format": "jl"}}})
    crawler.engine = Engine()
    exporter = DurableFeedExporter.from_crawler(crawler)
    exporter.open_spider(crawler._create_spider("x"))
    exporter.item_scraped({"n": 1}, None)
    refused = []
    crawler.signals.connect(lambda response: refused.append(response), item_refused, weak=False)
    page = Response("data:,1", request=Request("data:,1"))
    with pytest.raises(TypeError, match="not JSON"):
        exporter.item_scraped({"n": b"2"}, None, page)
    exporter.slots[0].file.close()
    assert numbers(tmp_path / "a.jl") == [1]
    assert refused == [page]


def test_when_the_spider_was_not_opened_feeds_and_round_stay_as_they_were(tmp_path, job):
    """A pipeline may have failed before `spider_opened`: Scrapy closes what it has not begun."""
    feeds = {"a.json": {"format": "json", "overwrite": True}}
    job(feeds).pages(p1={"n": 1}).finish()
    for _ in range(2):
        a = job(feeds, later=True)
        Job.open(a)
        assert (a.scheduler.round.number, a.scheduler.round.is_resumed) == (2, False)
        a.close("shutdown")
        assert (numbers(tmp_path / "a.json"), phases(tmp_path / "job")) == ([1], [(1, "over")])


def test_signals_and_stats_are_scrapys(job):
    """`feed_slot_closed` with a slot that says what was stored, and `feed_exporter_closed`."""
    slots, closed = [], []
    a = job({"a.jl": "jsonlines"}, later=True)
    a.crawler.signals.connect(lambda slot: slots.append(slot), signals.feed_slot_closed, weak=False)
    a.crawler.signals.connect(lambda: closed.append(1), signals.feed_exporter_closed, weak=False)
    assert a.open().exporter.durable.is_in_place
    a.pages(p1={"n": 1}).close()
    (slot,) = slots
    assert slot.uri.endswith("a.jl")
    assert (slot.format, slot.itemcount, slot.batch_id, closed) == ("jsonlines", 1, 1, [1])
    assert slot.spider is a.spider
    assert a.stat("feedexport/success_count/FileFeedStorage") == 1
