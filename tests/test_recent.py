"""Recently seen URLs need no fingerprint, and the verdicts are those of RFPDupeFilter."""

import gzip
import os
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scrapy import FormRequest, Request
from scrapy.dupefilters import RFPDupeFilter
from scrapy.utils.request import RequestFingerprinter
from scrapy.utils.request import fingerprint as scrapy_fingerprint

from scrapy_bloom import BloomDupeFilter
from scrapy_bloom.speed import LONGEST_URL, RecentKeys, is_clean
from scrapy_bloom.speed.known import known_urls
from tests.fakes import raising
from tests.fingerprinters import HeaderFingerprinter
from tests.test_speed import made as without_addon

DATA = os.environ.get("SCRAPY_BLOOM_DATA")


def seen(dupefilter, requests):
    """The verdicts on `requests`, which are built anew for each dupefilter."""
    return [dupefilter.request_seen(request) for request in requests]


def hits(urls, size):
    """The share of `urls` found in a memory of that size."""
    recent, found = RecentKeys(size), 0
    for url in urls:
        if url in recent.urls:
            found += 1
        else:
            recent.add(url)
    return found / len(urls)


# the memory


@pytest.mark.parametrize("size", [0, 1, 100])
def test_memory_is_bounded(size):
    """It never holds more than its size, and all of it until it is full; a few huge URLs cannot
    fill the memory of the process."""
    recent = RecentKeys(size)
    recent.add("y" * (LONGEST_URL + 1))
    for number in range(1_000):
        recent.add(f"{number:{LONGEST_URL}}")
        assert len(recent.urls) == min(number + 1, size)
    recent.clear()
    assert len(recent.urls) == 0


@pytest.mark.parametrize(("surplus", "share"), [(1.0, 0.97), (1.05, 0.8), (1.5, 0.35), (2, 0.15)])
def test_no_cliff_when_more_urls_go_round_than_fit(surplus, share):
    """The share of hits falls smoothly with the number of URLs that are asked for in turn."""
    size = 1_000
    urls = [str(number) for number in range(int(size * surplus))]
    assert hits(urls * 50, size) > share


def test_recency_matters():
    """URLs that come again and again are found amid many that come once."""
    often = [f"often {number}" for number in range(100)]
    urls = []
    for round_ in range(200):
        urls += often + [f"once {round_} {number}" for number in range(100)]
    assert hits(urls, 1_000) > 0.5 * 0.85


@pytest.mark.parametrize("url", ["", " ", "http://a.example ", "http://a\x00b", "é", "a\n", "\x7f"])
def test_urls_that_are_not_clean(url):
    """Spaces, control characters and what is not ASCII are kept out."""
    assert not is_clean(url)


# in the dupefilter


def test_memory_answers(make_dupefilter, monkeypatch):
    """A URL that was seen, with another fragment, is known without a look at the filter."""
    tested = make_dupefilter()
    assert not tested.request_seen(Request("http://a.example/#a"))
    monkeypatch.setattr(tested, "_see", None)
    assert tested.request_seen(Request("http://a.example/#b"))


def test_spaces_before_a_fragment(make_dupefilter):
    """The cut URL of these two is the same, their fingerprints are not."""
    one, other = Request("http://a.example\xa0"), Request("http://a.example #x")
    one._url, other._url = "http://a.example ", "http://a.example #x"
    assert scrapy_fingerprint(one) != scrapy_fingerprint(other)
    for pair in ((one, other), (other, one)):
        assert seen(make_dupefilter(), pair) == [False, False]


def test_verbatim_url_is_scrapys_business(make_dupefilter):
    """With that meta key the verdicts are those of the installed Scrapy."""
    metas = [{}, {"verbatim_url": True}, {"verbatim_url": False}, {"verbatim_url": True}, {}]

    def requests():
        for url in ("http://a.example/?b=1&a=2", "http://a.example/?a=2&b=1#c"):
            for meta in metas:
                yield Request(url, meta=meta)

    assert seen(make_dupefilter(), requests()) == seen(RFPDupeFilter(), requests())


class FragmentFingerprinter(RequestFingerprinter):
    """A subclass of Scrapy's default one that tells fragments apart."""

    def fingerprint(self, request):
        return scrapy_fingerprint(request, keep_fragments=True)


class FragmentDupeFilter(BloomDupeFilter):
    """A subclass with fingerprints of its own, built on the inherited ones."""

    def fingerprint(self, request):
        return super().fingerprint(request) + request.url.partition("#")[2].encode()


def patched(crawler):
    """Change the object of Scrapy's default fingerprinter."""
    crawler.request_fingerprinter._fingerprint = FragmentFingerprinter().fingerprint


@pytest.mark.parametrize(
    ("prepare", "settings"),
    [
        (lambda crawler: None, {"REQUEST_FINGERPRINTER_CLASS": HeaderFingerprinter}),
        (lambda crawler: None, {"REQUEST_FINGERPRINTER_CLASS": FragmentFingerprinter}),
        (lambda crawler: None, {"DUPEFILTER_CLASS": FragmentDupeFilter}),
        (patched, {}),
    ],
)
def test_other_fingerprints_decide_alone(make_dupefilter, prepare, settings):
    """Nothing is answered from memory where fingerprints are not known."""
    tested = make_dupefilter(prepare, **settings)
    requests = [Request(f"http://a.example/#{n}", headers={"X-Id": str(n)}) for n in range(3)] * 2
    assert seen(tested, requests) == [False] * 3 + [True] * 3


