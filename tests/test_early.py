"""Duplicates dropped next to the spider: only those that the scheduler would have dropped,
and only where nobody but Scrapy would have seen them."""

import logging
import re
from contextlib import suppress
from functools import partial, wraps
from inspect import signature
from itertools import cycle
from types import MethodType

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scrapy import Request, signals
from scrapy.core.scheduler import Scheduler
from scrapy.core.spidermw import SpiderMiddlewareManager
from scrapy.downloadermiddlewares.offsite import OffsiteMiddleware
from scrapy.dupefilters import RFPDupeFilter
from scrapy.http import HtmlResponse, Response, TextResponse
from scrapy.linkextractors import LinkExtractor
from scrapy.spidermiddlewares.base import BaseSpiderMiddleware
from scrapy.spidermiddlewares.referer import RefererMiddleware
from scrapy.utils.asyncgen import as_async_generator
from scrapy.utils.misc import build_from_crawler, load_object
from scrapy.utils.test import get_crawler

from scrapy_bloom import (
    Addon,
    BloomDupeFilter,
    DropEarlyMiddleware,
    DurableScheduler,
    NewLinkExtractor,
    follow_new,
)
from scrapy_bloom.addon.off import _tell_of_delay
from scrapy_bloom.delta.middleware import DeltaMiddleware
from scrapy_bloom.dupefilter import FilterDupeFilter
from scrapy_bloom.early.links import has_left_out
from scrapy_bloom.scrapy_private.middlewares import output_methods
from scrapy_bloom.speed.known import known_urls
from tests.crawl.engine import TestSpider
from tests.crawl.rounds import RoundJob
from tests.fakes import raising
from tests.fingerprinters import (
    DiscardingFingerprinter,
    HeaderFingerprinter,
    InheritingFingerprinter,
    PageFingerprinter,
)

ADDON = {Addon: 300}
SITE = "http://a.example/"
RFP = "scrapy.dupefilters.RFPDupeFilter"
CANONICAL = "scrapy_bloom.CanonicalRequestFingerprinter"
FILTERED = "dupefilter/filtered"


class Crawl(RoundJob):
    """A crawl that has started, with its spider middlewares; only the engine is a fake."""

    def __init__(self, prepare=lambda crawl: None, **options):
        super().__init__(None, **{"ADDONS": ADDON, "EXTENSIONS_BASE": {}, **options})
        self.chain = build_from_crawler(SpiderMiddlewareManager, self.crawler)
        self.engine.scraper.spidermw = self.chain
        self._scheduler_class = load_object(self.crawler.settings["SCHEDULER"])
        self.engine._slot.scheduler = self.open().scheduler
        prepare(self)
        self.crawler.signals.send_catch_log(signals.engine_started)

    @property
    def early(self):
        """The middleware, or None where it is not configured."""
        found = [mw for mw in self.chain.middlewares if isinstance(mw, DropEarlyMiddleware)]
        return found[0] if found else None

    @property
    def is_on(self):
        """Whether it drops a request for a page that is known."""
        self.see("known")
        before = self.filtered
        on = self.output([Request(f"{SITE}known")]) == []
        assert self.filtered == before + on
        return on

    @property
    def filtered(self):
        """The stat."""
        return self.stat(FILTERED) or 0

    def see(self, url):
        """Schedule the request for a page of the site; return the crawl."""
        assert self.scheduler.enqueue_request(Request(SITE + url))
        return self

    def output(self, things, response=None):
        """Return what of the output of a callback gets through the spider middlewares."""
        response = response or page("from")
        passed = []

        async def callback(*_):
            return as_async_generator(things)

        async def scrape():
            chain = await self.chain.scrape_response_async(callback, response, response.request)
            passed.extend([thing async for thing in chain])

        with suppress(StopIteration):
            scrape().send(None)
        return passed

    def page(self, body="", **options):
        """Return a page that a callback has got."""
        response = page("from", body.encode(), **options)
        self.output([], response)
        return response


def page(name, body=b"", cls=HtmlResponse, **options):
    """Return the response for a page of that name, which no callback has got yet."""
    return cls(SITE + name, body=body, request=Request(SITE + name), **options)


# verdicts


FAILS = raising(RuntimeError("not today"))
UNFIT = type("Unfit", (int,), {"__neg__": FAILS, "__rmul__": FAILS})()
"""The priority of a request that cannot be scheduled: in a job its fingerprint is forgotten."""


