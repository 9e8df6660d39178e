"""Settings, and what the meta of a request says."""

import re

import pytest
from scrapy import Request
from scrapy.exceptions import NotConfigured
from scrapy.settings import Settings

from scrapy_bloom import DeltaMiddleware
from scrapy_bloom.delta.settings import (
    SOURCES,
    DeltaSettings,
    Digest,
    drop_copied,
    given_key,
    key_in,
    key_of_fingerprint,
    key_of_text,
    wish_of,
)
from tests.delta import started


def read(mode="item", spider="spider", **given):
    """Return what is read of settings."""
    return DeltaSettings.read(Settings({"BLOOM_DELTA": mode, **given}), spider)


@pytest.mark.parametrize("off", [None, False, "", "None", "False"])
def test_off(off):
    """Nothing else is looked at then."""
    assert read(off, BLOOM_DELTA_DAYS="nonsense") is None


@pytest.mark.parametrize(
    ("given", "told"),
    [
        *(({"mode": value}, f"BLOOM_DELTA is {value!r}") for value in (True, "items")),
        ({"BLOOM_DELTA_DAYS": 0}, "BLOOM_DELTA_DAYS is 0"),
        (
            {"BLOOM_DELTA_RESET": True, "BLOOM_DELTA_READ_ONLY": True},
            "BLOOM_DELTA_RESET is True, and so is BLOOM_DELTA_READ",
        ),
        *(
            ({"BLOOM_DELTA_DIGEST": value}, "BLOOM_DELTA_DIGEST is .*: it must be True, a list of")
            for value in (7, ["a", ""], ["skip", "a"], "a,skip", "skip:", [7], '["a"]')
        ),
    ],
)
def test_bad_settings_are_refused(given, told):
    """With their name and value; also two that exclude each other."""
    with pytest.raises(ValueError, match=told):
        read(**given)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        *((off, None) for off in (None, False, "False", "0")),
        *((on, Digest()) for on in ("1", True, [])),
        (["b", "a"], Digest(("a", "b"))),
        ("a, b", Digest(("a", "b"))),
        ("skip", Digest(skips=True)),
        ("skip: a,b", Digest(("a", "b"), skips=True)),
        ("skip: skip", Digest(("skip",), skips=True)),
    ],
)
def test_digests_are_asked_for(value, expected):
    """By True, fields to leave out, or "skip"."""
    found = read(None, BLOOM_DELTA_DIGEST=value)
    assert (found and found.digest) == expected
    assert found is None or found.mode is None


class OwnDelta(DeltaMiddleware):
    """A project's own, which leaves spiders alone that are none of its business."""

    def __init__(self, *arguments):
        if arguments:
            raise NotConfigured


@pytest.mark.parametrize(("name", "value"), [("BLOOM_DELTA", "item"), ("BLOOM_DELTA_DIGEST", [])])
def test_a_store_that_nobody_uses_is_refused(make_dupefilter, caplog, name, value):
    """Without the add-on, whose middleware does all the work; a subclass of it will do, and may
    turn itself off in the words of Scrapy, which takes no error from it."""
    told = rf"{name} is {re.escape(repr(value))}, .* (into ADDONS|{name} to N)"
    with pytest.raises(ValueError, match=told):
        make_dupefilter(**{name: value})

    def prepare(crawler):
        crawler.engine.scraper.spidermw.middlewares = (object(), OwnDelta())

    assert make_dupefilter(prepare, **{name: value})
    caplog.clear()
    with pytest.raises(NotConfigured):
        started(OwnDelta, **{name: value})
    assert "ERROR" not in {record.levelname for record in caplog.records}


def test_the_directory_has_the_spiders_name(tmp_path):
    """In Scrapy's data path, unless it is absolute."""
    assert read(spider="a/b").directory.parts[-2:] == ("bloom", "a_b")
    found = read(spider="shop", BLOOM_DELTA_DIR=f"{tmp_path}/of %(spider)s")
    assert found.directory == tmp_path / "of shop"


@pytest.mark.parametrize(
    ("meta", "wish"),
    [
        ({"bloom_delta": 3}, 3),
        ({"bloom_delta": False, "crawl_once": True}, False),
        *(({"deltafetch_enabled": value}, wish) for value, wish in ((False, False), (True, None))),
        *(({"crawl_once": value}, value) for value in (True, False)),
    ],
)
def test_what_a_request_asks_for(meta, wish):
    """In our words, or in those of the plugins before."""
    assert wish_of(meta) == wish


def test_keys_of_the_spider_are_no_fingerprints():
    """Text and bytes are the same, and deltafetch's name does; a number does not, which is said."""
    assert given_key({"bloom_delta_key": "x"}) == given_key({"deltafetch_key": b"x"})
    assert given_key({"bloom_delta_key": "x" * 20}) == key_of_text("x" * 20) != b"x" * 20
    assert key_of_fingerprint(b"x" * 20) == b"x" * 20
    assert len(key_of_fingerprint(b"x")) == 20
    assert given_key({"bloom_delta_key": ""}) is given_key({"bloom_delta_key": 17}) is None
    assert key_in({"bloom_delta_key": 17}) == 17
    assert key_in({}) is None


OWN = {"bloom_delta": False, "bloom_delta_key": "x", "bloom_delta_version": "1"}
OWN |= {SOURCES: {"url": "u", "keys": []}, "bloom_attempts": 1}
SCRAPYS = {"download_latency": 0.1}


@pytest.mark.parametrize(
    ("of_page", "written", "kept"),
    [
        # it is about the page that it was copied from
        ({**OWN, **SCRAPYS, "other": 1}, {}, {**SCRAPYS, "other": 1}),
        ({"bloom_delta": False, **SCRAPYS}, {"bloom_delta": True}, None),
        ({"bloom_delta": False}, {}, None),
    ],
)
def test_a_copied_meta_does_not_count(of_page, written, kept):
    """What a spider writes itself does, beside a copied meta, too."""
    request = Request("http://example.com/", meta={**of_page, **written})
    assert drop_copied(request, of_page) is (kept is not None)
    assert request.meta == ({**of_page, **written} if kept is None else kept)
