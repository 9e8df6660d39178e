"""The contract of sources: requests.seen in both its formats, lists of URLs, sets of
scrapy-redis; and what is particular to each."""

import gzip
from contextlib import ExitStack
from hashlib import sha1
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scrapy import Request
from scrapy.dupefilters import RFPDupeFilter
from scrapy.utils.request import RequestFingerprinter, fingerprint
from scrapy.utils.test import get_crawler

from scrapy_bloom import (
    BloomError,
    BloomFilter,
    IncompatibleFilterError,
    JobDirectoryError,
    ScrapyRedisFingerprinter,
)
from scrapy_bloom.fingerprints.fast import fingerprint_of_url
from scrapy_bloom.migration import scrapy_redis, sources
from scrapy_bloom.migration.scrapy_redis import RedisSet
from scrapy_bloom.migration.sources import (
    SeenFile,
    UrlList,
    form_of_seen,
    import_into,
    source_in,
)
from scrapy_bloom.redis.client import RedisClient
from tests.commands.command_line import URLS

pytest_plugins = ["tests.redis.fixtures"]

CRAWLER = get_crawler()
DEFAULT = RequestFingerprinter.from_crawler(CRAWLER)
OURS = ScrapyRedisFingerprinter()
BATCH = 200


def urls(count):
    """Return so many URLs."""
    return [f"http://e.com/{number}" for number in range(count)]


def digests(count, start=0):
    """Return the fingerprints of requests to them, from one on."""
    return [fingerprint(Request(url)) for url in urls(count)[start:]]


def binary(fingerprints):
    """Return a requests.seen as Scrapy 2.19 writes it."""
    return b"".join(len(each).to_bytes(2, "big") + each for each in fingerprints)


def text(fingerprints):
    """Return one as Scrapy 2.18 writes it."""
    return b"".join(each.hex().encode() + b"\n" for each in fingerprints)


FORMATS = {"binary": binary, "text": text}
# what is none, and what is told of it
ODD = {
    "binary": (b"\0\x14torn", "byte {end:,}: a torn record"),
    "text": (b"torn\n", "byte {end:,}: a torn record"),
    "list": (b"nonsense\n", "line {line:,}, b'nonsense': "),
    "gzip": (b"http://\xff/\n", "line {line:,}, b'http://\\xff/': "),
    "set": (b"nonsense", "b'nonsense': not hexadecimal"),
}


@pytest.fixture(params=ODD)
def kind(request):
    """What kind of source it is."""
    return request.param


@pytest.fixture
def make(kind, request, tmp_path, monkeypatch):
    """A function that makes a source of so many fingerprints, and something else at its end."""
    monkeypatch.setattr(sources, "_BATCH", BATCH)
    monkeypatch.setattr(sources, "_BATCH_BYTES", 20 * BATCH)
    monkeypatch.setattr(scrapy_redis, "_BATCH", BATCH)
    path, clients = tmp_path / "source", ExitStack()

    def make(count, odd=b""):
        if kind == "set":
            server, key = map(request.getfixturevalue, ("redis_server", "key"))
            client = clients.enter_context(RedisClient(server.url))
            members = [each.hex() for each in digests(count)]
            client.call("sadd", key, *members, *([odd] if odd else []))
            return RedisSet(client, key, OURS)
        if kind in FORMATS:
            path.write_bytes(FORMATS[kind](digests(count)) + odd)
            return SeenFile(path)
        lines = "".join(f"{url}\n" for url in urls(count)).encode() + odd
        path.write_bytes(gzip.compress(lines) if kind == "gzip" else lines)
        return UrlList(path, DEFAULT)

    with clients:
        yield make


def read(source):
    """Return all fingerprints of a source, whose position rises to its size."""
    found, position = [], 0
    for batch, done in source.batches():
        found += batch
        assert position <= done
        position = done
    assert position >= source.size
    assert source.keys >= len(found)
    return found


@pytest.mark.parametrize("count", [1, BATCH - 1, BATCH, 5 * BATCH + 7])
def test_all_is_read_in_order_each_time(make, kind, count):
    """Whatever the batches; the capacity that it asks for is exact. A set has no order."""
    source = make(count)
    for _ in range(2):
        found = read(source)
        assert sorted(found) == sorted(digests(count))
        assert found == digests(count) or kind == "set"
        assert (source.skipped, source.first_skipped) == (0, "")
    assert source.keys == count
    assert len([*source.batches()]) > 1 or count <= BATCH


def test_what_is_none_is_counted_once(make, kind):
    """However often the source is read, and the first of it is described."""
    odd, told = ODD[kind]
    source = make(BATCH, odd)
    place = {"line": BATCH + 1, "end": source.size - len(odd) if kind in FORMATS else 0}
    for _ in range(2):
        assert len(read(source)) == BATCH
        assert source.skipped == 1
        assert source.first_skipped.startswith(told.format(**place))