def made(spider, url, callback=None, **options):
    """Return such a request."""
    others = {"no method": print, "of another": TestSpider().parse, None: None}
    callback = others[callback] if callback in others else getattr(spider, callback)
    return Request(url, callback, **options)


REDIRECT = {"redirect_urls": [f"{SITE}b"], "redirect_times": 1}
METAS = [
    *({"depth": 1}, {"verbatim_url": True}, {"verbatim_url": False}),
    *({"bloom_fingerprint": "k"}, REDIRECT),
    *({"bloom_fingerprint": "k", "download_latency": 0.1}, {"function": print}, {"dud": False}),
    *({"page_params": {"a": 1}}, {"page_params": print}, {"inject": ["a"]}),
]
urls = st.builds(
    "http://a.example{}{}".format,
    st.sampled_from(["", "/", "/b", "/b?d=1&sid=2", "/b?sid=2&d=1", "/b?d=1", "/b/../b", "/é"]),
    st.sampled_from(["", "", "#", "#f", "# g"]),
)
plain_requests = st.fixed_dictionaries({"url": urls})
requests = plain_requests | st.fixed_dictionaries(
    {"url": urls},
    optional={
        "meta": st.sampled_from(METAS),
        "callback": st.sampled_from(
            ["parse", "parse", "parse_other", "parse_other", "no method", "of another"]
        ),
        "method": st.sampled_from(["GET", "get", "POST"]),
        "body": st.sampled_from([b"", b"b"]),
        "dont_filter": st.sampled_from([False, False, True]),
        "headers": st.sampled_from([{"X-Id": "1"}, {"Referer": "http://b.example/"}]),
        "priority": st.sampled_from([1, 2, UNFIT]),
    },
)
kinds = st.sampled_from(["yielded"] * 8 + ["scheduled", "next", "downloaded"])
streams = st.lists(st.tuples(kinds, requests | plain_requests), min_size=10, max_size=40)
PAGES, DISCARDING, OWN = (
    {"REQUEST_FINGERPRINTER_CLASS": cls}
    for cls in (PageFingerprinter, DiscardingFingerprinter, HeaderFingerprinter)
)
WIDE = {"REQUEST_FINGERPRINTER_CLASS": CANONICAL, "BLOOM_IGNORE_SCHEME": True}
KNOWN = [
    {},
    WIDE | {"BLOOM_IGNORE_QUERY_PARAMS": ["sid"]},
    PAGES,
    PAGES | {"PAGE_BASE": DiscardingFingerprinter},
    DISCARDING | {"DISCARDING_FALLBACK": CANONICAL, "BLOOM_IGNORE_QUERY_PARAMS": ["d"]},
]
"""Settings with which duplicates are dropped early."""
INHERITING = {"REQUEST_FINGERPRINTER_CLASS": InheritingFingerprinter}
HEADERS = PAGES | {"PAGE_BASE": HeaderFingerprinter}
identities = st.sampled_from(KNOWN * 3 + [OWN, INHERITING, HEADERS])


def again(known, then, identity=KNOWN[0], job=False):
    """Return an example: what a callback yields after a request for the same page."""
    stream = [
        ("scheduled", {"url": f"{SITE}b", **known}),
        ("downloaded", {"url": f"{SITE}b"}),
        ("yielded", {"url": f"{SITE}b", **then}),
    ]
    return example(stream=stream, identity=identity, recent=8, job=job)


