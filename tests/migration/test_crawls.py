"""Real crawls that begin under Scrapy's RFPDupeFilter, or scrapy-redis, and go on under ours."""

import os
from signal import SIGINT

import pytest

from scrapy_bloom.migration.sources import SeenFile
from tests.commands.command_line import bloom, files_in
from tests.migration.test_sources import FORMATS
from tests.small_site import PAGES, SmallSite, crawl, crawl_until
from tests.test_crawls import STOP_AT

STOCK = {"ADDONS": "{}", "DUPEFILTER_CLASS": "scrapy.dupefilters.RFPDupeFilter"}
OURS = {"ADDONS": "{}", "DUPEFILTER_CLASS": "scrapy_bloom.BloomDupeFilter"}
DURABLE = {**OURS, "SCHEDULER": "scrapy_bloom.DurableScheduler"}


def rewrite(path, format_):
    """Give a requests.seen the format of Scrapy up to 2.18, or from 2.19 on; return how many."""
    times = path.stat()
    fingerprints = [each for batch, _ in SeenFile(path).batches() for each in batch]
    path.write_bytes(FORMATS[format_](fingerprints))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    return len(fingerprints)


@pytest.mark.parametrize(("format_", "scheduler"), [("text", "stock"), ("binary", "durable")])
def test_job_stopped_cleanly_goes_on(tmp_path, format_, scheduler):
    """Takes as long as three crawls: no page is missed or fetched twice, and one line tells it."""
    settings = DURABLE if scheduler == "durable" else OURS
    with SmallSite() as site:
        first = crawl_until(STOP_AT, site, tmp_path, **STOCK)
        site.stop(first, SIGINT)
        between = site.answered.total()
        seen = rewrite(tmp_path / "job" / "requests.seen", format_)
        second = crawl(site, tmp_path, **settings).end()
        third = crawl(site, tmp_path, **settings).end()
    assert STOP_AT <= between < len(PAGES)
    assert (second.status, second.reason) == (0, "finished")
    assert (site.missed, site.twice) == ([], [])
    assert second.lines("ERROR") == second.lines("WARNING") == []
    (line,) = [line for line in second.lines("INFO") if "Imported" in line]
    assert f"Imported {seen:,} requests" in line
    assert "Imported" not in third.log
    (line,) = [line for line in second.lines("INFO") if "The filter knows" in line]
    assert f"knows {int(second.stat('bloom/items'))} requests; pages probably lost: none;" in line


KEY = "moved"

JOB = {**DURABLE, "BLOOM_CAPACITY": 10_000}
SHARED = {
    **JOB,
    "DUPEFILTER_CLASS": "scrapy_bloom.RedisBloomDupeFilter",
    "SCHEDULER": "scrapy_bloom.RedisDurableScheduler",
    "BLOOM_REDIS_KEY": KEY,
}
THEIRS = {
    **STOCK,
    "DUPEFILTER_CLASS": "scrapy_redis.dupefilter.RFPDupeFilter",
    "SCHEDULER": "scrapy_redis.scheduler.Scheduler",
    "SCHEDULER_PERSIST": True,
}
THEIR_FINGERPRINTS = {
    "REQUEST_FINGERPRINTER_CLASS": "scrapy_bloom.ScrapyRedisFingerprinter",
    "SPIDER_MODULES": "tests.small_spider",
}


def left_by(server, folder):
    """Return what is in the job, and what scrapy-redis has."""
    found = files_in(folder / "job")
    found.pop(folder / "job" / "bloom.lock", None)
    names = [name for name in server.names("small:") if "{" not in name]
    return {**found, **{name: server.command("DUMP", name) for name in names}}


@pytest.mark.parametrize("source", ["job", "scrapy-redis"])
def test_a_crawl_goes_on_in_redis(tmp_path, own_server, source):
    """Takes as long as two crawls: stopped in the middle and loaded, it misses nothing and fetches
    nothing again; what was loaded is as it was."""
    pytest.importorskip("scrapy_redis")
    is_job = source == "job"
    theirs = {} if is_job else THEIR_FINGERPRINTS
    place, *options = ["job"] if is_job else [own_server.url, "--spider", "small"]
    options += [f"--set={name}={value}" for name, value in {**SHARED, **theirs}.items()]
    began_with = JOB if is_job else {**THEIRS, "REDIS_URL": own_server.url}
    with SmallSite() as site:
        first = crawl_until(STOP_AT, site, tmp_path, job=is_job, **began_with)
        site.stop(first, SIGINT)
        between, before = site.answered.total(), left_by(own_server, tmp_path)
        found = bloom(tmp_path, "load", place, own_server.url, "--key", KEY, *options)
        after, ours = left_by(own_server, tmp_path), {**SHARED, **theirs}
        run = crawl(site, tmp_path, job=False, BLOOM_REDIS_URL=own_server.url, **ours).end()
    assert STOP_AT <= between < len(PAGES)
    assert found.status == 0, found.error
    told = "for Redis" if is_job else "pending requests from scrapy-redis's 'small' at"
    assert told in found.out
    assert before
    assert after == before
    assert run.reason == "finished"
    assert (site.missed, site.twice) == ([], [])
