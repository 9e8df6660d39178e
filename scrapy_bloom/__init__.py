"""Duplicate filter for large Scrapy crawls.

The filters need no Scrapy: what does is imported on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from .errors import (
    BloomError,
    FeedError,
    FilterFileError,
    FilterLockedError,
    IncompatibleFilterError,
    JobDirectoryError,
    RequestFileError,
    SharedFilterError,
)

if TYPE_CHECKING:
    from .addon import Addon
    from .bloom.fixed import BloomFilter
    from .bloom.growing import ScalableBloomFilter
    from .delta.middleware import DeltaMiddleware
    from .dupefilter import BloomDupeFilter
    from .early.links import NewLinkExtractor, follow_new
    from .early.middleware import DropEarlyMiddleware
    from .feeds.exporter import DurableFeedExporter
    from .fingerprints.canonical import CanonicalRequestFingerprinter
    from .fingerprints.fast import FastRequestFingerprinter
    from .fingerprints.scrapy_redis import ScrapyRedisFingerprinter
    from .job.failure_hooks import fail
    from .job.holds import HoldMiddleware
    from .redis_backend.copying import load_into_redis, save_from_redis
    from .redis_backend.dupefilter import RedisBloomDupeFilter
    from .redis_backend.scheduler import RedisDurableScheduler
    from .sqlite_backend.scheduler import DurableScheduler

__version__ = "0.3.0"

__all__ = [
    "Addon",
    "BloomDupeFilter",
    "BloomError",
    "BloomFilter",
    "CanonicalRequestFingerprinter",
    "DeltaMiddleware",
    "DropEarlyMiddleware",
    "DurableFeedExporter",
    "DurableScheduler",
    "FastRequestFingerprinter",
    "FeedError",
    "FilterFileError",
    "FilterLockedError",
    "HoldMiddleware",
    "IncompatibleFilterError",
    "JobDirectoryError",
    "NewLinkExtractor",
    "RedisBloomDupeFilter",
    "RedisDurableScheduler",
    "RequestFileError",
    "ScalableBloomFilter",
    "ScrapyRedisFingerprinter",
    "SharedFilterError",
    "fail",
    "follow_new",
    "load_into_redis",
    "save_from_redis",
]

_MODULES = {
    "Addon": "addon",
    "BloomDupeFilter": "dupefilter",
    "BloomFilter": "bloom.fixed",
    "CanonicalRequestFingerprinter": "fingerprints.canonical",
    "DeltaMiddleware": "delta.middleware",
    "DropEarlyMiddleware": "early.middleware",
    "DurableFeedExporter": "feeds.exporter",
    "DurableScheduler": "sqlite_backend.scheduler",
    "FastRequestFingerprinter": "fingerprints.fast",
    "HoldMiddleware": "job.holds",
    "NewLinkExtractor": "early.links",
    "RedisBloomDupeFilter": "redis_backend.dupefilter",
    "RedisDurableScheduler": "redis_backend.scheduler",
    "ScalableBloomFilter": "bloom.growing",
    "ScrapyRedisFingerprinter": "fingerprints.scrapy_redis",
    "fail": "job.failure_hooks",
    "follow_new": "early.links",
    "load_into_redis": "redis_backend.copying",
    "save_from_redis": "redis_backend.copying",
}


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_MODULES[name]}", __name__), name)