def test_new_ones_are_told_from_known_ones(make):
    """In a filter that has half of them, and how far it has got."""
    bloom_filter, shown = BloomFilter(1000, 1e-9), []
    bloom_filter.update(digests(100, 50))
    source = make(100)
    result = import_into(bloom_filter, source, shown.append)
    assert (result.added, result.known, result.skipped, result.first_skipped) == (50, 50, 0, None)
    assert shown[-1] == source.size
    assert all(each in bloom_filter for each in digests(100))


def test_source_is_told_by_its_content(tmp_path):
    """Names say nothing: fingerprints and URLs are told apart by how the file begins."""
    seen, listed = tmp_path / "urls.txt", tmp_path / "requests.seen"
    seen.write_bytes(b"\0\x14" + b"x" * 20)
    listed.write_text("http://example.com/\n")
    assert isinstance(source_in(seen, DEFAULT), SeenFile)
    assert isinstance(source_in(listed, DEFAULT), UrlList)
    with pytest.raises(JobDirectoryError, match="is not a file"):
        source_in(tmp_path, DEFAULT)
    listed.write_bytes(b"")  # only where there is no content the name tells
    assert isinstance(source_in(listed, DEFAULT), SeenFile)


@pytest.mark.parametrize(
    ("data", "error", "told"),
    [
        (b"", BloomError, r"holds no URL \(it is empty\): give a list"),
        (b"\n \n", BloomError, r"holds no URL \(there are empty lines only\): give a list"),
        (b"\nnonsense\n", BloomError, "line 2, b'nonsense': Missing scheme in request url: non"),
        *(
            (data, JobDirectoryError, r"is no requests\.seen")
            for data in (b"http://example.com/\n", b"\0\0\0\0", b"\x89BLOOM", b"abc\n")
        ),
    ],
)
def test_other_files_are_refused(tmp_path, data, error, told):
    """With what is there instead."""
    path = tmp_path / "source"
    path.write_bytes(data)
    with pytest.raises(error, match=told):
        SeenFile(path) if error is JobDirectoryError else UrlList(path, DEFAULT)
    assert error is BloomError or not form_of_seen(path)


def seen(path, data):
    """Return what is read from a requests.seen with that content, and how much was skipped."""
    path.write_bytes(data)
    assert form_of_seen(path)
    source = SeenFile(path)
    return read(source), source.skipped


def test_file_of_the_installed_scrapy_is_read(tmp_path):
    """What RFPDupeFilter has written is what is read."""
    crawler = get_crawler(settings_dict={"JOBDIR": str(tmp_path)})
    dupefilter = RFPDupeFilter.from_crawler(crawler)
    dupefilter.open()
    assert not any(dupefilter.request_seen(Request(url)) for url in urls(300))
    dupefilter.close("finished")
    path = tmp_path / "requests.seen"
    assert seen(path, path.read_bytes()) == (digests(300), 0)


def test_file_of_both_formats_is_read(tmp_path):
    """A job that was resumed after the upgrade to Scrapy 2.19 has lines, then records."""
    old, new = digests(500), digests(800, 500)
    assert seen(tmp_path / "seen", text(old) + binary(new)) == (old + new, 0)
    assert SeenFile(tmp_path / "seen").keys == 800
    torn = text(old)[:-7]
    assert seen(tmp_path / "seen", torn + binary(new)) == (old[:-1] + new, 1)
    assert seen(tmp_path / "seen", b"") == ([], 0)


@pytest.mark.parametrize("written", FORMATS.values())
def test_torn_tail_costs_its_own_record_only(tmp_path, written):
    """Cut after any byte, the whole records are read and the rest is reported."""
    data = written(digests(4))
    size = len(data) // 4
    for cut in range(size + 1, len(data)):
        whole, rest = divmod(cut, size)
        found, skipped = seen(tmp_path / "seen", data[:cut])
        # a last line that lacks nothing but its line end is whole
        complete = whole + (written is text and rest == size - 1)
        assert (found, skipped) == (digests(complete), complete == whole and rest > 0)


@pytest.mark.parametrize("whole", [400, 500], ids=["end of batch", "in batch"])
def test_what_is_behind_a_torn_one(tmp_path, monkeypatch, whole):
    """An unclean stop tears a line and the next run writes behind it: all others are read. After a
    record, where Scrapy misreads the rest, one key at most is none of its fingerprints."""
    monkeypatch.setattr(sources, "_BATCH", BATCH)
    before, after = digests(whole), digests(whole + 500, whole)
    for torn in range(1, 22):
        found, skipped = seen(tmp_path / "seen", text(before)[:-torn] + text(after))
        assert (found, skipped) == (before[:-1] + after, 1)
        found, skipped = seen(tmp_path / "seen", binary(before)[:-torn] + binary(after))
        assert found[: whole - 1] == before[:-1]
        assert len(found) <= whole
        assert 499 <= skipped <= 501


