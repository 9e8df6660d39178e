"""The durable scheduler: Scrapy's order, rows that stay until all is done, and refusals."""

import logging
import re
import shutil
import sys
from enum import IntEnum
from functools import partial
from itertools import pairwise, product
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace

import pytest
from scrapy.core import scraper
from scrapy.pqueues import ScrapyPriorityQueue
from twisted.internet import reactor

import scrapy_bloom
from scrapy_bloom import JobDirectoryError, RequestFileError
from scrapy_bloom.crawl.ledger import CommitHook
from scrapy_bloom.sqlite.records import SqliteRecords
from tests.commands.command_line import bloom
from tests.crawl.engine import DURABLE, STOCK, Job, Slot, query, unserializable
from tests.failures import Failed, SpeechlessError
from tests.fakes import raising
from tests.patience import wait_until
from tests.test_refused_start import contents


def test_stats_are_scrapys(make, tmp_path):
    """The counters have Scrapy's names and counts."""
    counts = []
    for scheduler in (STOCK, DURABLE):
        job = make(tmp_path / scheduler, scheduler=scheduler).pushed(*"aab")
        job.scheduler.enqueue_request(unserializable("c"))
        job.names()
        stats = job.crawler.stats.get_stats().items()
        counts.append({n: v for n, v in stats if n.startswith(("scheduler/", "dupefilter/"))})
    assert counts[0] == counts[1]
    assert counts[0]["scheduler/dequeued/memory"] == counts[0]["dupefilter/filtered"] == 1


def test_without_a_job_directory_it_is_scrapys_scheduler(tmp_path, monkeypatch, told):
    """Nothing is stored, checked or held back, and any dupefilter and any queue will do, of which
    one line says so. A slot that is no text leaves no trace."""
    monkeypatch.chdir(tmp_path)
    queue = {"SCHEDULER_PRIORITY_QUEUE": f"{__name__}.MyQueue"}
    job = Job(None, DUPEFILTER_CLASS="scrapy.dupefilters.RFPDupeFilter", **queue).open()
    assert isinstance(job.scheduler.mqs, MyQueue)
    (line,) = told()
    assert f"{__name__}.MyQueue" in line
    job = Job(None, DUPEFILTER_CLASS="scrapy.dupefilters.RFPDupeFilter").open().pushed(*"aba")
    with pytest.raises(TypeError):
        job.push("c", meta={"download_slot": 5})
    assert job.finish() == ["b", "a"]
    assert not job.scheduler.has_pending_requests()
    assert list(tmp_path.iterdir()) == []


class Importance(IntEnum):
    """Priorities with names, as projects have them."""

    LOW = -2
    HIGH = 3


@pytest.mark.parametrize("folder", ["job", ""])
def test_a_priority_and_a_slot_may_have_a_name(make, tmp_path, folder):
    """They are stored and served as what they stand for. After a clean stop there is no stat."""
    job = make(folder and tmp_path / folder)
    for name, priority in ("a", Importance.LOW), ("b", 0), ("c", Importance.HIGH):
        assert job.push(name, priority=priority, meta={"download_slot": Slot.EXAMPLE})
    assert len(job.scheduler.dqs or ()) == 3 * bool(folder)
    job.done(popped := job.pop())
    assert popped.url.endswith("c")
    if folder:
        job.close()
        job = make()
        assert job.stat("scheduler/recovered") is None
    assert job.names() == ["b", "a"]


def test_memory_does_not_grow_with_what_is_pending(make, traced):
    """Thousands more pending requests take no more memory than a page cache does."""
    job = make()
    for number in range(3_000):
        if number == 500:
            traced.start()
        job.push(str(number), dont_filter=True)
    job.commit()
    grown, _ = traced.get_traced_memory()
    assert len(job.scheduler) == 3_000
    assert grown < 500_000  # requests themselves would take five times as much


