"""scrapy-deltafetch's name, for its tests."""
