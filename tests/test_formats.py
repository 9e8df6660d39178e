"""What earlier versions have left on disks and in Redis: jobs and crawls go on, filters and
fingerprints are the same.

`data/v010/README.md`, and those of `v020` and `v030`, say what is there. Tests work on copies,
since whoever opens a job changes it.
"""

import gzip
import json
import os
import shutil
import sqlite3
from contextlib import closing
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import pytest
from scrapy import Request
from scrapy.settings import Settings
from scrapy.utils.request import RequestFingerprinter

from scrapy_bloom import (
    BloomFilter,
    CanonicalRequestFingerprinter,
    FastRequestFingerprinter,
    ScalableBloomFilter,
    ScrapyRedisFingerprinter,
)
from scrapy_bloom.bloom.directory import layer_paths
from scrapy_bloom.bloom.file import read_header
from scrapy_bloom.bloom.inspection import verify
from scrapy_bloom.delta.table import Table
from scrapy_bloom.fingerprints.identity import FingerprinterIdentity
from scrapy_bloom.sqlite_backend.failed_store import SQLiteFailedStore
from scrapy_bloom.sqlite_backend.status import job_state, unfinished_requests
from tests import processes
from tests.data.v010 import make
from tests.data.v020 import make as v020
from tests.data.v030 import make as v030
from tests.job.engine import Job

OLD = Path(make.__file__).parent
EXPECTED = json.loads((OLD / "expected.json").read_text(encoding="utf-8"))
FINGERPRINTS = json.loads((OLD / "fingerprints.json").read_text(encoding="utf-8"))
JOBS = EXPECTED["jobs"]
FILTERS = EXPECTED["filters"]

V020 = Path(v020.__file__).parent
EXPECTED_020 = json.loads((V020 / "expected.json").read_text(encoding="utf-8"))

V030 = Path(v030.__file__).parent
STORES = json.loads((V030 / "expected.json").read_text(encoding="utf-8"))["stores"]

pytest_plugins = ["tests.redis_backend.fixtures"]
pytestmark = pytest.mark.skipif(os.name != "posix", reason="JOBDIR needs Linux or macOS")


@pytest.fixture(params=JOBS)
def name(request):
    return request.param


@pytest.fixture
def folder(tmp_path, name):
    """A copy of a job directory."""
    return shutil.copytree(OLD / "jobs" / name, tmp_path / name)


def filter_of(folder):
    """Return what the filter of a job holds, and how it was closed."""
    with closing(ScalableBloomFilter.open(folder / "bloom", read_only=True)) as found:
        held = [text for text in EXPECTED["site"] if make.fingerprint_of(text) in found]
        return {"clean": found.clean, "items": len(found)}, held


def rows_of(folder):
    """Return the stored requests as `expected.json` has them."""
    with closing(sqlite3.connect(folder / "requests.sqlite")) as database:
        rows = database.execute("SELECT * FROM requests ORDER BY id").fetchall()
    return json.loads(json.dumps([make.describe_row(*row) for row in rows]))


def name_of(callback):
    return getattr(callback, "__name__", "None")


def test_an_old_job_goes_on_to_its_end(folder, name, tmp_path):
    """A process of its own fetches what 0.1.0 fetched when it went on, and nothing else:
    with what was answered before, the whole site. What is left then is sound."""
    job = JOBS[name]
    log = tmp_path / "log"
    capacity = job["settings"]["BLOOM_CAPACITY"]
    run = processes.run([make.__file__, "--crawl", "resume", folder, log, capacity], text=True)
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout) == job["resumed"]["stats"]
    answered = make.read_log(log)["answered"]
    assert sorted(answered) == sorted(job["resumed"]["answered"])
    assert {*job["answered"], *answered} == {*EXPECTED["site"]}
    assert unfinished_requests(folder) == 0
    assert all(finding.sound for finding in verify(folder / "bloom"))


