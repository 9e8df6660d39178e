"""What stands in front of `request_seen` answers, counts and logs as the method of the class."""

import logging

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scrapy import Request
from scrapy.utils.request import RequestFingerprinter
from scrapy.utils.request import fingerprint as scrapy_fingerprint
from scrapy.utils.test import get_crawler

from scrapy_bloom import BloomDupeFilter
from scrapy_bloom.dupefilter import FilterDupeFilter
from scrapy_bloom.speed import LONGEST_URL, RecentKeys
from scrapy_bloom.speed.known import known_urls
from tests.crawl.engine import TestSpider
from tests.fakes import Engine, raising
from tests.fingerprinters import HeaderFingerprinter

LOGGER = logging.getLogger("scrapy_bloom")


class ByCallback:
    """Says what it reads."""

    bloom_reads = ("callback", "meta:key")

    def fingerprint(self, request):
        name = "parse" if request.callback is None else request.callback.__name__
        read = request.url, request.method, name
        return repr((*read, request.meta.get("key"))).encode().ljust(20)


def made(kind=BloomDupeFilter, **options):
    """Return an open dupefilter in memory."""
    crawler = get_crawler(TestSpider, settings_dict={"BLOOM_CAPACITY": 1_000, **options})
    crawler.engine = Engine()
    crawler.spider = crawler._create_spider("two")
    found = kind.from_crawler(crawler)
    found.open()
    return found


class Own(BloomDupeFilter):
    """Has a `request_seen` of its own."""

    def request_seen(self, request):
        return super().request_seen(request)


@pytest.mark.parametrize(("kind", "is_replaced"), [(BloomDupeFilter, True), (Own, False)])
def test_the_shortcut_replaces_an_unchanged_request_seen(kind, is_replaced):
    """In the object, which saves a call; a subclass's own stays, and has the shortcut behind it."""
    tested = made(kind)
    assert ("request_seen" in vars(tested)) == is_replaced
    assert tested._ask.__module__ == "scrapy_bloom.speed"


# the URLs seen last


@pytest.mark.parametrize("size", [0, 1, 100])
def test_memory_is_bounded(size):
    """It never holds more than its size, and fills up; a few huge URLs cannot fill the memory."""
    recent = RecentKeys(size)
    recent.add("y" * (LONGEST_URL + 1))
    for number in range(1_000):
        recent.add(f"{number:{LONGEST_URL}}")
        assert len(recent.urls) == min(number + 1, size)
    recent.clear()
    assert len(recent.urls) == 0


@pytest.mark.parametrize(
    ("urls", "share"),
    [
        *(
            ([*range(count)], share)
            for count, share in ((1_000, 0.87), (1_050, 0.8), (2_000, 0.15))
        ),
        ([*range(100), *[None] * 100], 0.42),  # amid many that come once
    ],
    ids=["all fit", "few do not", "half", "often"],
)
def test_no_cliff_when_more_urls_come_than_fit(urls, share):
    """The share of hits falls smoothly with the number of URLs in turn, with others in between."""
    recent, found = RecentKeys(1_000), 0
    for number in range(50):
        for place, url in enumerate(urls):
            key = f"{number // 25} {url}" if url is not None else f"once {number} {place}"
            if key in recent.urls:
                found += 1
            else:
                recent.add(key)
    assert found / len(urls) / 50 > share


# the answers

