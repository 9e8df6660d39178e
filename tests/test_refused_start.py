"""A start that is refused: one line, exit status 1, and not a byte of the job has changed."""

import json
import os
import re
import shutil
import subprocess
import sys
from functools import cache
from hashlib import sha256
from pathlib import Path
from signal import SIGINT

import pytest

from tests import processes
from tests.patience import PATIENCE, wait_until
from tests.processes import Process
from tests.small_site import PACKAGE

SPIDER = '''
import os
import sys
import time

import scrapy


class Answer:
    """Answers without a network; where it is to stop, so late that a stop finds pages to ask."""

    async def process_request(self, request, spider=None):
        from twisted.internet import reactor, task

        if any("stop_at" in argument for argument in sys.argv):
            await scrapy.utils.defer.maybe_deferred_to_future(task.deferLater(reactor, 0.02))
        return scrapy.http.HtmlResponse(request.url, body=b"<p>page</p>", request=request)


class StatefulSpider(scrapy.Spider):
    """Keeps a count in its state, and stops in the middle when told."""

    name = "stateful"
    custom_settings = {"DOWNLOADER_MIDDLEWARES": {Answer: 1}, "CONCURRENT_REQUESTS": 1}
    last = 30
    stop_at = 0
    wait_at = 1
    wait_for = None
    answered = 0

    async def start(self):
        yield scrapy.Request("http://site.example/0")

    def parse(self, response):
        self.answered += 1
        number = int(response.url.rpartition("/")[2])
        self.state["pages"] = self.state.get("pages", 0) + 1
        yield {"page": number}
        if number == 0:
            for child in range(1, int(self.last)):
                yield response.follow(f"/{child}")
        if self.wait_for and self.answered == int(self.wait_at):
            self.crawler.engine._slot.scheduler.ledger.commit()
            open("waiting", "w").close()
            while not os.path.exists(self.wait_for):
                time.sleep(0.02)
        if self.state["pages"] == int(self.stop_at):
            raise scrapy.exceptions.CloseSpider("enough")


if __name__ == "__main__":
    from scrapy.crawler import AsyncCrawlerProcess

    class OtherSpider(StatefulSpider):
        """Another crawl of the same process."""

        name = "other"
        custom_settings = {**StatefulSpider.custom_settings, "JOBDIR": "other", "BLOOM_CAPACITY": 9}

    settings = {"ADDONS": {"scrapy_bloom.Addon": 300}, "JOBDIR": sys.argv[1]}
    process = AsyncCrawlerProcess({**settings, "BLOOM_CAPACITY": "none"})
    for spider in (StatefulSpider, OtherSpider, OtherSpider):
        process.crawl(spider)
    process.start()
    print("bootstrap failed:", process.bootstrap_failed)
'''
ASYNCIO = "twisted.internet.asyncioreactor.AsyncioSelectorReactor"
SELECT = "twisted.internet.selectreactor.SelectReactor"
STOCK = "scrapy.core.scheduler.Scheduler"


def start(folder, *arguments, reactor=ASYNCIO, name="stateful", before=(), **settings):
    """Begin a crawl in `folder`, with the job directory `job` and the add-on."""
    (folder / "spider.py").write_text(SPIDER.replace('name = "stateful"', f"name = {name!r}"))
    own = {"ADDONS": '{"scrapy_bloom.Addon": 300}', "JOBDIR": "job", "TELNETCONSOLE_ENABLED": 0}
    settings = {**own, "TWISTED_REACTOR": reactor, **settings}
    options = [f"--set={name}={value}" for name, value in settings.items()]
    launch, first = (subprocess.Popen, [*before, sys.executable]) if before else (Process, ())
    command = [*first, "-m", "scrapy", "runspider", "spider.py", *options, *arguments]
    pipe, env = subprocess.PIPE, {**os.environ, "PYTHONPATH": str(PACKAGE)}
    streams = {"stdin": subprocess.DEVNULL, "stdout": pipe, "stderr": subprocess.STDOUT}
    return launch(command, cwd=folder, env=env, text=True, **streams)


def run(folder, *arguments, **settings):
    """Run a crawl to its end; return its exit status and its log."""
    process = start(folder, *arguments, **settings)
    log, _ = process.communicate(timeout=PATIENCE)
    return process.returncode, log


def contents(folder):
    """Return what every file of a folder holds, but for byte code, which each start may write."""
    return {
        str(path.relative_to(folder)): sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.suffix != ".pyc"
    }


