"""What was seen, kept in Redis for many processes."""
