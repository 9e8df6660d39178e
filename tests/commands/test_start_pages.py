"""`scrapy bloom check` knows the pages that a crawl began with, which are not in the filter."""

import os

import pytest

from scrapy_bloom.redis_backend import taken_starts as shared_marks
from tests.small_site import Scrapy

pytest_plugins = ["tests.redis_backend.fixtures"]
pytestmark = pytest.mark.skipif(os.name != "posix", reason="JOBDIR needs Linux or macOS")

SPIDER = """
import scrapy


class Answer:
    def process_request(self, request):
        return scrapy.http.TextResponse(request.url, request=request)


class Shop(scrapy.Spider):
    name = "shop"
    custom_settings = {"DOWNLOADER_MIDDLEWARES": {Answer: 1}}
    first = "first"

    async def start(self):
        yield scrapy.Request(f"http://site.example/{self.first}", dont_filter=True)
        yield scrapy.Request(
            "http://site.example/login", self.parse, cookies={"a": "b"}, dont_filter=True
        )

    def parse(self, response):
        yield response.follow("/linked")
"""
PAGES = ["http://site.example/first", "http://site.example/login", "http://site.example/linked"]
OTHER = "http://site.example/other"
ON = {"ADDONS": '{"scrapy_bloom.Addon": 300}', "BLOOM_CAPACITY": 1000, "DUPEFILTER_CLASS": None}


@pytest.fixture
def crawl(tmp_path):
    """Return a function that crawls the pages, and ends."""
    (tmp_path / "spider.py").write_text(SPIDER)

    def crawl(*arguments, **settings):
        run = Scrapy(tmp_path, "runspider", "spider.py", *arguments, **ON, **settings).end()
        assert (run.status, run.reason) == (0, "finished"), run.log

    return crawl


def verdicts(result):
    return [line.rpartition(" ")[0].strip() for line in result.lines]


START = "seen (start request)"


@pytest.mark.parametrize("exact", ["True", "False"])
def test_start_pages_of_a_finished_job_are_seen(run, tmp_path, crawl, exact):
    """As such, whatever their cookies and callbacks; in the next round it knows those of that."""
    crawl(JOBDIR="job", BLOOM_EXACT=exact)
    checked = run(tmp_path, "check", "job", *PAGES, OTHER)
    assert (checked.status, verdicts(checked)) == (1, [START, START, "seen", "new"])
    assert run(tmp_path, "check", "job", *PAGES).status == 0
    told = run(tmp_path, "check", "job", *PAGES, OTHER, "--json").json
    assert [(each["seen"], each["start_request"]) for each in told] == [
        (True, True), (True, True), (True, False), (False, False),
    ]  # fmt: skip
    crawl("-a", "first=other", JOBDIR="job", BLOOM_EXACT=exact)
    assert verdicts(run(tmp_path, "check", "job", *PAGES, OTHER)) == ["new", START, "seen", START]


def test_start_pages_of_a_crawl_in_redis_are_seen(
    run, tmp_path, redis_server, key, crawl, monkeypatch
):
    """The same, also where there are more marks than one answer has."""
    monkeypatch.setattr(shared_marks, "_MARKS_AT_ONCE", 1)
    crawl(BLOOM_REDIS_URL=redis_server.url, BLOOM_REDIS_KEY=key)
    checked = run(tmp_path, "check", redis_server.url, *PAGES, OTHER, "--key", key)
    assert verdicts(checked) == [START, START, "seen", "new"]
