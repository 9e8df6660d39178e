"""How far a job is, in the terminal and for exporters."""

import io
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack

import pytest
from rich.console import Console

from scrapy_bloom.commands import top
from scrapy_bloom.commands.top import view
from scrapy_bloom.errors import RequestFileError, SharedFilterError
from scrapy_bloom.jobdir import JobDirectory
from scrapy_bloom.reporting import duration
from scrapy_bloom.sqlite_backend import status
from scrapy_bloom.sqlite_backend.failed_store import OpenFailedStore
from scrapy_bloom.sqlite_backend.request_file import RequestFile
from scrapy_bloom.sqlite_backend.status import JobStatus
from tests.commands.command_line import environment
from tests.commands.test_failed import MANY, failed_job  # noqa: F401 - a fixture
from tests.job.test_inspection import contents
from tests.patience import PATIENCE
from tests.processes import Process

pytestmark = pytest.mark.skipif(os.name != "posix", reason="JOBDIR needs Linux or macOS")

SLOTS = 12


def note(file, began, **figures):
    """Note how far the job is, as it does itself, once a second."""
    for second in range(30):
        counted = {name: start + second * step for name, (start, step) in figures.items()}
        file.execute(
            "INSERT INTO progress VALUES (?, ?)",
            (
                began + second,
                json.dumps(
                    {
                        "began": began,
                        "in_flight": 16,
                        "commits": 10 * second,
                        "commit_seconds_max": 0.0123,
                        "filter_capacity": 1_000_000,
                        "filter_layers": 1,
                        "filter_bytes": 4_000_000,
                        **counted,
                    }
                ),
            ),
        )


@pytest.fixture
def watched(failed_job):  # noqa: F811
    """A job that runs, with failed requests, and pending ones in several slots."""
    file = RequestFile.open(failed_job / "requests.sqlite")
    for number in range(SLOTS * (SLOTS + 1) // 2):
        file.push((f"slot{number % SLOTS}.example.com", 0, 0), b"request")
    began = time.time() - 30
    # an earlier start, which is none of this one's business
    file.execute("INSERT INTO progress VALUES (?, ?)", (began - 5, json.dumps({"began": 1})))
    note(
        file,
        began,
        pages=(1000, 20),
        items=(900, 10),
        duplicates=(5000, 100),
        retries=(3, 0),
        pending=(700_000, -50),
        filter_items=(400_000, 100),
    )
    file.commit()
    with ExitStack() as stack:
        stack.callback(file._connection.close)
        stack.enter_context(JobDirectory(failed_job).locked())
        yield failed_job


def shown(figures, width):
    """Return the lines of a terminal of that width."""
    console = Console(width=width, file=io.StringIO(), color_system=None)
    console.print(view("jobs/shop", figures))
    return console.file.getvalue().splitlines()


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
    assert figures["pages_per_second"] is figures["seconds_left"] is None
    assert figures["seconds"] == pytest.approx(29)
    assert contents(watched) == before


def test_rates_are_of_this_start(tmp_path):
    """What an earlier start of the job has noted is none of its speed."""
    file = RequestFile.open(tmp_path / "requests.sqlite")
    for began, at in ((1, 8), (2, 9)):
        figures = json.dumps({"began": began, "pages": at, "pending": 0})
        file.execute("INSERT INTO progress VALUES (?, ?)", (at, figures))
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


@pytest.mark.parametrize("width", [80, 120])
def test_the_view_fits_the_terminal(watched, width):
    """All of it, and cut are only names."""
    figures = JobStatus(watched).figures()
    figures["pending_by_slot"] = {"a" * 200: 2_000_000, **figures["pending_by_slot"]}
    lines = shown(figures, width)
    assert {len(line) for line in lines} == {width}
    assert len(lines) < 24
    text = "\n".join(lines)
    for expected in (
        "jobs/shop  running",
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


def test_pending_requests_that_grow_have_no_end(watched):
    """The time left is no number then."""
    figures = {**JobStatus(watched).figures(), "pending_per_second": 3.0, "seconds_left": None}
    assert any("time left" in line and "grows" in line for line in shown(figures, 80))


def test_what_reads_many_rows_is_asked_rarely(watched, monkeypatch):
    """However often the figures are: the counts by slot cost a look at all rows."""
    asked = []
    monkeypatch.setattr(status, "_pending_by_slot", lambda _: asked.append(1) or ({}, 0))
    clock = iter(range(10_000))
    monkeypatch.setattr(time, "monotonic", lambda: next(clock) / 2)
    watch = JobStatus(watched)
    for _ in range(20):
        watch.figures()
    assert len(asked) == 1


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"),
        (0.04, "0.0 s"),
        (59, "59 s"),
        (61, "1 min 1 s"),
        (7500, "2 h 5 min"),
        (90_000, "1 d 1 h"),
    ],
)
def test_durations(seconds, text):
    """In the two largest units."""
    assert duration(seconds) == text


def test_top_prints_once(run, watched):
    """On request, and where nobody watches; as JSON in one line."""
    for options in (["--once"], []):
        result = run(watched, "top", ".", *options)
        assert result.status == 0
        assert "pending by slot" in result.out
    (line,) = run(watched, "top", ".", "--json").lines
    assert json.loads(line)["pages"] == 1000 + 29 * 20


def test_top_refuses_what_it_cannot_show(run, watched, tmp_path, monkeypatch):
    """With what would do."""
    assert "goes with --json" in run(watched, "top", ".", "--follow").refusal
    assert "no requests of DurableScheduler" in run(watched, "top", "nowhere").refusal
    monkeypatch.setitem(sys.modules, "rich.console", None)
    assert "pip install 'scrapy-bloom[cli]'" in run(watched, "top", ".").refusal
    assert run(watched, "top", ".", "--json").status == 0


def test_json_follows_a_job_until_it_is_interrupted(watched):
    """A line a second, each at once; Ctrl-C is how it ends."""
    process = Process(
        ["-m", "scrapy_bloom", "top", ".", "--json", "--follow"],
        cwd=watched,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    lines = [process.stdout.readline() for _ in range(2)]
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=PATIENCE)
    first, second = (json.loads(line) for line in lines)
    assert second["time"] - first["time"] > 0.5
    assert (process.returncode, error) == (0, "")


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


def test_failed_rows_are_counted_where_they_are_added(watched):
    """The stat and the table agree."""
    with ExitStack() as stack:
        file = RequestFile.open(watched / "requests.sqlite")
        stack.callback(file._connection.close)
        assert OpenFailedStore(file).count == MANY + 1
