"""Fast fingerprints are Scrapy's, whatever the request, the list and the installed w3lib."""

import gzip
import os
from pathlib import Path
from time import process_time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scrapy import Request
from scrapy.utils.request import RequestFingerprinter
from scrapy.utils.request import fingerprint as scrapy_fingerprint
from w3lib.url import canonicalize_url

from scrapy_bloom import FastRequestFingerprinter
from scrapy_bloom.fingerprints import component
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


def assert_same(url, method="GET", **options):
    """Both ways to the fingerprint of a request agree, on the exception too."""
    assert_canonical(url)
    try:
        request = Request(url, **options)
    except (ValueError, UnicodeError):
        return
    request.method = method  # which is not made upper case
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
        assert_same(url)


def test_real_urls_take_the_fast_way():
    """Of a list of links picked for being odd, 1 in 10 at most is left to w3lib."""
    urls = [Request(url).url for url in lines(OWN / "urls_twir_odd.txt.gz") if url]
    left = [url for url in urls if canonical_url(url) is None]
    assert len(left) < 0.1 * len(urls)


PLACES = """
    /{} /x{}/y /.{} /..{} /x/{}. /?{} /?x={} /?{}=x /?x={}&x=b /?x=b&x={}&x=~ /?{}=b&x=a
    /?-x=1&x{}=2&x=3 /#{} /?b&a#{}&c :80{} {} {}b.example/
"""


@pytest.mark.parametrize(
    "form",
    [
        *(f"http://a.example{place}" for place in PLACES.split()),
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


def test_known_traps():
    """What parsers, escapers and sorters disagree about; what releases of w3lib treat differently
    is not accepted, whichever is installed."""
    for url in TRAPS.split():
        assert_same(url)
        assert_same(url, meta={"verbatim_url": True})
    for text in ("%25", "%3B", "%3b", ";", "./", "../a", "\\", "[", "%7E", "?a=1;b=2"):
        assert canonical_url(f"http://a.example/{text}") is None


PIECES = """
    / . .. /. /../ // & = ? + - _ ~ : , ; @ ! $ ' ( ) * | [ ] \\ % %2F %2f %20 %25 %3B %3D %26 %2B
    %C3%A9 %41 %7E a b A a=1 b=2 a-b=3 &a && # é " <
"""
pieces = st.lists(
    st.sampled_from([*PIECES.split(), " ", "\t", "\xa0"]) | st.characters(codec="utf-8"),
    max_size=8,
).map("".join)
HOSTS = ["a.example", "a.example", "A.example:80", "u:p@a.example", "[::1]:8080", "é.example", ""]
urls = st.builds(
    "{}://{}{}{}{}".format,
    st.sampled_from(["http", "http", "https", "HTTP", "ftp", "ws", "x"]),
    st.sampled_from(HOSTS),
    st.just("") | pieces.map("/{}".format),
    st.just("") | pieces.map("?{}".format),
    st.just("") | pieces.map("#{}".format),
)
methods = st.sampled_from(["GET", "get", b"GET", "POST", "M-SEARCH", "ÄÖ", 'a"b']) | st.text()
bodies = st.none() | st.binary(max_size=40) | st.text(st.characters(codec="utf-8"), max_size=20)
metas = st.dictionaries(
    st.sampled_from(["depth", "verbatim_url", "bloom_fingerprint", "dont_retry"]),
    st.booleans() | st.integers() | st.text(max_size=3),
    max_size=3,
)


@given(
    urls | st.sampled_from(lines(OWN / "urls_w3lib_tests.txt.gz")) | st.text(),
    st.just("GET") | methods,
    st.none() | bodies,
    metas,
)
def test_any_request(url, method, body, meta):
    """Any request has Scrapy's fingerprint, and w3lib makes the same of what the fast way takes."""
    assert_same(url, method, body=body, meta=meta)


def test_hostile_urls_take_linear_time():
    """No URL makes the expressions try again and again."""
    for unit in ("%C3", "a%C3%A9", "&a=1", "/.", "%C3%A", "?&", "a.b.", ":8"):
        for start in ("http://a.example/", "http://a.example/?", "http://", "http://a.example/#"):
            started = process_time()
            canonical_url(start + unit * 50_000 + "\x00")
            assert process_time() - started < 2


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


def test_other_fingerprints_of_scrapy_are_noticed(monkeypatch):
    """If the installed Scrapy has other fingerprints than expected, they are used; so is a function
    that takes something else. What is compared is the fast way, not Scrapy with itself."""
    request = Request("http://a.example/")
    assert agrees_with_scrapy()
    assert all(canonical_url(url) for url in module._PROBES)
    try:
        for other in (lambda request: b"other", lambda: None):
            for each in (module, component):
                monkeypatch.setattr(each, "scrapy_fingerprint", other)
            agrees_with_scrapy.cache_clear()
            assert not agrees_with_scrapy()
            assert not is_default(FastRequestFingerprinter())
            if other.__code__.co_argcount:
                assert FastRequestFingerprinter().fingerprint(request) == b"other"
    finally:
        agrees_with_scrapy.cache_clear()
