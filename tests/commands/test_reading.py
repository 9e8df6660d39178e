"""Whoever looks changes nothing: not a byte of a delta store, a job or a filter, nor a name."""

import os
import shutil
import time

import pytest
from scrapy import Request
from scrapy.utils.request import fingerprint

from scrapy_bloom import BloomFilter, ScalableBloomFilter
from scrapy_bloom.delta.file_store import FileDeltaStore, Row
from scrapy_bloom.delta.settings import Lifetime
from scrapy_bloom.periods import DAY
from tests.commands.command_line import (
    files_in,
)
from tests.commands.test_arguments import EVERY_SUBCOMMAND
from tests.crawl.engine import Job

pytestmark = pytest.mark.skipif(os.name != "posix", reason="filter files need Linux or macOS")

URL = "http://example.com/page"

READING = {
    "info": [[], ["--json"]],
    "check": [[URL], ["-", "--json"]],
    "verify": [[], ["--json"]],
    "failed": [[], ["--json"], ["-o", "-"]],
    "top": [["--once"], ["--json"]],
    "queue count": [[], ["--by", "slot"], ["--url", "*"]],
    "queue list": [[], ["--json"]],
    # what writes, refused
    "clear": [[]],
    "drop": [[]],
    "delta": [["--older", "soon"]],
    "add": [["nowhere.txt"]],
    "merge": [["nowhere"]],
}
WRITING = {"retry", "load", "export", "push"}
WITHOUT_PLACE = {"size", "compare", "plot", "workers"}
"""`workers` has one in Redis."""


def make_memory(folder):
    """Marks of an hour, a week and 20 days ago, and of a clock that was ahead."""
    now = time.time()
    ahead = FileDeltaStore(folder, Lifetime(DAY), lambda: now + 90 * DAY)
    ahead.add([(fingerprint(Request(f"{URL}b")), now + 90 * DAY)])
    ahead.close()
    table = FileDeltaStore(folder, Lifetime(30 * DAY))
    table.add(
        (fingerprint(Request(f"{URL}{age}")), now - age * DAY) for age in (0.04, 7, 8, 20, 40)
    )
    table.add([Row(b"k" * 20, None, b"d" * 16)])
    table.close()


def make_killed(folder):
    """A job whose process was killed with requests under way."""
    job = Job(folder.with_name("living")).open()
    for number in range(3):
        job.push(f"page{number}")
    job.pop()
    job.commit()
    shutil.copytree(folder.with_name("living"), folder)
    assert (folder / "requests.sqlite-wal").stat().st_size
    job.drop()


def make_stopped(folder):
    """A job that was stopped with requests that wait."""
    job = Job(folder).open()
    job.push("page")
    job.close("shutdown")


def make_scrapys(folder):
    """A job of Scrapy's own dupefilter."""
    folder.mkdir()
    (folder / "requests.seen").write_text(f"{fingerprint(Request(URL)).hex()}\n")


def make_filter(folder):
    """A filter that was closed."""
    with ScalableBloomFilter(100, 1e-6, folder) as bloom_filter:
        bloom_filter.update(str(number) for number in range(1000))


def make_unclean(folder):
    """A filter that was not."""
    with ScalableBloomFilter(100, 1e-6, folder.with_name("open"), exact=True) as bloom_filter:
        bloom_filter.update(str(number) for number in range(1000))
        shutil.copytree(folder.with_name("open"), folder)


def make_file(path):
    """A filter of fixed size."""
    with BloomFilter(100, 1e-6, path.with_suffix(".bloom")) as bloom_filter:
        bloom_filter.add("key")
    path.with_suffix(".bloom").rename(path)


def test_the_table_has_every_command():
    """A new one says where it belongs."""
    named = {name.split()[0] for name in READING}
    assert named | WRITING | WITHOUT_PLACE == EVERY_SUBCOMMAND


@pytest.mark.parametrize(
    "make",
    [make_memory, make_killed, make_stopped, make_scrapys, make_filter, make_unclean, make_file],
)
def test_no_command_changes_what_it_only_reads(run, tmp_path, make):
    """Whether it answers or is refused, and whatever the settings say."""
    make(tmp_path / "place")
    before = files_in(tmp_path)
    answers = 0
    for days in ("1s", "365d") if make is make_memory else ("1s",):
        for name, calls in READING.items():
            for arguments in calls:
                options = ["-s", f"BLOOM_DELTA_DAYS={days}"]
                words = [*name.split(), "place", *arguments, *options]
                result = run(tmp_path, *words, stdin=f"{URL}\n{URL}/2\n")
                answers += result.status != 2
                assert files_in(tmp_path) == before, (name, arguments)
    assert answers >= 6 or make is make_scrapys


@pytest.mark.parametrize(
    ("make", "command"),
    [
        (make_memory, ["merge", "other", "place"]),
        (make_filter, ["merge", "other", "place"]),
        (make_scrapys, ["add", "other", "place/requests.seen"]),
    ],
)
def test_what_is_copied_stays_as_it_is(run, tmp_path, make, command):
    """The sources of what writes elsewhere."""
    make(tmp_path / "place")
    if command[0] == "merge":
        shutil.copytree(tmp_path / "place", tmp_path / "other")
    before = files_in(tmp_path / "place")
    assert run(tmp_path, *command).status == 0
    assert files_in(tmp_path / "place") == before