@pytest.mark.slow
@again({"callback": "parse_other"}, {"callback": "parse"}, PAGES)
@again({"callback": "parse_other"}, {}, PAGES)
@again({}, {"callback": "of another"}, PAGES)
@again({}, {"meta": REDIRECT})  # a child whose meta is that of a redirect
@again({}, {"url": f"{SITE}b#f"}, DISCARDING)  # for which a fragment counts
@again({"priority": UNFIT}, {}, job=True)  # what was not stored is as if it had not been
@given(
    stream=streams,
    identity=st.sampled_from(KNOWN),
    recent=st.sampled_from([0, 3, 65_536, 65_536]),
    job=st.booleans(),
)
def test_what_is_dropped_early_the_scheduler_would_have_dropped(
    stream, identity, recent, job, tmp_path_factory
):
    """Slow, since it makes many crawls: of what callbacks yield, that is dropped which the
    scheduler drops then without asking filter or engine, and nothing else, and it is counted. In
    memory Scrapy's own dupefilter would have dropped the same. In a job fingerprints are held back
    until requests are safe, and forgotten where they are not."""
    folder = str(tmp_path_factory.mktemp("job")) if job else None
    crawl = Crawl(**{"JOBDIR": folder, "BLOOM_URL_CACHE": recent, **identity})
    tested, see, stock = crawl.scheduler.df, crawl.scheduler.df._see, RFPDupeFilter()
    # redirects to their own page are new, which Scrapy's dupefilter drops
    is_stock = not identity and not job and not any(g.get("meta") == REDIRECT for _, g in stream)
    inprogress, asked, item = crawl.engine._slot.inprogress, [], {"item": 1}
    tested._see = lambda fingerprint: asked.append(fingerprint) or see(fingerprint)
    for kind, options in stream:
        request = made(crawl.spider, **options)
        if kind in {"downloaded", "next"}:
            inprogress.add(request if kind == "downloaded" else crawl.scheduler.next_request())
            inprogress.discard(None)
            continue
        inprogress.clear()  # a download leads to its redirect at once, or is in a callback
        before = crawl.filtered
        is_dropped = kind == "yielded" and crawl.output([request, item]) == [item]
        assert crawl.filtered - before == is_dropped
        is_known = known_urls(tested).is_known(request)
        asked.clear()
        try:
            seen = not crawl.scheduler.enqueue_request(request) and not request.dont_filter
        except RuntimeError:
            seen = False
        if kind == "yielded":
            assert is_dropped == (recent > 0 and is_known)
        # next to the spider a redirect is a child, and a fingerprint is no short way
        if "redirect_urls" in request.meta or tested.fingerprint(request) in tested._recent.urls:
            assert seen or not is_known
        else:
            assert is_known == (seen and not asked)
        if is_stock and not request.dont_filter:
            assert seen == stock.request_seen(request)
    crawl.close()


# when it is off


class NeutralMiddleware(BaseSpiderMiddleware):
    """Says that it does nothing to requests that will be dropped."""

    bloom_neutral = True


class PatchedMiddleware(BaseSpiderMiddleware):
    """Says so, too, but somebody has given its object another method."""

    bloom_neutral = True

    def __init__(self, crawler):
        super().__init__(crawler)
        self.process_spider_output_async = super().process_spider_output_async


class PluginMiddleware(BaseSpiderMiddleware):
    """One of a package whose name begins like Scrapy's."""

    __module__ = "scrapy_plugin.middlewares"


def own(base, **methods):
    """Return somebody's subclass."""
    return type(f"Own{base.__name__}", (base,), {**methods, "__module__": __name__})


OwnBaseSpiderMiddleware, OwnNeutral = map(own, (BaseSpiderMiddleware, NeutralMiddleware))
OwnReferer = own(RefererMiddleware)
OwnFilter = own(BloomDupeFilter, request_seen=lambda *args: BloomDupeFilter.request_seen(*args))


def name_of(cls):
    """Return what a line of the log calls a class."""
    return f"{cls.__module__}.{cls.__name__}"


def passing(cls, order=543, wanted=None):
    """Return the settings with a spider middleware of others."""
    return {"SPIDER_MIDDLEWARES": {cls: order}, "BLOOM_DROP_EARLY": wanted}


def between(cls, wanted=None):
    """Return a row of the table: such a middleware, and that it is in the way."""
    return passing(cls, wanted=wanted), f"{name_of(cls)} is between the spider and the engine"


