"""`python -m scrapy_bloom` is `scrapy bloom`."""

import sys

from .commands import main

if __name__ == "__main__":
    sys.exit(main())
