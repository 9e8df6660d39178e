"""Fast fingerprints are Scrapy's, whatever the request, the list and the installed w3lib."""

import gzip
import os
import string
from pathlib import Path
from time import process_time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scrapy import FormRequest, Request
from scrapy.http import JsonRequest, XmlRpcRequest
from scrapy.utils.request import RequestFingerprinter
from scrapy.utils.request import fingerprint as scrapy_fingerprint
from w3lib.url import canonicalize_url

import scrapy_bloom
from scrapy_bloom import FastRequestFingerprinter
from scrapy_bloom.fingerprints import FingerprinterIdentity, default
from scrapy_bloom.fingerprints import fast as module
from scrapy_bloom.fingerprints.fast import (
    agrees_with_scrapy,
    canonical_url,
    fingerprint,
    is_default,
)

OWN = Path(__file__).resolve().parent.parent / "data"
ALL = Path(os.environ.get("SCRAPY_BLOOM_DATA", OWN))
LISTS = sorted(
    {path.name: path for path in (*OWN.glob("*.txt.gz"), *ALL.glob("*.txt.gz"))}.values()
)


def lines(path):
    """The distinct lines of a list, in order."""
    text = gzip.decompress(path.read_bytes()).decode("utf-8", "surrogateescape")
    return list(dict.fromkeys(text.split("\n")))


def assert_canonical(url):
    """What the fast way returns, if anything, is what w3lib returns."""
    found = canonical_url(url)
    if found is not None:
        assert found == canonicalize_url(url), url


def assert_same(request):
    """Both ways to the fingerprint agree, on the exception too."""
    try:
        expected = scrapy_fingerprint(request)
    except Exception as error:  # noqa: BLE001 - any that Scrapy raises
        with pytest.raises(type(error)):
            fingerprint(request)
    else:
        assert fingerprint(request) == expected, request


@pytest.mark.parametrize("path", LISTS, ids=lambda path: path.name)
def test_every_string_of_the_lists(path):
    """Each string of each list, raw and as the URL of a request, has Scrapy's fingerprint."""
    for url in lines(path):
        assert_canonical(url)
        try:
            request = Request(url)
        except ValueError:
            continue
        assert_same(request)


def test_real_urls_take_the_fast_way():
    """Of a list of links picked for being odd, 1 in 10 at most is left to w3lib."""
    urls = [Request(url).url for url in lines(OWN / "urls_twir_odd.txt.gz") if url]
    left = [url for url in urls if canonical_url(url) is None]
    assert len(left) < 0.1 * len(urls)


@pytest.mark.parametrize(
    "form",
    [
        "http://a.example/{}",
        "http://a.example/x{}/y",
        "http://a.example/.{}",
        "http://a.example/..{}",
        "http://a.example/x/{}.",
        "http://a.example/?{}",
        "http://a.example/?x={}",
        "http://a.example/?{}=x",
        "http://a.example/?x={}&x=b",
        "http://a.example/?x=b&x={}&x=~",
        "http://a.example/?{}=b&x=a",
        "http://a.example/?-x=1&x{}=2&x=3",
        "http://a.example/#{}",
        "http://a.example/?b&a#{}&c",
        "http://a.example:80{}",
        "http://a.example{}",
        "http://a{}b.example/",
        "http{}://a.example/",
        "{}http://a.example/",
    ],
)
def test_every_character_and_escape_in_every_place(form):
    """All ASCII characters, and all escapes in upper and lower case, in each part of a URL."""
    for number in range(256):
        for text in (chr(number), f"%{number:02X}", f"%{number:02x}"):
            assert_canonical(form.format(text))
            assert_canonical(form.format(text + text))


TRAPS = """
    http://a.example http://a.example#part http://a.example?q=1 http://A.example/
    HTTP://a.example/ http://user@a.example/ http://user:80@a.example/ http://a.example:80/
    https://a.example:443/ http://a.example:080/ http://a.example:0/ http://a.example:59999/
    http://a.example:60000/ http://a.example:65535/ http://a.example:/ http://[::1]/
    http://a..example/ http:///a http://a.example/a/./b http://a.example/a/../b
    http://a.example/a/.. http://a.example/a/.?q=1 http://a.example/.a/..b/c../...
    http://a.example/a; http://a.example/a;b=1 http://a.example/%7euser%2fx http://a.example/?
    http://a.example/?# http://a.example/?& http://a.example/?&&=& http://a.example/?q
    http://a.example/?q= http://a.example/?=1&=0 http://a.example/?q=a=b&p=c=
    http://a.example/?q=1;p=2 http://a.example/?q=a+b&q=a%20a&q=a%2Bc
    http://a.example/?q=a+b&q=a%21 http://a.example/?a+b=1&a%21=1&c=%21
    http://a.example/?b=%2F&a=+&c=/&aa=%41 http://a.example/?b%2F=1&b.=1&c=1
    http://a.example/?b=%2F&b=.&b=0 http://a.example/?a-b=1&a=2&aa=0 http://a.example/?q=%2f&q=%2F
    http://a.example/?q=%41&q=%5A&q=a http://a.example/?u=http://b.example/c?d=e,f
"""