OWN_BASE, NEUTRAL = map(name_of, (OwnBaseSpiderMiddleware, NeutralMiddleware))
TRUE = {"BLOOM_DROP_EARLY": True}
OFF, NO_FILTER = "BLOOM_DROP_EARLY is False", "without scrapy-bloom's filter"


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        *((each, None) for each in KNOWN),
        ({"BLOOM_DROP_EARLY": "0"}, OFF),
        (TRUE | {"DUPEFILTER_CLASS": RFP}, NO_FILTER),
        *map(between, (OwnBaseSpiderMiddleware, OwnReferer, PluginMiddleware, PatchedMiddleware)),
        between(OwnNeutral, [NEUTRAL]),
        (passing(OwnBaseSpiderMiddleware, 543, True), None),
        (passing(OwnBaseSpiderMiddleware, 1200, True), None),
        (passing(OwnBaseSpiderMiddleware, 1200, f"{NEUTRAL}, {OWN_BASE}"), None),
        (passing(OwnBaseSpiderMiddleware, 1200), between(OwnBaseSpiderMiddleware)[1]),
        (passing(NeutralMiddleware), None),
        ({"DUPEFILTER_DEBUG": True}, "DUPEFILTER_DEBUG logs them with their referers"),
        (
            TRUE | {"DUPEFILTER_CLASS": OwnFilter},
            f"{name_of(OwnFilter)} has a changed request_seen",
        ),
        ({"DUPEFILTER_CLASS": own(BloomDupeFilter)}, None),
        ({"SCHEDULER": Scheduler}, None),
        ({"SCHEDULER": own(DurableScheduler)}, None),
        ({"BLOOM_URL_CACHE": 0}, "BLOOM_URL_CACHE is 0"),
        (INHERITING, f"the fingerprinter is {name_of(InheritingFingerprinter)}"),
        *(
            (each, f"the fingerprinter is {name_of(HeaderFingerprinter)}")
            for each in (HEADERS, TRUE | OWN)
        ),
        *(
            ({"REQUEST_FINGERPRINTER_CLASS": f"scrapy_bloom.{name}"}, None)
            for name in ("ScrapyRedisFingerprinter", "FastRequestFingerprinter")
        ),
        ({"ADDONS": {}}, "not there"),
        ({"ADDONS": {}, "SPIDER_MIDDLEWARES": {DropEarlyMiddleware: 950}}, None),
    ],
    ids=str,
)
def test_it_drops_where_nobody_else_sees(caplog, options, reason):
    """Settings decide in `from_crawler`; the dupefilter, the scheduler and the middlewares
    that were built when the engine starts; a line at the start says which and why. Links are
    left out where their requests would be dropped, and no other may notice."""
    with caplog.at_level(logging.INFO):
        tested = Crawl(**options)
    told = [r.getMessage() for r in caplog.records if r.name == "scrapy_bloom.startup"]
    said = "".join(re.findall("^duplicates: +(.*)", "\n".join(told), re.MULTILINE))
    on = reason is None
    expected = {None: "dropped early", "not there": ""}.get(reason, f"not dropped early, {reason}")
    assert said == expected
    assert tested.is_on == on
    assert (tested.early is None) == (reason in (OFF, "not there"))
    if tested.early is not None:  # where it is off, Scrapy does not call it
        output = output_methods(tested.crawler)
        assert on == any(getattr(method, "__self__", None) is tested.early for method in output)
    response, other = (tested.page("<a href=known>a</a>") for _ in range(2))
    assert len(list(follow_new(response, css="a"))) != on
    assert has_left_out(response) == on
    all_stay = not on or PageFingerprinter in options.values()  # by a callback
    assert len(NewLinkExtractor().extract_links(other)) == all_stay
    assert has_left_out(other) == (not all_stay)


def test_it_drops_in_a_worker(redis_server, key):
    """As in the one process of a job."""
    options = {"BLOOM_REDIS_URL": redis_server.url, "BLOOM_REDIS_KEY": key}
    for name, part in (("DUPEFILTER_CLASS", "BloomDupeFilter"), ("SCHEDULER", "DurableScheduler")):
        options[name] = f"scrapy_bloom.Redis{part}"
    tested = Crawl(**options)
    assert tested.is_on
    tested.close()


@pytest.mark.parametrize("how", ["object", "class", "disguised"])
@pytest.mark.parametrize("name", ["request_seen", "fingerprint", "log", "enqueue_request"])
def test_it_is_off_where_a_method_was_changed(caplog, monkeypatch, name, how):
    """What somebody has put in the place of a method of an object, or of Scrapy's class or ours,
    may look at more than the URL; so may what has taken over the name and the module of it."""

    def change(owner):
        found = getattr(owner, name)

        def changed(*args):
            return found(*args)

        monkeypatch.setattr(owner, name, wraps(found)(changed) if how == "disguised" else changed)

    def of_object(tested):
        if how == "object":
            change(tested.scheduler if name == "enqueue_request" else tested.scheduler.df)

    if how != "object":
        change(DurableScheduler if name == "enqueue_request" else FilterDupeFilter)
    with caplog.at_level(logging.INFO):
        tested = Crawl(of_object, BLOOM_DROP_EARLY=True)
    assert f" has a changed {name}" in caplog.text
    assert not tested.is_on


