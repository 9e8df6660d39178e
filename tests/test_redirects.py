"""Redirects to what is the page of a request that led to them."""

import json
import signal
from collections import Counter

import pytest
from scrapy import Request, signals

from scrapy_bloom import BloomDupeFilter
from tests.fingerprinters import HeaderFingerprinter, PageFingerprinter
from tests.patience import wait_until
from tests.redirecting_spider import BUSY, PAGES
from tests.small_site import PACKAGE, Scrapy

CANONICAL = "scrapy_bloom.CanonicalRequestFingerprinter"


def redirected(tested, source, url, reason=302):
    """Return whether the redirect of `source`, which is in the engine, to `url` is seen, and it."""
    meta = {
        "redirect_times": source.meta.get("redirect_times", 0) + 1,
        "redirect_urls": [*source.meta.get("redirect_urls", []), source.url],
        "redirect_reasons": [*source.meta.get("redirect_reasons", []), reason],
    }
    target = source.replace(url=url, meta={**source.meta, **meta, "download_latency": 0.1})
    inprogress = tested.crawler.engine._slot.inprogress
    inprogress.add(source)
    seen = tested.request_seen(target)
    inprogress.discard(source)
    return seen, target


A = "http://a.example/a"
SCRAPYS = "scrapy.utils.request.RequestFingerprinter"
FINGERPRINTERS = [SCRAPYS, CANONICAL, HeaderFingerprinter, PageFingerprinter]
ANY = pytest.mark.parametrize("fingerprinter", FINGERPRINTERS)


IGNORED = {
    "BLOOM_IGNORE_QUERY_PARAMS": ["sid"],
    "BLOOM_IGNORE_PATH_PARAMS": ["s"],
    "BLOOM_IGNORE_SCHEME": True,
}


@pytest.mark.parametrize(
    ("fingerprinter", "settings", "url", "others"),
    [
        (HeaderFingerprinter, {}, A, ()),
        (SCRAPYS, {"BLOOM_DURABLE": False}, A, ()),
        *(
            (fingerprinter, {}, f"{A}?b=2&c=1", (f"{A}#f", f"{A}?c=1&b=2"))
            for fingerprinter in (SCRAPYS, CANONICAL, PageFingerprinter)
        ),
        (CANONICAL, IGNORED, A, (f"{A}?sid=1", A, f"{A};s=1", A, A.replace("http", "https"), A)),
    ],
)
def test_a_redirect_to_itself_is_not_taken_for_its_source(
    make_dupefilter, fingerprinter, settings, url, others
):
    """As for a cookie, or with its parameters in another order; a link to it is a duplicate."""
    tested = make_dupefilter(REQUEST_FINGERPRINTER_CLASS=fingerprinter, **settings)
    source = Request(url)
    assert not tested.request_seen(source)
    for each in (url, *others):
        seen, source = redirected(tested, source, each)
        assert not seen
        assert tested.request_seen(Request(each))
        # a child has the meta of its response, but not what has led to it
        assert tested.request_seen(Request(each, meta=dict(source.meta)))


@pytest.mark.parametrize("where", [None, "downloader", "scraper"])
def test_what_is_in_the_engine_tells_a_redirect(make_dupefilter, where):
    """A page that was fetched for a link of its own is not fetched again where some other request
    is in progress, or the source is downloaded or in a callback: a child with copied meta is
    scheduled while its parent is in the scraper."""
    tested = make_dupefilter(REQUEST_FINGERPRINTER_CLASS=CANONICAL, **IGNORED)
    source, other = Request(A), Request("http://a.example/b")
    assert [tested.request_seen(each) for each in (source, other)] == [False, False]
    engine = tested.crawler.engine
    engine._slot.inprogress.add(source if where else other)
    if where:
        (engine.downloader if where == "downloader" else engine.scraper.slot).active.add(source)
    meta = {"redirect_times": 1, "redirect_urls": [A]}
    assert tested.request_seen(Request(f"{A}?sid=1", meta=meta))


