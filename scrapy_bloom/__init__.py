"""Duplicate filter for large Scrapy crawls."""

from .filters import BloomFilter
from .scalable import ScalableBloomFilter

__all__ = ["BloomFilter", "ScalableBloomFilter"]