def handler(*_, **__):
    """Takes any signal."""


LISTENERS = {
    "a function": (lambda crawler: handler, False),
    "a partial": (lambda crawler: partial(handler), False),
    "a subclass": (lambda crawler: own(OffsiteMiddleware)(crawler).request_scheduled, False),
    "a changed add-on": (lambda crawler: MethodType(handler, Addon()), False),
    "the add-on": (lambda crawler: _tell_of_delay, True),
    "of delta": (lambda crawler: DeltaMiddleware.__new__(DeltaMiddleware)._request_scheduled, True),
    "Scrapy's": (lambda crawler: OffsiteMiddleware(crawler).request_scheduled, True),
}


@pytest.mark.parametrize("kind", LISTENERS)
def test_it_is_off_where_somebody_listens(caplog, kind):
    """A handler of a signal that would not be sent, connected when the engine starts, turns
    it off, unless it is to go past them. Those of Scrapy and ours can do without."""
    receiver_of, is_passed = LISTENERS[kind]
    name = "request_dropped" if kind == "a function" else "request_scheduled"
    kept = []

    def connect(tested):
        kept.append(receiver_of(tested.crawler))
        tested.crawler.signals.connect(kept[-1], getattr(signals, name))

    with caplog.at_level(logging.INFO):
        assert Crawl(connect).is_on == is_passed
    assert (f"handles {name}" in caplog.text) == (not is_passed)
    assert Crawl(connect, BLOOM_DROP_EARLY=True).is_on


@pytest.mark.parametrize("value", ["maybe", ["nowhere"]])
def test_a_bad_setting_is_refused(caplog, value):
    """The error names it, the value and the range in one line."""
    with pytest.raises(ValueError, match=r"BLOOM_DROP_EARLY is .*: it must be True, False, or"):
        Crawl(BLOOM_DROP_EARLY=value)
    assert [r.levelname for r in caplog.records].count("ERROR") == 1


# callbacks


def reading(*words):
    """Return the settings with a fingerprinter that tells apart spellings of a URL and what the
    callback is bound to, and says that it reads `words`."""

    def fingerprint(self, request):
        return f"{request.url} {id(getattr(request.callback, '__self__', None))}".encode()

    attributes = {"bloom_reads": words, "fingerprint": fingerprint}
    return {"REQUEST_FINGERPRINTER_CLASS": type("Reading", (), attributes)}


def test_a_callback_that_was_replaced_is_another(monkeypatch):
    """What counts is the function, whatever its name, and what it is bound to; and a spider that
    makes methods without end costs no memory without end."""
    monkeypatch.setattr("scrapy_bloom.speed.others.MOST_CALLBACKS", 3)
    tested = Crawl(**reading("callback"))
    for number in range(6):
        bound = MethodType(lambda self, response: None, tested.spider)
        request = Request(f"{SITE}b", bound)
        assert tested.output([request]) == [request]
        tested.scheduler.enqueue_request(request)
        assert (tested.output([request.copy()]) == []) == (number < 3)
        other = Request(f"{SITE}b", MethodType(bound.__func__, TestSpider()))
        assert tested.output([other]) == [other]


def test_what_counts_beside_the_url():
    """No callback is `parse`. One that cannot be hashed is left to the scheduler; what a URL does
    not decide is known by its fingerprint, without a look into the filter; and the extractor
    cannot tell what CrawlSpider writes into the meta, where that counts."""
    body = "<a href=b>b</a>"
    tested = Crawl(**PAGES).see("b")
    assert tested.output([Request(f"{SITE}b", tested.spider.parse)]) == []
    unhashable = type("Unhashable", (), {"__hash__": None, "__call__": handler})()
    callback, response = MethodType(unhashable, tested.spider), tested.page(body)
    (request,) = tested.output(follow_new(response, css="a", callback=callback), response)
    assert request.callback is callback
    df, request = tested.scheduler.df, Request(f"{SITE}c", meta={"page_params": {"a": 1}})
    assert not df.request_seen(request)
    df._see = None
    assert df.request_seen(request.copy())
    response = Crawl(**reading("meta:rule")).see("b").page(body)
    assert list(follow_new(response, css="a")) == []
    assert len(NewLinkExtractor().extract_links(response)) == 1