def test_the_requests_of_an_old_job_are_handed_out_as_they_were(folder, name):
    """Each with its callback, its arguments and its priority, the highest first; the filter
    knows what it knew, and what it had not got when the process died."""
    job = Job(folder, spider=make.OldSpider, **JOBS[name]["settings"]).open()
    try:
        assert job.stat("scheduler/recovered") == (None if name == "clean" else JOBS[name]["count"])
        assert rows_of(folder) == [{**row, "popped": 0} for row in JOBS[name]["requests"]]
        popped = [job.pop() for _ in JOBS[name]["requests"]]
        assert len(job.scheduler) == 0
        assert sorted(
            (make.text_of(request), -request.priority, name_of(request.callback))
            for request in popped
        ) == sorted(
            (row["request"], row["priority"], str(row["callback"]))
            for row in JOBS[name]["requests"]
        )
        slots = {row["request"]: row["slot"] for row in JOBS[name]["requests"]}
        for slot in {*slots.values()}:
            found = [each.priority for each in popped if slots[make.text_of(each)] == slot]
            assert found == sorted(found, reverse=True)
        seen = [*JOBS[name]["seen"], *JOBS[name]["unreleased_not_in_filter"].values()]
        assert all(job.scheduler.df.request_seen(make.request_of(text)) for text in seen)
        unseen = {*JOBS[name]["unseen"]} - {*seen}
        assert not any(job.scheduler.df.request_seen(make.request_of(text)) for text in unseen)
    finally:
        job.drop()


def test_an_old_job_is_read_without_a_change(folder, name):
    """What is unfinished, what has failed (nothing had then) and what the filter holds."""
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    found, held = filter_of(folder)
    expected = JOBS[name]["filter"]
    assert found == {"clean": expected["clean"], "items": expected["items"]}
    assert {*JOBS[name]["seen"]} <= {*held}
    assert not {*JOBS[name]["unseen"]} & {*held}
    assert unfinished_requests(folder) == JOBS[name]["count"]
    assert SQLiteFailedStore(folder).requests() == []
    assert all(finding.sound for finding in verify(folder / "bloom"))
    # the index of SQLite's log, which was left out
    (folder / "requests.sqlite-shm").unlink(missing_ok=True)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def layers_of(opened, path):
    """Return the layers of a filter as `expected.json` has them."""
    layers = getattr(opened, "layers", [opened])
    files = layer_paths(path) if path.is_dir() else [path]
    return [
        {
            "capacity": layer.capacity,
            "items": len(layer),
            "error_rate": layer.error_rate,
            "blocks": header.blocks,
            "probes": header.probes,
        }
        for layer, header in zip(layers, map(read_header, files), strict=True)
    ]


@pytest.mark.parametrize("name", FILTERS)
def test_an_old_filter_holds_what_it_held(tmp_path, name):
    """Fixed and growing ones, of few and many probes: bits are where they were, so keys are
    found, others are not, and new ones can be added."""
    expected = FILTERS[name]
    path = tmp_path / name
    if (OLD / name).is_dir():
        shutil.copytree(OLD / name, path)
        opened = ScalableBloomFilter.open(path)
    else:
        shutil.copy(OLD / name, path)
        opened = BloomFilter.open(path)
    keys = expected["keys"]
    with closing(opened):
        assert opened.clean
        assert (len(opened), opened.error_rate, opened.identity) == (
            expected["items"],
            expected["error_rate"],
            expected["identity"],
        )
        assert layers_of(opened, path) == expected["layers"]
        assert all(b"key %d" % n in opened for n in range(keys["first"], keys["last"] + 1))
        assert not any(b"key %d" % n in opened for n in expected["absent"]["numbers"])
        assert not opened.add(b"new")
    assert all(finding.sound for finding in verify(path))


# 0.2.0


@pytest.fixture(params=EXPECTED_020["jobs"])
def story(request):
    """What is known of a job of 0.2.0."""
    return request.param, EXPECTED_020["jobs"][request.param]


