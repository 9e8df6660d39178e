"""Feeds with each item once, whenever the process dies: an outbox, written on to files."""
