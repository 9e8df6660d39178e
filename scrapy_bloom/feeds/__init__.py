"""Feeds that hold each item once, whenever the process dies: an outbox and its projections."""
