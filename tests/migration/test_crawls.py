"""Real crawls that begin under Scrapy's RFPDupeFilter and go on under BloomDupeFilter."""

import os
from signal import SIGINT, SIGKILL
from types import SimpleNamespace

import pytest

from scrapy_bloom.migration.sources import SeenFile
from tests.commands.command_line import bloom
from tests.migration.test_sources import FORMATS
from tests.small_site import PAGES, SmallSite, crawl, crawl_until
from tests.test_crawls import REFUSED, STOP_AT, scenarios

STOCK = {"ADDONS": "{}", "DUPEFILTER_CLASS": "scrapy.dupefilters.RFPDupeFilter"}
OURS = {"ADDONS": "{}", "DUPEFILTER_CLASS": "scrapy_bloom.BloomDupeFilter"}
DURABLE = {**OURS, "SCHEDULER": "scrapy_bloom.DurableScheduler"}

pytestmark = pytest.mark.skipif(os.name != "posix", reason="JOBDIR needs Linux or macOS")


def interrupted(site, folder, signal):
    """Crawl with Scrapy's own dupefilter up to the middle."""
    run = crawl_until(STOP_AT, site, folder, **STOCK)
    run.stop(signal)
    if signal != SIGKILL:
        site.release()
    run.end()
    site.release()


def rewrite(path, format_):
    """Give a requests.seen the format of Scrapy up to 2.18, or from 2.19 on; return how many."""
    times = path.stat()
    fingerprints = [each for batch, _ in SeenFile(path).batches() for each in batch]
    path.write_bytes(FORMATS[format_](fingerprints))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    return len(fingerprints)


def stopped_cleanly(format_, scheduler, folder):
    settings = DURABLE if scheduler == "durable" else OURS
    with SmallSite() as site:
        interrupted(site, folder, SIGINT)
        between = site.answered.total()
        seen = rewrite(folder / "job" / "requests.seen", format_)
        second = crawl(site, folder, **settings).end()
        third = crawl(site, folder, **settings).end()
    return SimpleNamespace(**locals())


@scenarios(stopped_cleanly, ("text", "stock"), ("binary", "durable"))
def test_job_stopped_cleanly_goes_on(outcome):
    """No page is missed and none fetched twice; the import is done and told once."""
    assert STOP_AT <= outcome.between < len(PAGES)
    second, third = outcome.second, outcome.third
    assert (second.status, second.reason) == (0, "finished")
    assert (outcome.site.missed, outcome.site.twice) == ([], [])
    assert second.lines("ERROR") == second.lines("WARNING") == []
    (line,) = [line for line in second.lines("INFO") if "Imported" in line]
    assert f"Imported {outcome.seen:,} requests" in line
    assert "Imported" not in third.log
    (line,) = [line for line in second.lines("INFO") if "The filter knows" in line]
    assert f"knows {int(second.stat('bloom/items'))} requests; pages probably lost: none;" in line


def killed(folder):
    with SmallSite() as site:
        interrupted(site, folder, SIGKILL)
        refused = crawl(site, folder, **OURS).end()
        command = refused.log.partition("same: ")[2].partition("\n")[0].split()
        imported = bloom(folder, *command[2:])
        second = crawl(site, folder, **OURS).end()
    return SimpleNamespace(**locals())


@scenarios(killed)
def test_job_that_was_killed_is_refused_and_the_command_works(outcome):
    """requests.seen has what was pending, too; the crawl names the command."""
    refused = outcome.refused
    assert refused.status in REFUSED
    assert refused.reason is None
    (error,) = [line for line in refused.lines("ERROR") if "scrapy_bloom" in line]
    assert "was not stopped cleanly" in error
    assert "active.json" in error
    assert outcome.command[:3] == ["scrapy", "bloom", "add"]
    assert outcome.imported.status == 0
    assert "was pending then" in outcome.imported.error
    assert (outcome.second.status, outcome.second.reason) == (0, "finished")
    # SpiderState complains of what it has written in the refused run itself
    assert [line for line in outcome.second.lines("ERROR") if "spiderstate" not in line] == []