# the add-on


def test_the_addon_puts_it_next_to_the_spider():
    """Unless it was put elsewhere, or taken out; and what `start` yields is not dropped."""
    path = "scrapy_bloom.DropEarlyMiddleware"
    for own in ({OwnBaseSpiderMiddleware: 543}, {path: 50}, {DropEarlyMiddleware: None}):
        crawler = get_crawler(settings_dict={"ADDONS": ADDON, "SPIDER_MIDDLEWARES": own})
        expected = {DropEarlyMiddleware: 1100} if OwnBaseSpiderMiddleware in own else {}
        assert crawler.settings.getdict("SPIDER_MIDDLEWARES") == own | expected
    tested = Crawl()
    assert tested.chain.middlewares[-1] is tested.early
    assert not hasattr(tested.early, "process_start")


# counts and logs


def test_the_first_duplicate_is_logged(caplog):
    """As the scheduler does, and that others are not; also by the sync method of older releases."""
    tested = Crawl().see("")
    known, item, other = Request(f"{SITE}#a"), {"item": 1}, Request(f"{SITE}other")
    with caplog.at_level(logging.DEBUG, "scrapy_bloom.dupefilter"):
        assert tested.output([Request(SITE), known]) == []
        output = tested.early.process_spider_output(page("from"), [known, item, None, other])
        assert [*output] == [item, None, other]
    (message,) = [r.getMessage() for r in caplog.records]
    assert message.startswith(f"Filtered duplicate request: <GET {SITE}> - no more duplicates")
    assert tested.filtered == 3


@pytest.mark.parametrize(
    "options", [{}, {"REFERRER_POLICY": "no-referrer"}, {"REFERER_ENABLED": 0}]
)
def test_each_duplicate_is_logged_on_demand(caplog, options):
    """With DUPEFILTER_DEBUG by the scheduler, with referer: nothing is dropped early."""

    def lines(wanted):
        tested = Crawl(BLOOM_DROP_EARLY=wanted, DUPEFILTER_DEBUG=True, **options).see("b")
        response = tested.page("<a href=/b>b</a> <a href=/b#c>b</a>")
        caplog.clear()
        with caplog.at_level(logging.DEBUG):
            for request in tested.output(follow_new(response, css="a"), response):
                tested.scheduler.enqueue_request(request)
        assert tested.filtered == 2
        return [r.getMessage() for r in caplog.records if "Filtered" in r.getMessage()]

    assert len(lines(None)) == 2
    assert lines(None) == lines(False)


# links


class OwnResponse(HtmlResponse):
    """Follows in its own way."""

    def urljoin(self, url):
        return super().urljoin(url + "?own")


def shown(function, *args, **options):
    """Return what the requests of a call are made of, and the error that ends them."""
    found = []
    try:
        found.extend(r.to_dict(spider=TestSpider()) for r in function(*args, **options))
    except Exception as error:  # noqa: BLE001 - compared
        found.append((type(error), str(error)))
    return found


def difference(everything, some):
    """Return what is missing in `some`, which has the rest in the same order."""
    rest = [*some]
    missing = [one for one in everything if not (rest and one == rest[0] and rest.pop(0))]
    assert rest == []
    return missing


