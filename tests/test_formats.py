"""What version 0.1.0 has left on disks: jobs go on, filters and fingerprints are the same.

`data/v010/README.md` says what is there. Tests work on copies, since whoever opens a job
changes it.
"""

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from importlib.metadata import version
from pathlib import Path

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
from scrapy_bloom.bloom.file import read_header
from scrapy_bloom.bloom.inspection import verify
from scrapy_bloom.bloom.place import Place
from scrapy_bloom.durable.inspection import set_aside_requests, unfinished_requests
from scrapy_bloom.fingerprints.identity import FingerprinterIdentity
from tests.data.v010 import make
from tests.durable.engine import Job

OLD = Path(make.__file__).parent
EXPECTED = json.loads((OLD / "expected.json").read_text(encoding="utf-8"))
FINGERPRINTS = json.loads((OLD / "fingerprints.json").read_text(encoding="utf-8"))
JOBS = EXPECTED["jobs"]
FILTERS = EXPECTED["filters"]

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
    run = subprocess.run(
        [
            sys.executable,
            make.__file__,
            *("--crawl", "resume", folder, log),
            str(job["settings"]["BLOOM_CAPACITY"]),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout) == job["resumed"]["stats"]
    answered = make.read_log(log)["answered"]
    assert sorted(answered) == sorted(job["resumed"]["answered"])
    assert {*job["answered"], *answered} == {*EXPECTED["site"]}
    assert unfinished_requests(folder) == 0
    assert all(finding.sound for finding in verify(Place.find(str(folder))))


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
    """What is unfinished, what is set aside (nothing was then) and what the filter holds."""
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    found, held = filter_of(folder)
    expected = JOBS[name]["filter"]
    assert found == {"clean": expected["clean"], "items": expected["items"]}
    assert {*JOBS[name]["seen"]} <= {*held}
    assert not {*JOBS[name]["unseen"]} & {*held}
    assert unfinished_requests(folder) == JOBS[name]["count"]
    assert set_aside_requests(folder / "requests.sqlite") == []
    assert all(finding.sound for finding in verify(Place.find(str(folder))))
    # the index of SQLite's log, which was left out
    (folder / "requests.sqlite-shm").unlink(missing_ok=True)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def layers_of(opened, place):
    """Return the layers of a filter as `expected.json` has them."""
    layers = getattr(opened, "layers", [opened])
    return [
        {
            "capacity": layer.capacity,
            "items": len(layer),
            "error_rate": layer.error_rate,
            "blocks": header.blocks,
            "probes": header.probes,
        }
        for layer, header in zip(layers, map(read_header, place.files), strict=True)
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
        assert layers_of(opened, Place.find(str(path))) == expected["layers"]
        assert all(b"key %d" % n in opened for n in range(keys["first"], keys["last"] + 1))
        assert not any(b"key %d" % n in opened for n in expected["absent"]["numbers"])
        assert not opened.add(b"new")
    assert all(finding.sound for finding in verify(Place.find(str(path))))


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
