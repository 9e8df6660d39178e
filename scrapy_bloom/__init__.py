"""Duplicate filter for large Scrapy crawls.

The filters need no Scrapy: what does is imported on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from .errors import (
    BloomError,
    FilterFileError,
    FilterLockedError,
    IncompatibleFilterError,
    JobDirectoryError,
    RequestFileError,
    SharedFilterError,
)
from .filters import BloomFilter
from .scalable import ScalableBloomFilter

if TYPE_CHECKING:
    from .addon import Addon
    from .canonical import CanonicalRequestFingerprinter
    from .dupefilter import BloomDupeFilter
    from .fingerprint import FastRequestFingerprinter
    from .redis import RedisBloomDupeFilter
    from .scheduler import DurableScheduler
    from .transfer import load_into_redis, save_from_redis

__all__ = [
    "Addon",
    "BloomDupeFilter",
    "BloomError",
    "BloomFilter",
    "CanonicalRequestFingerprinter",
    "DurableScheduler",
    "FastRequestFingerprinter",
    "FilterFileError",
    "FilterLockedError",
    "IncompatibleFilterError",
    "JobDirectoryError",
    "RedisBloomDupeFilter",
    "RequestFileError",
    "ScalableBloomFilter",
    "SharedFilterError",
    "load_into_redis",
    "save_from_redis",
]

_SCRAPY_PARTS = {
    "Addon": "addon",
    "BloomDupeFilter": "dupefilter",
    "CanonicalRequestFingerprinter": "canonical",
    "DurableScheduler": "scheduler",
    "FastRequestFingerprinter": "fingerprint",
    "RedisBloomDupeFilter": "redis",
    "load_into_redis": "transfer",
    "save_from_redis": "transfer",
}


def __getattr__(name: str) -> object:
    if name not in _SCRAPY_PARTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_SCRAPY_PARTS[name]}", __name__), name)
