"""Lists of URLs, plain and compressed, whole and damaged."""

import gzip
from hashlib import sha1

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scrapy import Request
from scrapy.utils.request import RequestFingerprinter, fingerprint
from scrapy.utils.test import get_crawler

from scrapy_bloom import BloomError
from scrapy_bloom.fingerprints.fast import fingerprint_of_url
from scrapy_bloom.migration.sources import UrlList
from tests.commands.command_line import URLS

DEFAULT = RequestFingerprinter.from_crawler(get_crawler())


class Own(RequestFingerprinter):
    """A fingerprinter whose requests get no short cut."""

    def fingerprint(self, request):
        return sha1(request.url.encode()).digest()


def imported(path, fingerprinter=DEFAULT):
    return [each for batch, _ in UrlList(path, fingerprinter).batches() for each in batch]


def test_real_urls_get_the_fingerprints_of_their_requests():
    """The short cut gives what Scrapy gives, in order, for a real list."""
    lines = gzip.decompress(URLS.read_bytes()).decode().split("\n")
    expected = [fingerprint(Request(line)) for line in lines if line]
    assert imported(URLS) == expected


@given(
    st.one_of(
        st.text(max_size=40),
        st.from_regex(r"\Ahttps?://[a-zA-Z0-9.:_@-]{0,12}(/[!-~]{0,12}){0,3}(\?[!-~]{0,20})?\Z"),
    )
)
def test_short_cut_agrees_with_requests(url):
    """Whatever URL the short cut answers for, a Request for it has that fingerprint."""
    quick = fingerprint_of_url(url)
    if quick is not None:
        assert quick == fingerprint(Request(url))


def test_own_fingerprinter_is_asked(tmp_path):
    """The job's fingerprinter decides, not Scrapy's default."""
    path = tmp_path / "urls"
    path.write_text("http://example.com/b?y=1&x=2\n")
    assert imported(path, Own()) == [sha1(b"http://example.com/b?y=1&x=2").digest()]


def test_lines_are_lines(tmp_path):
    """Line ends of either kind, blanks around, empty lines; only \\n ends a line."""
    path = tmp_path / "urls"
    path.write_bytes(b"\nhttp://e.com/1\r\n  http://e.com/2 \n\n\nhttp://e.com/3")
    urls = UrlList(path, DEFAULT)
    assert urls.keys == urls.size == 6
    batches = list(urls.batches())
    assert [each for batch, _ in batches for each in batch] == [
        fingerprint(Request(f"http://e.com/{n}")) for n in (1, 2, 3)
    ]
    assert batches[-1][1] == urls.size
    assert urls.skipped == 0


def test_what_is_skipped_is_counted_once(tmp_path):
    """However often the list is read, and whatever comes before its first URL."""
    path = tmp_path / "urls"
    path.write_bytes(b"nonsense\n\nhttp://\xff/\nhttp://e.com/1\n")
    urls = UrlList(path, DEFAULT)
    for _ in range(2):
        assert sum(len(batch) for batch, _ in urls.batches()) == 1
        assert urls.skipped == 2
        assert urls.first_skipped.startswith("line 1, b'nonsense': ")


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        (b"", r"it is empty"),
        (b"\n \n", "there are empty lines only"),
        (b"\nnonsense\n", "line 2, b'nonsense': Missing scheme in request url: nonsense"),
    ],
)
def test_list_without_a_url_is_refused(tmp_path, lines, why):
    """With what is there instead."""
    path = tmp_path / "urls"
    path.write_bytes(lines)
    with pytest.raises(BloomError, match=rf"urls holds no URL \({why}\): give a list"):
        UrlList(path, DEFAULT)


def test_list_that_is_damaged_meanwhile_is_noticed(tmp_path):
    """Whoever reads a compressed list gets an error at the place where it ends too early."""
    path = tmp_path / "urls.gz"
    path.write_bytes(gzip.compress(b"http://e.com/1\n"))
    urls = UrlList(path, DEFAULT)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(BloomError, match=r"urls\.gz is no whole gzip file"):
        list(urls.batches())
