"""What many processes share, kept in Redis: what was seen, and the requests that are not done."""