@pytest.mark.parametrize("url", TRAPS.split())
def test_known_traps(url):
    """What parsers, escapers and sorters disagree about."""
    assert_canonical(url)
    assert_same(Request(url))


@pytest.mark.parametrize("text", ["%25", "%3B", "%3b", ";", ";a=1", "./", "../a", "\\", "[", "%7E"])
def test_left_to_w3lib_where_releases_differ(text):
    """What releases of w3lib treat differently is not accepted, whichever is installed."""
    assert canonical_url(f"http://a.example/{text}") is None
    assert canonical_url("http://a.example/?a=1;b=2") is None


# fmt: off
PIECES = [
    "/", ".", "..", "/.", "/../", "//", "&", "=", "?", "+", "-", "_", "~", ":", ",", ";", "@", "!",
    "$", "'", "(", ")", "*", "|", "[", "]", "\\", "%", "%2F", "%2f", "%20", "%25", "%3B", "%3D",
    "%26", "%2B", "%C3%A9", "%41", "%7E", "a", "b", "A", "a=1", "b=2", "a-b=3", "&a", "&&",
    "#", " ", "\t", "é", "\xa0", '"', "<",
]
# fmt: on
pieces = st.lists(st.sampled_from(PIECES) | st.characters(codec="utf-8"), max_size=8).map("".join)
hosts = st.sampled_from(
    [
        "a.example",
        "a.example",
        "A.example:80",
        "u:p@a.example",
        "[::1]:8080",
        "é.example",
        "a..b",
        "",
    ]
)
urls = st.builds(
    "{}://{}{}{}{}".format,
    st.sampled_from(["http", "http", "https", "HTTP", "ftp", "ws", "x"]),
    hosts,
    st.just("") | pieces.map("/{}".format),
    st.just("") | pieces.map("?{}".format),
    st.just("") | pieces.map("#{}".format),
)
any_urls = urls | st.sampled_from(lines(OWN / "urls_w3lib_tests.txt.gz")) | st.text()
methods = st.sampled_from(["GET", "get", "HEAD", "POST", "M-SEARCH", "ÄÖ", 'a"b']) | st.text()
bodies = st.none() | st.binary(max_size=40) | st.text(st.characters(codec="utf-8"), max_size=20)
metas = st.dictionaries(
    st.sampled_from(["depth", "verbatim_url", "bloom_fingerprint", "dont_retry"]),
    st.booleans() | st.integers() | st.text(max_size=3),
    max_size=3,
)


@given(any_urls)
def test_any_url(url):
    """Whatever the fast way accepts, w3lib makes the same of it."""
    assert_canonical(url)


@given(any_urls, methods, bodies, st.dictionaries(st.text(), st.text(), max_size=2), metas)
def test_any_request(url, method, body, headers, meta):
    """Any request that can be built has Scrapy's fingerprint."""
    try:
        request = Request(url, method=method, body=body, headers=headers, meta=meta)
    except (ValueError, UnicodeError):
        return
    assert_same(request)


@given(urls, pieces)
def test_fragment_has_no_part_in_it(url, fragment):
    """A visible URL has the same fingerprint with any fragment: the recent URLs rest on it."""
    cut = url.partition("#")[0]
    if not cut.isascii() or any(c not in string.printable[:94] for c in cut):
        return
    try:
        expected = canonicalize_url(cut)
    except ValueError:
        return
    assert canonicalize_url(f"{cut}#{fragment}") == expected


