"""How far a job is, or a crawl, in the terminal and for exporters."""

import json
import re
import signal
import time
from contextlib import closing

import pytest

from scrapy_bloom.commands import top
from scrapy_bloom.commands.top import lines
from scrapy_bloom.crawl.choice import Counts
from scrapy_bloom.crawl.figures import Figures, rates_of, with_rates
from scrapy_bloom.crawl.stats import COUNTED
from scrapy_bloom.errors import RequestFileError, SharedFilterError
from scrapy_bloom.jobdir import JobDirectory
from scrapy_bloom.redis.status import CrawlStatus
from scrapy_bloom.sqlite.job_file import RequestFile
from scrapy_bloom.sqlite.status import JobStatus
from tests.commands.command_line import begun, in_shell, on_terminal
from tests.commands.test_requests import FAILURES, MANY
from tests.crawl.engine import Job, query
from tests.crawl.rounds import RoundJob
from tests.failures import Failed
from tests.patience import PATIENCE
from tests.stored import Stored

SLOTS = 12
PENDING = SLOTS * (SLOTS + 1) // 2
NOTED = {"in_flight": 16, "commit_seconds_max": 0.0123}
NOTED |= {"filter_capacity": 1_000_000, "filter_layers": 1, "filter_bytes": 4_000_000}
NOTED |= {"of_round": {"pages": 21580, "items": 7, "duplicates": 8, "retries": 0}}
CHANGING = {"commits": (0, 10), "pages": (1000, 20), "items": (900, 10), "retries": (3, 0)}
CHANGING |= {"duplicates": (5000, 100), "pending": (700_000, -50), "filter_items": (400_000, 100)}
"""At the beginning of this start, and a second more."""


def note(file, at, began, **figures):
    """Note how far the job is, as it does itself, once a second."""
    line = json.dumps({"began": began, **figures})
    file.execute("INSERT INTO progress VALUES (?, ?)", (at, line))


@pytest.fixture
def watched(tmp_path):
    """A job that runs, with failed requests, and pending ones in several slots."""
    job = Stored(tmp_path / "requests.sqlite")
    for each in FAILURES:
        job.fail(each)
    for number in range(PENDING):
        job.put(slot=f"slot{number % SLOTS}.example.com")
    began = time.time() - 30
    # an earlier start, which is none of this one's business
    note(job.file, began - 5.5, 1)
    for second in range(-32, 30):
        counted = {name: first + second * step for name, (first, step) in CHANGING.items()}
        note(job.file, began + second, began, **NOTED, **counted)
    job.file.commit()
    with closing(job.file._connection), JobDirectory(tmp_path).locked():
        yield tmp_path


def test_figures_of_a_job_at_rest(watched):
    """It has no speed."""
    file = RequestFile.open(watched / "requests.sqlite")
    file.commit()
    file.close(clean=True)
    assert JobStatus(watched).figures()["pages"] == 1000 + 29 * 20
    (watched / "bloom.lock").unlink()
    figures = JobStatus(watched).figures()
    assert (figures["state"], figures["seconds"]) == ("stopped", pytest.approx(29))
    # not what was noted last, which a killed process may have changed since
    assert (figures["pending"], figures["in_flight"]) == (PENDING, 0)
    assert figures["pages_per_second"] is figures["seconds_left"] is None


def test_a_job_that_has_noted_nothing_yet_is_shown_all_the_same(tmp_path):
    """Without figures."""
    RequestFile.open(tmp_path / "requests.sqlite").close(clean=True)
    figures = JobStatus(tmp_path).figures()
    assert (figures["pages"], figures["seconds"]) == (None, None)
    assert any("pages" in line for line in lines("job", figures))


