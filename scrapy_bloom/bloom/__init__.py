"""From 20 bytes to bits: Bloom filters in memory and in files, usable without Scrapy."""
