"""From a request to the 20 bytes that stand for it."""