def test_new_rows_take_the_room_of_old_ones(make, tmp_path):
    """The file grows with the most requests that ever waited at once, not with those of a crawl."""
    job, pages = make(), set()
    for turn in range(9):
        job.pushed(*(f"{turn}-{number}" for number in range(200))).commit()
        pages |= {*query(tmp_path / "job", "PRAGMA page_count")}
        assert len(job.names()) == 200
        job.commit()
    ((count,),) = pages
    assert count > 20


@pytest.mark.parametrize("where", ["_slot.inprogress", "scraper.slot.active", "downloader.active"])
def test_a_row_stays_while_the_engine_has_the_request(make, tmp_path, where):
    """A timer stores a request, and one of three sets is enough for its row to stay."""
    job, rows = make().pushed("a"), partial(query, tmp_path / "job", "SELECT id FROM request")
    assert rows() == []
    wait_until(lambda: reactor.iterate(0.01) or rows(), "the timer")
    assert list(job.scheduler.df._seen.uncommitted) == []
    popped = job.pop()
    job.engine._slot.inprogress.clear()
    owner = attrgetter(where)(job.engine)
    owner.add(popped)
    job.commit()
    assert len(rows()) == 1
    owner.clear()
    job.commit()
    assert rows() == []


ODD = type("Odd", (), {"__reduce__": raising(ZeroDivisionError)})()
"""Cannot be pickled."""


@pytest.mark.parametrize("options", [{"meta": {"odd": ODD}}, {"priority": 10**30}])
def test_what_cannot_be_stored_stays_in_memory(make, crash, options):
    """Whatever its serialization raises; with dont_filter no filter has its fingerprint, else that
    of a killed job has none before it is done."""
    job = make()
    assert job.push("a", dont_filter=True, **options)
    job.commit()
    assert job.push("a", **options)
    assert job.push("b")
    job.commit()
    assert crash().push("a")
    assert sorted(job.names()) == ["a", "a", "b"]
    assert job.engine.closed == []


def refused(folder, **options):
    """Return the error with which a job does not open."""
    job = Job(folder, **options)
    errors = JobDirectoryError, RequestFileError, ValueError, OSError, ImportError
    with pytest.raises(errors) as caught:
        job.open()
    return caught.value


class MyQueue(ScrapyPriorityQueue):
    """A project's, with an order of its own."""


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("DUPEFILTER_CLASS", "scrapy.dupefilters.RFPDupeFilter"),
        *product(
            (f"SCHEDULER_{each}_QUEUE" for each in ("DISK", "START_DISK", "MEMORY", "PRIORITY")),
            (f"{__name__}.MyQueue", "a.NoQueue", "scrapy.squeues.NoQueue", "NoQueue"),
        ),
    ],
)
def test_a_foreign_class_is_refused_by_name(tmp_path, monkeypatch, setting, value):
    """Whose order and format are not known, and one that is not there, which is to be corrected;
    and a scraper whose slot, yet to come, is another."""
    error = refused(tmp_path / "job", **{setting: value})
    assert setting in str(error)
    assert value in str(error)
    assert ("correct it, or leave it out" in str(error)) == ("No" in value)
    monkeypatch.setattr(scraper, "Slot", SimpleNamespace)
    job = Job(tmp_path / "job")
    job.engine.scraper.slot = None
    with pytest.raises(JobDirectoryError, match=r"scraper\.slot\.active"):
        job.open()


def overwritten(content, wanted):
    """Return a file whose page that holds these bytes, or has this number, is damaged."""
    number = wanted - 1 if isinstance(wanted, int) else content.index(wanted) // 4096
    return content[: number * 4096] + b"\xff" * 4096 + content[number * 4096 + 4096 :]


