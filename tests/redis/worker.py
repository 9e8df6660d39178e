"""One of several workers, in a process of its own, that offer requests to one filter.

Reads jobs as lines of JSON, each with the settings of a dupefilter, the path of a file of
URLs, a seed for their order and perhaps the number of shards. Answers "ready" to each,
waits for a line, offers the URLs, and prints the numbers of those that were new.
"""

import json
import random
import sys
from pathlib import Path

from scrapy import Request
from scrapy.utils.misc import build_from_crawler
from scrapy.utils.test import get_crawler

from scrapy_bloom import RedisBloomDupeFilter
from scrapy_bloom.redis import filter as redis_filter
from scrapy_bloom.redis import layout as redis_layout


def run(settings, path, seed, shard_bits=6):
    redis_layout.SHARD_BITS = shard_bits
    redis_layout.SHARDS = redis_filter.SHARDS = 1 << shard_bits
    crawler = get_crawler(settings_dict=settings)
    crawler.spider = crawler.spidercls.from_crawler(crawler, "spider")
    dupefilter = build_from_crawler(RedisBloomDupeFilter, crawler)
    dupefilter.open()
    order = list(enumerate(Path(path).read_text(encoding="utf-8").split("\n")))
    random.Random(seed).shuffle(order)
    print("ready", flush=True)
    sys.stdin.readline()
    new = [number for number, url in order if not dupefilter.request_seen(Request(url))]
    dupefilter.close("finished")
    print(json.dumps(new), flush=True)


for line in sys.stdin:
    run(**json.loads(line))