def test_fingerprints_of_any_length_are_read(tmp_path):
    """A fingerprinter of one's own may give other and unequal lengths. Lines may end as an editor
    has left them."""
    crlf = text(digests(9)).replace(b"\n", b"\r\n")
    assert seen(tmp_path / "seen", crlf) == (digests(9), 0)
    fingerprints = [b"x" * (1 + n % 64) for n in range(1000)]
    assert seen(tmp_path / "seen", binary(fingerprints)) == (fingerprints, 0)
    assert seen(tmp_path / "seen", binary([b"x" * 65])) == ([], 1)
    fingerprints = [bytes([n % 256]) * 16 for n in range(1000)]
    assert seen(tmp_path / "seen", text(fingerprints)) == (fingerprints, 0)


def test_real_urls_get_the_fingerprints_of_their_requests():
    """The short cut gives what Scrapy gives, in order, for a real list."""
    lines = gzip.decompress(URLS.read_bytes()).decode().split("\n")
    assert read(UrlList(URLS, DEFAULT)) == [fingerprint(Request(line)) for line in lines if line]


@given(
    st.one_of(
        st.text(max_size=40),
        st.from_regex(r"\Ahttps?://[a-zA-Z0-9.:_@-]{0,12}(/[!-~]{0,12}){0,3}(\?[!-~]{0,20})?\Z"),
    )
)
def test_short_cut_agrees_with_requests(url):
    """Whatever URL the short cut answers for, a Request for it has that fingerprint."""
    quick = fingerprint_of_url(url)
    assert quick is None or quick == fingerprint(Request(url))


def test_lines_are_lines(tmp_path):
    """Line ends of either kind, blanks around, empty lines; only \\n ends a line. The job's
    fingerprinter decides, not Scrapy's default."""
    path = tmp_path / "urls"
    path.write_bytes(b"\nhttp://e.com/0\r\n  http://e.com/1 \n\n\nhttp://e.com/2")
    source = UrlList(path, DEFAULT)
    assert source.keys == source.size == 6
    assert (read(source), source.skipped) == (digests(3), 0)
    own = SimpleNamespace(fingerprint=lambda request: sha1(request.url.encode()).digest())
    assert read(UrlList(path, own)) == [sha1(url.encode()).digest() for url in urls(3)]


def test_list_that_is_damaged_meanwhile_is_noticed(tmp_path):
    """Whoever reads a compressed list gets an error at the place where it ends too early."""
    path = tmp_path / "urls.gz"
    path.write_bytes(gzip.compress(b"http://e.com/1\n"))
    source = UrlList(path, DEFAULT)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(BloomError, match=r"urls\.gz is no whole gzip file"):
        read(source)


def test_other_keys_and_fingerprinters_are_refused(client, key):
    """What is no set, what is not there, and a set of something else, by name. A filter full of
    fingerprints that nobody makes would know nothing."""
    for value, what in ((None, "not there"), ("x", "a string")):
        if value:
            client.call("set", key, value)
        with pytest.raises(BloomError, match=f"{key} is {what}: --key must name"):
            RedisSet(client, key, OURS)
    client.call("delete", key)
    client.call("sadd", key, "http://example.com/")
    with pytest.raises(BloomError, match=f"{key} holds no fingerprint .*example.*not hexadecimal"):
        RedisSet(client, key, OURS)
    client.call("sadd", key, digests(1)[0].hex())
    assert RedisSet(client, key, OURS).name == f"{client.name} {key}"
    with pytest.raises(IncompatibleFilterError, match=r"'scrapy_bloom\.ScrapyRedisFingerprinter'"):
        RedisSet(client, key, DEFAULT)


@pytest.mark.parametrize(
    ("after", "what"), [(None, "{} has lost members meanwhile"), ("x", "; run it again to finish$")]
)
def test_set_that_goes_meanwhile_is_noticed(client, key, monkeypatch, after, what):
    """A part of a set is not taken for the whole."""
    monkeypatch.setattr(scrapy_redis, "_BATCH", BATCH)
    client.call("sadd", key, *(each.hex() for each in digests(5 * BATCH)))
    batches = RedisSet(client, key, OURS).batches()
    next(batches)
    client.call("delete", key)
    if after:
        client.call("set", key, after)
    with pytest.raises(BloomError, match=what.format(key)):
        list(batches)
