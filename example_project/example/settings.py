"""Settings for a crawl on loopback. The first line is all that scrapy-bloom asks for; what is
commented out says what else one might set, and why."""

import os

ADDONS = {"scrapy_bloom.Addon": 300}

# Where a job keeps what it has seen and what is waiting. Better given on the command line, a
# directory for each job: `scrapy crawl site -s JOBDIR=jobs/site`.
# JOBDIR = "jobs/site"

# The requests expected. A crawl of more makes the filter grow, which costs some memory and time.
# BLOOM_CAPACITY = "10M"

# No page is lost to the filter, for 13.6 bytes a request instead of 4.
# BLOOM_EXACT = True

# Each start asks once more for the pages that have failed before.
# BLOOM_RETRY_FAILED = True

# One crawl on many machines: compose.yaml sets the variable, without it all is on this one.
BLOOM_REDIS_URL = os.environ.get("BLOOM_REDIS_URL")

BOT_NAME = "example"
SPIDER_MODULES = ["example.spiders"]
NEWSPIDER_MODULE = "example.spiders"
EXTENSIONS = {
    "example.extensions.EmbeddedSite": 500,
    "example.extensions.StatsFile": 500,
}
# Where the spider `stored` puts its items.
SQLITE_FILE = "items.sqlite"

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
