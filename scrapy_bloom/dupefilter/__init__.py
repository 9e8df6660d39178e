"""Which requests a crawl has seen: the Scrapy component, for one process or many."""
