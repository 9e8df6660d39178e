"""The contract of all subcommands: what a PLACE means to each, what is refused, and that whoever
looks changes nothing, neither a byte of a file nor a key in Redis."""

import json
import shutil
import time

import pytest
from scrapy import Request
from scrapy.utils.request import fingerprint

from scrapy_bloom import BloomFilter, ScalableBloomFilter
from scrapy_bloom.amounts import DAY
from scrapy_bloom.delta.file_store import FileDeltaStore, Row
from scrapy_bloom.delta.settings import Lifetime
from scrapy_bloom.jobdir import JobDirectory
from scrapy_bloom.sqlite.job_file import RequestFile
from tests.commands.command_line import EVERY_SUBCOMMAND, files_in
from tests.crawl.engine import Job

PAGE = "http://example.com/page"
URL = "redis://:hush@127.0.0.1:1/0"
WITH_PASSWORDS = [f" {URL}", f"\t{URL}", f"x{URL}", f"x {URL}", f"'{URL}'", URL[6:], URL[8:]]
WITH_PASSWORDS += [f"u{URL[8:]}"]
FILTER = {"info", "check", "verify"}
JOB = {"failed", "top", "queue count", "queue list"}
ANSWERED = {
    **dict.fromkeys(("job", "job/bloom", "killed"), FILTER | JOB),
    "half": JOB,
    **dict.fromkeys(("job/bloom/0.bloom", "alone", "unclean", "one.bloom", "7.bloom"), FILTER),
    "table": FILTER | {"delta count", "delta list"},
    "both": FILTER | JOB | {"delta count", "delta list"},
    "seen": set(),
    "crawl": FILTER | JOB | {"workers"},
}
"""What each place is asked for with success, of what only reads."""
READING = {
    "info": ["", "--json"],
    "check": [PAGE, "- --json"],
    "verify": ["", "--json"],
    "failed": ["", "--json", "-o -"],
    "top": ["--once", "--json"],
    "queue count": ["", "--json", "--by slot", "--url *"],
    "queue list": ["", "--json"],
    "delta count": ["", "--json"],
    "delta list": ["", "--json"],
    "workers": ["", "--json"],
    # what writes, refused
    "clear": [""],
    "drop": [""],
    "add": ["nowhere.txt"],
    "merge": ["nowhere"],
}
WRITING = {"retry", "load", "export", "push"}
WITHOUT_PLACE = {"size", "compare", "plot"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A directory with one of each kind, which no test changes."""
    folder = tmp_path_factory.mktemp("places")
    for name in ("half", "worker", "seen", "empty", "scrapys/requests.queue", "foreign/bloom"):
        (folder / name).mkdir(parents=True)
    (folder / "foreign" / "bloom" / "0.bloom").write_text("mine")
    job = Job(folder / "job").open().pushed("page")
    job.close("shutdown")
    job = Job(folder / "living").open().pushed("page0", "page1", "page2")
    job.pop()
    job.commit()
    shutil.copytree(folder / "living", folder / "killed")
    assert (folder / "killed" / "requests.sqlite-wal").stat().st_size
    job.drop()
    RequestFile.open(JobDirectory(folder / "half").requests).close(clean=True)
    ScalableBloomFilter(100, 1e-3, folder / "alone").close()
    with ScalableBloomFilter(100, 1e-6, folder / "open", exact=True) as bloom_filter:
        bloom_filter.update(str(number) for number in range(1000))
        shutil.copytree(folder / "open", folder / "unclean")
    (folder / "worker" / "worker-feeds.sqlite").touch()
    (folder / "seen" / "requests.seen").write_bytes(b"\0\x14" + bytes(20))
    for name in ("one.bloom", "7.bloom"):
        BloomFilter(100, 1e-3, folder / name).close()
    (folder / "urls.txt").write_text("http://example.com/\n")
    path, now = folder / "table", time.time()
    for age in (-90, 0.04, 7, 8, 20, 40):  # in days: an hour to 40, and of a clock that was ahead
        table = FileDeltaStore(path, Lifetime(30 * DAY), lambda age=age: now - min(age, 0) * DAY)
        table.add([(fingerprint(Request(f"{PAGE}{age}")), now - age * DAY)])
        table.add([Row(b"k" * 20, None, b"d" * 16)])
        table.close()
    shutil.copytree(folder / "job", folder / "both")
    shutil.copy(path / "delta.sqlite", folder / "both")
    return folder


@pytest.mark.parametrize("name", ANSWERED)
@pytest.mark.usefixtures("few_shards")
def test_no_command_changes_what_it_only_reads(run, folder, name, request):
    """Whether it answers or is refused, and whatever the settings say; with --json comes JSON."""
    place = (name,)
    if name == "crawl":
        worker = request.getfixturevalue("join")(capacity=2)
        worker.enqueue_all("abcd")
        worker.fail(worker.next())
        worker.exchange()
        place = request.getfixturevalue("redis_server").url, "--key", worker.key[1:-1]

    def contents():
        keys = worker.client.call("keys", f"*{place[2]}*") if name == "crawl" else ()
        return files_in(folder), {each: worker.client.call("dump", each) for each in keys}

    named = {command.split()[0] for command in READING}
    assert named | WRITING | WITHOUT_PLACE == EVERY_SUBCOMMAND
    before, answered = contents(), set()
    for days in ("1s", "365d") if name == "table" else ("1s",):
        for command, calls in READING.items():
            for words in calls:
                more = () if command in {"add", "merge"} else place[1:]
                options = [*more, *words.split(), "-s", f"BLOOM_DELTA_DAYS={days}"]
                result = run(folder, *command.split(), place[0], *options, stdin=f"{PAGE}\n")
                assert contents() == before, (command, words)
                if result.status != 2:
                    answered.add(command)
                    as_json = result.lines if command == "delta list" else [result.out]
                    assert "--json" not in words or [*map(json.loads, as_json)]
    assert answered == ANSWERED[name]


ARGUMENTS = {
    "check": "PLACE http://example.com/",
    "add": "PLACE urls.txt",
    "merge": "PLACE alone",
    "clear": "PLACE --yes",
    "drop": "PLACE --yes",
    "top": "PLACE --json",
    "queue": "count PLACE",
    "delta": "forget PLACE --older 1d",
    "load": "PLACE redis://127.0.0.1:1/0 --key k",
    "export": "redis://127.0.0.1:1/0 PLACE --key k",
    "workers": "PLACE --key k",
    "push": "PLACE http://example.com/ --key k",
}
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
    (
        "info check verify clear load",
        "seen",
        "a requests.seen of Scrapy's RFPDupeFilter: import it with 'scrapy bloom add seen seen/req",
    ),
    ("info check verify clear load merge", "nowhere", "(there is no nowhere/bloom/0.bloom): give"),
    ("info add export failed top", "http://example.com/", "'http…' is no URL of Redis: give "),
    ("workers", "job", "job is a job without workers: 'scrapy bloom top' shows it"),
    ("push", "job", "'job…' is no URL of Redis: give redis://HOST/DB with --key"),
    ("info add failed delta", "", "a PLACE is empty: give a job directory"),
    ("add merge export", URL, "redis://127.0.0.1:1/0 is a URL of Redis: 'scrapy bloom export'"),
    ("delta", URL, "BLOOM_DELTA_DIR: give --spider NAME in its project"),
    ("delta", "nowhere", "(BLOOM_DELTA_DIR) or redis://HOST/DB with --spider or -s BLOOM_DELTA_"),
    ("merge", "table", "alone is a filter alone: give the directory of a delta store"),
    ("export", "one.bloom", "is one file"),
    ("info add merge clear", "foreign", "foreign/bloom/0.bloom"),
    ("queue", "scrapys", "start it once with SCHEDULER = 'scrapy_bloom.DurableScheduler'"),
    ("queue failed retry drop top", "empty", "empty holds no requests of DurableScheduler"),
    ("info check failed retry drop queue", "redis://:hush@localhost", "give the BLOOM_REDIS_KEY"),
    ("add check info", "x.bloom", "x.bloom is not there"),
]


@pytest.mark.parametrize(("commands", "name", "message"), REFUSED)
def test_what_is_not_taken_is_refused_by_name(run, folder, commands, name, message):
    """What it is, and what to give instead; nothing changes."""
    before = files_in(folder)
    for command in commands.split():
        words = ARGUMENTS.get(command, "PLACE").split()
        result = run(folder, command, *(name if word == "PLACE" else word for word in words))
        assert message in result.refusal
        assert "hush" not in result.error
    assert files_in(folder) == before


def test_a_job_that_has_its_marks_in_it_is_the_job(run, folder, tmp_path):
    """To all commands but `delta`: clear takes the filter, and leaves the marks."""
    shutil.copytree(folder / "both", tmp_path / "both")
    assert run(tmp_path, "info", "both").fields["pending"] == "1 request"
    assert "removed both/bloom/0.bloom" in run(tmp_path, "clear", "both", "--yes").lines
    assert "holds no Bloom filter" in run(tmp_path, "clear", "both", "--yes").refusal
    assert run(tmp_path, "delta", "count", "both").lines == ["both: 6 pages and 1 digest"]


@pytest.mark.parametrize("command", ["failed", "retry", "drop --yes", "top", "push http://e.com/1"])
def test_a_place_without_a_crawl_is_refused(there, key, command):
    """By its key."""
    name, *words = command.split()
    assert f"there is no crawl {key!r}" in there(name, *words).refusal
