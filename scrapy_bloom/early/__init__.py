"""Duplicates dropped before Scrapy works on them."""
