"""What is true of a job wherever its requests are kept."""
