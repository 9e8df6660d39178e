"""How far a job is, in the terminal and for exporters."""

import json
import os
import re
import signal
import sqlite3
import time
from contextlib import ExitStack, closing, suppress

import pytest

from scrapy_bloom.commands import top
from scrapy_bloom.commands.top import lines
from scrapy_bloom.crawl.choice import Counts
from scrapy_bloom.crawl.figures import with_rates
from scrapy_bloom.errors import RequestFileError, SharedFilterError
from scrapy_bloom.jobdir import JobDirectory
from scrapy_bloom.sqlite.job_file import RequestFile
from scrapy_bloom.sqlite.status import JobStatus
from tests.bloom.test_inspection import contents
from tests.commands.command_line import begun
from tests.commands.test_failed import MANY, failed_job  # noqa: F401 - a fixture
from tests.crawl.engine import Job
from tests.failures import Failed
from tests.patience import PATIENCE, wait_until
from tests.stored import Stored
from tests.test_refused_start import start as start_crawl

pytestmark = pytest.mark.skipif(os.name != "posix", reason="JOBDIR needs Linux or macOS")

SLOTS = 12
PENDING = SLOTS * (SLOTS + 1) // 2


NOTED = {
    "in_flight": 16,
    "commit_seconds_max": 0.0123,
    "filter_capacity": 1_000_000,
    "filter_layers": 1,
    "filter_bytes": 4_000_000,
}
COUNTED = {
    "commits": (0, 10),
    "pages": (1000, 20),
    "items": (900, 10),
    "duplicates": (5000, 100),
    "retries": (3, 0),
    "pending": (700_000, -50),
    "filter_items": (400_000, 100),
}
"""At the beginning of this start, and a second more."""


def note(file, at, began, **figures):
    """Note how far the job is, as it does itself, once a second."""
    line = json.dumps({"began": began, **figures})
    file.execute("INSERT INTO progress VALUES (?, ?)", (at, line))


@pytest.fixture
def watched(failed_job):  # noqa: F811
    """A job that runs, with failed requests, and pending ones in several slots."""
    job = Stored(failed_job / "requests.sqlite")
    file = job.file
    for number in range(PENDING):
        job.put(slot=f"slot{number % SLOTS}.example.com")
    began = time.time() - 30
    # an earlier start, which is none of this one's business
    note(file, began - 5.5, 1)
    for second in range(-32, 30):
        counted = {name: first + second * step for name, (first, step) in COUNTED.items()}
        note(file, began + second, began, **NOTED, **counted)
    file.execute("UPDATE round_counts SET pages = 21580, items = 7, duplicates = 8, retries = 9")
    file.commit()
    with ExitStack() as stack:
        stack.callback(file._connection.close)
        stack.enter_context(JobDirectory(failed_job).locked())
        yield failed_job


def shown(figures, width):
    """Return the lines in a terminal of that width."""
    return lines("jobs/shop", figures, width, 24)


def test_figures_of_a_running_job(watched):
    """What it has noted, and what follows from it if the rate stays."""
    figures = JobStatus(watched).figures()
    assert figures["state"] == "running"
    assert figures["pages"] == 1000 + 29 * 20
    assert figures["pages_per_second"] == pytest.approx(20)
    assert figures["items_per_second"] == pytest.approx(10)
    assert figures["pending_per_second"] == pytest.approx(-50)
    assert figures["seconds_left"] == pytest.approx((700_000 - 29 * 50) / 50)
    assert figures["seconds_to_growth"] == pytest.approx((600_000 - 29 * 100) / 100)
    assert figures["failed_by_reason"] == {"download/timeout": MANY, "callback": 1}
    assert figures["failed"] == MANY + 1
    assert (len(figures["pending_by_slot"]), figures["slots"]) == (10, SLOTS)
    assert figures["seconds"] == pytest.approx(30, abs=20)
    assert 0 <= figures["seconds_since_commit"] < 60
    assert figures["file_bytes"] > 0
    assert figures["log_bytes"] > 0


