"""What others have remembered of a crawl, brought into a filter."""