def lines(log, level):
    return [line for line in log.splitlines() if f"] {level}: " in line]


def refused(folder, of="job", **settings):
    """Return the only ERROR line of a start that is refused, and has changed no file."""
    before = contents(folder / of)
    status, log = run(folder, **settings)
    assert status == 1, log
    (error,) = lines(log, "ERROR")
    assert lines(log, "CRITICAL") == []
    assert "Traceback" not in log
    assert contents(folder / of) == before
    return error


def goes_on(folder, **settings):
    """Run a crawl to its end, without an error; return its log."""
    status, log = run(folder, **settings)
    assert (status, lines(log, "ERROR")) == (0, []), log
    assert "'finish_reason': 'finished'" in log
    return log


def kill(folder, **settings):
    """Begin a crawl, and kill it in its tenth page, after a commit."""
    process = start(folder, "-a", "wait_at=10", "-a", "wait_for=go", **settings)
    wait_until((folder / "waiting").exists)
    process.kill()
    process.communicate(timeout=PATIENCE)


@pytest.fixture(scope="module")
def job_once(tmp_path_factory):
    """Return a function that copies into a folder a job that was `stopped` cleanly, or `killed`
    after some commits, with pages to fetch, which is made once for the same settings."""

    @cache
    def made(how, **settings):
        folder = tmp_path_factory.mktemp(how)
        if how == "killed":
            kill(folder, **settings)
        else:
            status, log = run(folder, "-a", "stop_at=10", **settings)
            assert (status, (folder / "job" / "spider.state").stat().st_size > 10) == (0, True), log
        return folder

    def job(folder, how="stopped", **settings):
        return shutil.copytree(made(how, **settings), folder, dirs_exist_ok=True)

    return job


DISK = '''
import sqlite3
from pathlib import Path

from scrapy_bloom.bloom.file import BitStore
from scrapy_bloom.sqlite import scheduler


class Failing:
    """An extension, with which nothing is read or written any more once a job is open."""


def fail(*_):
    raise sqlite3.OperationalError("disk I/O error")


scheduler.SqliteRecords = fail
'''


@pytest.mark.parametrize(("how", "of"), [("stopped", "spider.state"), ("killed", "bloom/0.bloom")])
def test_a_refusal_of_an_open_job_leaves_the_state(tmp_path, job_once, how, of):
    """One line has the cause, and Scrapy, which would close the spider, empties no file, also if
    the filter cannot be closed, nor the lock removed; that of a killed job stays one."""
    state = job_once(tmp_path, how) / "job" / of
    before = state.read_bytes()
    fails = "BitStore.close = fail\nPath.unlink = lambda *_, **__: open('/')\n"
    (tmp_path / "disk.py").write_text(DISK + fails * (how == "stopped"))
    status, log = run(tmp_path, EXTENSIONS='{"disk.Failing": 0}')
    assert status == 1, log
    (error,) = lines(log, "ERROR")
    assert "requests.sqlite: disk I/O error" in error
    assert "Traceback" not in log
    assert state.read_bytes() == before


OF_SCRAPY = {"SCHEDULER": STOCK}
FINGERPRINTER = {"REQUEST_FINGERPRINTER_CLASS": "scrapy_bloom.ScrapyRedisFingerprinter"}

CANONICAL = {"REQUEST_FINGERPRINTER_CLASS": "scrapy_bloom.CanonicalRequestFingerprinter"}


@pytest.mark.parametrize(
    ("own", "bad"),
    [
        (OF_SCRAPY, {"BLOOM_CAPACITY": "none"}),
        (OF_SCRAPY, "truncated"),
        ({}, "truncated"),
        ({"BLOOM_DELTA": "item"}, "missing"),
        ({"BLOOM_CAPACITY": "20"}, "missing"),
        ({}, FINGERPRINTER),
        ({}, {"BLOOM_ERROR_RATE": "1e-9", "reactor": SELECT}),
        ({}, {"SCHEDULER_MEMORY_QUEUE": "no.X"}),
        ({}, {"BLOOM_DURABLE": "no"}),
        ({}, {"BLOOM_IGNORE_SCHEME": "no", **CANONICAL}),
        ({}, {"name": "renamed"}),
    ],
    ids=str,
)
def test_a_refused_start_changes_no_file(job_once, tmp_path, own, bad):
    """One ERROR line, no traceback, status 1; the next, correct start, or that of another spider
    with BLOOM_ANY_SPIDER, goes on with state and every page. So with a damaged filter, or without
    its newest layer, and with the queues of Scrapy's own scheduler, which are not opened before."""
    folder = job_once(tmp_path, **own)
    path = max((folder / "job" / "bloom").glob("*.bloom"))
    assert path.name == f"{'BLOOM_CAPACITY' in own:d}.bloom"
    whole = path.read_bytes()
    if isinstance(bad, str):
        path.unlink()
        if bad == "truncated":
            path.write_bytes(whole[:-4096])
        assert f"{path.name} is {bad}" in refused(folder, **own)
        path.write_bytes(whole)
    else:
        assert bad.get("SCHEDULER_MEMORY_QUEUE", "") in refused(folder, **own, **bad)
    goes_on(folder, **own, **({**bad, "BLOOM_ANY_SPIDER": "1"} if "name" in bad else {}))
    state = (folder / "job" / "spider.state").read_bytes()
    assert b"pages" in state
    assert bytes([30]) in state or bytes([31]) in state  # the start page is sent again


