"""The public names, each in the module that defines it; the package imports them at first use."""

from .addon import Addon as Addon
from .bloom.fixed import BloomFilter as BloomFilter
from .bloom.scalable import ScalableBloomFilter as ScalableBloomFilter
from .crawl.failure_hooks import fail as fail
from .crawl.holds import HoldMiddleware as HoldMiddleware
from .delta.middleware import DeltaMiddleware as DeltaMiddleware
from .dupefilter import BloomDupeFilter as BloomDupeFilter
from .early.links import NewLinkExtractor as NewLinkExtractor
from .early.links import follow_new as follow_new
from .early.middleware import DropEarlyMiddleware as DropEarlyMiddleware
from .errors import (
    BloomError as BloomError,
)
from .errors import (
    FeedError as FeedError,
)
from .errors import (
    FilterFileError as FilterFileError,
)
from .errors import (
    FilterLockedError as FilterLockedError,
)
from .errors import (
    IncompatibleFilterError as IncompatibleFilterError,
)
from .errors import (
    JobDirectoryError as JobDirectoryError,
)
from .errors import (
    RequestFileError as RequestFileError,
)
from .errors import (
    SharedFilterError as SharedFilterError,
)
from .feeds.exporter import DurableFeedExporter as DurableFeedExporter
from .fingerprints.canonical import CanonicalRequestFingerprinter as CanonicalRequestFingerprinter
from .fingerprints.component import FastRequestFingerprinter as FastRequestFingerprinter
from .fingerprints.scrapy_redis import ScrapyRedisFingerprinter as ScrapyRedisFingerprinter
from .redis.copying import (
    load_into_redis as load_into_redis,
)
from .redis.copying import (
    save_from_redis as save_from_redis,
)
from .redis.dupefilter import RedisBloomDupeFilter as RedisBloomDupeFilter
from .redis.scheduler import RedisDurableScheduler as RedisDurableScheduler
from .scrapy_private.sitemaps import SitemapSpider as SitemapSpider
from .sqlite.scheduler import DurableScheduler as DurableScheduler

__version__: str
