"""What the name of a job, a filter, a delta store or a server means, to each subcommand."""

import os
import time

import pytest

from scrapy_bloom import BloomFilter, ScalableBloomFilter
from scrapy_bloom.commands import main
from scrapy_bloom.commands.target import Kind, Target
from scrapy_bloom.delta.file_store import FileDeltaStore
from scrapy_bloom.delta.settings import Lifetime
from scrapy_bloom.jobdir import JobDirectory
from scrapy_bloom.sqlite.job_file import RequestFile
from tests.commands.command_line import files_in

pytestmark = pytest.mark.skipif(os.name != "posix", reason="filter files need Linux or macOS")

COMMANDS = {
    "info": ["PLACE"],
    "check": ["PLACE", "http://example.com/"],
    "verify": ["PLACE"],
    "add": ["PLACE", "urls.txt"],
    "merge": ["PLACE", "alone"],
    "clear": ["PLACE", "--yes"],
    "failed": ["PLACE"],
    "retry": ["PLACE"],
    "drop": ["PLACE", "--yes"],
    "top": ["PLACE", "--json"],
    "queue": ["count", "PLACE"],
    "delta": ["forget", "PLACE", "--older", "1d"],
    "load": ["PLACE", "redis://127.0.0.1:1/0", "--key", "k"],
    "export": ["redis://127.0.0.1:1/0", "PLACE", "--key", "k"],
    "workers": ["PLACE", "--key", "k"],
    "push": ["PLACE", "http://example.com/", "--key", "k"],
}
URL = "redis://:hush@127.0.0.1:1/0"
WITH_PASSWORDS = (
    f" {URL}",
    f"\t{URL}",
    f"x{URL}",
    f"x {URL}",
    f"'{URL}'",
    URL[6:],
    URL[8:],
    f"u{URL[8:]}",
)
KINDS = {
    "job": {Kind.FILTER, Kind.REQUESTS},
    "job/bloom": {Kind.FILTER, Kind.REQUESTS},
    "job/bloom/0.bloom": {Kind.LAYER},
    "job/requests.sqlite": set(),
    "half": {Kind.REQUESTS, Kind.NEW},
    "worker": set(),
    "seen": {Kind.NEW},
    "scrapys": {Kind.NEW},
    "empty": {Kind.NEW},
    "nowhere": {Kind.NEW},
    "alone": {Kind.FILTER},
    "one.bloom": {Kind.FILE},
    "7.bloom": {Kind.FILE},
    "other.bloom": set(),
    "urls.txt": set(),
    "table": {Kind.DELTA_STORE},
    "table/delta.sqlite": set(),
    "http://example.com/": set(),
    "": set(),
    URL: {Kind.REDIS, Kind.SCRAPY_REDIS},
    **{url: set() for url in WITH_PASSWORDS},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A directory with one of each kind, which no test changes."""
    folder = tmp_path_factory.mktemp("places")
    for name in ("job", "half", "worker", "seen", "empty", "scrapys/requests.queue"):
        (folder / name).mkdir(parents=True)
    for name in ("job/bloom", "alone"):
        ScalableBloomFilter(100, 1e-3, folder / name).close()
    for name in ("job", "half"):
        RequestFile.open(JobDirectory(folder / name).requests).close(clean=True)
    (folder / "worker" / "worker-feeds.sqlite").touch()
    (folder / "seen" / "requests.seen").write_bytes(b"\0\x14" + bytes(20))
    for name in ("one.bloom", "7.bloom"):
        BloomFilter(100, 1e-3, folder / name).close()
    (folder / "urls.txt").write_text("http://example.com/\n")
    table = FileDeltaStore(folder / "table", Lifetime())
    table.add([(bytes(20), time.time())])
    table.close()
    return folder


@pytest.fixture
def places(folder, monkeypatch):
    """That directory as the current one."""
    monkeypatch.chdir(folder)
    monkeypatch.delenv("SCRAPY_SETTINGS_MODULE", raising=False)
    return folder


@pytest.mark.parametrize("name", KINDS)
def test_a_name_means_the_same_to_all(places, name):
    """By what is there, whoever asks."""
    assert Target.find(name).kinds == KINDS[name]


@pytest.fixture
def refusal(places, capsys):
    """Run a subcommand that refuses a place, and return the line that it prints."""

    def refuse(command, name):
        before = files_in(places)
        words = [name if word == "PLACE" else word for word in COMMANDS[command]]
        assert main([command, *words]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert "hush" not in line
        assert files_in(places) == before
        return line.partition(": error: ")[2]

    return refuse


REFUSED = [
    *(("info failed top check verify load workers", url, "is no URL") for url in WITH_PASSWORDS),
    ("info failed top retry drop check verify clear", "worker", "worker is the JOBDIR of a worker"),
    ("info failed top retry drop check verify clear", "worker", "or redis://HOST/DB with --key"),
    ("add merge", "worker", "whose filter and requests are in Redis: give "),
    ("load", "worker", "BloomDupeFilter or redis://HOST/DB of scrapy-redis with --spider"),
    ("export", "worker", "whose filter and requests are in Redis: give a job directory"),
    ("add merge clear load failed", "job/bloom/0.bloom", "a growing filter: give job/bloom"),
    ("info check add merge clear", "table/delta.sqlite", "one file of a delta store: give table"),
    ("failed top delta", "alone", "alone is a filter alone: give the "),
    ("failed top load export", "table", "table is a delta store: give "),
    ("info verify clear failed", "job/requests.sqlite", "is one file of a job: give job"),
    ("info verify add clear failed", "urls.txt", "is one file, and no filter: give the JOBDIR"),
    ("info check verify merge clear", "half", "only the requests.sqlite of DurableScheduler: look"),
    ("info check verify clear load", "seen", "import it with 'scrapy bloom add seen seen/req"),
    ("info check verify clear load merge", "nowhere", "(there is no nowhere/bloom/0.bloom): give"),
    ("info add export failed top", "http://example.com/", "'http…' is no URL of Redis: give "),
    ("workers", "job", "job is a job without workers: 'scrapy bloom top' shows it"),
    ("push", "job", "'job…' is no URL of Redis: give redis://HOST/DB with --key"),
    ("info add failed delta", "", "a PLACE is empty: give a job directory"),
    ("add merge export", URL, "redis://127.0.0.1:1/0 is a URL of Redis: 'scrapy bloom export'"),
    ("delta", URL, "BLOOM_DELTA_DIR: give --spider NAME in its project"),
    ("merge", "table", "alone is a filter alone: give the directory of a delta store"),
    ("export", "one.bloom", "is one file"),
    ("queue", "scrapys", "is the JOBDIR of Scrapy's own scheduler"),
    ("queue", "scrapys", "scrapy_bloom.DurableScheduler"),
    ("queue failed retry drop", "empty", "empty holds no requests of DurableScheduler"),
    ("top", "nowhere", "no requests of DurableScheduler"),
    ("info check failed retry drop queue", "redis://:hush@localhost", "give the BLOOM_REDIS_KEY"),
    ("add check", "x.bloom", "x.bloom is not there"),
]


@pytest.mark.parametrize(
    ("command", "name", "message"),
    [(command, *rest) for commands, *rest in REFUSED for command in commands.split()],
)
def test_what_is_not_taken_is_refused_by_name(refusal, command, name, message):
    """What it is, and what to give instead; nothing changes."""
    assert message in refusal(command, name)
