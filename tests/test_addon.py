"""The add-on, one line that turns everything on and overrides nobody; and how settings are read."""

import pytest
from scrapy import Request, Spider, signals
from scrapy.crawler import Crawler
from scrapy.extensions.feedexport import FeedExporter
from scrapy.settings import SETTINGS_PRIORITIES, BaseSettings, Settings, default_settings
from scrapy.utils.misc import load_object

from scrapy_bloom import (
    Addon,
    BloomDupeFilter,
    DurableScheduler,
    RedisBloomDupeFilter,
    RedisDurableScheduler,
)
from scrapy_bloom.addon import OURS
from scrapy_bloom.all_settings import SETTINGS
from scrapy_bloom.crawl.holds import HoldMiddleware
from scrapy_bloom.crawl.origins import AT_THE_ENGINES_END, ResponseOrigins
from scrapy_bloom.delta.conditional import ConditionalMiddleware
from scrapy_bloom.delta.middleware import DeltaMiddleware
from scrapy_bloom.early.middleware import DropEarlyMiddleware
from scrapy_bloom.redis.settings import REDIS_ROUND, REDIS_URL


def updated(settings):
    Addon().update_settings(settings)
    return settings["DUPEFILTER_CLASS"]


def test_the_addon_sets_the_dupefilter_where_nobody_has(make_dupefilter):
    """What a command (the shell), a project, a spider or `-s` sets stays, and wins where it comes
    later. Settings that know no DUPEFILTER_CLASS are left alone."""
    settings = Settings()
    assert load_object(updated(settings)) is BloomDupeFilter
    assert settings.getpriority("DUPEFILTER_CLASS") == SETTINGS_PRIORITIES["addon"]
    for priority in ("project", "spider", "cmdline"):
        settings.set("DUPEFILTER_CLASS", priority, priority)
        assert settings["DUPEFILTER_CLASS"] == priority
    for priority in ("command", "addon", "project", "spider", "cmdline"):
        settings = Settings()
        settings.set("DUPEFILTER_CLASS", default_settings.DUPEFILTER_CLASS, priority)
        assert updated(settings) == default_settings.DUPEFILTER_CLASS
    assert updated(BaseSettings()) is None
    by_hand = {"ADDONS": {}, "DUPEFILTER_CLASS": "scrapy_bloom.BloomDupeFilter"}
    assert type(make_dupefilter()) is type(make_dupefilter(**by_hand)) is BloomDupeFilter


def test_a_url_of_redis_turns_on_what_workers_share():
    """With BLOOM_REDIS_URL the add-on sets both classes that share a crawl, unless
    BLOOM_DURABLE is False or somebody has set one of them."""
    settings = Settings({"BLOOM_REDIS_URL": "redis://localhost"})
    assert load_object(updated(settings)) is RedisBloomDupeFilter
    assert load_object(settings["SCHEDULER"]) is RedisDurableScheduler
    assert settings.getpriority("SCHEDULER") == SETTINGS_PRIORITIES["addon"]
    settings = Settings({"BLOOM_REDIS_URL": "redis://localhost", "BLOOM_DURABLE": False})
    assert load_object(updated(settings)) is RedisBloomDupeFilter
    assert settings["SCHEDULER"] == default_settings.SCHEDULER
    for mine, scheduler in (
        (BloomDupeFilter, DurableScheduler),
        (RedisBloomDupeFilter, default_settings.SCHEDULER),
    ):
        settings = Settings({"BLOOM_REDIS_URL": "redis://localhost", "DUPEFILTER_CLASS": mine})
        assert updated(settings) is mine
        assert load_object(settings["SCHEDULER"]) is load_object(scheduler)
    settings = Settings({"SCHEDULER": "scrapy_bloom.RedisDurableScheduler"})
    assert load_object(updated(settings)) is RedisBloomDupeFilter


PARTS = {
    "hold": ("DOWNLOADER_MIDDLEWARES", HoldMiddleware, HoldMiddleware.order),
    "origins": ("DOWNLOADER_MIDDLEWARES", ResponseOrigins, AT_THE_ENGINES_END),
    "conditional": ("DOWNLOADER_MIDDLEWARES", ConditionalMiddleware, ConditionalMiddleware.order),
    "early": ("SPIDER_MIDDLEWARES", DropEarlyMiddleware, DropEarlyMiddleware.order),
    "delta": ("SPIDER_MIDDLEWARES", DeltaMiddleware, DeltaMiddleware.order),
    "feeds": ("EXTENSIONS", OURS, 7),
}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, "hold early"),
        ({"JOBDIR": "job"}, "hold origins early feeds"),
        ({"JOBDIR": "job", "BLOOM_DURABLE_FEEDS": False}, "hold origins early"),
        ({"JOBDIR": "job", "BLOOM_DURABLE": False}, "early"),
        ({"BLOOM_REDIS_URL": "redis://x"}, "hold origins early feeds"),
        ({"BLOOM_DELTA": True}, "hold origins early delta feeds"),
        ({"BLOOM_DELTA_CONDITIONAL": True}, "hold conditional early"),
    ],
)
def test_each_component_is_set_where_something_needs_it(given, expected):
    """At its order, and our exporter at that of Scrapy's; others stay, and no other comes."""
    settings = Settings(given)
    settings.set("EXTENSIONS", {"other": 1, FeedExporter: 7}, "spider")
    updated(settings)
    found = {
        (where, getattr(thing, "__name__", thing)): order
        for where in ("DOWNLOADER_MIDDLEWARES", "SPIDER_MIDDLEWARES", "EXTENSIONS")
        for thing, order in settings.getdict(where).items()
        if order is not None and thing not in {"other", FeedExporter}
    }
    parts = [PARTS[name] for name in expected.split()]
    assert found == {(where, getattr(t, "__name__", t)): order for where, t, order in parts}
    extensions = settings.getdict("EXTENSIONS")
    assert (extensions["other"], settings.getpriority("EXTENSIONS")) == (1, 30)
    assert (extensions[FeedExporter] is None) == ("feeds" in expected)


