"""A Scrapy project that crawls a site of its own with scrapy-bloom."""
