"""Requests that are not done, kept in Redis for many processes."""
