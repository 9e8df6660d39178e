"""Redirects to what is the same page by an identity wider than Scrapy's."""

import json
import logging

import pytest
from scrapy import Request

from tests import processes

CANONICAL = "scrapy_bloom.CanonicalRequestFingerprinter"


@pytest.fixture
def crawl(make_dupefilter):
    """Return a function that builds a dupefilter, and one that plays a redirect."""

    def build(**settings):
        return make_dupefilter(REQUEST_FINGERPRINTER_CLASS=CANONICAL, **settings)

    return build


def redirected(tested, source, url):
    """Return whether the redirect of `source` to `url`, made as Scrapy does while the
    source is in the engine, is seen."""
    meta = {
        "redirect_times": source.meta.get("redirect_times", 0) + 1,
        "redirect_urls": [*source.meta.get("redirect_urls", []), source.url],
    }
    target = source.replace(url=url, meta={**source.meta, **meta, "download_latency": 0.1})
    inprogress = tested.crawler.engine._slot.inprogress
    inprogress.add(source)
    seen = tested.request_seen(target)
    inprogress.discard(source)
    return seen, target


@pytest.mark.parametrize(
    ("settings", "first", "second"),
    [
        ({"BLOOM_IGNORE_QUERY_PARAMS": ["sid"]}, "http://a.example/a", "http://a.example/a?sid=1"),
        ({"BLOOM_IGNORE_SCHEME": True}, "http://a.example/a", "https://a.example/a"),
        ({"BLOOM_IGNORE_PATH_PARAMS": ["s"]}, "http://a.example/a", "http://a.example/a;s=1"),
    ],
    ids=["query", "scheme", "path"],
)
def test_a_redirect_is_not_taken_for_its_source(crawl, settings, first, second):
    """It is fetched, and so is a redirect back; a link to either is a duplicate."""
    tested = crawl(**settings)
    source = Request(first)
    assert not tested.request_seen(source)
    seen, target = redirected(tested, source, second)
    assert not seen
    seen, back = redirected(tested, target, first)
    assert not seen
    assert tested.request_seen(Request(first))
    assert tested.request_seen(Request(second))
    # a child that has copied the meta of its response links back
    assert tested.request_seen(Request(first, meta=dict(back.meta)))
    assert tested.request_seen(Request(second, meta=dict(back.meta)))


def test_a_redirect_keeps_its_key(crawl):
    """The key of a request stands for its redirect, too, which is fetched."""
    tested = crawl()
    source = Request("http://a.example/a", meta={"bloom_fingerprint": "page 1"})
    assert not tested.request_seen(source)
    seen, target = redirected(tested, source, "http://a.example/b")
    assert not seen
    assert target.meta["bloom_fingerprint"] == "page 1"
    assert tested.request_seen(Request("http://a.example/c", meta={"bloom_fingerprint": "page 1"}))


def test_a_redirect_to_a_page_of_another_request_is_seen(crawl):
    """A page that was fetched for a link of its own is not fetched again."""
    tested = crawl(BLOOM_IGNORE_QUERY_PARAMS=["sid"])
    source, other = Request("http://a.example/a"), Request("http://a.example/b")
    assert not tested.request_seen(source)
    assert not tested.request_seen(other)
    inprogress = tested.crawler.engine._slot.inprogress
    inprogress.add(other)  # some other request is in the engine, not the source
    meta = {"redirect_times": 1, "redirect_urls": ["http://a.example/a"]}
    assert tested.request_seen(Request("http://a.example/a?sid=1", meta=meta))


@pytest.mark.parametrize("where", ["downloader", "scraper"])
def test_a_source_that_is_in_a_callback_or_downloaded_makes_no_redirect(crawl, where):
    """A child with copied meta is scheduled while its parent is in the scraper."""
    tested = crawl(BLOOM_IGNORE_QUERY_PARAMS=["sid"])
    source = Request("http://a.example/a")
    assert not tested.request_seen(source)
    engine = tested.crawler.engine
    engine._slot.inprogress.add(source)
    (engine.downloader if where == "downloader" else engine.scraper.slot).active.add(source)
    meta = {"redirect_times": 1, "redirect_urls": [source.url]}
    assert tested.request_seen(Request("http://a.example/a?sid=1", meta=meta))


