"""Recognises requests that a crawl has seen: the Scrapy component of one process, and its base."""
