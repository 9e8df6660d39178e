"""Jobs whose files lie where others write, or were copied: what they open, who may read it."""

import gzip
import shutil
import stat

import pytest

from scrapy_bloom import FeedError
from scrapy_bloom.jobdir import JobDirectory
from scrapy_bloom.sqlite.desk import HoldOrder, give
from tests.crawl.engine import Job
from tests.crawl.feed_jobs import FeedJob
from tests.crawl.test_feeds import GOES_ON, numbers
from tests.world.feeds import GZIP

FEEDS = {"out.jl": "jsonlines"}


@pytest.fixture
def start(opened, monkeypatch):
    """Return a function that opens a job of a folder, in that folder; it has to be finished."""

    def start(folder, feeds=FEEDS, *, later=False, **settings):
        folder.mkdir(exist_ok=True)
        monkeypatch.chdir(folder)
        job = FeedJob(folder, feeds, **settings)
        return opened(job, GOES_ON, later=later)

    return start


@pytest.fixture(params=["stopped", "killed", "killed before an item"])
def begun(request, start):
    """Return a function that begins the job of a folder and ends its process, and returns the
    numbers in its feeds, and their contents until the next start."""

    def begin(folder, feeds):
        found = [1] * ("before" not in request.param)
        job = start(folder, feeds).pages(**{f"p{n}": {"n": n} for n in found})
        job.close("shutdown") if request.param == "stopped" else job.drop()
        return found, contents(folder)

    return begin


def contents(folder):
    return [path.read_bytes() for path in sorted(folder.glob("out*"))]


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_feeds_and_job_in_a_folder_of_many(tmp_path, start, umask):
    """What only the crawl has a use for is for its owner alone, as there are cookies in requests
    and a secret in the filter; a feed has the mode of any new file, or that which it had."""
    names = ("new.jl", "new.jl.gz", "old.jl.gz")
    feeds = {each: {"format": "jsonlines"} for each in names}
    feeds["new.jl.gz"]["postprocessing"] = feeds["old.jl.gz"]["postprocessing"] = [GZIP]
    (tmp_path / "old.jl.gz").write_bytes(gzip.compress(b""))
    (tmp_path / "old.jl.gz").chmod(0o640)
    job = start(tmp_path, feeds, BLOOM_AUDIT=tmp_path / "audit").pages(p1={"n": 1})
    give(JobDirectory(tmp_path / "job"), HoldOrder(["slot"]))
    folders = [tmp_path / "job" / name for name in ("bloom", "orders")]
    private = [tmp_path / "audit", *(tmp_path / "job").glob("requests.sqlite*"), *folders]
    private += [path for folder in folders for path in folder.iterdir()]
    assert len(private) > 7
    assert {mode(path) - 0o100 * path.is_dir() for path in private} == {0o600}
    job.finish()
    assert [mode(tmp_path / each) for each in names] == [0o666 & ~umask] * 2 + [0o640]
    assert [numbers(tmp_path / each) for each in names] == [[1]] * 3


def test_an_audit_is_no_link(tmp_path):
    """A link at its name is refused at the start, and what it leads to stays as it is."""
    (tmp_path / "precious").write_text("precious")
    (tmp_path / "audit").symlink_to("precious")
    with pytest.raises(ValueError, match="BLOOM_AUDIT is"):
        Job(tmp_path / "job", BLOOM_AUDIT=tmp_path / "audit").open()
    assert (tmp_path / "precious").read_text() == "precious"


@pytest.mark.parametrize("options", [{}, {"postprocessing": [GZIP]}], ids=["in place", "stored"])
def test_a_copied_job_has_feeds_of_its_own(tmp_path, start, begun, options):
    """Copied with all that is beside it, each of the two goes on with the feed beside it, also if
    that has the name of the original's, and nothing was in it yet."""
    first, second = tmp_path / "first", tmp_path / "second"
    name = "out.jl.gz" if options else "out.jl"
    feeds = {first / name: {"format": "jsonlines", **options}}
    found, before = begun(first, feeds)
    shutil.copytree(first, second)
    start(second, feeds).pages(p2={"n": 2}).finish()
    assert contents(first) == before
    start(first, feeds).pages(p3={"n": 3}).finish()
    assert (numbers(first / name), numbers(second / name)) == ([*found, 3], [*found, 2])


def test_a_moved_job_goes_on_with_its_feed(tmp_path, start):
    """Whether that was moved with it, or stayed where it was."""
    first, second = tmp_path / "first", tmp_path / "second"
    start(first).pages(p1={"n": 1}).close("shutdown")
    first.rename(second)
    start(second).pages(p2={"n": 2}).close("shutdown")
    (second / "job").rename(tmp_path / "job")
    start(second, JOBDIR=str(tmp_path / "job")).pages(p3={"n": 3}).finish()
    assert numbers(second / "out.jl") == [1, 2, 3]


BATCHED = {"out%(batch_id)d.jl": {"format": "jsonlines", "batch_item_count": 1}}


@pytest.mark.parametrize("feeds", [FEEDS, BATCHED, {"out.json": "json"}])
def test_a_copy_into_the_feeds_of_the_original_is_refused(tmp_path, start, begun, feeds):
    """Also where the original has filled a batch, or written nothing yet; it goes on."""
    found, before = begun(tmp_path, feeds)
    shutil.copytree(tmp_path / "job", tmp_path / "copy")
    job = start(tmp_path, feeds, JOBDIR=str(tmp_path / "copy"), later=True)
    with pytest.raises(FeedError, match=r"is a copy, so feed 'out.*' cannot go on"):
        job.open()
    assert contents(tmp_path) == before
    start(tmp_path, feeds).pages(p2={"n": 2}).finish()
    assert [n for path in sorted(tmp_path.glob("out*")) for n in numbers(path)] == [*found, 2]


def test_a_copy_without_a_feed_of_its_own_is_refused(tmp_path, start):
    """What the original's feed has is missing beside it."""
    start(tmp_path).pages(p1={"n": 1}).close("shutdown")
    shutil.copytree(tmp_path / "job", tmp_path / "second" / "job")
    job = start(tmp_path / "second", later=True)
    with pytest.raises(FeedError, match=r"has left it .*, so feed 'out\.jl' cannot go on"):
        job.open()
    assert numbers(tmp_path / "out.jl") == [1]
