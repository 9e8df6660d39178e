"""Crawls whose files lie where others write, or were copied: what they open, who may read it."""

import gzip
import json
import os
import shutil
import stat
from signal import SIGINT

import pytest

from tests.small_site import PAGES, SmallSite, crawl

pytestmark = pytest.mark.skipif(os.name != "posix", reason="JOBDIR needs Linux or macOS")

GZIP = {"postprocessing": ["scrapy.extensions.postprocessing.GzipPlugin"]}
SOMEBODY = 12345


def halfway(site, folder, **settings):
    """Crawl the first half of the site, and stop."""
    site.hold_at(50)
    run = start(site, folder, **settings)
    site.wait_held()
    run.stop(SIGINT)
    site.release()
    run.end()
    assert run.reason == "shutdown", run.log


def start(site, folder, feeds=None, **settings):
    feeds = feeds or {"out.jl": {"format": "jsonlines"}}
    given = {"ADDONS": '{"scrapy_bloom.Addon": 300}', "FEEDS": json.dumps(feeds)}
    return crawl(site, folder, **given, **settings)


def pages_in(text):
    return sorted(json.loads(line)["page"] for line in text.splitlines())


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_feeds_and_job_in_a_folder_of_many(tmp_path, umask):
    """Links and files of others at the names that temporary files once had stay as they are. What
    only the crawl has a use for is for its owner alone; a feed has the mode of any new file."""
    shared = tmp_path / "shared"
    shared.mkdir(mode=0o777)
    names = {number: f"{number}.jl.gz" for number in (1, 2, 3)}
    feeds = {str(shared / name): {"format": "jsonlines", **GZIP} for name in names.values()}
    precious = tmp_path / "precious"
    precious.write_text("precious")
    (shared / ".1.jl.gz.1.part").symlink_to(precious)
    (shared / ".2.jl.gz.2.part").hardlink_to(precious)
    theirs = shared / ".3.jl.gz.3.part"
    theirs.write_text("theirs")
    if os.geteuid() == 0:
        os.chown(theirs, SOMEBODY, SOMEBODY)
    old = shared / "3.jl.gz"
    old.write_bytes(gzip.compress(b""))
    old.chmod(0o640)
    settings = {
        "feeds": feeds,
        "environment": {"UMASK": f"{umask:o}"},
        "BLOOM_AUDIT": tmp_path / "audit",
    }
    with SmallSite() as site:
        halfway(site, tmp_path, **settings)
        private = [tmp_path / "audit", tmp_path / "job" / "requests.sqlite"]
        for folder in (tmp_path / "job" / "feeds", tmp_path / "job" / "bloom"):
            private += [folder, *folder.iterdir()]
        assert [oct(mode(path)) for path in private if mode(path) & 0o077] == []
        run = start(site, tmp_path, **settings).end()
    assert run.reason == "finished", run.log
    for number, name in names.items():
        assert len(pages_in(gzip.decompress((shared / name).read_bytes()).decode())) == len(PAGES)
        assert mode(shared / name) == (0o640 if number == 3 else 0o666 & ~umask)
    assert (precious.read_text(), theirs.read_text()) == ("precious", "theirs")
    assert len([*shared.iterdir()]) == 6


def test_an_audit_is_no_link(tmp_path):
    """A link at its name is refused at the start, and what it leads to stays as it is."""
    (tmp_path / "precious").write_text("precious")
    (tmp_path / "audit").symlink_to("precious")
    with SmallSite() as site:
        run = start(site, tmp_path, BLOOM_AUDIT=tmp_path / "audit").end()
        assert not site.answered
    assert "BLOOM_AUDIT is" in run.log
    assert (tmp_path / "precious").read_text() == "precious"


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, GZIP], ids=["in place", "stored"])
def test_a_copied_job_has_feeds_of_its_own(tmp_path, options):
    """Copied with all that is beside it, it goes on with the feed beside it, and the original with
    its own: both have each page once."""
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    feeds = {"out.jl": {"format": "jsonlines", **options}}
    read = gzip.decompress if options else bytes
    with SmallSite() as site:
        halfway(site, first, feeds=feeds)
        before = (first / "out.jl").read_bytes()
        shutil.copytree(first, second)
        pages = []
        for folder in (second, first):
            run = start(site, folder, feeds=feeds).end()
            assert run.reason == "finished", run.log
            pages.append(pages_in(read((folder / "out.jl").read_bytes()).decode()))
            assert folder == first or (first / "out.jl").read_bytes() == before
    assert pages[0] == pages[1] == sorted({*pages[0]})
    assert len(pages[0]) == len(PAGES)


def test_a_moved_job_goes_on_with_its_feed(tmp_path):
    """Whether that was moved with it, or stayed where it was."""
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    with SmallSite() as site:
        halfway(site, first)
        first.rename(second)
        halfway(site, second)
        (second / "job").rename(second / "other")
        run = start(site, second, JOBDIR=second / "other", job=False).end()
        assert run.reason == "finished", run.log
    assert len(pages_in((second / "out.jl").read_text())) == len(PAGES)


@pytest.mark.parametrize("place", ["first/copy", "second/job"])
def test_a_copy_without_a_feed_of_its_own_is_refused(tmp_path, place):
    """A job that was copied without its feed does not start: the feed is the original's, which goes
    on as if nothing had been."""
    first, copy = tmp_path / "first", tmp_path / place
    first.mkdir()
    with SmallSite() as site:
        halfway(site, first)
        before = (first / "out.jl").read_bytes()
        shutil.copytree(first / "job", copy)
        answered = site.answered.total()
        run = start(site, copy.parent, JOBDIR=copy, job=False).end()
        (line,) = run.lines("ERROR")
        assert "so feed 'out.jl' cannot go on" in line
        assert (site.answered.total(), (first / "out.jl").read_bytes()) == (answered, before)
        run = start(site, first).end()
    assert run.reason == "finished", run.log
    assert len(pages_in((first / "out.jl").read_text())) == len(PAGES)
