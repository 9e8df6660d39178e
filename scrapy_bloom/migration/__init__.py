"""Imports from other dupefilters and earlier crawls into a filter."""
