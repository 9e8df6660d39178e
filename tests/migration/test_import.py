"""The filter of a job that is made of what was crawled before: whole, or not at all."""

import os
import shutil
import sys
from hashlib import sha1
from pathlib import Path
from signal import SIGKILL

import pytest

from scrapy_bloom import JobDirectoryError
from scrapy_bloom.bloom import ScalableBloomFilter
from scrapy_bloom.bloom.file import BitStore
from scrapy_bloom.jobdir import JobDirectory
from scrapy_bloom.migration.scrapy_job import import_job
from scrapy_bloom.migration.sources import SeenFile, make_filter
from scrapy_bloom.settings import BloomSettings
from tests.world.runner import fork

SEEN = b"\0\x14" + b"x" * 20
SETTINGS = BloomSettings(capacity=100, error_rate=1e-9)


def test_job_gets_its_filter_whole_or_not_at_all(tmp_path, monkeypatch):
    """An import that dies leaves none behind, and the next one starts afresh."""
    fingerprints = [sha1(str(n).encode()).digest() for n in range(3000)]
    data = b"".join(b"\0\x14" + each for each in fingerprints)
    (tmp_path / "requests.seen").write_bytes(data + b"\0\x14torn")
    monkeypatch.setattr("scrapy_bloom.migration.sources._BATCH", 1000)
    batches = SeenFile.batches

    def dying(self):
        yield next(batches(self))
        raise KeyboardInterrupt

    monkeypatch.setattr(SeenFile, "batches", dying)
    with pytest.raises(KeyboardInterrupt):
        import_job(JobDirectory(tmp_path), None, SETTINGS, "me")
    assert not (tmp_path / "bloom").exists()
    monkeypatch.setattr(SeenFile, "batches", batches)
    line = import_job(JobDirectory(tmp_path), None, SETTINGS, "me")
    assert "Imported 3,000 requests" in line
    assert "(1 torn record left out)" in line
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bloom", "requests.seen"]
    with ScalableBloomFilter.open(tmp_path / "bloom") as bloom_filter:
        assert len(bloom_filter.layers) == 1
        assert bloom_filter.identity == "me"
        assert all(each in bloom_filter for each in fingerprints)
        bloom_filter.check()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="forks")
@pytest.mark.parametrize("made", ["the import", "a filter"])
def test_an_import_that_is_killed_before_its_first_layer_is_run_again(tmp_path, monkeypatch, made):
    """The directory with a lock and no layer goes."""
    job = JobDirectory(tmp_path / "job")
    job.path.mkdir()
    job.seen_file.write_bytes(SEEN)

    def begin():
        monkeypatch.setattr(BitStore, "create", lambda *_: os.kill(os.getpid(), SIGKILL))
        if made == "a filter":
            ScalableBloomFilter(100, 1e-9, job.filter, identity="me")
        import_job(job, None, SETTINGS, "me")

    os.waitpid(fork(begin, tmp_path / "log"), 0)
    left = job.filter if made == "a filter" else job.unfinished_import
    assert [path.name for path in left.iterdir()] == ["lock"]
    assert "Imported 1 request" in import_job(job, None, SETTINGS, "me")
    assert sorted(path.name for path in job.path.iterdir()) == ["bloom", "requests.seen"]


def test_the_name_of_an_imported_filter_is_durable(tmp_path, monkeypatch):
    """After a power cut the job would be without it, while a crawl has gone on with it."""
    job = JobDirectory(tmp_path)
    job.seen_file.write_bytes(SEEN)
    fsync, synced = os.fsync, []

    def note(descriptor):
        is_job = os.path.samestat(os.fstat(descriptor), tmp_path.stat())
        synced.append(is_job and job.filter.exists())
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    import_job(job, None, SETTINGS, "me")
    assert synced[-1]


def test_an_imported_filter_is_whole_when_it_has_its_name(tmp_path, monkeypatch):
    """A kill right then leaves a job that was stopped cleanly, whose filter knows all."""
    job = JobDirectory(tmp_path / "job")
    job.make()
    job.seen_file.write_bytes(b"".join(b"\0\x14" + sha1(b"%d" % n).digest() for n in range(50)))
    rename, left = Path.rename, tmp_path / "left"

    def rename_and_die(path, target):
        rename(path, target)
        shutil.copytree(job.path, left)

    monkeypatch.setattr(Path, "rename", rename_and_die)
    import_job(job, None, SETTINGS, "me")
    with ScalableBloomFilter.open(left / "bloom") as found:
        assert (found.clean, len(found)) == (True, 50)


def test_the_requests_seen_of_another_job_is_not_taken_for_the_jobs_own(tmp_path):
    """A job needs its own in the list, under any name."""
    for name in ("job", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "requests.seen").write_bytes(b"\0\x14" + name.encode().ljust(20))
    job = JobDirectory(tmp_path / "job")
    other = SeenFile(tmp_path / "other" / "requests.seen")
    (tmp_path / "link").symlink_to(tmp_path / "job" / "requests.seen")
    with pytest.raises(JobDirectoryError, match=r"job holds a requests\.seen.*import it as well"):
        make_filter(job, [other], SETTINGS, "me")
    assert [path.name for path in (tmp_path / "job").iterdir()] == ["requests.seen"]
    make_filter(job, [other, SeenFile(tmp_path / "link")], SETTINGS, "me").close()
    assert (tmp_path / "job" / "bloom").is_dir()