def test_a_shell_has_no_job():
    """Whoever names one; Scrapy's scheduler would write into it."""
    names = "DUPEFILTER_CLASS", "LOGSTATS_INTERVAL", "REMOTE_CONTROL_ENABLED", "KEEP_ALIVE"
    for name in (*names, "LOG_ENABLED"):
        settings = Settings()
        settings.set("JOBDIR", "job", "cmdline")
        settings.set(name, "scrapy.dupefilters.BaseDupeFilter", "command")
        updated(settings)
        assert settings["JOBDIR"] == (None if name in names else "job")


SCRAPYS = "scrapy.core.scheduler.Scheduler"
REDIS = {
    "SCHEDULER": "scrapy_redis.scheduler.Scheduler",
    "DUPEFILTER_CLASS": "scrapy_redis.dupefilter.RFPDupeFilter",
}
NOT_DURABLE = "requests: not durable, SCHEDULER is {}; remove SCHEDULER"


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, []),
        ({"SCHEDULER": SCRAPYS, "JOBDIR": ""}, []),
        (
            {"SCHEDULER": SCRAPYS, "JOBDIR": "", "BLOOM_REDIS_URL": "redis://x"},
            [NOT_DURABLE.format(SCRAPYS)],
        ),
        (
            REDIS | {"JOBDIR": ""},
            [
                "filter: off, DUPEFILTER_CLASS is scrapy_redis.dupefilter.RFPDupeFilter; remove"
                " DUPEFILTER_CLASS",
                f"{NOT_DURABLE.format(REDIS['SCHEDULER'])} and DUPEFILTER_CLASS, and set"
                " BLOOM_REDIS_URL",
            ],
        ),
    ],
)
def test_what_is_promised_and_off_is_said_with_the_way_out(tmp_path, caplog, settings, expected):
    """A warning for each part, by settings of a project; test_start_line.py has command lines."""
    settings = Settings({"JOBDIR": str(tmp_path), **settings})
    assert warnings_of(settings, caplog) == expected
    caplog.clear()
    shell = Settings()  # takes the filter out itself
    shell.set("DUPEFILTER_CLASS", "scrapy.dupefilters.BaseDupeFilter", "command")
    assert warnings_of(shell, caplog) == []


@pytest.mark.parametrize("name", ["job", ""])
def test_a_request_that_waits_is_warned_of_once(tmp_path, caplog, name):
    """Of those that Scrapy's scheduler sends at once, the first, in a job and without one."""
    jobdir = {"JOBDIR": name and str(tmp_path / name)}
    settings = Settings({**jobdir, "SCHEDULER": SCRAPYS})

    def schedule(crawler):
        for number, meta in enumerate(({}, {"bloom_not_before": 9}, {"bloom_not_before": 9})):
            request = Request(f"http://a.example/{number}", meta=meta)
            crawler.signals.send_catch_log(
                signals.request_scheduled, request=request, spider=crawler.spider
            )

    *_, line = found = warnings_of(settings, caplog, schedule)
    assert "<GET http://a.example/1> has bloom_not_before" in line
    assert sum("bloom_not_before" in each for each in found) == 1
    caplog.clear()
    found = warnings_of(Settings(jobdir), caplog, schedule)
    assert not any("bloom_not_before" in each for each in found)


def warnings_of(settings, caplog, then=lambda crawler: None):
    """Return what is said when a spider opens, and the crawl starts."""
    settings.setdict({"ADDONS": {Addon: 300}, "TWISTED_REACTOR": None})
    crawler = Crawler(Spider, settings)
    crawler.spider = Spider.from_crawler(crawler, "x")
    crawler._apply_settings()
    crawler.signals.send_catch_log(signals.spider_opened, spider=crawler.spider)
    crawler.signals.send_catch_log(signals.engine_started)
    then(crawler)
    records = [r for r in caplog.records if r.name.startswith("scrapy_bloom.")]
    return [" ".join(r.getMessage().split()) for r in records if r.levelname == "WARNING"]


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_each_setting_has_a_default_and_a_check(setting):
    """The error is one line: the name, the value, and what is allowed."""
    assert setting.read(Settings()) == setting.read(Settings({setting.name: None}))
    if setting is REDIS_ROUND:  # takes any text
        return
    with pytest.raises(ValueError, match="BLOOM") as refused:
        setting.read(Settings({setting.name: [b"secret"]}))
    shown = "a list" if setting is REDIS_URL else "[b'secret']"
    assert str(refused.value) == f"{setting.name} is {shown}: it must be {setting.values.allowed}"
