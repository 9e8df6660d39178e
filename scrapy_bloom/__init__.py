"""Duplicate filter for large Scrapy crawls.

The filters need no Scrapy: each name is imported at first use. `__init__.pyi` shows type checkers
what they are.
"""

from importlib import import_module

__version__ = "0.4.0"

_MODULES = {
    "Addon": "addon",
    "BloomDupeFilter": "dupefilter",
    "BloomError": "errors",
    "BloomFilter": "bloom.fixed",
    "CanonicalRequestFingerprinter": "fingerprints.canonical",
    "DeltaMiddleware": "delta.middleware",
    "DropEarlyMiddleware": "early.middleware",
    "DurableFeedExporter": "feeds.exporter",
    "DurableScheduler": "sqlite.scheduler",
    "FastRequestFingerprinter": "fingerprints.component",
    "FeedError": "errors",
    "FilterFileError": "errors",
    "FilterLockedError": "errors",
    "HoldMiddleware": "crawl.holds",
    "IncompatibleFilterError": "errors",
    "JobDirectoryError": "errors",
    "NewLinkExtractor": "early.links",
    "RedisBloomDupeFilter": "redis.dupefilter",
    "RedisDurableScheduler": "redis.scheduler",
    "RequestFileError": "errors",
    "ScalableBloomFilter": "bloom.scalable",
    "ScrapyRedisFingerprinter": "fingerprints.scrapy_redis",
    "SharedFilterError": "errors",
    "SitemapSpider": "scrapy_private.sitemaps",
    "fail": "crawl.failure_hooks",
    "follow_new": "early.links",
    "load_into_redis": "redis.copying",
    "save_from_redis": "redis.copying",
}

__all__ = list(_MODULES)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_MODULES[name]}", __name__), name)
