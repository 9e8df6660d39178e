"""The contract of sources: requests.seen in both its formats, lists of URLs, sets of
scrapy-redis; and what is particular to each."""

import gzip
from hashlib import sha1
from types import SimpleNamespace

import pytest
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
from scrapy_bloom.migration import scrapy_redis, sources
from scrapy_bloom.migration.scrapy_redis import RedisSet
from scrapy_bloom.migration.sources import SeenFile, UrlList, form_of_seen, import_into, source_in
from scrapy_bloom.redis.client import RedisClient
from tests.commands.command_line import URLS

DEFAULT = RequestFingerprinter.from_crawler(get_crawler())
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
def make(request, tmp_path, monkeypatch):
    """A function that makes a source of so many fingerprints, and something else at its end."""
    kind = request.param
    for module in (sources, scrapy_redis):
        monkeypatch.setattr(module, "_BATCH", BATCH)
    monkeypatch.setattr(sources, "_BATCH_BYTES", 20 * BATCH)
    path = tmp_path / "source"

    def make(count, odd=b""):
        if kind == "set":
            members = [each.hex() for each in digests(count)] + [odd] * bool(odd)
            client.call("sadd", key, *members)
            return RedisSet(client, key, OURS)
        if kind in FORMATS:
            path.write_bytes(FORMATS[kind](digests(count)) + odd)
            return SeenFile(path)
        lines = "".join(f"{url}\n" for url in urls(count)).encode() + odd
        path.write_bytes(gzip.compress(lines) if kind == "gzip" else lines)
        return UrlList(path, DEFAULT)

    make.kind = kind
    if kind != "set":
        yield make
        return
    server, key = map(request.getfixturevalue, ("redis_server", "key"))
    with RedisClient(server.url) as client:
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


@pytest.mark.parametrize("count", [1, BATCH, 5 * BATCH + 7])
def test_all_is_read_in_order_each_time(make, count):
    """Whatever the batches; the capacity that it asks for is exact. A set has no order."""
    source = make(count)
    for _ in range(2):
        found = read(source)
        assert sorted(found) == sorted(digests(count))
        assert found == digests(count) or make.kind == "set"
        assert (source.skipped, source.first_skipped) == (0, "")
    assert source.keys == count
    assert len([*source.batches()]) > 1 or count <= BATCH


def test_new_ones_are_told_from_known_ones(make):
    """In a filter that has half of them, and how far it has got. What is none is counted once,
    however often the source is read, and the first of it is described."""
    odd, told = ODD[make.kind]
    bloom_filter, shown, source = BloomFilter(1000, 1e-9), [], make(BATCH, odd)
    bloom_filter.update(digests(BATCH, 50))
    assert len(read(source)) == BATCH
    result = import_into(bloom_filter, source, shown.append)
    assert (result.added, result.known, result.skipped) == (50, BATCH - 50, source.skipped)
    assert (source.skipped, shown[-1]) == (1, source.size)
    place = {"line": BATCH + 1, "end": source.size - len(odd) if make.kind in FORMATS else 0}
    assert result.first_skipped.startswith(told.format(**place))
    assert all(each in bloom_filter for each in digests(BATCH))


def test_source_is_told_by_its_content(tmp_path):
    """Names say nothing: a file's beginning does. Others are refused, with what is in there."""
    seen, listed = tmp_path / "urls.txt", tmp_path / "requests.seen"
    seen.write_bytes(b"\0\x14" + b"x" * 20)
    listed.write_text("http://example.com/\n")
    assert isinstance(source_in(seen, DEFAULT), SeenFile)
    assert isinstance(source_in(listed, DEFAULT), UrlList)
    with pytest.raises(JobDirectoryError, match="is not a file"):
        source_in(tmp_path, DEFAULT)
    listed.write_bytes(b"")  # only where there is no content the name tells
    assert isinstance(source_in(listed, DEFAULT), SeenFile)
    for data in (b"http://example.com/\n", b"\0\0\0\0", b"\x89BLOOM", b"abc\n"):
        listed.write_bytes(data)
        with pytest.raises(JobDirectoryError, match=r"is no requests\.seen"):
            SeenFile(listed)
        assert not form_of_seen(listed)


def seen(path, data):
    """Return what is read from a requests.seen with that content, and how much was skipped."""
    path.write_bytes(data)
    assert form_of_seen(path)
    source = SeenFile(path)
    return read(source), source.skipped


def test_files_of_scrapy_are_read(tmp_path):
    """What the installed RFPDupeFilter has written; and that of a job which was resumed after the
    upgrade to Scrapy 2.19: lines, then records."""
    crawler = get_crawler(settings_dict={"JOBDIR": str(tmp_path)})
    dupefilter = RFPDupeFilter.from_crawler(crawler)
    dupefilter.open()
    assert not any(dupefilter.request_seen(Request(url)) for url in urls(300))
    dupefilter.close("finished")
    path = tmp_path / "requests.seen"
    assert seen(path, path.read_bytes()) == (digests(300), 0)
    old, new = digests(500), digests(800, 500)
    assert seen(path, text(old) + binary(new)) == (old + new, 0)
    assert SeenFile(path).keys == 800
    assert seen(path, text(old)[:-7] + binary(new)) == (old[:-1] + new, 1)
    assert seen(path, b"") == ([], 0)


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
        assert (found[: whole - 1], len(found) <= whole) == (before[:-1], True)
        assert 499 <= skipped <= 501


def test_fingerprints_of_any_length_are_read(tmp_path):
    """A user's fingerprinter may give unequal lengths. Lines may end as an editor has left them."""
    odd, short = [b"x" * (1 + n % 64) for n in range(999)], [bytes([n % 9]) * 16 for n in range(99)]
    for data, expected in (
        (text(digests(9)).replace(b"\n", b"\r\n"), (digests(9), 0)),
        (binary(odd), (odd, 0)),
        (binary([b"x" * 65]), ([], 1)),
        (text(short), (short, 0)),
    ):
        assert seen(tmp_path / "seen", data) == expected


def test_lines_are_lines(tmp_path):
    """Line ends of either kind, blanks around, empty lines; only \\n ends one. Real URLs get what
    Scrapy gives; the job's fingerprinter decides, not Scrapy's default."""
    path = tmp_path / "urls"
    path.write_bytes(b"\nhttp://e.com/0\r\n  http://e.com/1 \n\n\nhttp://e.com/2")
    source = UrlList(path, DEFAULT)
    assert source.keys == source.size == 6
    assert (read(source), source.skipped) == (digests(3), 0)
    lines = [line for line in gzip.decompress(URLS.read_bytes()).decode().split("\n") if line]
    assert read(UrlList(URLS, DEFAULT))[:5000] == [fingerprint(Request(e)) for e in lines[:5000]]
    own = SimpleNamespace(fingerprint=lambda request: sha1(request.url.encode()).digest())
    assert read(UrlList(path, own)) == [sha1(url.encode()).digest() for url in urls(3)]


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
