"""Request → 20 bytes."""
