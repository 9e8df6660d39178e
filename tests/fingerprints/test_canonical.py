"""CanonicalRequestFingerprinter leaves out what it was told to, and nothing else."""

import gzip
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scrapy import Request
from scrapy.settings import Settings
from scrapy.utils.request import RequestFingerprinter
from scrapy.utils.request import fingerprint as scrapy_fingerprint

from scrapy_bloom import CanonicalRequestFingerprinter
from scrapy_bloom.fingerprints import FingerprinterIdentity
from scrapy_bloom.fingerprints.fast import fast_functions

LIST = Path(__file__).resolve().parent.parent / "data" / "urls_twir_odd.txt.gz"
URLS = gzip.decompress(LIST.read_bytes()).decode().split("\n")[:-1]
TRACKING = ["utm_*", "gclid", "PHPSESSID"]


def make(**settings):
    """A fingerprinter with those BLOOM_IGNORE_ settings."""
    names = {f"BLOOM_IGNORE_{name.upper()}": value for name, value in settings.items()}
    return CanonicalRequestFingerprinter(Settings(names))


def same(fingerprinter, *urls):
    """Whether all those URLs have one fingerprint."""
    return len({fingerprinter.fingerprint(Request(url)) for url in urls}) == 1


def test_all_off_is_scrapys_default():
    """Without settings the fingerprints and the identity are those of Scrapy's default; settings
    change those URLs only that have something to ignore."""
    default, tested = RequestFingerprinter(), make()
    others = make(query_params=["no_such_*"], path_params=["no_such"])
    for url in URLS:
        request = Request(url)
        assert tested.fingerprint(request) == default.fingerprint(request)
        assert others.fingerprint(request) == default.fingerprint(request)
    then, now = FingerprinterIdentity.of(default), FingerprinterIdentity.of(tested)
    assert then[1:] == now[1:]


QUERY, PATH = {"query_params": TRACKING}, {"path_params": ["jsessionid", "s*"]}
INNER = "/p{}/http://b.example/q{}"
SAME = [
    # by name and by glob, wherever they stand, escaped, empty or repeated
    (QUERY, "/p?id=1", "/p?id=1&utm_medium=y&utm_source=x#part"),
    (QUERY, "/p?id=1", "/p?gclid=1&id=1&gclid=2&PHPSESSID"),
    (QUERY, "/p?id=1", "/p?utm%5Fsource=x&utm_=&&id=1"),
    (QUERY, "/?b=&a=1&a=2&gclid=3", "/?a=2&a=1&b"),
    # a setting has names as they read, a canonical URL has them escaped
    ({"query_params": ["größe", "a b"]}, "/p?id=1", "/p?gr%C3%B6%C3%9Fe=2&id=1&a+b=3"),
    ({"path_params": ["größe"]}, "/p", "/p;gr%C3%B6%C3%9Fe=2"),
    # session numbers, in any part of the path
    *((PATH, "/p/q", f"/p/q{rest}") for rest in (";jsessionid=1A", ";jsessionid=1?", ";s=1;sid=2")),
    (PATH, "/p/q", "/p;jsessionid=1/q;sid"),
    (PATH, "/p;v=1;sid=2;w=3", "/p;v=1;w=3"),
    (PATH, INNER.format("", ""), INNER.format(";sid=1", ";sid=2")),
]
OTHERS = [
    # names are matched whole, in upper and lower case, and only in the query
    *((QUERY, "/p?id=1", f"/p?id=1&{rest}=2") for rest in ("phpsessid", "xutm_source", "gclid2")),
    *((QUERY, "/p?id=1", url) for url in ("/p?id=gclid", "/utm_source/p?id=1", "/p;gclid=1?id=1")),
    (QUERY, "/?a=1&a=2&gclid=3", "/?a=1"),
    *((PATH, "/p/q", url) for url in ("/p/q;v=1", "/p/q;Jsessionid=1", "/p/q?x=;jsessionid=1")),
    (PATH, "/p/q;v=1", "/p/q;v=2"),
    (PATH, ";sid=1/", ";sid=2/"),
]


@pytest.mark.parametrize(
    ("settings", "one", "other", "expected"),
    [*((*row, True) for row in SAME), *((*row, False) for row in OTHERS)],
)
def test_what_is_ignored(settings, one, other, expected):
    """Parameters of the query and of the path that the settings name, and nothing else."""
    assert same(make(**settings), f"http://a.example{one}", f"http://a.example{other}") == expected