@pytest.mark.parametrize("width", [40, 80, 120])
def test_the_view_fits_the_terminal(watched, width):
    """All of it from 80 columns on, and cut are only names; with fewer, what is below is cut."""
    figures = JobStatus(watched).figures()
    figures["pending_by_slot"] = {"a" * 200: 2_000_000, **figures["pending_by_slot"]}
    found = lines("jobs/shop", figures, width, 24)
    assert max(map(len, found)) <= width
    assert len(found) < 24
    assert not [line for line in found if line.endswith("…")] or width < 80
    expected = ["1,580  20.0/s"]
    if width >= 80:
        expected += ["running, for 3", " s  jobs/shop", "698,550  -50.0/s", "3 h 52 min"]
        expected += ["402,900 of 1,000,000 (40.3 %), 4 MB, grows in 1 h 39 min"]
        expected += ["the slowest took 0.0123 s", "aaa…", "2,000,000", "and 4 more"]
        expected += ["download/timeout"]
    assert [text for text in expected if text not in "\n".join(found)] == []
    # the end of a long path tells jobs apart
    name = "/home/somebody/projects/crawlers/shop/jobs/shop-2026-11-23"
    first = lines(name, figures, 60)[0]
    assert re.match(r"running, for 3\d s  /home/\S+…\S+/jobs/shop-2026-11-23$", first)
    assert len(first) == 60


@pytest.mark.parametrize(
    ("pending", "left", "told"),
    [
        ([1000 - second for second in range(58)], 943, "15 min 43 s"),
        ([1000 - second for second in range(57)], None, "-"),  # not yet a minute
        ([1000, *range(1100, 1041, -1)], None, "-"),  # the crawl has found more on the way
        ([1000 + second for second in range(60)], None, "grows"),
    ],
)
def test_the_time_left_is_said_when_pending_has_fallen_for_a_minute(watched, pending, left, told):
    """A crawl that still finds pages takes longer than its last seconds promise."""
    samples = [(float(second), {"pending": count}) for second, count in enumerate(pending)]
    figures = with_rates({**JobStatus(watched).figures(), "pending": pending[-1]}, samples)
    assert figures["seconds_left"] == left
    (line,) = (line for line in lines("job", figures, 80) if "time left" in line)
    assert f"  {told}" in line
    assert rates_of([(n, {"pages": n * n}) for n in range(60)]) == {"pages": 59 + 49}  # of ten s


def test_what_reads_many_rows_is_asked_rarely(watched, monkeypatch):
    """However often the figures are: the counts by slot cost a look at all rows."""
    asked, watch = [], JobStatus(watched)
    monkeypatch.setattr(watch._pending, "_ask", lambda _: asked.append(1) or Counts())
    clock = iter(range(10_000))
    monkeypatch.setattr(time, "monotonic", lambda: next(clock) / 2)
    for _ in range(20):
        watch.figures()
    assert len(asked) == 1


def test_slots_have_all_that_is_pending(tmp_path):
    """What a killed process had claimed, and what the next start is asked to retry, too; the filter
    has what was added by a commit after the figures were noted."""
    options = {"meta": {"download_slot": "a"}}
    job = Job(tmp_path, BLOOM_BUDGET={"a": 3}).open().pushed("b", "c", "d", "e", **options)
    job.pop()
    job.commit()
    assert JobStatus(tmp_path).figures()["pending_by_slot"] == {"a": 2}
    job.drop()
    assert Failed(tmp_path).retry() == 1
    figures = JobStatus(tmp_path).figures()
    assert (figures["pending"], figures["pending_by_slot"]) == (4, {"a": 4})
    assert figures["filter_items"] == 4


def test_top_prints_once_where_nobody_watches(run, watched):
    """On request, too: one table below the other, or as JSON in one line."""
    for options in (["--once"], []):
        plain = run(watched, "top", ".", *options)
        assert (plain.status, plain.lines[0][:14]) == (0, "running, for 3")
        rows = [line.split() for line in plain.lines]
        assert ["pages", "1,580", "20.0/s", "21,580"] in rows
        assert ["pending", "698,550", "-50.0/s"] in rows
        assert ["failed", "8"] in rows
        assert "and 4 more" in plain.lines
    (line,) = run(watched, "top", ".", "--json").lines
    figures = json.loads(line)
    expected = {"pages": 1000 + 29 * 20, "failed": MANY + 1, "slots": SLOTS, "state": "running"}
    assert {name: figures[name] for name in expected} == expected
    assert figures["items_per_second"] == pytest.approx(10)
    assert figures["failed_by_reason"] == {"download/timeout": MANY, "callback": 1}
    assert len(figures["pending_by_slot"]) == 10
    assert 0 <= figures["seconds_since_commit"] < 60
    assert min(figures["file_bytes"], figures["log_bytes"]) > 0
    assert "goes with --json" in run(watched, "top", ".", "--follow").refusal
    for options in ("", "--json"):  # without a standard output
        assert in_shell(watched, f"scrapy bloom top . {options} >&-").error == ""