@pytest.mark.parametrize(
    "fingerprinter", ["scrapy.utils.request.RequestFingerprinter", CANONICAL], ids=["its", "ours"]
)
def test_with_scrapys_identity_the_verdicts_are_scrapys(make_dupefilter, fingerprinter):
    """A redirect to itself, as for a cookie, is a duplicate there, and here."""
    tested = make_dupefilter(REQUEST_FINGERPRINTER_CLASS=fingerprinter)
    source = Request("http://a.example/a")
    assert not tested.request_seen(source)
    assert redirected(tested, source, "http://a.example/a#part")[0]


def test_a_copied_key_does_not_count(crawl, caplog):
    """A child with the meta of its response is a page of its own; one WARNING says so."""
    tested = crawl()
    parent = Request("http://a.example/list", meta={"bloom_fingerprint": b"list"})
    assert not tested.request_seen(parent)
    parent.meta["download_latency"] = 0.2  # it was downloaded; its callback runs
    tested.crawler.engine._slot.inprogress.add(parent)
    tested.crawler.engine.scraper.slot.active.add(parent)
    children = [Request(f"http://a.example/{n}", meta=dict(parent.meta)) for n in range(3)]
    assert [tested.request_seen(child) for child in children] == [False] * 3
    assert all("bloom_fingerprint" not in child.meta for child in children)
    assert tested.request_seen(Request("http://a.example/1"))
    warnings = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(warnings) == 1
    assert "bloom_fingerprint" in warnings[0].getMessage()


def test_a_key_of_its_own_counts(crawl):
    """A key that a callback sets stands for its requests, whatever else is in their meta."""
    tested = crawl()
    first = Request("http://a.example/1", meta={"bloom_fingerprint": "x", "depth": 3})
    second = Request("http://a.example/2", meta={"bloom_fingerprint": "x", "depth": 3})
    assert [tested.request_seen(each) for each in (first, second)] == [False, True]


SPIDER = '''
import scrapy

MOVED = {"/a": "/a?sid=1", "/b": "/b?sid=2", "/b?sid=2": "/b"}


class Answer:
    """Answers without a network; /b goes back and forth once."""

    seen = set()

    def process_request(self, request, spider=None):
        path = request.url.partition("site.example")[2]
        if path in MOVED and path not in self.seen:
            self.seen.add(path)
            return scrapy.http.Response(request.url, 302, {"Location": MOVED[path]})
        return scrapy.http.HtmlResponse(request.url, body=b"<p>page</p>", request=request)


class RedirectSpider(scrapy.Spider):
    """Links to pages that redirect to themselves with a session in the URL."""

    name = "redirect"
    custom_settings = {
        "ADDONS": {"scrapy_bloom.Addon": 300},
        "DOWNLOADER_MIDDLEWARES": {Answer: 1000},
        "REQUEST_FINGERPRINTER_CLASS": "scrapy_bloom.CanonicalRequestFingerprinter",
        "BLOOM_IGNORE_QUERY_PARAMS": ["sid"],
    }

    async def start(self):
        yield scrapy.Request("http://site.example/")

    def parse(self, response):
        yield {"url": response.url}
        for path in ("/a", "/b", "/a?sid=1", "/b?sid=9"):
            yield response.follow(path, meta=response.meta)
'''


@pytest.mark.parametrize("job", [False, True], ids=["memory", "job"])
@pytest.mark.parametrize("reactor", ["asyncioreactor.AsyncioSelector", "selectreactor.Select"])
def test_a_crawl_fetches_what_redirects_to_the_same_page(tmp_path, job, reactor):
    """Each page gives its item once, though its callbacks copy their meta."""
    (tmp_path / "spider.py").write_text(SPIDER)
    options = [f"--set=TWISTED_REACTOR=twisted.internet.{reactor}Reactor", "-O", "items.jsonl"]
    if job:
        options.append("--set=JOBDIR=job")
    processes.run(["-m", "scrapy", "runspider", "spider.py", *options], cwd=tmp_path, check=True)
    items = (tmp_path / "items.jsonl").read_text().splitlines()
    urls = sorted(json.loads(item)["url"].partition("example")[2] for item in items)
    assert urls == ["/", "/a?sid=1", "/b"]