URLS = st.builds(
    str.__add__,
    st.sampled_from(
        ["http://a.example", "http://a.example/", "https://b.example/p;v=1", "http://a.example/a b"]
    ),
    st.sampled_from(["", "/x", "?b=2&a=1", "?a=1&b=2", "?utm_x=z&a=1", "#f", "?a=1#f", " #g", "é"]),
)
METAS = [
    *[{}] * 4,
    *({"bloom_fingerprint": "k"}, {"bloom_fingerprint": 3}, {"verbatim_url": True}, {"key": 1}),
    {"redirect_urls": ["http://a.example/"], "redirect_times": 1},
]
OFFERED = st.tuples(
    URLS, st.sampled_from(["GET", "GET", "HEAD"]), st.sampled_from([b"", b"", b"q"])
)
PLAIN = ("http://a.example/?b=2&a=1", "GET", b"")
CANONICAL = "scrapy_bloom.CanonicalRequestFingerprinter"


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"BLOOM_URL_CACHE": 3},
        {"BLOOM_URL_CACHE": 0},
        {"REQUEST_FINGERPRINTER_CLASS": CANONICAL, "BLOOM_IGNORE_QUERY_PARAMS": "utm_*"},
        *(
            {"REQUEST_FINGERPRINTER_CLASS": cls}
            for cls in ("scrapy_bloom.ScrapyRedisFingerprinter", ByCallback)
        ),
    ],
    ids=str,
)
@settings(max_examples=settings.default.max_examples // 2)
@example(offered=[(PLAIN, 0, meta) for meta in METAS])
@given(offered=st.lists(st.tuples(OFFERED, st.integers(0, 2), st.sampled_from(METAS)), max_size=40))
def test_the_shortcut_is_the_method(options, offered):
    """Verdicts, statistics and log lines are equal for any requests and fingerprinter."""
    told = []
    for way in ("look_up", "request_seen"):
        tested = made(**options)
        ask, spider = getattr(tested, way), tested.crawler.spider
        tested.stats_due = 0.0
        answers, lines = [], []
        handler = logging.Handler()
        handler.emit = lambda record, lines=lines: lines.append(record.getMessage())
        LOGGER.addHandler(handler)
        LOGGER.setLevel(logging.DEBUG)
        for (url, method, body), place, meta in offered:
            callback = (None, spider.parse, spider.parse_other)[place]
            request = Request(url, callback, method=method, body=body, meta=meta)
            answers.append(ask(request))
            if answers[-1]:
                tested.log(request, spider)
        answers.append(tested.crawler.stats.get_value("bloom/items"))
        tested.close("finished")
        LOGGER.removeHandler(handler)
        LOGGER.setLevel(logging.NOTSET)
        stats = tested.crawler.stats.get_stats()
        told.append((answers, stats.get("dupefilter/filtered"), stats.get("bloom/items"), lines))
    assert told[0] == told[1]


def test_spaces_before_a_fragment():
    """The cut URL of these two is the same, their fingerprints are not."""
    one, other = Request("http://a.example\xa0"), Request("http://a.example #x")
    one._url, other._url = "http://a.example ", "http://a.example #x"
    assert scrapy_fingerprint(one) != scrapy_fingerprint(other)
    for pair in ((one, other), (other, one)):
        assert [*map(made().request_seen, pair)] == [False, False]


# methods and fingerprinters of others


@pytest.mark.parametrize("owner", [BloomDupeFilter, FilterDupeFilter])
@pytest.mark.parametrize("name", ["request_seen", "fingerprint"])
def test_a_patched_method_is_asked(monkeypatch, watch, owner, name):
    """Of the class, before the start; of an object later."""
    asked = []
    watch(owner, name, lambda *arguments: asked.append(arguments))
    request = Request("http://a.example/")
    tested = made()
    assert [tested.request_seen(request), tested.request_seen(request.copy())] == [False, True]
    assert len(asked) == 2
    monkeypatch.setattr(tested, "request_seen", lambda request: "patched")
    assert tested.request_seen(request) == "patched"


class Own(BloomDupeFilter):
    """A subclass that is told of each request, and has fingerprints of its own."""

    asked = 0

    def request_seen(self, request):
        self.asked += 1
        return super().request_seen(request)

    def fingerprint(self, request):
        return super().fingerprint(request) + request.url.partition("#")[2].encode()


def test_other_fingerprints_decide_alone():
    """Nothing is answered from memory where fingerprints are not known, as with a changed object. A
    subclass is asked, and its call of the class's method has the same answers."""
    changed, own = RequestFingerprinter(), {"fingerprint": HeaderFingerprinter.fingerprint}
    changed._fingerprint = HeaderFingerprinter().fingerprint
    subclass = type("Subclass", (RequestFingerprinter,), own)()
    requests = [Request(f"http://a.example/#{n}", headers={"X-Id": str(n)}) for n in (1, 2, 2)]
    for other in (HeaderFingerprinter(), subclass, changed, None):
        crawler = made().crawler
        crawler.request_fingerprinter = other or crawler.request_fingerprinter
        tested = (BloomDupeFilter if other else Own).from_crawler(crawler)
        assert [*map(tested.request_seen, requests)] == [False, False, True]
    assert "request_seen" not in vars(tested)
    assert tested.asked == 3


class FailingOnceFingerprinter(ByCallback):
    """Fails on each URL the first time, and counts how often it is asked."""

    def __init__(self):
        self.asked = []

    def fingerprint(self, request):
        self.asked.append(request.url)
        if self.asked.count(request.url) == 1:
            raise LookupError("not yet")
        return super().fingerprint(request)


@pytest.mark.parametrize("size", [0, 65_536])
def test_a_substitute_is_not_remembered(size):
    """It is not what the fingerprinter says: verdicts are those without a memory of recent URLs. A
    scheduler that asks for the fingerprint of a new request makes nobody work it out."""
    tested = made(REQUEST_FINGERPRINTER_CLASS=FailingOnceFingerprinter, BLOOM_URL_CACHE=size)
    request = Request("http://a.example/not-yet")
    assert [tested.request_seen(request.copy()) for _ in range(3)] == [False, False, True]
    assert len(tested._recent.urls) == min(size, 1)
    fingerprinter = tested.crawler.request_fingerprinter
    other = Request("http://a.example/other")
    assert [tested.request_seen(other.copy()), tested.request_seen(other)] == [False, False]
    asked = len(fingerprinter.asked)
    assert tested.fingerprint(other) == ByCallback().fingerprint(other)
    assert len(fingerprinter.asked) == asked
    assert tested.fingerprint(request) == ByCallback().fingerprint(request)


@pytest.mark.parametrize("fingerprinter", [RequestFingerprinter, ByCallback])
def test_nothing_is_remembered_of_a_failure(monkeypatch, fingerprinter, caplog):
    """A request that the filter failed on is not among the recent ones; the log tells why."""
    tested = made(REQUEST_FINGERPRINTER_CLASS=fingerprinter)
    monkeypatch.setattr(tested, "_see", None)
    assert not tested.request_seen(Request("http://a.example/"))
    assert not tested._recent.urls
    assert "The filter failed: 'NoneType' object is not callable" in caplog.text


@pytest.mark.parametrize("attribute", ["method", "body", "meta", "url", "dont_filter"])
def test_strange_requests_do_not_raise(attribute):
    """Whatever a subclass of Request answers, `request_seen` returns, and none is known early."""

    class Strange(Request):
        pass

    tested, strange = made(), Strange("http://a.example/")
    for value in (None, 1, b"http://a.example/", ["GET"], object()):
        setattr(Strange, attribute, value)
        assert tested.request_seen(strange) in (True, False)
        if value is not None:
            assert not known_urls(made()).is_known(strange)
    setattr(Strange, attribute, property(raising(LookupError)))
    assert not known_urls(tested).is_known(strange)


def test_a_closed_dupefilter_keeps_nothing():
    """Neither a request nor URLs live on, nor what holds the dupefilter and is held by it."""
    tested = made()
    tested.request_seen(Request("http://a.example/"))
    tested.close("finished")
    assert tested.last_request is None
    assert not tested._recent.urls
    assert not {"request_seen", "_ask"} & {*vars(tested)}