DAMAGES = {
    "empty": lambda _: b"",
    "text": lambda _: b"no database at all" * 100,
    "cut": lambda sound: sound[:5000],
    "header only": lambda sound: sound[:100],
    "pages": lambda sound: sound[:4096] + b"\xff" * (len(sound) - 4096),
    "a table": lambda sound: overwritten(sound, 5),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_or_foreign_file_is_refused_and_left_as_it_was(make, tmp_path, damage):
    """With its name and a remedy, and no lock is left while the error is at hand."""
    make().pushed("a").close()
    path = tmp_path / "job" / "requests.sqlite"
    sound = path.read_bytes()
    path.write_bytes(damaged := DAMAGES[damage](sound))
    error = refused(tmp_path / "job")
    assert str(path) in str(error)
    assert "new JOBDIR" in str(error)
    assert path.read_bytes() == damaged or damage == "a table"  # which is met when it is begun
    path.write_bytes(sound)
    assert make().names() == ["a"]


def test_a_page_that_is_damaged_is_named_when_it_is_met(make, tmp_path, told):
    """Only a request that is due shows it: the line has the file and the remedy."""
    job = make()
    for number in range(30):
        job.push(f"page{number}", body=b"%d" % number * 500)
    job.close()
    path = tmp_path / "job" / "requests.sqlite"
    path.write_bytes(overwritten(path.read_bytes(), b"/page7"))
    make().names()
    (line,) = told(logging.ERROR)
    assert f"The job failed: {path}: " in line
    assert "restore it from a backup, or use a new JOBDIR" in line


def test_a_link_or_a_directory_is_refused(tmp_path):
    """Only a file of its own will do."""
    path = tmp_path / "job" / "requests.sqlite"
    path.mkdir(parents=True)
    assert str(path) in str(refused(tmp_path / "job"))
    path.rmdir()
    path.symlink_to(tmp_path / "elsewhere")
    assert str(path) in str(refused(tmp_path / "job"))


# Scrapy's own queues


@pytest.mark.parametrize("start", ["PickleFifoDiskQueue", None])
@pytest.mark.parametrize("priority_queue", ["DownloaderAwarePriorityQueue", "ScrapyPriorityQueue"])
@pytest.mark.parametrize("queue", ["PickleLifo", "PickleFifo", "MarshalLifo"])
def test_scrapys_pending_requests_are_taken_over(make, tmp_path, queue, priority_queue, start):
    """A job that Scrapy's scheduler has stopped goes on in the order it would have had."""
    options = {
        "SCHEDULER_DISK_QUEUE": f"scrapy.squeues.{queue}DiskQueue",
        "SCHEDULER_START_DISK_QUEUE": start and f"scrapy.squeues.{start}",
        "SCHEDULER_PRIORITY_QUEUE": f"scrapy.pqueues.{priority_queue}",
    }

    def push(job, names):
        for number, name in enumerate(names):
            meta = {"download_slot": f"s{number % 3}", "is_start_request": number % 4 == 0}
            if name in "UVWXYZ":
                meta["function"] = lambda: None
            job.push(name, priority=number % 2, meta=meta)

    orders = []
    for resumed in (STOCK, DURABLE):
        folder = tmp_path / resumed
        push(job := Job(folder, scheduler=STOCK, **options).open(), "abcdefghijkl")
        job.close()
        job = Job(folder, scheduler=resumed, **options).open()
        assert not job.push("a")
        push(job, "uvwxyzUVWXYZ")
        orders.append(job.finish())
    assert orders[0] == orders[1]
    assert len(orders[0]) == 24
    assert not (folder / "requests.queue").exists()
    job = Job(folder, scheduler=STOCK, **options).open().pushed("later")
    job.push("delayed", meta={"bloom_not_before": 1000})
    job.close()
    job = make(folder, **options)  # what it has left since is taken over, too
    assert (job.names(), job.scheduler.ledger.store.later) == (["later"], 1)


QUEUES = "scrapy_queues.shutil.copytree", "scrapy_queues.ScrapyQueues._put_aside"


@pytest.mark.parametrize("point", [*QUEUES, "job_file.RequestFile.commit"])
def test_a_crash_while_taking_over_loses_and_doubles_nothing(make, tmp_path, monkeypatch, point):
    """Scrapy's files stay whole until all they hold is committed."""
    Job(tmp_path / "job", STOCK).open().pushed(*"abc").close()
    with monkeypatch.context() as patch:
        patch.setattr(f"scrapy_bloom.sqlite.{point}", raising(OSError("dies here")))
        assert "dies here" in str(refused(tmp_path / "job"))
    assert make().names() == ["c", "b", "a"]


@pytest.mark.parametrize("is_state", [True, False])
def test_scrapy_queues_that_cannot_be_read_are_refused(make, tmp_path, is_state):
    """Nothing in the job has changed. Each start names the step that leads on."""
    folder, stock = tmp_path / "job", {"DUPEFILTER_CLASS": "scrapy.dupefilters.RFPDupeFilter"}
    Job(folder, STOCK, **stock).open().pushed("a").close()
    for file in filter(Path.is_file, (folder / "requests.queue").rglob("*")):
        if (file.name == "active.json") == is_state:
            file.write_bytes(file.read_bytes()[:-8])
    for step, take in ("scrapy bloom add", partial(bloom, tmp_path, "add")), ("mv", shutil.move):
        before, error = contents(folder), str(refused(folder))
        assert contents(folder) == before
        take(*error.rpartition(f": {step} ")[2].split())
    assert not make().push("a")


@pytest.mark.parametrize(("on_full", "reason"), [("close", "bloom_full"), ("grow", "bloom_error")])
def test_a_commit_fills_a_filter_that_does_not_grow(make, next_turn, on_full, reason):
    """BLOOM_ON_FULL, or a full disk, closes the spider; all of the commit goes in."""
    job = make(BLOOM_CAPACITY=40, BLOOM_ON_FULL=on_full).pushed(*map(str, range(60)))
    job.scheduler.df.filter._grow = raising(OSError("no room"))
    job.commit()
    next_turn()
    assert job.engine.closed == [reason]
    assert [load.keys for load in job.scheduler.df.filter.loads] == [60]


@pytest.mark.parametrize("limit", ["query_only = 1", "max_page_count = 8", "memory"])
def test_a_failing_database_closes_the_spider_and_keeps_the_job(
    make, crash, next_turn, caplog, monkeypatch, limit
):
    """One ERROR line, `bloom_error`, none acknowledged; SQLite without memory may roll all back."""
    job = make().pushed(*"abc")
    job.commit()
    popped = job.pop()
    if limit == "memory":
        monkeypatch.setattr(SqliteRecords, "push", raising(MemoryError))
    else:
        job.scheduler.ledger.store._file._connection.execute(f"PRAGMA {limit}")
    job.pushed(*map(str, range(300)), body="x" * 1000)
    monkeypatch.undo()
    job.done(popped)
    job.commit()
    assert job.pop() is None
    assert not job.push("later")
    job.commit()
    next_turn()
    assert job.engine.closed == ["bloom_error"]
    (record,) = [r for r in caplog.records if r.levelname == "ERROR"]
    assert not record.exc_info
    job.scheduler.ledger.store._file._connection.execute("PRAGMA query_only = 0")
    job.close("bloom_error")
    resumed = crash()  # as after a kill
    assert resumed.stat("scheduler/recovered") == 3
    assert sorted(resumed.names()) == ["a", "b", "c"]
    assert resumed.push("5", body="x" * 1000)


SILENT = {"__getstate__": lambda _: {"x": 1}, "__setstate__": raising(SpeechlessError)}
UnpicklesSilently = type("UnpicklesSilently", (), SILENT)
"""Cannot be unpickled, and nobody knows why."""


@pytest.mark.parametrize("options", [{"BLOOM_KEEP_FAILED": False}, {"BLOOM_FAILED_KINDS": []}])
def test_a_request_that_cannot_be_read_back_has_failed(make, next_turn, tmp_path, told, options):
    """Whatever else is kept, with one line and a stat; the others are fetched."""
    job = make().pushed("before", "after").pushed("bad", meta={"object": UnpicklesSilently()})
    job.close()
    job = make(**options)
    assert len(job.scheduler) == 3
    assert sorted(job.names()) == ["after", "before"]
    next_turn()
    assert job.engine.closed == []
    assert job.stat("scheduler/unreadable") == 1
    (line,) = told(logging.ERROR)
    assert "\n" not in line
    assert "tried again at the next start" in line
    job.close()
    assert job.stat("scheduler/failed") == 1
    (found,) = Failed(tmp_path / "job").requests()
    assert (found.url, found.reason) == ("http://example.com/bad", "unreadable")
    assert found.exception == "SpeechlessError"


def test_only_scrapys_scheduler_warns_of_lost_requests(make, crash, tmp_path, caplog):
    """So it does of a job that has been without it, and of requests that it does not fetch."""
    job = make().pushed("a")
    job.commit()
    crash()
    assert "has lost those" not in caplog.text
    crash(scheduler=STOCK)
    assert "has lost those" in caplog.text
    caplog.clear()
    stock = make(tmp_path / "stock", scheduler=STOCK).pushed("a")
    shutil.copytree(tmp_path / "stock", tmp_path / "without")
    stock.close()
    make(tmp_path / "without")
    assert "has lost those" in caplog.text
    job.close()
    make(scheduler=STOCK).close()
    assert "may hold requests of DurableScheduler" in caplog.text


def test_pages_are_acknowledged_beside_items_without_a_response(make, tmp_path):
    """As those of `start()`: each waits for what is dispatched then, and nothing for later ones."""
    job, running = make(), []
    job.pushed(*map(str, range(40)))
    for _ in range(40):
        running.append(job.pop())
        job.scheduler.ledger.in_flight.stand_in()
        if len(running) > 3:
            job.done(running.pop(0))
        job.commit()
    assert query(tmp_path / "job", "SELECT COUNT(*) FROM request")[0][0] < 9
    assert len(job.scheduler.ledger.in_flight) < 9


def test_items_without_a_response_beside_a_page_that_hangs_take_no_memory_for_each_other(make):
    job = make().pushed(*map(str, range(30)))
    books = job.scheduler.ledger.in_flight
    while job.pop() is not None:
        books.stand_in()
    assert not any(known.given for known in books.running.values() if known.stands_in)


def test_an_unfiltered_child_in_memory_is_acknowledged_with_its_page_and_so_is_its_redirect(make):
    """Whatever runs beside: else a kill would repeat neither, and lose the items."""
    job, acknowledged, hook = make().pushed("beside"), [], CommitHook()
    ledger, hook.before_commit = job.scheduler.ledger, acknowledged.extend
    ledger.commit_hooks.append(hook)
    beside, slow, page = job.pop(), unserializable("slow", dont_filter=True), None
    child = unserializable("child", dont_filter=True)
    again = {"redirect_times": 1, "redirect_urls": [child.url]}
    copy = child.replace(url="http://example.com/target", meta={**child.meta, **again})
    for each in (slow, child, copy):
        if each is child:
            job.push("page")
            page = ledger.in_flight.page_of[child] = job.pop()
        assert job.scheduler.enqueue_request(each)
        assert job.pop() is each
    for each in (copy, child, page):
        job.done(each)
    job.commit()
    assert {*acknowledged} == {copy, child, page}
    assert beside in ledger.in_flight.running


def test_the_way_of_a_push(make):
    """From `enqueue_request` to its row a request goes as CONTRIBUTING.md draws it: through ten
    modules, with 18 changes from one to another."""
    job, package = make(), Path(scrapy_bloom.__file__).parent
    given = {"callback": job.spider.parse, "headers": {"Referer": "http://example.com/"}}
    job.push("first", **given)
    way = []

    def note(frame, event, _):
        file = Path((frame if event == "call" else frame.f_back).f_code.co_filename)
        if event == "return" and frame.f_code is SqliteRecords.push.__code__:
            sys.setprofile(None)
        elif event in ("call", "return") and package in file.parents:
            way.append(file.relative_to(package).as_posix())

    sys.setprofile(note)
    job.push("second", meta={"depth": 1}, **given)
    text = Path(__file__).parents[2].joinpath("CONTRIBUTING.md").read_text(encoding="utf-8")
    drawn = re.findall(r"(\w+/\w+\.py)", text.partition("```text")[2].partition("```")[0])
    assert [*dict.fromkeys(way)] == drawn
    assert len(drawn) <= 10
    assert sum(one != other for one, other in pairwise(way)) <= 18