@pytest.fixture(autouse=True)
def _forks(monkeypatch):
    """Start the processes of 0.2.0's stories as forks."""

    def run(command, *, cwd, capture_output, text, check):
        return processes.run(command[1:], cwd=cwd, text=text, check=check)

    for made in (v020, v030):
        monkeypatch.setattr(made, "subprocess", SimpleNamespace(run=run))


@pytest.fixture
def place(story, tmp_path):
    """A copy of its JOBDIR, feeds and memory."""
    name, _ = story
    return v020.unpack(V020 / f"{name}.tar.gz", tmp_path / name)


def test_a_job_of_version_0_2_0_goes_on_to_its_end(story, place):
    """Processes of their own fetch what 0.2.0 fetched when it went on, what had failed when that
    is retried, and nothing else. Feeds of all kinds and batches in all states have the items
    that they had then, and the delta store knows the same pages, but for lists: 0.2.0 marked
    them."""
    _, expected = story
    resumed = dict(expected["resumed"])
    known = {*expected["memory"]["pages"]}
    resumed["memory"] = [
        page for page in resumed["memory"] if page in known or "/list/" not in page
    ]
    assert v020.go_on(place, expected) == resumed
    assert job_state(place / "job").state == "finished"
    assert SQLiteFailedStore(place / "job").requests() == []
    assert all(finding.sound for finding in verify(place / "job" / "bloom"))


def test_a_job_of_version_0_2_0_is_read_without_a_change(story, place):
    """How it ended, what is unfinished and has failed, what the memory knows."""
    name, expected = story
    before = {path: path.read_bytes() for path in place.rglob("*") if path.is_file()}
    ends = {"killed": "killed", "failed": "finished"}
    assert job_state(place / "job").state == ends.get(name, "stopped")
    assert unfinished_requests(place / "job") == len(expected["requests"])
    found = SQLiteFailedStore(place / "job").requests()
    unreadable = [["", "unreadable", 1] for _ in expected["set_aside"]]
    assert sorted([each.url, each.reason, each.attempts] for each in found) == sorted(
        [*expected["failed"], *unreadable]
    )
    assert v020.known_to(place) == expected["memory"]
    (place / "job" / "requests.sqlite-shm").unlink(missing_ok=True)
    assert {path: path.read_bytes() for path in place.rglob("*") if path.is_file()} == before


def test_a_crawl_of_version_0_2_0_goes_on_to_its_end(own_server, tmp_path):
    """Crawls in Redis, one that was killed, with requests in each place, and one that is over:
    a worker fetches, with the JOBDIR of one that was killed, what 0.2.0 fetched, then what has
    failed when that is retried; and its feeds have the items that they had then."""
    expected = EXPECTED_020["redis"]
    dump = json.loads(gzip.decompress((V020 / v020.DUMP).read_bytes()))
    with own_server.client() as client:
        v020.restore_redis(client, dump)
    crawls = v020.describe_crawls(own_server.url)
    assert crawls == {name: expected[name] for name in crawls}
    place = v020.unpack(V020 / "worker.tar.gz", tmp_path / "worker")
    assert v020.resume_crawls(place, own_server.url) == expected["resumed"]
    assert all(crawl["over"] for crawl in v020.describe_crawls(own_server.url).values())


@pytest.mark.parametrize(
    ("name", "kind"), [("exact.bloom", BloomFilter), ("growing", ScalableBloomFilter)]
)
def test_an_exact_filter_of_version_0_2_0_makes_no_mistake(tmp_path, name, kind):
    """It knows its keys and no other, though its error rate is one in a hundred, and grows."""
    (shutil.copytree if (V020 / name).is_dir() else shutil.copy)(V020 / name, tmp_path / name)
    expected, keys = EXPECTED_020["filters"][name], EXPECTED_020["filters"]["keys"]
    with closing(kind.open(tmp_path / name)) as found:
        assert found.exact
        assert found.clean
        assert len(found) == expected["items"]
        assert all(b"key %d" % n in found for n in range(keys["first"], keys["last"] + 1))
        assert not any(found.add(b"new %d" % n) for n in range(300 if name == "growing" else 1))
    assert all(finding.sound for finding in verify(tmp_path / name))


