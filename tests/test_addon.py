"""The add-on: one line that turns everything on, and overrides nobody."""

import pytest
from scrapy.settings import SETTINGS_PRIORITIES, BaseSettings, Settings, default_settings

from scrapy_bloom import (
    Addon,
    BloomDupeFilter,
    DurableScheduler,
    RedisBloomDupeFilter,
    RedisDurableScheduler,
)


def updated(settings):
    Addon().update_settings(settings)
    return settings["DUPEFILTER_CLASS"]


def test_addon_sets_the_dupefilter_where_nobody_has():
    """With Scrapy's defaults the add-on puts the dupefilter in."""
    settings = Settings()
    assert updated(settings) is BloomDupeFilter
    assert settings.getpriority("DUPEFILTER_CLASS") == SETTINGS_PRIORITIES["addon"]


@pytest.mark.parametrize("priority", ["command", "addon", "project", "spider", "cmdline"])
def test_addon_respects_who_set_the_dupefilter(priority):
    """A dupefilter set by a command (the shell), a project, a spider or `-s` stays."""
    settings = Settings()
    settings.set("DUPEFILTER_CLASS", default_settings.DUPEFILTER_CLASS, priority)
    assert updated(settings) == default_settings.DUPEFILTER_CLASS


@pytest.mark.parametrize("priority", ["project", "spider", "cmdline"])
def test_what_the_addon_sets_can_be_overridden(priority):
    """Whoever speaks after the add-on, with a project's priority or more, wins."""
    settings = Settings()
    updated(settings)
    settings.set("DUPEFILTER_CLASS", "project.Filter", priority)
    assert settings["DUPEFILTER_CLASS"] == "project.Filter"


def test_addon_does_without_the_setting():
    """Settings that know no DUPEFILTER_CLASS are left alone, without an error."""
    assert updated(BaseSettings()) is None


def test_one_line_in_addons_is_enough(make_dupefilter):
    """Scrapy builds the dupefilter from the line in ADDONS."""
    assert type(make_dupefilter()) is BloomDupeFilter


def test_dupefilter_class_is_enough(make_dupefilter):
    """Scrapy builds the dupefilter from its name in DUPEFILTER_CLASS, without the add-on."""
    made = make_dupefilter(ADDONS={}, DUPEFILTER_CLASS="scrapy_bloom.BloomDupeFilter")
    assert type(made) is BloomDupeFilter


def test_a_url_of_redis_turns_on_what_workers_share():
    """With BLOOM_REDIS_URL the add-on sets both classes that share a crawl, unless
    BLOOM_DURABLE is False or somebody has set one of them."""
    settings = Settings({"BLOOM_REDIS_URL": "redis://localhost"})
    assert updated(settings) is RedisBloomDupeFilter
    assert settings["SCHEDULER"] is RedisDurableScheduler
    settings = Settings({"BLOOM_REDIS_URL": "redis://localhost", "BLOOM_DURABLE": False})
    assert updated(settings) is RedisBloomDupeFilter
    assert settings["SCHEDULER"] == default_settings.SCHEDULER
    for mine, scheduler in (
        (BloomDupeFilter, DurableScheduler),
        (RedisBloomDupeFilter, default_settings.SCHEDULER),
    ):
        settings = Settings({"BLOOM_REDIS_URL": "redis://localhost", "DUPEFILTER_CLASS": mine})
        assert updated(settings) is mine
        assert settings["SCHEDULER"] == scheduler
    settings = Settings({"SCHEDULER": "scrapy_bloom.RedisDurableScheduler"})
    assert updated(settings) is RedisBloomDupeFilter
