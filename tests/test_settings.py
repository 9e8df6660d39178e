"""The settings, as they are read from Scrapy's."""

import pytest
from scrapy.settings import Settings

from scrapy_bloom.all_settings import SETTINGS
from scrapy_bloom.redis.settings import REDIS_ROUND, REDIS_URL
from scrapy_bloom.settings import BloomSettings


@pytest.mark.parametrize(
    "value", [10_000_000, 1e7, "10000000", "10_000_000", "10,000,000", "1e7", "10M", "10m", "0.01G"]
)
def test_capacity_is_taken_as_people_write_it(value):
    """Whatever way of writing ten million `scrapy bloom size --urls` takes, the setting does."""
    assert BloomSettings.read(Settings({"BLOOM_CAPACITY": value})).capacity == 10_000_000


@pytest.mark.parametrize(("value", "number"), [("0", 0), (0, 0), (1e3, 1000), ("64k", 64_000)])
def test_number_of_recent_urls_is_taken_as_people_write_it(value, number):
    """So does BLOOM_URL_CACHE, which may be 0."""
    assert BloomSettings.read(Settings({"BLOOM_URL_CACHE": value})).url_cache == number


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
