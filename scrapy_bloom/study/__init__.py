"""Plans, compares and draws ways to remember URLs."""
