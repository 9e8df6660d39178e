"""Ways to remember URLs, planned, compared and drawn."""