def test_what_is_held_and_capped_is_named(watched):
    """By hand or by the host; and what is over BLOOM_BUDGET apart from what has failed."""
    now = time.time()
    for name, until in (("a.example.com", None), ("b", now + 3600), ("c", now + 60), ("d", 1)):
        hold = "INSERT INTO slot (name, until, times, pause) VALUES (?, ?, 1, NULL)"
        query(watched, hold, name, until)
    insert = "INSERT INTO request VALUES (NULL, 1, 0, 0, ?, x'', ?, 1, NULL)"
    for state, due in ((4, None), (2, now + 3600)):
        query(watched, insert, state, due)
    figures = JobStatus(watched).figures()
    assert figures["held"] == 3
    assert [*figures["held_slots"]] == ["a.example.com", "b", "c"]
    assert figures["held_slots"]["a.example.com"] is None
    assert 3500 < figures["held_slots"]["b"] <= 3600
    text = "\n".join(lines("jobs/shop", figures, 80, 24))
    assert "held             a.example.com until its release\n" in text
    assert re.search(r"held             b for 3,\d{3} s$", text, re.MULTILINE)
    assert "and 1 more" in text
    assert len(re.findall(r"  capped +1$", text, re.MULTILINE)) == 2
    assert re.search(r"^ *waiting +1 later, the next in ", text, re.MULTILINE)


def test_the_round_counts_over_kills(run, tmp_path):
    """The items of all its starts, of which this one is a part; the next round begins with none."""

    def start(items):
        job = RoundJob(tmp_path / "job").open().started("a", "b")
        job.crawler.stats.inc_value("item_scraped_count", items)
        job.commit()
        return job, run(tmp_path, "top", "job", "--json").json

    killed, figures = start(12)
    assert (figures["state"], figures["items"], figures["round_items"]) == ("running", 12, 12)
    killed.drop()
    job, figures = start(4)
    assert (figures["items"], figures["round_items"], figures["round"]) == (4, 16, 1)
    assert figures["pages_per_second"] is None  # of this start
    job.finish()
    text = run(tmp_path, "top", "job", "--once")
    assert text.lines[0].startswith("finished, round 1")
    assert re.search(r"items +4 +16\n", text.out)
    job, figures = start(0)
    assert (figures["round"], figures["items"], figures["round_items"]) == (2, 0, 0)
    job.drop()


def test_feeds_are_counted_with_what_is_not_in_their_files_yet(watched):
    """In batches that were stored and forgotten, too; a password is not shown."""
    feeds = {"s3://id:se/cret@bucket/%(batch_id)d": 43, "a@b": 0}
    for number, (uri, items) in enumerate(feeds.items()):
        feed = {"template": uri, "items": items}
        query(watched, "INSERT INTO feeds VALUES (?, 1, ?)", number, json.dumps(feed))
        query(watched, "INSERT INTO items VALUES (NULL, ?1, NULL, x''), (NULL, ?1, 5, x'')", number)
    figures, uri = JobStatus(watched).figures(), "s3://…bucket/%(batch_id)d"
    assert [tuple(each.values()) for each in figures["feeds"]] == [(uri, 44), ("a@b", 1)]
    assert f"feed             {uri}, 44 items" in lines("job", figures)