@ANY
def test_a_redirect_to_a_page_that_others_have_led_to_is_seen(make_dupefilter, fingerprinter):
    """Be it in the copied meta of a child: what has led to that one is its own."""
    tested = make_dupefilter(REQUEST_FINGERPRINTER_CLASS=fingerprinter)
    first, other = Request("http://a.example/first"), Request("http://a.example/other")
    assert [tested.request_seen(each) for each in (first, other)] == [False, False]
    assert redirected(tested, first, other.url)[0]
    _, page = redirected(tested, first, "http://a.example/page")
    child = Request("http://a.example/child", meta=dict(page.meta))
    assert not tested.request_seen(child)
    assert redirected(tested, child, first.url)[0]
    assert redirected(tested, page, first.url)[0] is False
    seen, hop = redirected(tested, child, "http://a.example/hop")
    assert not seen
    assert redirected(tested, hop, first.url)[0]
    assert not redirected(tested, hop, child.url)[0]


@ANY
def test_a_page_that_refreshes_itself_does_so_once(make_dupefilter, fingerprinter):
    """By a meta tag, for a cookie perhaps; one that does it for ever is not asked for ever."""
    tested = make_dupefilter(REQUEST_FINGERPRINTER_CLASS=fingerprinter)
    source = Request("http://a.example/a")
    assert not tested.request_seen(source)
    verdicts = []
    for reason in (302, "meta refresh", 302, "meta refresh"):
        seen, source = redirected(tested, source, source.url, reason)
        verdicts.append(seen)
    assert verdicts == [False, False, False, True]


@pytest.mark.parametrize("settings", [{}, {"REQUEST_FINGERPRINTER_CLASS": SCRAPYS}])
def test_such_redirects_are_dropped_as_by_scrapy(make_dupefilter, told, settings):
    """With the setting alone; and, with a line, by a Scrapy that hides its engine, where no page is
    promised. The add-on's start is refused then."""
    tested = make_dupefilter(
        lambda crawler: vars(crawler.engine.downloader).pop("active"),
        **settings,
        ADDONS={},
        DUPEFILTER_CLASS="scrapy_bloom.BloomDupeFilter",
    )
    source = Request("http://a.example/a")
    assert not tested.request_seen(source)
    assert redirected(tested, source, source.url)[0]
    ends = "downloader.active: redirects to a page that led to them are dropped"
    assert [each.endswith(ends) for each in told()] == [True] * len(settings)


@pytest.mark.parametrize("audit", ["", "audit"])
def test_a_key_counts_for_a_redirect_and_not_for_children(make_dupefilter, told, tmp_path, audit):
    """The key of a request stands for its redirect, too, which is fetched. A child with the meta
    of its response is a page of its own; one WARNING says so. What a callback sets counts,
    whatever else is in the meta."""
    path = audit and str(tmp_path / audit)
    tested = make_dupefilter(REQUEST_FINGERPRINTER_CLASS=CANONICAL, BLOOM_AUDIT=path)
    parent = Request(A, meta={"bloom_fingerprint": b"list", "depth": 3})
    assert not tested.request_seen(parent)
    seen, target = redirected(tested, parent, "http://a.example/b")
    assert not seen
    assert target.meta["bloom_fingerprint"] == b"list"
    assert tested.request_seen(Request("http://a.example/c", meta=dict(parent.meta)))
    tested.crawler.signals.send_catch_log(signals.response_received, request=parent, spider=None)
    own = {**parent.meta, "bloom_fingerprint": b"another"}
    assert not tested.request_seen(Request("http://a.example/d", meta=own))
    assert tested.request_seen(Request("http://a.example/e", meta={"bloom_fingerprint": "another"}))
    without = Request(A, meta={**parent.meta})
    del without.meta["bloom_fingerprint"]
    tested.crawler.signals.send_catch_log(signals.response_received, request=without, spider=None)
    own = {**without.meta, "bloom_fingerprint": b"list"}
    assert tested.request_seen(Request("http://a.example/f", meta=own))
    children = [Request(f"http://a.example/{n}", meta=dict(parent.meta)) for n in range(3)]
    assert [tested.request_seen(child) for child in children] == [False] * 3
    assert all("bloom_fingerprint" not in child.meta for child in children)
    assert tested.request_seen(Request("http://a.example/1"))
    (warning,) = told()
    assert "bloom_fingerprint" in warning


class OwnFingerprints(BloomDupeFilter):
    """Has a method that nothing can go around."""

    def fingerprint(self, request):
        return super().fingerprint(request)


