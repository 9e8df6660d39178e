"""Sources of fingerprints, and what becomes of them in a filter."""

from hashlib import sha1

import pytest
from scrapy import Request
from scrapy.utils.request import RequestFingerprinter, fingerprint
from scrapy.utils.test import get_crawler

from scrapy_bloom import BloomFilter, JobDirectoryError
from scrapy_bloom.bloom.growing import ScalableBloomFilter
from scrapy_bloom.jobdir import JobDirectory
from scrapy_bloom.migration.seen_file import SeenFile
from scrapy_bloom.migration.sources import import_into, import_job, source_in
from scrapy_bloom.migration.url_list import UrlList

DEFAULT = RequestFingerprinter.from_crawler(get_crawler())


def test_source_is_told_by_its_content(tmp_path):
    """Names say nothing: fingerprints and URLs are told apart by how the file begins."""
    seen, urls = tmp_path / "urls.txt", tmp_path / "requests.seen"
    seen.write_bytes(b"\0\x14" + b"x" * 20)
    urls.write_text("http://example.com/\n")
    assert isinstance(source_in(seen, DEFAULT), SeenFile)
    assert isinstance(source_in(urls, DEFAULT), UrlList)
    with pytest.raises(JobDirectoryError, match="is not a file"):
        source_in(tmp_path, DEFAULT)
    urls.write_bytes(b"")  # only where there is no content the name tells
    assert isinstance(source_in(urls, DEFAULT), SeenFile)


def test_counts_tell_new_from_known(tmp_path):
    """What was added and what the filter knew, and how far it has got."""
    path = tmp_path / "urls"
    path.write_text("http://e.com/1\nhttp://e.com/2\nhttp://e.com/1#x\n")
    bloom_filter = BloomFilter(100, 1e-6)
    bloom_filter.add(fingerprint(Request("http://e.com/2")))
    done = []
    result = import_into(bloom_filter, UrlList(path, DEFAULT), done.append)
    assert (result.added, result.known, done) == (1, 2, [3])


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
        import_job(JobDirectory(tmp_path), None, 100, 1e-9, "me")
    assert not (tmp_path / "bloom").exists()
    monkeypatch.setattr(SeenFile, "batches", batches)
    line = import_job(JobDirectory(tmp_path), None, 100, 1e-9, "me")
    assert "Imported 3,000 requests" in line
    assert "1 torn record" in line
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bloom", "requests.seen"]
    with ScalableBloomFilter.open(tmp_path / "bloom") as bloom_filter:
        assert len(bloom_filter.layers) == 1
        assert bloom_filter.identity == "me"
        assert all(each in bloom_filter for each in fingerprints)
        bloom_filter.check()