class CountingFingerprinter:
    """Counts how often it is asked."""

    asked = 0

    def fingerprint(self, request):
        type(self).asked += 1
        return scrapy_fingerprint(request)


def test_fingerprint_after_request_seen_is_free(make_dupefilter):
    """A scheduler that asks for the fingerprint of a new request makes nobody work it out."""
    tested = make_dupefilter(REQUEST_FINGERPRINTER_CLASS=CountingFingerprinter)
    request = Request("http://a.example/")
    tested.request_seen(request)
    asked = CountingFingerprinter.asked
    assert tested.fingerprint(request) == scrapy_fingerprint(request)
    assert CountingFingerprinter.asked == asked
    other = Request("http://a.example/other")
    assert tested.fingerprint(other) == scrapy_fingerprint(other)


class FailingOnceFingerprinter(RequestFingerprinter):
    """Fails on each URL the first time, and gives all its own fingerprints then."""

    bloom_reads = ()

    def __init__(self, crawler=None):
        super().__init__(crawler)
        self._met = set()

    def fingerprint(self, request):
        if request.url not in self._met:
            self._met.add(request.url)
            raise LookupError("not yet")
        return b"own" + super().fingerprint(request)


@pytest.mark.parametrize("size", [0, 65_536])
def test_a_substitute_is_not_remembered(make_dupefilter, size):
    """It is not what the fingerprinter says of the page: the verdicts are those without a memory
    of recent URLs."""
    tested = make_dupefilter(
        REQUEST_FINGERPRINTER_CLASS=FailingOnceFingerprinter, BLOOM_URL_CACHE=size
    )
    request = Request("http://a.example/not-yet")
    assert [tested.request_seen(request.copy()) for _ in range(3)] == [False, False, True]
    assert len(tested._recent.urls) == min(size, 1)


@pytest.mark.parametrize("fingerprinter", [RequestFingerprinter, HeaderFingerprinter])
def test_nothing_is_remembered_of_a_failure(make_dupefilter, monkeypatch, fingerprinter):
    """A request that the filter failed on is not among the recent ones."""
    tested = make_dupefilter(REQUEST_FINGERPRINTER_CLASS=fingerprinter)
    monkeypatch.setattr(tested, "_see", None)
    assert not tested.request_seen(Request("http://a.example/"))
    assert not tested._recent.urls


@pytest.mark.parametrize("attribute", ["method", "body", "meta", "url", "dont_filter"])
def test_strange_requests_do_not_raise(make_dupefilter, attribute):
    """Whatever a subclass of Request answers, `request_seen` returns, and none is known early."""

    class Strange(Request):
        pass

    tested, strange = make_dupefilter(), Strange("http://a.example/")
    for value in (None, 1, b"http://a.example/", ["GET"], object()):
        setattr(Strange, attribute, value)
        assert tested.request_seen(strange) in (True, False)
        if value is not None:
            assert not known_urls(make_dupefilter()).is_known(strange)
    setattr(Strange, attribute, property(raising(LookupError)))
    assert not known_urls(tested).is_known(strange)


def test_closed_dupefilter_keeps_nothing(make_dupefilter):
    """Neither a request nor URLs live on."""
    tested = make_dupefilter()
    tested.request_seen(Request("http://a.example/"))
    tested.close("finished")
    assert tested.last_request is None
    assert not tested._recent.urls


kinds = st.sampled_from(
    [
        Request,
        FormRequest,
        lambda url: Request(url, method="POST"),
        lambda url: Request(url, method="HEAD"),
        lambda url: Request(url, body=b"b"),
        lambda url: Request(url, method="POST", body=b"b"),
    ]
)
few_urls = st.builds(
    "http://a.example{}{}".format,
    st.sampled_from(
        ["", "/", "/b", "/b?d=1&c=2", "/b?c=2&d=1", "/b/../b", "/ ", "/é", "?e", "/%7e"]
    ),
    st.sampled_from(["", "#", "#f", "# g", "#é"]),
)


@given(
    offered=st.lists(st.tuples(kinds, few_urls), max_size=60),
    size=st.sampled_from([0, 1, 2, 3, 65_536]),
)
def test_any_sequence_has_the_verdicts_of_scrapy(offered, size):
    """However requests follow one another, in whatever spelling, and whatever the memory drops."""
    tested = without_addon(BLOOM_URL_CACHE=size)
    requests = [[kind(url) for kind, url in offered] for _ in range(2)]
    assert seen(tested, requests[0]) == seen(RFPDupeFilter(), requests[1])
    tested.close("finished")


@pytest.mark.skipif(not DATA, reason="needs the full data in SCRAPY_BLOOM_DATA")
@pytest.mark.parametrize("name", ["rustdoc163", "boost181", "postgresql15"])
def test_memory_of_the_recent_urls(name):
    """At its default size it takes 16 MB at most, strings included."""
    from scrapy_bloom.settings import BloomSettings

    text = gzip.decompress((Path(DATA) / f"stream_{name}.txt.gz").read_bytes()).decode()
    urls = text.split("\n")
    tracemalloc.start()
    recent = RecentKeys(BloomSettings.url_cache)
    for url in urls:
        cut = url.partition("#")[0]
        if cut not in recent.urls:
            recent.add("".join(list(cut)))  # a string of its own
    taken = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert taken < 16e6
