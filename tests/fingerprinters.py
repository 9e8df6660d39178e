"""Fingerprinters of other people's packages, in shape: what they read, keep and ask."""

import json
from hashlib import sha1
from weakref import WeakKeyDictionary

from scrapy.utils.misc import build_from_crawler, load_object
from scrapy.utils.request import RequestFingerprinter

from tests.world.tree import OfCrawler


def _inner(crawler, setting):
    return build_from_crawler(
        load_object(crawler.settings.get(setting, RequestFingerprinter)), crawler
    )


class PageFingerprinter(OfCrawler):
    """Adds what the callback needs, and parameters in the meta, to the fingerprint of another one.

    As in scrapy-poet the first request for a callback decides about all of them, requests are
    cached, and bad ones are errors.
    """

    bloom_reads = ("callback", "meta:page_params", "meta:inject")

    def __init__(self, crawler):
        self._base_request_fingerprinter = _inner(crawler, "PAGE_BASE")
        self._crawler = crawler
        self._callback_cache = {}
        self._request_cache = WeakKeyDictionary()

    def _needs(self, request):
        callback = request.callback or self._crawler.spider.parse
        if callback not in self._callback_cache:
            inject = request.meta.get("inject", ())
            needs = [*inject, getattr(callback, "__qualname__", "")]
            self._callback_cache[callback] = json.dumps(needs).encode()
        return self._callback_cache[callback]

    def fingerprint(self, request):
        if request not in self._request_cache:
            base = self._base_request_fingerprinter.fingerprint(request)
            params = json.dumps(request.meta.get("page_params")).encode()
            self._request_cache[request] = sha1(base + self._needs(request) + params).digest()
        return self._request_cache[request]


class DiscardingFingerprinter(OfCrawler):
    """Takes parameters out of URLs, unless the meta says not to, and then asks another one."""

    bloom_reads = ("meta:dud",)

    def __init__(self, crawler):
        self._fallback_request_fingerprinter = _inner(crawler, "DISCARDING_FALLBACK")

    def fingerprint(self, request):
        if request.meta.get("dud", True):
            # the fragment counts, too: a whole URL is what it may read
            url = request.url.replace("sid=2&", "").replace("#f", "?f")
            request = request.replace(url=url)
        return self._fallback_request_fingerprinter.fingerprint(request)


class InheritingFingerprinter(PageFingerprinter):
    """Reads a header, too, and does not say so: the word of its base is not about it."""

    def fingerprint(self, request):
        return sha1(super().fingerprint(request) + bytes(request.headers)).digest()


class HeaderFingerprinter:
    """Says nothing."""

    def fingerprint(self, request):
        return sha1(request.url.encode() + repr(request.headers.get("X-Id")).encode()).digest()