def test_scheme_is_ignored():
    """http and https are the same, other schemes are not."""
    tested = make(scheme=True)
    assert same(tested, "http://a.example/p?b=1&a=2", "https://a.example/p?a=2&b=1")
    assert not same(tested, "http://a.example/", "ftp://a.example/")
    assert not same(make(), "http://a.example/", "https://a.example/")


def test_method_and_body_count():
    """Only URLs are treated otherwise than by Scrapy."""
    tested = make(query_params=TRACKING)
    one, other = (
        [
            tested.fingerprint(Request(f"http://a.example/?gclid={n}", method=method, body=body))
            for method, body in (("GET", b""), ("POST", b""), ("POST", b"x"))
        ]
        for n in (1, 2)
    )
    assert one == other
    assert len({*one}) == 3


@pytest.mark.parametrize("text", ["page 1", "página 1", "page \ud83d"])
def test_meta_key_stands_for_the_request(text):
    """bytes and str, in UTF-8, and nothing else of the request counts."""
    tested = make()
    found = {
        tested.fingerprint(Request(url, method=method, meta={"bloom_fingerprint": key}))
        for url in ("http://a.example/", "http://b.example/")
        for method in ("GET", "POST")
        for key in (text, text.encode(errors="surrogatepass"))
    }
    assert len(found) == 1
    assert len(next(iter(found))) == 20
    other = Request("http://a.example/", meta={"bloom_fingerprint": "page 2"})
    assert tested.fingerprint(other) not in found


@pytest.mark.parametrize("key", [None, 1, ["page"]])
def test_bad_meta_key_is_refused(key):
    """The error names the key and the value."""
    with pytest.raises(TypeError, match=r"request.meta\['bloom_fingerprint'\] is .*: it must be"):
        make().fingerprint(Request("http://a.example/", meta={"bloom_fingerprint": key}))


def test_what_is_left_alone():
    """What was asked to stay as it is, and URLs without a path or without a host."""
    tested = make(query_params=True, path_params=True)
    verbatim = Request("https://a.example/?gclid=1", meta={"verbatim_url": True})
    odd = ("data:text/html,?gclid=1;sid", "about:blank", "http://a.example")
    for request in (verbatim, *map(Request, odd)):
        assert tested.fingerprint(request) == scrapy_fingerprint(request)


@given(st.sampled_from(URLS), st.sampled_from(["", "#x"]))
def test_both_ways_agree(url, fragment):
    """What answers for most URLs, given only the URL, answers the same as the whole."""
    tested = make(query_params=["q", "utm_*"], path_params=True, scheme=True)
    request = Request(url + fragment)
    assert tested.fingerprint_of_url(request.url) in (None, tested.fingerprint(request))


def test_identity_holds_the_settings():
    """A job is not resumed with other settings; the same in another order, or as text, go on."""
    queries = [{"query_params": value} for value in (["a"], ["b"], True)]
    different = [{}, {"scheme": True}, {"path_params": ["a"]}, *queries]
    assert len({make(**settings).identity for settings in different}) == len(different)
    assert make(query_params=["b", "a"]).identity == make(query_params="a, b").identity
    for all_of_them in (True, "True", "true"):
        assert make(query_params=all_of_them).identity == make(query_params=["*"]).identity
    for none in (False, "False", "false", "", []):
        assert make(query_params=none).identity == make().identity


@pytest.mark.parametrize("value", [[""], "a,,b", 3, ["a", None], '["a"]'])
def test_bad_settings_are_refused(value):
    """The error names the setting, the value and what it must be."""
    with pytest.raises(ValueError, match=r"_QUERY_PARAMS is .*: it must be a list of names and"):
        CanonicalRequestFingerprinter(Settings({"BLOOM_IGNORE_QUERY_PARAMS": value}))


def test_a_subclass_decides_alone():
    """What answers for URLs is not that of a subclass, about which nothing is taken for granted."""
    assert fast_functions(make())[1]
    subclass = type("Subclass", (CanonicalRequestFingerprinter,), {})
    assert fast_functions(subclass(Settings())) == (None, None)