def test_json_follows_a_job_until_it_is_interrupted(watched):
    """A line a second, each at once; Ctrl-C is how it ends."""
    process = begun(watched, "top", ".", "--json", "--follow")
    first, second = (json.loads(process.stdout.readline()) for _ in range(2))
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=PATIENCE)
    assert second["time"] - first["time"] > 0.5
    assert (process.returncode, error) == (0, "")


def test_ctrl_c_leaves_a_terminal_at_the_beginning_of_a_line(watched):
    """What the shell prints then is not the end of a figure."""
    status, shown = on_terminal(watched, "top", ".", until=b"failed by reason")
    assert (status, shown[-1:]) == (0, b"\n")


@pytest.mark.parametrize("error", [RequestFileError, SharedFilterError])
def test_top_bears_what_cannot_be_read_for_a_while(run, watched, monkeypatch, error):
    """As when its file is opened: five times in a row, however often; who asks once is told."""
    monkeypatch.setattr(top, "SECONDS", 0.0)
    figures = JobStatus(watched).figures()
    unreadable = [error("is locked")] * top.PATIENCE

    def look(_):
        if isinstance(found := next(looks), Exception):
            raise found
        return found

    monkeypatch.setattr(JobStatus, "figures", look)
    looks = iter([*unreadable, figures, *unreadable, figures, *unreadable, unreadable[0]])
    followed = run(watched, "top", ".", "--json", "--follow")
    assert len(followed.lines) == 2
    assert "is locked" in followed.error
    assert next(looks, None) is None
    looks = iter(unreadable)
    assert "is locked" in run(watched, "top", ".", "--json").refusal
    assert len([*looks]) == top.PATIENCE - 1


@pytest.fixture
def worker(join, own_server):
    """A worker of a crawl on a server of its own, with a request that waits."""
    worker = join(url=own_server.url)
    worker.send(["page"])
    return worker


@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 40)])
def test_the_view_of_a_crawl_fits_the_terminal(worker, width, height):
    """All of it, with as many slots, reasons and workers as there may be."""
    figures = CrawlStatus(worker.client, worker.key).figures()
    (found,) = figures["workers"]
    figures["pending_by_slot"] = {f"{n}" * 200: 2_000_000 for n in range(9)}
    figures["failed_by_reason"] = {f"reason {n}": n for n in range(9)}
    figures["workers"] = [{**found, "name": "w" * 99, "oldest_seconds": n} for n in range(12)]
    view = lines("redis://localhost/0 shop", figures, width, height)
    assert max(map(len, view)) <= width
    assert len(view) < height
    assert any("11 s" in line for line in view)


def test_figures_of_a_crawl(tmp_path, own_server, worker):
    """Those of a job under the same names, without those of files; a crawl that rests has no speed,
    and a user without the right to ask for memory is told that, and all the rest."""
    watch = CrawlStatus(worker.client, worker.key)
    RequestFile.open(tmp_path / "requests.sqlite").close(clean=True)
    job, crawl = {*JobStatus(tmp_path).figures()}, {*watch.figures()}
    of_job = {"commits", "commit_seconds_max", "seconds_since_commit", "feeds"}
    of_job |= {"file_bytes", "log_bytes", *(f"round_{name}" for name in COUNTED)}
    assert (job - crawl, crawl - job) == (of_job, {"memory_bytes", "workers"})
    assert job | crawl == {*Figures.__annotations__}
    noted = dict.fromkeys((*COUNTED, "pending", "failed", "done", "added"), 0)
    own_server.command("DEL", f"{worker.key}:progress")
    for at in (9000, 4000):
        note = json.dumps({**noted, "time": at, "pages": at})
        own_server.command("RPUSH", f"{worker.key}:progress", note)
    assert watch.figures()["pages_per_second"] == 1000
    own_server.command("ACL", "SETUSER", "default", "-memory")
    figures = watch.figures()
    assert (figures["memory_bytes"], figures["in_flight"]) == (None, 1)
    worker.store.leave(over=False, seconds=1)
    figures = watch.figures()
    assert (figures["state"], figures["pages"]) == ("at rest", 0)
    assert figures["pages_per_second"] is figures["seconds_left"] is None
