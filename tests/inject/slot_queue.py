"""A plugin of pytest: SlotQueue is Scrapy's DownloaderAwarePriorityQueue in this process."""

from scrapy import pqueues

from scrapy_bloom.job.queue_settings import SlotQueue
from scrapy_bloom.scrapy_private import slots_take_turns

slots_take_turns()  # which looks at Scrapy's, and remembers it
pqueues.DownloaderAwarePriorityQueue = SlotQueue
