"""What stands in front of `request_seen` answers, counts and logs as the method of the class."""

import logging

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scrapy import Request, Spider
from scrapy.utils.test import get_crawler

from scrapy_bloom import BloomDupeFilter
from scrapy_bloom.dupefilter import FilterDupeFilter
from tests.fakes import Engine

LOGGER = logging.getLogger("scrapy_bloom")
FINGERPRINTERS = {
    "Scrapy's": {},
    "a small cache": {"BLOOM_URL_CACHE": 3},
    "no cache": {"BLOOM_URL_CACHE": 0},
    "canonical": {
        "REQUEST_FINGERPRINTER_CLASS": "scrapy_bloom.CanonicalRequestFingerprinter",
        "BLOOM_IGNORE_QUERY_PARAMS": "utm_*",
    },
    "without a word": {
        "REQUEST_FINGERPRINTER_CLASS": "scrapy_bloom.ScrapyRedisFingerprinter",
    },
    "by callback and key": {"REQUEST_FINGERPRINTER_CLASS": f"{__name__}.ByCallback"},
    "failing": {"REQUEST_FINGERPRINTER_CLASS": f"{__name__}.Failing"},
}


class ByCallback:
    """Says what it reads."""

    bloom_reads = ("callback", "meta:key")

    def fingerprint(self, request):
        name = "parse" if request.callback is None else request.callback.__name__
        read = request.url, request.method, name
        return repr((*read, request.meta.get("key"))).encode().ljust(20)


class Failing(ByCallback):
    """Raises now and then."""

    def fingerprint(self, request):
        if "p" in request.url:
            raise LookupError(request.url)
        return super().fingerprint(request)


class Two(Spider):
    """Has a second callback."""

    name = "two"

    def other(self, response):
        """Nothing."""


def made(**options):
    """Return an open dupefilter in memory."""
    crawler = get_crawler(Two, settings_dict={"BLOOM_CAPACITY": 1_000, **options})
    crawler.engine = Engine()
    crawler.spider = crawler._create_spider("two")
    found = BloomDupeFilter.from_crawler(crawler)
    found.open()
    return found


URLS = st.builds(
    str.__add__,
    st.sampled_from(
        ["http://a.example", "http://a.example/", "https://b.example/p;v=1", "http://a.example/a b"]
    ),
    st.sampled_from(["", "/x", "?b=2&a=1", "?a=1&b=2", "?utm_x=z&a=1", "#f", "?a=1#f", " #g", "é"]),
)
METAS = st.sampled_from(
    [
        *[{}] * 4,
        {"bloom_fingerprint": "k"},
        {"bloom_fingerprint": 3},
        {"verbatim_url": True},
        {"key": 1},
        {"redirect_urls": ["http://a.example/"], "redirect_times": 1},
    ]
)
OFFERED = st.lists(
    st.tuples(
        URLS, st.sampled_from(["GET", "GET", "HEAD"]), st.sampled_from([b"", b"", b"q"]), METAS
    ),
    max_size=40,
)


@pytest.mark.parametrize("name", FINGERPRINTERS)
@settings(deadline=None, max_examples=25)
@given(offered=OFFERED, callbacks=st.randoms(use_true_random=False))
def test_the_shortcut_is_the_method(name, offered, callbacks):
    """Verdicts, statistics and log lines are equal for any requests and fingerprinter."""
    told = []
    places = [callbacks.randrange(3) for _ in offered]
    for way in ("look_up", "shortcut"):
        tested = made(**FINGERPRINTERS[name])
        ask = tested.look_up if way == "look_up" else tested.request_seen
        spider = tested.crawler.spider
        answers, lines = [], []
        handler = logging.Handler()
        handler.emit = lambda record, lines=lines: lines.append(record.getMessage())
        LOGGER.addHandler(handler)
        LOGGER.setLevel(logging.DEBUG)
        for (url, method, body, meta), place in zip(offered, places, strict=True):
            callback = (None, spider.parse, spider.other)[place]
            request = Request(url, callback, method=method, body=body, meta=dict(meta))
            answers.append(ask(request))
            if answers[-1]:
                tested.log(request, spider)
        tested.close("finished")
        LOGGER.removeHandler(handler)
        LOGGER.setLevel(logging.NOTSET)
        stats = tested.crawler.stats.get_stats()
        told.append((answers, stats.get("dupefilter/filtered"), stats.get("bloom/items"), lines))
    assert told[0] == told[1]


def test_the_close_drops_it():
    """It holds the dupefilter, which holds it."""
    tested = made()
    tested.close("finished")
    assert not {"request_seen", "_ask"} & {*vars(tested)}


@pytest.mark.parametrize("owner", [BloomDupeFilter, FilterDupeFilter])
@pytest.mark.parametrize("name", ["request_seen", "fingerprint"])
def test_a_patched_method_is_asked(monkeypatch, owner, name):
    """Of the class, before the start."""
    asked, method = [], getattr(BloomDupeFilter, name)

    def patched(self, request):
        asked.append(request)
        return method(self, request)

    monkeypatch.setattr(owner, name, patched)
    request = Request("http://a.example/")
    tested = made()
    assert [tested.request_seen(request), tested.request_seen(request.copy())] == [False, True]
    assert len(asked) == 2


def test_an_object_that_is_patched_later_is_asked(monkeypatch):
    """What a test or a project puts in the place of the method answers."""
    tested = made()
    monkeypatch.setattr(tested, "request_seen", lambda request: "patched")
    assert tested.request_seen(Request("http://a.example/")) == "patched"


def test_a_subclass_that_overrides_it_is_asked():
    """And its call of the class's method has the same answers."""

    class Counting(BloomDupeFilter):
        asked = 0

        def request_seen(self, request):
            self.asked += 1
            return super().request_seen(request)

    tested = Counting.from_crawler(made().crawler)
    assert "request_seen" not in vars(tested)
    request = Request("http://a.example/")
    assert [tested.request_seen(request), tested.request_seen(request.copy())] == [False, True]
    assert tested.asked == 2
    assert tested._recent.urls == {request.url}