@pytest.mark.parametrize(
    "request_",
    [
        FormRequest("http://a.example/?b=1&a=2", formdata={"q": "é"}),
        FormRequest("http://a.example/?b=1&a=2", formdata={"q": "1"}, method="GET"),
        JsonRequest("http://a.example/", data={"q": 1}),
        XmlRpcRequest("http://a.example/", params=(1,), methodname="m"),
        Request("http://a.example/a/../?b&a", meta={"verbatim_url": True}),
        Request("http://a.example/?b&a", meta={"verbatim_url": False}),
        Request("http://a.example/", body=b"q"),
        Request("http://a.example/", method="DELETE"),
        Request("http://a.example/?b=1&a=2", method="POST", body=b'"\\\xff'),
    ],
    ids=repr,
)
def test_kinds_of_requests(request_):
    """Subclasses, methods, bodies and URLs that are to be left alone."""
    assert_same(request_)


@pytest.mark.parametrize("method", ["get", b"GET", "Get", "GÉT", 'G"T', "", "M-SEARCH"])
def test_method_set_later(method):
    """A method that was not given to the constructor is not made upper case."""
    request = Request("http://a.example/?b=1&a=2")
    request.method = method
    assert_same(request)


def test_url_that_is_no_plain_text():
    """A subclass may have a URL of its own kind."""

    class Link(str):
        __slots__ = ()

        def __format__(self, spec):
            return "elsewhere"

    class LinkRequest(Request):
        @property
        def url(self):
            return Link("http://a.example/?b=1&a=2")

    assert_same(LinkRequest("http://b.example/"))


def test_hostile_urls_take_linear_time():
    """No URL makes the expressions try again and again."""
    for unit in ("%C3", "a%C3%A9", "&a=1", "/.", "%C3%A", "?&", "a.b.", ":8"):
        for start in ("http://a.example/", "http://a.example/?", "http://", "http://a.example/#"):
            started = process_time()
            canonical_url(start + unit * 50_000 + "\x00")
            assert process_time() - started < 2


def test_fast_fingerprinter_is_public():
    """It can be named in REQUEST_FINGERPRINTER_CLASS, and is built without a crawler too."""
    assert scrapy_bloom.FastRequestFingerprinter is FastRequestFingerprinter
    request = Request("http://a.example/?b=1&a=2")
    for fingerprinter in (FastRequestFingerprinter(), FastRequestFingerprinter.from_crawler(None)):
        assert fingerprinter.fingerprint(request) == scrapy_fingerprint(request)


def test_fast_fingerprinter_has_the_identity_of_the_default():
    """A job can go from Scrapy's default to it and back, without a warning."""
    default = FingerprinterIdentity.of(RequestFingerprinter())
    fast = FingerprinterIdentity.of(FastRequestFingerprinter())
    assert (fast.identity, fast.plain, fast.edge) == (default.identity, default.plain, default.edge)


def test_the_default_and_nothing_else_is_the_default(monkeypatch):
    """Subclasses, patched objects and patched classes are taken for strangers."""
    ours = (RequestFingerprinter, FastRequestFingerprinter)
    assert all(is_default(cls()) for cls in ours)
    subclasses = [type("Subclass", (cls,), {})() for cls in ours]
    patched = RequestFingerprinter()
    patched._fingerprint = lambda request: b""
    shadowed = FastRequestFingerprinter()
    shadowed.fingerprint = lambda request: b""
    for stranger in (*subclasses, patched, shadowed, object(), None):
        assert not is_default(stranger)
    monkeypatch.setattr(RequestFingerprinter, "fingerprint", lambda self, request: b"")
    assert not is_default(RequestFingerprinter())


@pytest.fixture
def another_scrapy(monkeypatch):
    """A release of Scrapy with other fingerprints."""

    def other(request):
        return scrapy_fingerprint(request)[::-1]

    for each in (module, default):
        monkeypatch.setattr(each, "scrapy_fingerprint", other)
    agrees_with_scrapy.cache_clear()
    yield other
    agrees_with_scrapy.cache_clear()


def test_other_fingerprints_of_scrapy_are_noticed(another_scrapy):
    """If the installed Scrapy has other fingerprints than expected, they are used."""
    request = Request("http://a.example/")
    assert FastRequestFingerprinter().fingerprint(request) == another_scrapy(request)
    assert not is_default(FastRequestFingerprinter())


def test_a_scrapy_without_such_fingerprints_is_noticed(another_scrapy, monkeypatch):
    """One whose function takes something else is used as it is, too."""
    monkeypatch.setattr(module, "scrapy_fingerprint", lambda: None)
    assert not agrees_with_scrapy()


def test_probes_take_the_fast_way():
    """The check of the installed releases checks the fast way, not Scrapy against itself."""
    assert agrees_with_scrapy()
    assert all(canonical_url(url) for url in module._PROBES)