PLAIN_HREFS = [
    *("b", "/b", "b#f", "#", "", "/b?d=1&sid=2", "?d=1", "../b", f"{SITE}c/b", "//a.example/b"),
]
ODD_HREFS = [
    *(" b ", "\tb\n", "b\xa0", "é", "/%7e", "b c", "http://a.example", "HTTP://A.example/b"),
    *("mailto:x", "javascript:f()", "http://[b", "http://a.example:x/", "http://a.example/b #x"),
]
hrefs = st.sampled_from(PLAIN_HREFS) | st.sampled_from(PLAIN_HREFS + ODD_HREFS)
elements = st.builds(
    "<{} {}>".format,
    st.sampled_from(["a", "a", "a", "link", "area", "p"]),
    st.one_of(hrefs.map('href="{}"'.format), hrefs.map('href="{}"'.format), st.just("name=x")),
)
bodies = st.builds(
    "<html><head>{}</head><body>{}</body></html>".format,
    st.sampled_from(["", "", "", '<base href="/x/">', '<base href="http://b.example/">']),
    st.lists(elements, min_size=3, max_size=12).map("".join),
)
OPTIONS = [
    *({}, {"priority": 1, "flags": ["f"]}, {"callback": TestSpider().parse}, {"cb_kwargs": {1: 2}}),
    *({"method": "POST"}, {"method": "get"}, {"body": ""}, {"body": "b"}, {"dont_filter": True}),
    *({"meta": meta} for meta in (None, 5, [("verbatim_url", True)], {"a": 1}, *METAS[1:4])),
    *({"encoding": encoding} for encoding in ("utf-8", "utf-16", "no-such")),
    # a mistake shows at the first link, whatever is known
    *({"callback": "bad"}, {"priority": "high"}, {"headers": "bad"}, {"errback": 5}, {"flags": 5}),
]
WAYS = [
    *({"css": "a"}, {"css": "a, p, area, link"}, {"css": "a::attr(href)"}, {"css": ""}, {}),
    *({"xpath": "//a/@href"}, {"xpath": "//text()"}, {"css": "a", "xpath": "//a"}),
    *({"urls": 5}, {"urls": [], "css": "a"}),
]
ways = st.sampled_from(
    [
        *(lambda response, texts, way=way: way for way in WAYS),
        lambda response, texts: {"urls": response.css("a")},
        lambda response, texts: {"urls": list(response.css("a"))},
        lambda response, texts: {"urls": texts},
        lambda response, texts: {"urls": iter(texts)},
        lambda response, texts: {"urls": [*texts, None]},
        lambda response, texts: {"urls": LinkExtractor().extract_links(response)},
    ]
)


extractors = st.fixed_dictionaries(
    {},
    optional={
        "allow": st.sampled_from(["b", "nothing"]),
        "deny": st.just("sid"),
        "unique": st.booleans(),
        "canonicalize": st.booleans(),
        "strip": st.booleans(),
        "restrict_css": st.just("p, a"),
        "tags": st.just(("a", "link")),
        "process_value": st.sampled_from(
            [None, lambda value: value.replace("d=1", "d=2"), lambda value: None]
        ),
    },
)


@given(
    body=bodies,
    encoding=st.sampled_from(["utf-8"] * 4 + ["latin-1", "utf-16", "cp932", "hz"]),
    texts=st.lists(hrefs, max_size=8),
    known=st.lists(hrefs, min_size=3, max_size=12),  # so many that most links are among them
    way=ways,
    extractor=extractors,
    identity=identities,
    cls=st.sampled_from([HtmlResponse] * 4 + [TextResponse, OwnResponse]),
)
def test_links_are_all_links_less_what_is_known(
    body, encoding, texts, known, way, extractor, identity, cls
):
    """Same arguments, same requests in the same order, same errors; what is missing would have been
    dropped, and is counted as if it had been. So it is with extracted links: of two spellings of a
    seen one the other may be there."""
    crawl = Crawl(**identity)
    response = page("c/d?e#f", body.encode(encoding, "ignore"), cls, encoding=encoding)
    for text in known:
        with suppress(ValueError):
            crawl.scheduler.enqueue_request(response.follow(text))
    crawl.output([], response)
    for options in OPTIONS:
        before = crawl.filtered
        all_of, new_of = response.follow_all, partial(follow_new, response)
        missing = difference(
            *(shown(each, **way(response, texts), **options) for each in (all_of, new_of))
        )
        assert crawl.filtered - before == len(missing)
        for one in missing:
            names = ("url", "method", "body", "meta", "dont_filter")
            # all the way through the middlewares
            assert crawl.output([Request(**{name: one[name] for name in names})], response) == []
    before = crawl.filtered
    seen, fingerprint = crawl.scheduler.df.filter, crawl.scheduler.df.fingerprint
    all_links = LinkExtractor(**extractor).extract_links(response)
    new_links = NewLinkExtractor(**extractor).extract_links(response)
    assert all(link in all_links for link in new_links)
    everything, some = (
        [link for link in links if fingerprint(Request(link.url)) not in seen]
        for links in (all_links, new_links)
    )
    assert some == everything
    assert crawl.filtered > before or len(new_links) == len(all_links)
    crawl.close()


