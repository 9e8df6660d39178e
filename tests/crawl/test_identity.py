"""Whose `requests.sqlite` is: a filter is not used without the requests that it has seen."""

import shutil

import pytest

from scrapy_bloom import ScalableBloomFilter
from scrapy_bloom.bloom import GrowingFilter
from scrapy_bloom.bloom.file import OWNER_AT, PAGE
from scrapy_bloom.bloom.owner import stored_owner
from scrapy_bloom.delta.crawl import reset_filter
from scrapy_bloom.errors import JobDirectoryError
from scrapy_bloom.jobdir import JobDirectory
from scrapy_bloom.sqlite.job_file import whole_job
from tests.crawl.conftest import killed as copied
from tests.crawl.engine import OtherSpider, query


def commits(job, *names):
    """Push these, with a commit for each."""
    for name in names:
        job.push(name)
        job.commit()
    return job


@pytest.fixture
def killed(tmp_path, make):
    """What a process that was killed has left: a round of one commit, in the log."""
    commits(make(), "a")
    return copied(tmp_path)


def numbers(folder):
    """Return the commit that the filter knows of, and the last one of the requests."""
    job = JobDirectory(folder)
    owner = stored_owner(job.filter)
    with whole_job(job) as found:
        assert owner is None or owner.job == found.id
        return owner and owner.commit, found.commits


def test_the_filter_notes_each_commit_before_its_bits(tmp_path, make, watch):
    """What is lost with the end of the log is known, also by a filter that begins afresh."""
    noted = []
    watch(GrowingFilter, "add", lambda *_: noted.append(numbers(tmp_path / "job")))
    job = make()
    assert numbers(tmp_path / "job") == (0, 0)
    commits(job, *"ab")
    reset_filter(job.scheduler.df)
    assert stored_owner(tmp_path / "job" / "bloom") is None
    commits(job, "c")
    assert noted == [(1, 1), (2, 2), (3, 3)]


def test_a_commit_that_the_filter_does_not_know_of_is_no_reason_to_refuse(killed, make):
    """The process may die between the two, and a copy of the filter may be older."""
    query(killed, "UPDATE job SET commits = commits + 1")
    assert numbers(killed) == (1, 2)
    assert make(killed).names() == ["a"]


@pytest.mark.parametrize(
    ("other", "message"),
    [("", r"ends before commit 1.*-wal"), ("abcdef", "not the one that")],
)
def test_a_log_of_commits_that_are_gone_is_refused(killed, make, tmp_path, other, message):
    """With a remedy, and so are the requests of another job."""
    (killed / "requests.sqlite-wal").unlink()
    if other:
        commits(make(tmp_path / "other"), *other).close()
        shutil.copy(tmp_path / "other" / "requests.sqlite", killed)
    with pytest.raises(JobDirectoryError, match=message):
        make(killed)


@pytest.mark.parametrize("damage", ["a torn page", "no owner"])
def test_a_filter_that_does_not_know_its_owner_is_taken(killed, make, damage):
    """Of 0.2.0, an import or a torn page: it is the job's from now on, and learns of what was
    stored last. It need not have as many layers."""
    query(killed, "UPDATE progress SET figures = json_set(figures, '$.filter_layers', 2)")
    with (killed / "bloom" / "0.bloom").open("r+b") as file:
        file.seek(PAGE + OWNER_AT + (16 if damage == "a torn page" else 0))
        file.write(bytes(4 if damage == "a torn page" else 512))
    assert stored_owner(killed / "bloom") is None
    job = make(killed)
    assert not job.push("a")
    assert job.names() == ["a"]
    job.commit()
    assert numbers(killed) == (2, 2)


def test_no_filter_is_needed_where_the_next_round_begins_without(make_round, tmp_path):
    """With BLOOM_DELTA a kill, as a round replaces that of the last one, may leave none."""
    make_round().started("a").finish()
    shutil.rmtree(tmp_path / "job" / "bloom")
    gone = pytest.raises(JobDirectoryError, match=r"0\.bloom is missing: .* new JOBDIR")
    with gone:
        make_round()
    job = JobDirectory(tmp_path / "job")
    with whole_job(job, resets=True) as found:
        assert found is not None


def test_a_clean_stop_and_keys_from_elsewhere_leave_the_owner(tmp_path, make):
    """What writes the rest of the page does not touch it."""
    make().pushed("a").close()
    known, last = numbers(tmp_path / "job")
    assert 0 < known <= last
    with ScalableBloomFilter.open(tmp_path / "job" / "bloom") as opened:
        opened.add(b"key")
        opened.flush()
    assert numbers(tmp_path / "job") == (known, last)


def test_a_filter_that_begins_afresh_is_not_ahead_of_the_requests(make, crash):
    """What was pushed since the last commit is lost with the process, and new to the next one."""
    make().pushed("a").close()
    job = make()
    reset_filter(job.scheduler.df)
    assert [job.push("a"), job.push("b"), job.push("b")] == [True, True, False]
    again = crash()
    assert [again.push("b"), again.push("b")] == [True, False]


def test_a_job_takes_the_name_of_the_first_spider_that_opens_it(tmp_path, make, monkeypatch):
    """Or with BLOOM_ANY_SPIDER of each; also where a command had it when the look began."""
    folder = tmp_path / "job"
    make(folder).close("shutdown")
    for is_locked in (JobDirectory.is_locked, True):
        monkeypatch.setattr(JobDirectory, "is_locked", is_locked)
        words = r"of spider 'test', and this is 'other'.*JOBDIR of its own.*BLOOM_ANY_SPIDER"
        with pytest.raises(JobDirectoryError, match=words):
            make(folder, spider=OtherSpider)
    monkeypatch.undo()
    make(folder, spider=OtherSpider, BLOOM_ANY_SPIDER=True).close("shutdown")
    with pytest.raises(JobDirectoryError, match=r"of spider 'other', and this is 'test'"):
        make(folder)
