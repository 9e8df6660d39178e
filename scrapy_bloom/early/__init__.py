"""Drops known duplicates before they pass through Scrapy's engine."""