def test_follow_new_makes_no_request_of_a_known_link():
    """Whether relative, absolute, a selector or a link, and whatever its fragment; arguments may
    have no names, as with `response.follow_all`."""
    tested = Crawl().see("b?c=1")
    hrefs = ["b?c=1", " /b?c=1#x ", "http://a.example/b?c=1#y"]
    response = tested.page("".join(f"<a href='{href}'>b</a>" for href in hrefs))
    texts = [href.strip() for href in hrefs]
    for links in (
        *({"css": "a"}, {"xpath": "//a"}, {"css": "a::attr(href)"}),
        *({"urls": list(response.css("a"))}, {"urls": texts}),
        {"urls": LinkExtractor(unique=False).extract_links(response)},
    ):
        before = tested.filtered
        assert list(follow_new(response, **links)) == []
        assert tested.filtered == before + 3
    (request,) = follow_new(response, [*texts, "c"], tested.spider.parse)
    assert (request.url, request.callback) == (f"{SITE}c", tested.spider.parse)
    (request,) = follow_new(response, texts[:1], tested.spider.parse, "PUT")
    assert request.method == "PUT"


def test_follow_new_looks_at_a_link_when_it_is_due():
    """Like `response.follow_all` it can be given links without end, and it knows what has
    become known since the last one. What came before counts though the callback stops early."""
    tested = Crawl()
    requests = iter(follow_new(tested.page(), cycle(["b", "b", "c"])))
    for expected in ("b", "c"):
        assert next(requests).url == SITE + expected
        tested.see(expected)
    del requests
    assert tested.filtered == 1


def test_two_crawls_of_a_process_know_their_own():
    """Links of a response are looked up in its crawl; one that no callback got belongs to none."""
    one, other = Crawl().see("b"), Crawl()
    extractor, body = NewLinkExtractor(), "<a href=b>b</a>"
    pages = [(one.page(body), 0), (other.page(body), 1), (one.page(body), 0)]
    for response, expected in (*pages, (page("from", body.encode()), 1)):
        assert len(list(follow_new(response, ["b"]))) == expected
        assert len(extractor.extract_links(response)) == expected
    for response in (page("from", cls=Response), one.page(cls=OwnResponse)):
        assert len(list(follow_new(response, ["b"]))) == 1
    assert other.stat(FILTERED) is None  # as with Scrapy's own, where there is no duplicate


def test_what_the_extractor_leaves_out():
    """Nothing where it would change the URL, and spellings may count. Links that LinkExtractor
    would leave out are no duplicates; and rules, which are class attributes, outlive a crawl of
    which they keep nothing."""
    tested = Crawl(**reading()).see("b?d=2&c=1")
    response = tested.page("<a href='b?d=2&c=1'>1</a>")
    for extractor in (NewLinkExtractor(allow="/c"), NewLinkExtractor(restrict_text="2")):
        assert extractor.extract_links(response) == []
        assert (tested.filtered, has_left_out(response)) == (0, False)
        assert (extractor._cache, extractor._known) == (None, set())
    assert NewLinkExtractor().extract_links(response) == []
    (link,) = NewLinkExtractor(canonicalize=True).extract_links(response)
    assert link.url == f"{SITE}b?c=1&d=2"


def test_the_extractor_takes_positional_arguments():
    """All that LinkExtractor takes, in its order; a mistake is an error as it is there. What a link
    leads to is what `process_value` makes of it."""
    response = Crawl().see("b").page("<a href=x>1</a> <a href=y>2</a> <a href=z>3</a>")
    values = {f"{SITE}x": f"{SITE}b", f"{SITE}y": f"{SITE}c"}
    given = {"deny": "/z", "process_value": values.get, "restrict_css": "a"}
    parameters = signature(LinkExtractor).parameters.values()
    arguments = [given.get(each.name, each.default) for each in parameters]
    for count in range(len(arguments) + 1):
        names = [each.name for each in parameters][:count]
        options = {name: value for name, value in given.items() if name not in names}
        extractor = NewLinkExtractor(*arguments[:count], **options)
        assert [link.url for link in extractor.extract_links(response)] == [f"{SITE}c"]
    for args, options in (([*arguments, 1], {}), (["b"], {"allow": "b"}), ([], {"allowed": "b"})):
        with pytest.raises(TypeError):
            NewLinkExtractor(*args, **options)