# 0.3.0


@pytest.mark.parametrize("name", STORES)
def test_a_delta_store_of_version_0_3_0_is_read_without_a_change(tmp_path, name):
    """Its rows, whose fingerprints they are, and for how long marks count."""
    store = shutil.copytree(V030 / name, tmp_path / name)
    before = (store / "delta.sqlite").read_bytes()
    with closing(Table(store)) as table:
        table.look()
        assert v030.rows_of(store) == STORES[name]["rows"]
        assert table.longest == 8 * v030.DAY
        then = FingerprinterIdentity.from_text(table.identity)
        warning = then.require_same(FingerprinterIdentity.of(RequestFingerprinter()), name)
        assert warning is None or "unusual URLs" in warning  # of another w3lib
        assert table.findings() == ""
    assert [path.name for path in store.iterdir()] == ["delta.sqlite"]
    assert (store / "delta.sqlite").read_bytes() == before


@pytest.mark.parametrize("name", STORES)
def test_a_crawl_with_a_delta_store_of_version_0_3_0(tmp_path, name):
    """It asks for what has expired, was forgotten or is new, and finds the pages that have
    changed; then the store has the same rows as of 0.3.0."""
    store = shutil.copytree(V030 / name, tmp_path / name)
    assert v030.run(name, v030.NEXT, store) == STORES[name]["next"]
    assert v030.rows_of(store) == STORES[name]["rows_then"]


# Fingerprints


FINGERPRINTERS = {
    "scrapy": RequestFingerprinter(),
    "fast": FastRequestFingerprinter(),
    **{
        name: CanonicalRequestFingerprinter(Settings(values))
        for name, values in FINGERPRINTS["settings"].items()
    },
    "scrapy_redis": ScrapyRedisFingerprinter(),
}


def plain(value):
    """Return what was written as JSON."""
    if isinstance(value, dict):
        if [*value] == ["bytes"]:
            return bytes.fromhex(value["bytes"])
        return {name: plain(part) for name, part in value.items()}
    return value


def differs_by_itself(case, request):
    """Return True if the installed Scrapy or w3lib, and not ours, answers otherwise."""
    if case["needs_w3lib"] or "verbatim_url" in request.meta:
        return any(version(name) != FINGERPRINTS["made_with"][name] for name in ("scrapy", "w3lib"))
    return False


@pytest.mark.parametrize("name", FINGERPRINTERS)
def test_fingerprints_are_those_that_filters_hold(name):
    """The ways to fingerprint a request that jobs were made with give what they gave then,
    `bloom_fingerprint` in meta included."""
    checked = 0
    for case in FINGERPRINTS["requests"]:
        request = Request(
            case["url"], method=case["method"], body=plain(case["body"]), meta=plain(case["meta"])
        )
        if not differs_by_itself(case, request):
            found = FINGERPRINTERS[name].fingerprint(request).hex()
            assert found == case["fingerprints"][name], case["url"]
            checked += 1
    assert checked > 15


@pytest.mark.parametrize("name", FINGERPRINTERS)
def test_fingerprinters_are_recognised(name):
    """What filters keep of the fingerprinter that they were made with fits the one of today,
    wherever its class lives now."""
    then = FingerprinterIdentity.from_text(FINGERPRINTS["identities"][name])
    now = FingerprinterIdentity.of(FINGERPRINTERS[name])
    warning = then.require_same(now, "a filter of 0.1.0")
    assert warning is None or version("w3lib") != FINGERPRINTS["made_with"]["w3lib"]
