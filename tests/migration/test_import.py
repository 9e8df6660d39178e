"""The filter of a job that is made of what was crawled before: whole, or not at all."""

import os
import shutil
import sys
from hashlib import sha1
from pathlib import Path
from signal import SIGKILL

import pytest

from scrapy_bloom.bloom import ScalableBloomFilter
from scrapy_bloom.bloom.file import BitStore
from scrapy_bloom.jobdir import JobDirectory
from scrapy_bloom.migration.scrapy_job import import_job
from scrapy_bloom.migration.sources import SeenFile
from scrapy_bloom.settings import BloomSettings
from tests.migration.test_sources import binary
from tests.world.runner import fork

FINGERPRINTS = [sha1(str(n).encode()).digest() for n in range(3000)]
SETTINGS = BloomSettings(capacity=100, error_rate=1e-9)


@pytest.fixture
def job(tmp_path):
    """A job of Scrapy's dupefilter, with a record that was torn."""
    job = JobDirectory(tmp_path / "job")
    job.make()
    job.seen_file.write_bytes(binary(FINGERPRINTS) + b"\0\x14torn")
    return job


def names_in(job):
    """Return the names of what is in a job."""
    return sorted(path.name for path in job.path.iterdir() if path.name != "bloom.lock")


def test_job_gets_its_filter_whole_or_not_at_all(job, monkeypatch):
    """An import that dies leaves none behind, and the next one starts afresh."""
    monkeypatch.setattr("scrapy_bloom.migration.sources._BATCH", 1000)
    batches = SeenFile.batches

    def dying(self):
        yield next(batches(self))
        raise KeyboardInterrupt

    monkeypatch.setattr(SeenFile, "batches", dying)
    with pytest.raises(KeyboardInterrupt):
        import_job(job, None, SETTINGS, "me")
    assert not job.filter.exists()
    monkeypatch.setattr(SeenFile, "batches", batches)
    line = import_job(job, None, SETTINGS, "me")
    assert "Imported 3,000 requests" in line
    assert "(1 torn record left out)" in line
    assert names_in(job) == ["bloom", "requests.seen"]
    with ScalableBloomFilter.open(job.filter) as bloom_filter:
        assert (len(bloom_filter.layers), bloom_filter.identity) == (1, "me")
        assert all(each in bloom_filter for each in FINGERPRINTS)
        bloom_filter.check()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="forks")
@pytest.mark.parametrize("made", ["the import", "a filter"])
def test_an_import_that_is_killed_before_its_first_layer_is_run_again(job, monkeypatch, made):
    """The directory with a lock and no layer goes."""

    def begin():
        monkeypatch.setattr(BitStore, "create", lambda *_: os.kill(os.getpid(), SIGKILL))
        if made == "a filter":
            ScalableBloomFilter(100, 1e-9, job.filter, identity="me")
        import_job(job, None, SETTINGS, "me")

    os.waitpid(fork(begin, job.path.with_name("log")), 0)
    left = job.filter if made == "a filter" else job.unfinished_import
    assert [path.name for path in left.iterdir()] == ["lock"]
    assert "Imported 3,000 requests" in import_job(job, None, SETTINGS, "me")
    assert names_in(job) == ["bloom", "requests.seen"]


def test_an_imported_filter_is_whole_when_it_has_its_name(job, monkeypatch):
    """A kill right then leaves a job that was stopped cleanly, whose filter knows all; and after a
    power cut the directory has that name."""
    rename, fsync, left, synced = Path.rename, os.fsync, job.path.with_name("left"), []

    def rename_and_die(path, target):
        rename(path, target)
        shutil.copytree(job.path, left)

    def note(descriptor):
        is_job = os.path.samestat(os.fstat(descriptor), job.path.stat())
        synced.append(is_job and job.filter.exists())
        fsync(descriptor)

    monkeypatch.setattr(Path, "rename", rename_and_die)
    monkeypatch.setattr(os, "fsync", note)
    import_job(job, None, SETTINGS, "me")
    assert synced[-1]
    with ScalableBloomFilter.open(left / "bloom") as found:
        assert (found.clean, len(found)) == (True, 3000)