def test_figures_of_a_job_at_rest(watched):
    """No speed, and nothing of a file is changed."""
    file = RequestFile.open(watched / "requests.sqlite")
    file.commit()
    file.close(clean=True)
    figures = JobStatus(watched).figures()
    assert figures["pages"] == 1000 + 29 * 20
    (watched / "bloom.lock").unlink()
    before = contents(watched)
    figures = JobStatus(watched).figures()
    assert figures["state"] == "stopped"
    # not what was noted last, which a killed process may have changed since
    assert (figures["pending"], figures["in_flight"]) == (PENDING, 0)
    assert figures["pages_per_second"] is figures["seconds_left"] is None
    assert figures["seconds"] == pytest.approx(29)
    assert contents(watched) == before


def test_the_filter_has_what_the_last_commit_has_added(tmp_path):
    """Its requests enter the filter after the figures are noted."""
    crawl = Job(tmp_path).open()
    crawl.push("one")
    crawl.push("two")
    crawl.close()
    assert JobStatus(tmp_path).figures()["filter_items"] == 2


def test_rates_are_of_this_start(tmp_path):
    """What an earlier start of the job has noted is none of its speed."""
    file = RequestFile.open(tmp_path / "requests.sqlite")
    for began, at in ((1, 8), (2, 9)):
        note(file, at, began, pages=at, pending=0)
    file.commit()
    with JobDirectory(tmp_path).locked():
        figures = JobStatus(tmp_path).figures()
    file.close(clean=True)
    assert (figures["state"], figures["pages"], figures["pages_per_second"]) == ("running", 9, None)


def test_a_job_that_has_noted_nothing_yet(tmp_path):
    """It is shown all the same."""
    RequestFile.open(tmp_path / "requests.sqlite").close(clean=True)
    figures = JobStatus(tmp_path).figures()
    assert (figures["state"], figures["pages"], figures["seconds"]) == ("finished", None, None)
    assert any("pages" in line for line in shown(figures, 80))


@pytest.mark.parametrize("width", [40, 80, 120])
def test_the_view_fits_the_terminal(watched, width):
    """All of it from 80 columns on, and cut are only names; with fewer, what is below is cut."""
    figures = JobStatus(watched).figures()
    figures["pending_by_slot"] = {"a" * 200: 2_000_000, **figures["pending_by_slot"]}
    found = shown(figures, width)
    assert max(map(len, found)) <= width
    assert len(found) < 24
    assert not [line for line in found if line.endswith("…")] or width < 80
    text = "\n".join(found)
    if width < 80:
        assert "1,580  20.0/s" in text
        return
    for expected in (
        "running, for 3",
        " s  jobs/shop",
        "1,580  20.0/s",
        "698,550  -50.0/s",
        "3 h 52 min",
        "402,900 of 1,000,000 (40.3 %), 4 MB, grows in 1 h 39 min",
        "the slowest took 0.0123 s",
        "aaa…",
        "2,000,000",
        "and 4 more",
        "download/timeout",
    ):
        assert expected in text


@pytest.mark.parametrize(
    ("pending", "left", "told"),
    [
        ([1000 - second for second in range(60)], 941, "15 min 41 s"),
        ([1000 - second for second in range(50)], None, "-"),  # not yet a minute
        ([1000, *range(1100, 1041, -1)], None, "-"),  # the crawl has found more on the way
        ([1000 + second for second in range(60)], None, "grows"),
    ],
)
def test_the_time_left_is_said_when_pending_has_fallen_for_a_minute(watched, pending, left, told):
    """A crawl that still finds pages takes longer than its last seconds promise."""
    samples = [(float(second), {"pending": count}) for second, count in enumerate(pending)]
    figures = with_rates({**JobStatus(watched).figures(), "pending": pending[-1]}, samples)
    assert figures["seconds_left"] == left
    (line,) = (line for line in shown(figures, 80) if "time left" in line)
    assert f"  {told}" in line


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
    """What a killed process had claimed, and what the next start is asked to retry, too."""
    folder = tmp_path / "job"
    options = {"meta": {"download_slot": "a"}}
    job = Job(folder, BLOOM_BUDGET={"a": 3}).open().pushed("b", "c", "d", "e", **options)
    job.pop()
    job.commit()
    assert JobStatus(folder).figures()["pending_by_slot"] == {"a": 2}
    job.drop()
    assert Failed(folder).retry() == 1
    figures = JobStatus(folder).figures()
    assert (figures["pending"], figures["pending_by_slot"]) == (4, {"a": 4})