@pytest.mark.parametrize(("place", "own"), [("job", {}), ("job/bloom", OF_SCRAPY)])
def test_a_file_in_the_place_of_a_directory_refuses_the_start(tmp_path, place, own):
    """It is left where it is, and named."""
    (tmp_path / place).parent.mkdir(exist_ok=True)
    (tmp_path / place).write_text("mine")
    assert re.search(f": {place}/.* [(]Not a directory", refused(tmp_path, **own))
    assert (tmp_path / place).read_text() == "mine"


def test_a_state_that_cannot_be_read_refuses_the_start(tmp_path):
    """It is found before anything is written."""
    (tmp_path / "job" / "spider.state").mkdir(parents=True)
    assert "'job/spider.state'; remove the cause" in refused(tmp_path)


@pytest.mark.skipif(sys.platform != "linux", reason="names need not be UTF-8 there alone")
def test_a_job_directory_may_have_any_name(tmp_path):
    """One that is no UTF-8, too, as with Scrapy's scheduler; a log in UTF-8 takes it."""
    folder = os.fsdecode(b"job\xff")
    for arguments in (["-a", "stop_at=10"], ["-o", "a.jl"]):
        assert run(tmp_path, *arguments, JOBDIR=folder, LOG_FILE="log") == (0, "")
    log = (tmp_path / "log").read_text()
    assert log.count(" job\\udcff/bloom, which knows") == 2
    assert "'finish_reason': 'finished'" in log


def test_a_second_start_of_a_running_job_changes_no_file(job_once, tmp_path):
    """Refused with the process that has it; the one that runs goes on."""
    folder = job_once(tmp_path)
    held = start(folder, "-a", "last=3", "-a", "wait_for=go")
    try:
        wait_until((folder / "waiting").exists)  # from then on it writes nothing
        assert f"process {held.pid}" in refused(folder)
    finally:
        held.send_signal(SIGINT)
        (folder / "go").touch()
        held.communicate(timeout=PATIENCE)
    assert (folder / "job" / "spider.state").stat().st_size > 10


@pytest.mark.parametrize("gone", ["requests.sqlite-wal", "requests.sqlite*"])
def test_a_killed_job_without_its_log_is_refused(job_once, tmp_path, gone):
    """A copy that lacks what was committed last does not end as `finished` with a part of the
    pages: it is left as it is, and goes on with what is missing put back."""
    killed = job_once(tmp_path, "killed")
    whole = {path: path.read_bytes() for path in (killed / "job").glob(gone)}
    assert whole
    for path in whole:
        path.unlink()
    error = refused(killed)
    for told in ("requests.sqlite", str(Path("job") / "bloom"), "-wal", "new JOBDIR"):
        assert told in error
    for path, content in whole.items():
        path.write_bytes(content)
    log = goes_on(killed)
    # the tenth page was not done, and perhaps the ninth one's item
    found = re.search(r"'response_received_count': (\d+)", log)
    assert 21 <= int(found[1]) < 30


IS_ROOT = hasattr(os, "geteuid") and os.geteuid() == 0
AS_ANY_USER = IS_ROOT * ["setpriv", "--bounding-set=-dac_override", "--inh-caps=-dac_override"]
"""Root may write what the mode of a file forbids, but for this."""
NEEDS_MODES = pytest.mark.skipif(IS_ROOT and not shutil.which("setpriv"), reason="root may write")


FEED = {"i.jl": {"format": "jsonlines"}, "i.json": {"format": "json"}}
GIVEN = {"FEEDS": json.dumps(FEED)}