@pytest.mark.parametrize(
    ("fingerprinter", "dupefilter"),
    [
        (CANONICAL, "scrapy_bloom.BloomDupeFilter"),
        (CANONICAL, OwnFingerprints),
        (HeaderFingerprinter, "scrapy_bloom.BloomDupeFilter"),
    ],
)
def test_an_object_that_comes_again_is_judged_by_what_it_is_then(
    make_dupefilter, fingerprinter, dupefilter
):
    """A middleware may have changed it and returned it; no other need be asked about between."""
    classes = {"REQUEST_FINGERPRINTER_CLASS": fingerprinter, "DUPEFILTER_CLASS": dupefilter}
    tested, page, seen = make_dupefilter(**classes), Request(f"{A};b"), []
    for value in ("1", "2", "2", "1"):
        page.meta["bloom_fingerprint"] = page.headers["X-Id"] = value
        seen.append(tested.request_seen(page))
    page.meta.clear()
    page.headers.clear()
    assert [*seen, tested.request_seen(page)] == [False, False, True, True, False]


SELECT = "twisted.internet.selectreactor.SelectReactor"
MEMORY = {"ADDONS": '{"scrapy_bloom.Addon": 300}'}
JOB = {**MEMORY, "JOBDIR": "job"}


def start(folder, settings, **arguments):
    """Start a crawl of `tests.redirecting_spider`."""
    options = [f"-a{name}={value}" for name, value in arguments.items()]
    spider = PACKAGE / "tests" / "redirecting_spider.py"
    settings = {"DUPEFILTER_CLASS": None, **settings}
    return Scrapy(folder, "runspider", spider, *options, "-o", "items.jsonl", **settings)


def items(folder):
    """Return the pages of all items, in order."""
    lines = (folder / "items.jsonl").read_text().splitlines()
    return sorted(json.loads(line)["url"] for line in lines)


def asked(folder):
    """Return how often each page was asked."""
    return Counter((folder / "asked").read_text().splitlines())


@pytest.mark.parametrize(
    "settings",
    [
        {"DUPEFILTER_CLASS": "scrapy_bloom.BloomDupeFilter", "JOBDIR": "job"}
        | {"REQUEST_FINGERPRINTER_CLASS": CANONICAL},
        {**JOB, "HTTPCACHE_ENABLED": True, "TWISTED_REACTOR": SELECT},
    ],
    ids=["dupefilter", "job with a cache, another reactor"],
)
def test_a_crawl_gets_what_leads_back_to_itself(tmp_path, settings):
    """Each page gives its item once, and no page is asked without need; nor does Scrapy's HTTP
    cache answer with the same redirect."""
    crawl = start(tmp_path, settings).end()
    assert items(tmp_path) == PAGES, crawl.log
    times = asked(tmp_path)
    assert times.pop("/endless") == 21  # REDIRECT_MAX_TIMES
    twice = {"/cookie", "/kid", "/page/1", "/page/2", "/refresh", "/endless-refresh"}
    assert {path for path, count in times.items() if count != 1} == twice
    assert {times[path] for path in twice} == {2}


@pytest.mark.slow
def test_workers_get_what_leads_back_to_itself(tmp_path, redis_server, key):
    """Slow, since three processes wait for a hold: whichever of them gets the redirect. What the
    hold gives back does not lead to a known page again: a redirect has the `dont_filter` of its
    source, and that is the one that the user gave."""
    settings = {**MEMORY, "BLOOM_REDIS_URL": redis_server.url, "BLOOM_REDIS_KEY": key}
    workers = [start(tmp_path, settings, busy=1) for _ in range(3)]
    for worker in workers:
        worker.end()
    assert items(tmp_path) == sorted([*PAGES, "/shared"]), [each.log for each in workers]
    assert sum(int(each.stat("scheduler/held") or 0) for each in workers) == BUSY
    assert asked(tmp_path)["/shared"] == 1


@pytest.mark.slow
def test_a_chain_goes_on_after_a_kill(tmp_path):
    """Slow, since it waits for a hold: what has led to a redirect is in the job."""
    crawl = start(tmp_path, JOB, busy=1)
    wait_until(lambda: (tmp_path / "asked").exists() and asked(tmp_path)["/endless"] > 9)
    crawl.stop(signal.SIGKILL)
    assert crawl.end().status == -signal.SIGKILL
    crawl = start(tmp_path, JOB, busy=1).end()
    assert items(tmp_path) == sorted([*PAGES, "/shared"]), crawl.log
    assert asked(tmp_path)["/shared"] <= 2
    assert 21 <= asked(tmp_path)["/endless"] <= 25