def test_top_prints_once_where_nobody_watches(run, watched):
    """On request, too: one table below the other, or as JSON in one line."""
    for options in (["--once"], []):
        plain = run(watched, "top", ".", *options)
        assert plain.status == 0
        assert re.match(r"running, for 3\d s  \.", plain.lines[0])
        rows = [line.split() for line in plain.lines]
        assert ["pages", "1,580", "20.0/s", "21,580"] in rows
        assert ["pending", "698,550", "-50.0/s"] in rows
        assert ["pending", "by", "slot"] in rows
        assert ["failed", "8"] in rows
        assert ["in", "flight", "16"] in rows
        assert "filter           402,900 of 1,000,000 (40.3 %), 4 MB, grows in" in plain.out
        assert "and 4 more" in plain.lines
    (line,) = run(watched, "top", ".", "--json").lines
    assert json.loads(line)["pages"] == 1000 + 29 * 20
    assert "goes with --json" in run(watched, "top", ".", "--follow").refusal


def test_a_long_path_is_cut_in_the_middle(watched):
    """Its end tells jobs apart."""
    figures = JobStatus(watched).figures()
    first = lines("/home/somebody/projects/crawlers/shop/jobs/shop-2026-11-23", figures, 60)[0]
    assert re.match(r"running, for 3\d s  /home/\S+…\S+/jobs/shop-2026-11-23$", first)
    assert len(first) == 60


def test_what_is_held_and_capped_is_named(watched):
    """By hand or by the host; and what is over BLOOM_BUDGET apart from what has failed."""
    with closing(sqlite3.connect(watched / "requests.sqlite")) as connection, connection:
        holds = [("a.example.com", None, 1, None), ("b", time.time() + 3600, 1, None)]
        holds += [("c", time.time() + 60, 1, None), ("d", time.time() - 60, 1, None)]
        connection.executemany(
            "INSERT INTO slot (name, until, times, pause) VALUES (?, ?, ?, ?)", holds
        )
        connection.execute("INSERT INTO request VALUES (NULL, 1, 0, 0, 4, x'', NULL, 1, NULL)")
    figures = JobStatus(watched).figures()
    assert figures["held"] == 3
    assert [*figures["held_slots"]] == ["a.example.com", "b", "c"]
    assert figures["held_slots"]["a.example.com"] is None
    assert 3500 < figures["held_slots"]["b"] <= 3600
    text = "\n".join(shown(figures, 80))
    assert "held             a.example.com until its release\n" in text
    assert re.search(r"held             b for 3,\d{3} s$", text, re.MULTILINE)
    assert "and 1 more" in text
    assert re.search(r"  capped +1$", text, re.MULTILINE)


def crawl(folder, *arguments):
    """Start a crawl of thirty pages with an item each."""
    return start_crawl(folder, "-o", "items.jsonl", "-s", "BLOOM_CAPACITY=1000", *arguments)


