"""The fingerprints of scrapy-redis, for crawls that move from its dupefilter."""

from __future__ import annotations

import json
from hashlib import sha1
from typing import TYPE_CHECKING

from w3lib.url import canonicalize_url

if TYPE_CHECKING:
    from scrapy import Request


class ScrapyRedisFingerprinter:
    """Request fingerprinter for REQUEST_FINGERPRINTER_CLASS with the fingerprints of
    scrapy-redis 0.8 and later, which are not Scrapy's: a crawl that moves from its
    dupefilter needs them to recognise what it has seen.
    """

    bloom_reads = ()

    def fingerprint(self, request: Request) -> bytes:
        """Return what `scrapy_redis.dupefilter.RFPDupeFilter` keeps for `request`."""
        data = {
            "method": request.method,
            "url": canonicalize_url(request.url),
            "body": request.body.hex(),
        }
        text = json.dumps(data, sort_keys=True)
        return sha1(text.encode(), usedforsecurity=False).digest()
