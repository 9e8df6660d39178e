"""Settings for a crawl on loopback; the first line is all that scrapy-bloom asks for."""

ADDONS = {"scrapy_bloom.Addon": 300}

BOT_NAME = "example"
SPIDER_MODULES = ["example.spiders"]
NEWSPIDER_MODULE = "example.spiders"
EXTENSIONS = {
    "example.extensions.EmbeddedSite": 500,
    "example.extensions.StatsFile": 500,
}

# The site derives its session from this, so both runs of a job see the same one.
USER_AGENT = "scrapy-bloom-example"
ROBOTSTXT_OBEY = False

CONCURRENT_REQUESTS = 32
CONCURRENT_REQUESTS_PER_DOMAIN = 32
DOWNLOAD_DELAY = 0
AUTOTHROTTLE_ENABLED = False
# A resumed job meets a restarted site, whose failing pages fail from the start again.
RETRY_TIMES = 5

# The crawl listens to nobody.
TELNETCONSOLE_ENABLED = False
REMOTE_CONTROL_ENABLED = False
LOG_LEVEL = "INFO"