@pytest.mark.slow
@NEEDS_MODES
@pytest.mark.parametrize(("how", "of"), [("stopped", "i.jl"), ("killed", "i.jl")])
def test_a_file_that_may_not_be_written_is_refused(job_once, tmp_path, how, of):
    """Slow, since it makes two jobs: with nothing left beside it that would keep the job refused
    when it may be again; the filter of a killed job stays as it was, too."""
    folder = job_once(tmp_path, how, **GIVEN)
    for path in (folder / "job" / "requests.sqlite", folder / of):
        path.chmod(0o400)
        error = refused(folder, of=".", before=AS_ANY_USER, **GIVEN)
        assert re.search(rf"{path.name}'?; remove the cause, then start again$", error)
        path.chmod(0o600)
    goes_on(folder, **GIVEN)


@NEEDS_MODES
def test_a_new_feed_that_may_not_be_written_refuses_the_start(tmp_path):
    """A directory, or one without the right to write in it, or such a file, also where a job only
    begins. What is replaced needs no such right, nor does a full batch of an earlier start."""
    batches = {"b%(batch_id)d.jl": {"format": "jsonlines", "batch_item_count": 5}}
    given = {"old.json": {"format": "json"}, **batches}
    own = {"FEEDS": json.dumps(given), "before": AS_ANY_USER}
    (tmp_path / "old.json").touch(0o400)
    assert run(tmp_path, "-a", "stop_at=10", **own)[0] == 0
    (tmp_path / "b1.jl").chmod(0o400)
    (tmp_path / "dir").mkdir(0o500)
    wrong = {"dir": "dir is a directory", "dir/new.json": "dir may not", "b1.jl": "b1.jl may not"}
    for name, why in wrong.items():
        bad = {name: {"format": "json" if name.endswith("n") else "jl"}, **given}
        job = {"FEEDS": json.dumps(bad), "JOBDIR": "new" if name == "dir" else "job"}
        error = refused(tmp_path, of=".", **{**own, **job})
        assert f"feed '{name}': {tmp_path}/{why}" in error
    goes_on(tmp_path, **own)
    assert len([*tmp_path.glob("b*.jl")]) == 6


OTHERS = {
    "fields": {**FEED, "i.jl": {**FEED["i.jl"], "fields": ["url"]}},
    "one file": {**FEED, "./i.jl": FEED["i.jl"]},
}


@pytest.mark.parametrize(
    ("begun", "bad"),
    [
        *(("stopped", bad) for bad in OTHERS),
        *((begun, "a foreign line") for begun in ("killed", "ordered", "by the setting")),
    ],
)
def test_a_feed_that_cannot_go_on_refuses_the_start(job_once, tmp_path, begun, bad):
    """Before anything is opened: the filter of a killed job stays one of a killed job. That of a
    round that goes on does, too, though it was over but for requests that are retried now."""
    own = {"BLOOM_RETRY_FAILED": "1"} if begun == "by the setting" else {}
    if begun in {"stopped", "killed"}:
        job_once(tmp_path, begun, **GIVEN)
    else:
        goes_on(tmp_path, **GIVEN, BLOOM_BUDGET='{"*": 10}')
    if begun == "ordered":
        command = ["-m", "scrapy", "bloom", "retry", "job", "--reason", "capped"]
        subprocess.run([sys.executable, *command], cwd=tmp_path, check=True)
    feed = tmp_path / "i.jl"
    whole, worse = feed.read_text(), GIVEN
    if bad in OTHERS:
        worse = {"FEEDS": json.dumps(OTHERS[bad])}
    else:
        feed.write_text(f"{whole}not from this job\n")
    assert "i.jl" in refused(tmp_path, of=".", **worse, **own)
    if bad == "one file":  # nor does a job begin
        refused(tmp_path, of="new", JOBDIR="new", **worse)
    feed.write_text(whole)
    goes_on(tmp_path, **GIVEN, **own)
    assert len(feed.read_text().splitlines()) == 30


def test_other_crawls_of_the_process_go_on(tmp_path):
    """A refused one among several ends alone, and a second one with a JOBDIR is refused."""
    (tmp_path / "spider.py").write_text(SPIDER)
    done = processes.run([tmp_path / "spider.py", "job"], cwd=tmp_path, text=True)
    assert "bootstrap failed: True" in done.stdout
    wrong, second = lines(done.stderr, "ERROR")
    assert "BLOOM_CAPACITY is 'none'" in wrong
    assert "other is in use by process" in second
    assert "'response_received_count': 30" in done.stderr
