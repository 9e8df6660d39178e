"""Places of requests for the contracts of schedulers: a job, and a crawl in Redis."""

from types import SimpleNamespace

import pytest

from scrapy_bloom.redis.client import RedisClient
from scrapy_bloom.redis.desk import RedisDesk
from scrapy_bloom.redis.layout import in_one_slot
from tests.crawl.conftest import crash_round, make_round, opened  # noqa: F401 - fixtures
from tests.crawl.engine import Job, name_of
from tests.crawl.rounds import RoundJob
from tests.failures import Failed
from tests.redis.workers import FIFO, talk


class SharedJob(RoundJob):
    """A worker of a crawl in Redis, as a process of a job."""

    def __init__(self, url, key, **settings):
        settings |= {"DUPEFILTER_CLASS": "scrapy_bloom.RedisBloomDupeFilter"}
        settings |= {"BLOOM_REDIS_URL": url, "BLOOM_REDIS_KEY": key}
        super().__init__(None, "scrapy_bloom.RedisDurableScheduler", **settings)

    def start(self, *things, **options):
        sent = super().start(*things, **options)
        self.commit()
        return sent

    def pop(self):
        popped = super().pop()
        if popped is None:
            self.commit()
            popped = super().pop()
        return popped

    def commit(self):
        talk(self.scheduler)

    @property
    def round(self):
        return SimpleNamespace(number=self.scheduler.worker._state.round)

    def close(self, reason="finished"):
        self.scheduler.worker.idle_checks.has_closed = reason == "finished"
        super().close(reason)

    def drop(self):
        """End the worker as a kill does, when its lease has run out."""
        transport = getattr(getattr(self.scheduler, "worker", None), "_transport", None)
        if transport is not None and transport._thread.is_alive():
            transport.close()
            self.scheduler.df.abandon()
            workers = f"{self.scheduler.worker.key}:workers"
            with RedisClient(self.crawler.settings["BLOOM_REDIS_URL"]) as client:
                client.call("zadd", workers, {self.scheduler.worker.store.worker: 1})


def send_again(job, page, key="retry_times", name=None, **meta):
    """Let a downloader middleware answer with a request in place of a page."""
    meta = {**page.meta, key: page.meta.get(key, 0) + 1, "redirect_urls": [page.url], **meta}
    url = page.url if name is None else page.url.replace(name_of(page), name)
    headers = {"Cookie": str(meta)}
    again = page.replace(url=url, headers=headers, dont_filter=True, meta=meta, priority=-1)
    assert job.scheduler.enqueue_request(again)


class Place:
    """Where processes of a crawl start, one after the other."""

    def __init__(self, keep, make, desk):
        self._keep, self._make, self._desk = keep, make, desk
        self.round = 0

    def open(self, *, unopened=False, **settings):
        """Start a process, maybe `unopened`, in a new round if it can be and nothing is retried."""
        self.round += not settings.get("BLOOM_RETRY_FAILED")
        settings = {**FIFO, "BLOOM_REDIS_ROUND": str(self.round), **settings}
        job = self._keep(self._make(**settings), later=True)
        return Job.open(job) if unopened else job.open()

    @property
    def failed(self):
        """What has failed."""
        return Failed(self._desk)

    def capped(self):
        """Return the names of what is over a budget, in order."""
        return sorted(self.failed.names(reasons=["capped"]))


@pytest.fixture(params=["job", "redis"])
def place(request, tmp_path, opened):  # noqa: F811 - a fixture
    """An empty place."""
    if request.param == "job":
        yield Place(opened, lambda **more: RoundJob(tmp_path / "job", **more), tmp_path / "job")
        return
    server, key = (request.getfixturevalue(name) for name in ("redis_server", "key"))
    with RedisClient(server.url) as client:
        desk = RedisDesk(client, in_one_slot(key))
        yield Place(opened, lambda **more: SharedJob(server.url, key, **more), desk)
