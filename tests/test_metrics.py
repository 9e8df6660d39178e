"""The stats of crawls, as Prometheus reads them."""

import re
import sys
import urllib.request
from types import SimpleNamespace

import pytest

from scrapy_bloom.errors import BloomError
from scrapy_bloom.metrics import FROM_ZERO, GAUGES, Metrics
from tests.patience import wait_until
from tests.redis.server import free_port
from tests.small_site import SmallSite, crawl, crawl_until
from tests.test_documents import ROOT, TEXT

parser = pytest.importorskip("prometheus_client.parser")


def scrape(port):
    """Return {name: {kind, or "": value}} and the labels that all samples of stats have."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        families = parser.text_string_to_metric_families(answer.read().decode())
    samples = [each for family in families for each in family.samples]
    found, labels = {}, set()
    for each in samples:
        found.setdefault(each.name, {})[each.labels.pop("of", "")] = each.value
        labels |= {*each.labels.items()} if each.name.startswith("scrapy_") else set()
    assert sum(map(len, found.values())) == len(samples)
    return found, dict(labels)


def test_a_job_is_read_while_it_runs(tmp_path):
    """At the port of the setting, with what the site has answered; one without a port goes on, and
    when a job has ended nothing listens."""
    port = free_port()
    settings = {"ADDONS": '{"scrapy_bloom.Addon": 300}', "BLOOM_METRICS": port}
    with SmallSite() as site:
        run = crawl_until(40, site, tmp_path, **settings)
        wait_until(lambda: scrape(port)[0]["scrapy_response_received_total"][""] >= 40)
        wait_until(lambda: "scrapy_scheduler_commits_total" in scrape(port)[0])
        found, labels = scrape(port)
        assert labels == {"spider": "small", "crawl": str(tmp_path / "job")}
        assert found["scrapy_downloader_response_status_total"]["200"] >= 40
        assert found["scrapy_item_scraped_total"][""] > 20
        assert found["scrapy_scheduler_pending"][""] + found["scrapy_scheduler_in_flight"][""] > 0
        assert found["scrapy_scheduler_failed"] == {"": 0}
        assert found["scrapy_log_total"]["ERROR"] == 0
        assert found["scrapy_scheduler_commits_total"][""] > 0
        assert found["process_resident_memory_bytes"][""] > 1e7
        other = crawl(site, tmp_path, job=False, **settings)
        wait_until(lambda: "Spider opened" in other._log.read_text())
        site.release()
        assert (run.end().status, other.end().status) == (0, 0)
    (line,) = (each for each in run.lines("INFO") if "metrics:" in each)
    assert line.endswith(f"http://127.0.0.1:{port}/metrics")
    (line,) = other.lines("WARNING")
    assert re.search(rf"WARNING: metrics: +off, 127.0.0.1:{port}: .*; give BLOOM_METRICS", line)
    assert run.lines("WARNING") == []
    with pytest.raises(OSError, match="refused"):
        scrape(port)


def test_workers_of_one_machine_share_a_range(make_dupefilter, redis_server, key):
    """Each takes the first port that is free, and has the key as its crawl. Nothing listens when a
    crawl of a process is over, which may go on with another one."""
    port = free_port()
    settings = {"BLOOM_METRICS": f"127.0.0.1:{port}-{port + 1}", "BLOOM_REDIS_KEY": key}
    for number in range(2):
        worker = make_dupefilter(BLOOM_REDIS_URL=redis_server.url, **settings)
        worker._metrics.open()
        assert scrape(port + number)[1]["crawl"] == key
    worker.close("finished")
    with pytest.raises(OSError, match="refused"):
        scrape(port + 1)


def test_each_stat_is_one_sample():
    """Whatever else is among the stats; two that differ in a sign only do not break the rest."""
    given = {"a/b": 1, "a_b": 2, "": 3, "start_time": None, "x_count/a/b": 4, "\n count": 5}
    given |= {"scheduler/capped/a.example": 6, "finish_reason": "finished", 404: 7}
    crawler = SimpleNamespace(stats=SimpleNamespace(get_stats=lambda: given))
    metrics = Metrics(crawler, "", range(1), {}).collect()
    samples = [(each.name, each.labels) for metric in metrics for each in metric.samples]
    assert samples[len(FROM_ZERO) :] == [
        ("scrapy_a_b", {}),
        ("scrapy_", {}),
        ("scrapy_x_total", {"of": "a/b"}),
        ("scrapy__count", {}),
        ("scrapy_404", {}),
    ]


def test_a_stat_that_cannot_be_told_hides_no_other(make_dupefilter):
    """Nor does half a character in a name, or the spider's. Counts of middlewares are counters."""
    port, counts = free_port(), ("offsite/filtered", "robotstxt/forbidden", "retry/max_reached")
    name = lambda crawler: setattr(crawler.spider, "name", "s\udcff")  # noqa: E731
    dupefilter = make_dupefilter(name, BLOOM_METRICS=port)
    for stat in ("a_count/\udcff", *counts):
        dupefilter.crawler.stats.set_value(stat, 2)
    dupefilter.crawler.stats.set_value("huge", 10**400)
    dupefilter._metrics.open()
    found, labels = scrape(port)
    assert labels["spider"] == r"s\udcff"
    assert found["scrapy_a_total"] == {r"\udcff": 2}
    for stat in counts:
        assert found[f"scrapy_{stat.replace('/', '_')}_total"] == {"": 2}


def test_gauges_are_documented_stats():
    """The pattern for them names stats that there are."""
    stats = re.findall(r"`((?:bloom|scheduler)/\w+)`", TEXT[ROOT / "docs" / "stats.md"])
    gauges = {stat for stat in stats if GAUGES.fullmatch(stat)}
    assert len(gauges) == 16
    assert "bloom/delta_oldest_days" in gauges


def test_it_is_off(make_dupefilter):
    """Unless a port is given, and in commands for one page: `scrapy fetch` has its own `start`."""

    def prepare(crawler):
        start = {"__module__": "", "start": SimpleNamespace(__module__="scrapy.commands.fetch")}
        crawler.spidercls = type("Page", (crawler.spidercls,), start)

    assert make_dupefilter(prepare, BLOOM_METRICS=9410)._metrics is None
    for value in ("", "0", None, False):
        assert make_dupefilter(BLOOM_METRICS=value)._metrics is None


BAD = ["localhost", "80-", "0-9", "9-8", 65_536, True, "1.2.3.4:", "::1:9410"]


@pytest.mark.parametrize("value", BAD)
def test_bad_settings_are_refused_by_name(make_dupefilter, value):
    """At the start."""
    with pytest.raises(ValueError, match=f"BLOOM_METRICS is {value!r}: it must be a port"):
        make_dupefilter(BLOOM_METRICS=value)


def test_without_the_client_library_a_start_is_refused(make_dupefilter, monkeypatch):
    """With the line that installs it."""
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(BloomError, match=re.escape("pip install 'scrapy-bloom[metrics]'")):
        make_dupefilter(BLOOM_METRICS=9410)