def test_the_round_counts_over_kills(run, tmp_path):
    """What the feed holds is the round's, of which this start is a part."""

    def top():
        return run(tmp_path, "top", "job", "--json").json

    killed = crawl(tmp_path, "-a", "wait_at=12", "-a", "wait_for=never")
    wait_until((tmp_path / "waiting").exists, "the twelfth page")
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    first = top()
    assert (first["state"], 0 < first["round_items"] <= 12) == ("killed", True)
    (tmp_path / "waiting").unlink()
    resumed = crawl(tmp_path, "-a", "wait_at=4", "-a", "wait_for=go", "-a", "stop_at=20")
    wait_until((tmp_path / "waiting").exists, "the fourth page")
    figures = top()
    assert figures["items"] <= 4 < first["round_items"] <= figures["round_items"]
    (tmp_path / "go").touch()
    resumed.communicate()
    figures = top()
    in_feed = len((tmp_path / "items.jsonl").read_text().splitlines())
    assert figures["feeds"] == [{"uri": "items.jsonl", "items": in_feed}]
    assert (figures["state"], figures["round"]) == ("stopped", 1)
    assert figures["items"] < 12 < in_feed <= figures["round_items"] <= in_feed + 1
    text = run(tmp_path, "top", "job", "--once").out
    assert re.search(rf"items +{figures['items']} +{figures['round_items']}\n", text)
    assert f"feed             items.jsonl, {in_feed} items" in text
    crawl(tmp_path).communicate()
    figures = top()
    assert (figures["state"], figures["round_items"] in {30, 31}) == ("finished", True)
    (tmp_path / "items.jsonl").unlink()
    crawl(tmp_path).communicate()  # its start page is seen
    figures = top()
    assert (figures["round"], figures["items"], figures["round_items"]) == (2, 0, 0)


def test_feeds_are_counted_with_what_is_not_in_their_files_yet(watched):
    """In batches that were stored and forgotten, too; a password is not shown."""
    with closing(sqlite3.connect(watched / "requests.sqlite")) as connection, connection:
        for number, (uri, size) in enumerate(
            {"s3://id:se/cret@bucket/%(batch_id)d": 10, "a@b": 0}.items()
        ):
            options = json.dumps({"batch_item_count": size})
            connection.execute(
                "INSERT INTO feeds VALUES (?, 1, ?, ?, NULL, 'null')", (number, uri, options)
            )
            connection.executemany(
                "INSERT INTO items VALUES (NULL, ?, ?, x'')", [(number, None), (number, 5)]
            )
        connection.executemany(
            "INSERT INTO batches VALUES (NULL, 0, ?, '', '', '', ?, 0, x'', '')", [(4, 10), (5, 3)]
        )
    feeds = [("s3://…bucket/%(batch_id)d", 30 + 10 + 3 + 1), ("a@b", 1)]
    found = JobStatus(watched).figures()["feeds"]
    assert [(each["uri"], each["items"]) for each in found] == feeds


def test_json_follows_a_job_until_it_is_interrupted(watched):
    """A line a second, each at once; Ctrl-C is how it ends."""
    process = begun(watched, "top", ".", "--json", "--follow")
    lines = [process.stdout.readline() for _ in range(2)]
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=PATIENCE)
    first, second = (json.loads(line) for line in lines)
    assert second["time"] - first["time"] > 0.5
    assert (process.returncode, error) == (0, "")


def test_ctrl_c_leaves_a_terminal_at_the_beginning_of_a_line(watched):
    """What the shell prints then is not the end of a figure."""
    import pty

    leader, follower = pty.openpty()
    process = begun(watched, "top", ".", stdout=follower, stderr=None)
    os.close(follower)
    shown = b""
    while b"failed by reason" not in shown:
        shown += os.read(leader, 1 << 16)
    process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE) == 0
    with suppress(OSError):  # the other end is closed
        while part := os.read(leader, 1 << 16):
            shown += part
    os.close(leader)
    assert shown.endswith(b"\n")


@pytest.mark.parametrize("error", [RequestFileError, SharedFilterError])
def test_top_bears_what_cannot_be_read_for_a_while(run, watched, monkeypatch, error):
    """As when its file is just opened or closed: five times in a row, however often that happens.
    Who asks once is told at once."""
    monkeypatch.setattr(top, "SECONDS", 0.0)
    figures = JobStatus(watched).figures()
    unreadable = [error("is locked")] * top.PATIENCE
    looks = iter([])

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
