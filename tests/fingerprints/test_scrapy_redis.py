"""scrapy-redis's fingerprints."""

import json
from hashlib import sha1

import pytest
from scrapy import Request
from scrapy.utils.request import fingerprint

from scrapy_bloom import ScrapyRedisFingerprinter


def test_fingerprints_of_scrapy_redis_are_its_own():
    """They equal those of the real package where it is installed, and are not Scrapy's."""
    request = Request("http://example.com/?b=1&a=2#x", method="POST", body=b"\xff")
    ours = ScrapyRedisFingerprinter().fingerprint(request)
    text = json.dumps({"body": "ff", "method": "POST", "url": "http://example.com/?a=2&b=1"})
    assert ours == sha1(text.encode()).digest() != fingerprint(request)
    dupefilter = pytest.importorskip("scrapy_redis.dupefilter").RFPDupeFilter(None, "key")
    assert dupefilter.request_fingerprint(request) == ours.hex()
