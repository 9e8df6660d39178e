"""Settings, and what the meta of a request says."""

import pytest
from scrapy import Request
from scrapy.exceptions import NotConfigured
from scrapy.settings import Settings
from scrapy.utils.test import get_crawler

from scrapy_bloom import DeltaMiddleware
from scrapy_bloom.delta.settings import (
    SOURCES,
    DeltaSettings,
    drop_copied,
    given_key,
    key_in,
    key_of_fingerprint,
    key_of_text,
    wish_of,
)
from scrapy_bloom.periods import DAY, seconds


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (30, 30 * DAY),
        (0.5, DAY / 2),
        ("30", 30 * DAY),
        ("30d", 30 * DAY),
        ("12h", DAY / 2),
        ("90 m", DAY / 16),
        ("2W", 14 * DAY),
        ("10s", 10),
        ("1e-3", DAY / 1000),
        ("2.5E+1d", 25 * DAY),
        *(
            (bad, None)
            for bad in (0, -1, True, "", "d", "1y", "-1d", "1e", "1e99", float("nan"), float("inf"))
        ),
    ],
)
def test_times(value, expected):
    """Days as a number, or text with a unit."""
    assert seconds(value) == (expected if expected is None else pytest.approx(expected))


@pytest.mark.parametrize("off", [None, False, "", "None", "False"])
def test_off(off):
    """Nothing else is looked at then."""
    settings = Settings({"BLOOM_DELTA": off, "BLOOM_DELTA_DAYS": "nonsense"})
    assert DeltaSettings.read(settings, "spider") is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("BLOOM_DELTA", True),
        ("BLOOM_DELTA", "items"),
        ("BLOOM_DELTA_DAYS", "soon"),
        ("BLOOM_DELTA_DAYS", 0),
        ("BLOOM_DELTA_DIR", 7),
        ("BLOOM_DELTA_RESET", "perhaps"),
        ("BLOOM_DELTA_READ_ONLY", "perhaps"),
    ],
)
def test_bad_settings_are_refused(name, value):
    """With their name and value."""
    with pytest.raises(ValueError, match=f"{name} is {value!r}"):
        DeltaSettings.read(Settings({"BLOOM_DELTA": "item", name: value}), "spider")


def test_what_is_read_only_cannot_be_forgotten():
    """Two settings that exclude each other."""
    given = {"BLOOM_DELTA": "item", "BLOOM_DELTA_RESET": True, "BLOOM_DELTA_READ_ONLY": True}
    with pytest.raises(ValueError, match="BLOOM_DELTA_RESET is True, and so is BLOOM_DELTA_READ"):
        DeltaSettings.read(Settings(given), "spider")


@pytest.mark.parametrize("mode", ["item", "nonsense"])
def test_a_memory_that_nobody_uses_is_refused(make_dupefilter, mode):
    """Without the add-on, whose middleware does all the work."""
    with pytest.raises(ValueError, match=rf"BLOOM_DELTA is {mode!r}, .* into ADDONS"):
        make_dupefilter(BLOOM_DELTA=mode)


def test_a_subclass_of_the_middleware_will_do(make_dupefilter):
    """It is found among the middlewares that Scrapy has built."""

    class OwnDelta(DeltaMiddleware):
        """A project's own."""

        def __init__(self):
            """Need no crawler."""

    def prepare(crawler):
        crawler.engine.scraper.spidermw.middlewares = (object(), OwnDelta())

    assert make_dupefilter(prepare, BLOOM_DELTA="item")


def test_a_subclass_may_turn_itself_off(caplog, tmp_path):
    """In the words of Scrapy, which takes no error from it."""

    class OwnDelta(DeltaMiddleware):
        """A project's own."""

        def __init__(self, crawler, settings):
            """Leave spiders alone that are none of its business."""
            raise NotConfigured

    settings = {"BLOOM_DELTA": "item", "BLOOM_DELTA_DIR": str(tmp_path)}
    crawler = get_crawler(settings_dict=settings)
    crawler.spider = crawler.spidercls.from_crawler(crawler, "spider")
    with pytest.raises(NotConfigured):
        OwnDelta.from_crawler(crawler)
    assert crawler.spider is not None
    assert "ERROR" not in {record.levelname for record in caplog.records}


def test_the_directory_has_the_spiders_name(tmp_path):
    """In Scrapy's data path, unless it is absolute."""
    settings = Settings({"BLOOM_DELTA": "item"})
    found = DeltaSettings.read(settings, "a/b")
    assert found.directory.parts[-2:] == ("bloom", "a_b")
    settings.set("BLOOM_DELTA_DIR", f"{tmp_path}/of %(spider)s")
    assert DeltaSettings.read(settings, "shop").directory == tmp_path / "of shop"


@pytest.mark.parametrize(
    ("meta", "wish"),
    [
        ({}, None),
        ({"bloom_delta": 3}, 3),
        ({"bloom_delta": False, "crawl_once": True}, False),
        ({"deltafetch_enabled": False}, False),
        ({"deltafetch_enabled": True}, None),
        ({"crawl_once": True}, True),
        ({"crawl_once": False}, False),
    ],
)
def test_what_a_request_asks_for(meta, wish):
    """In our words, or in those of the plugins before."""
    assert wish_of(meta) == wish


def test_keys_of_the_spider_are_no_fingerprints():
    """Text and bytes are the same, and deltafetch's name for it does."""
    assert given_key({"bloom_delta_key": "x"}) == given_key({"deltafetch_key": b"x"})
    assert given_key({"bloom_delta_key": "x" * 20}) == key_of_text("x" * 20) != b"x" * 20
    assert key_of_fingerprint(b"x" * 20) == b"x" * 20
    assert len(key_of_fingerprint(b"x")) == 20
    assert given_key({"bloom_delta_key": ""}) is None


def test_a_key_that_is_no_text_is_odd():
    """A number, for instance: it does not count, and that is said."""
    assert given_key({"bloom_delta_key": 17}) is None
    assert key_in({"bloom_delta_key": 17}) == 17
    assert key_in({}) is None


def test_a_copied_meta_does_not_count():
    """It is about the page that it was copied from."""
    meta = {
        "bloom_delta": False,
        "bloom_delta_key": "x",
        SOURCES: {"url": "u", "keys": []},
        "download_latency": 0.1,
        "other": 1,
    }
    copied = Request("http://example.com/", meta=meta)
    assert drop_copied(copied, meta)
    assert copied.meta == {"download_latency": 0.1, "other": 1}


def test_what_a_spider_writes_itself_counts():
    """Beside a copied meta, too."""
    meta = {"bloom_delta": False, "download_latency": 0.1}
    written = Request("http://example.com/", meta={**meta, "bloom_delta": True})
    assert not drop_copied(written, meta)
    assert written.meta["bloom_delta"] is True
    plain = Request("http://example.com/", meta={"bloom_delta": False})
    assert not drop_copied(plain, meta)
    assert plain.meta == {"bloom_delta": False}
