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
)
from .filters import BloomFilter
from .scalable import ScalableBloomFilter

if TYPE_CHECKING:
    from .addon import Addon
    from .dupefilter import BloomDupeFilter

__all__ = [
    "Addon",
    "BloomDupeFilter",
    "BloomError",
    "BloomFilter",
    "FilterFileError",
    "FilterLockedError",
    "IncompatibleFilterError",
    "JobDirectoryError",
    "ScalableBloomFilter",
]

_SCRAPY_PARTS = {"Addon": "addon", "BloomDupeFilter": "dupefilter"}


def __getattr__(name: str) -> object:
    if name not in _SCRAPY_PARTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_SCRAPY_PARTS[name]}", __name__), name)
