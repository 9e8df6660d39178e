"""Duplicates dropped next to the spider: only those that the scheduler would have dropped,
and only where nobody but Scrapy would have seen them."""

import logging
import re
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial, wraps
from inspect import Parameter, signature
from types import MethodType

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydispatch import dispatcher
from scrapy import FormRequest, Request, signals
from scrapy.core.scheduler import Scheduler
from scrapy.core.spidermw import SpiderMiddlewareManager
from scrapy.downloadermiddlewares.offsite import OffsiteMiddleware
from scrapy.http import HtmlResponse, Response, TextResponse
from scrapy.linkextractors import LinkExtractor
from scrapy.spidermiddlewares.base import BaseSpiderMiddleware
from scrapy.spidermiddlewares.referer import RefererMiddleware
from scrapy.utils.misc import build_from_crawler, load_object
from scrapy.utils.request import fingerprint as scrapy_fingerprint
from scrapy.utils.test import get_crawler

from scrapy_bloom import (
    Addon,
    BloomDupeFilter,
    DropEarlyMiddleware,
    DurableScheduler,
    NewLinkExtractor,
    follow_new,
)
from scrapy_bloom.delta.middleware import DeltaMiddleware
from scrapy_bloom.dupefilter import FilterDupeFilter
from scrapy_bloom.early.links import has_left_out
from scrapy_bloom.scrapy_private.middlewares import output_methods
from scrapy_bloom.speed.known import known_urls
from tests.crawl.engine import TestSpider
from tests.fakes import Engine
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


class EarlySpider(TestSpider):
    """Has callbacks."""

    name = "early"


def no_method(response):
    """A callback of no spider."""


class Crawl:
    """A crawler whose spider is open, with its spider middlewares and its scheduler; only the
    engine is a fake."""

    def __init__(self, prepare=lambda crawler: None, spider=EarlySpider, **options):
        options = {"ADDONS": ADDON, "BLOOM_CAPACITY": 1_000, "EXTENSIONS_BASE": {}, **options}
        self.crawler = crawler = get_crawler(spider, settings_dict=options)
        crawler.engine = self.engine = Engine()
        crawler.spider = self.spider = spider.from_crawler(crawler)
        self.chain = build_from_crawler(SpiderMiddlewareManager, crawler)
        self.engine.scraper.spidermw = self.chain
        self.engine.scraper.logformatter = crawler.logformatter
        self.scheduler = build_from_crawler(load_object(crawler.settings["SCHEDULER"]), crawler)
        self.engine._slot.scheduler = self.scheduler
        self.scheduler.open(self.spider)
        prepare(self)
        crawler.signals.send_catch_log(signals.engine_started)

    @property
    def early(self):
        """The middleware, or None where it is not configured."""
        found = [mw for mw in self.chain.middlewares if isinstance(mw, DropEarlyMiddleware)]
        return found[0] if found else None

    @property
    def is_on(self):
        """Whether it drops a request for a page that is known."""
        self.scheduler.enqueue_request(Request(f"{SITE}known"))
        before = self.filtered
        on = self.output([Request(f"{SITE}known")]) == []
        assert self.filtered == before + on
        return on

    @property
    def filtered(self):
        """The stat."""
        return self.crawler.stats.get_value("dupefilter/filtered", 0)

    def scrape(self, response, things, deliver):
        """Return the coroutine that passes `things` through the chain, as the output of the
        callback of `response`, to `deliver`. It waits before each of them."""

        async def callback(_, request):
            return self._output(things)

        async def scrape():
            chain = await self.chain.scrape_response_async(callback, response, response.request)
            async for thing in chain:
                deliver(thing)

        return scrape()

    async def _output(self, things):
        await Turn()
        for thing in things:
            yield thing
            await Turn()

    def output(self, things, response=None):
        """Return what the chain lets through."""
        response = response or page("from")
        delivered = []
        coroutine = self.scrape(response, things, delivered.append)
        while step(coroutine):
            pass
        return delivered

    def input(self, response):
        """Pass `response` through the chain to a callback; return it."""
        self.output([], response)
        return response

    def links(self, body=b"<a href=b>b</a>", known="b", **options):
        """Return a page with links that a callback has got, of which one is known."""
        self.scheduler.enqueue_request(Request(SITE + known))
        return self.input(page("from", body, **options))

    def close(self):
        """Close the scheduler and the dupefilter."""
        self.scheduler.close("finished")


class Turn:
    """Lets others go on."""

    def __await__(self):
        yield


def step(coroutine):
    """Let a coroutine go on until it waits; return False when it has ended."""
    try:
        coroutine.send(None)
    except StopIteration:
        return False
    return True


def page(name, body=b"", cls=HtmlResponse, **options):
    """Return the response for a page of that name, which a callback could get."""
    request = Request(SITE + name)
    return cls(request.url, body=body, request=request, **options)


@pytest.fixture
def crawl():
    """Return a function that builds a crawl."""
    made = []

    def build(*args, **options):
        made.append(Crawl(*args, **options))
        return made[-1]

    yield build
    for one in made:
        one.close()


# verdicts


class NoPriority(int):
    def __neg__(self, *_):
        raise RuntimeError("not today")

    __rmul__ = __neg__


class FailingRequest(Request):
    """Cannot be scheduled: in a job its fingerprint is forgotten again."""

    def __init__(self, *args, **options):
        super().__init__(*args, **{**options, "priority": NoPriority()})


class OwnFingerprinter:
    """Takes requests with another header for others."""

    def fingerprint(self, request):
        return scrapy_fingerprint(request, include_headers=["X-Id"])


class RewritingMiddleware(BaseSpiderMiddleware):
    """Leaves the session out of URLs."""

    def get_processed_request(self, request, response):
        return request.replace(url=request.url.replace("sid=", "s="))


@dataclass(frozen=True)
class Thing:
    """What a callback yields, or what happens beside it."""

    kind: str
    url: str = SITE
    cls: type = Request
    options: dict = field(default_factory=dict)

    def make(self, spider=None):
        options = dict(self.options)
        if "meta" in options:
            options["meta"] = dict(options["meta"])
        if "callback" in options:
            options["callback"] = {
                "None": None,
                "parse": spider and spider.parse,
                "parse_other": spider and spider.parse_other,
                "no method": no_method,
                "of another": EarlySpider().parse,
            }[options["callback"]]
        return self.cls(self.url, **options)


urls = st.builds(
    "http://a.example{}{}".format,
    st.sampled_from(["", "/", "/b", "/b?d=1&sid=2", "/b?sid=2&d=1", "/b?d=1", "/b/../b", "/é"]),
    st.sampled_from(["", "", "#", "#f", "# g"]),
)
metas = st.sampled_from(
    [
        {},
        {"depth": 1},
        {"verbatim_url": True},
        {"bloom_fingerprint": "k"},
        {"bloom_fingerprint": "k", "download_latency": 0.1},
        {"redirect_urls": [f"{SITE}b"], "redirect_times": 1},
        {"function": print},
        {"page_params": {"a": 1}},
        {"page_params": print},
        {"inject": ["a"]},
        {"dud": False},
    ]
)
kinds = st.sampled_from(["yielded"] * 6 + ["scheduled"])
plain_requests = st.builds(Thing, kinds, urls, st.sampled_from([Request] * 6 + [FailingRequest]))
requests = plain_requests | st.builds(
    Thing,
    kinds,
    urls,
    st.sampled_from([Request] * 6 + [FormRequest, FailingRequest]),
    st.fixed_dictionaries(
        {},
        optional={
            "meta": metas,
            "callback": st.sampled_from(
                ["None", "parse", "parse", "parse_other", "parse_other", "no method", "of another"]
            ),
            "method": st.sampled_from(["GET", "get", "POST", "HEAD"]),
            "body": st.sampled_from([b"", b"b", "b"]),
            "dont_filter": st.sampled_from([False, False, True]),
            "headers": st.sampled_from([{}, {"X-Id": "1"}, {"Referer": "http://b.example/"}]),
            "priority": st.integers(-1, 1),
        },
    ),
)
others = st.sampled_from(
    [Thing("item"), Thing("nothing"), Thing("next"), Thing("downloaded", f"{SITE}b"), Thing("done")]
)
streams = st.lists(
    st.tuples(st.integers(0, 2), requests | plain_requests | others), min_size=10, max_size=40
)
IDENTITIES = (
    {},
    {"REQUEST_FINGERPRINTER_CLASS": CANONICAL},
    {
        "REQUEST_FINGERPRINTER_CLASS": CANONICAL,
        "BLOOM_IGNORE_QUERY_PARAMS": ["sid"],
        "BLOOM_IGNORE_SCHEME": True,
    },
    {"REQUEST_FINGERPRINTER_CLASS": PageFingerprinter},
    {"REQUEST_FINGERPRINTER_CLASS": PageFingerprinter, "PAGE_BASE": DiscardingFingerprinter},
    {
        "REQUEST_FINGERPRINTER_CLASS": DiscardingFingerprinter,
        "DISCARDING_FALLBACK": CANONICAL,
        "BLOOM_IGNORE_QUERY_PARAMS": ["d"],
    },
    {"REQUEST_FINGERPRINTER_CLASS": OwnFingerprinter},
    {"REQUEST_FINGERPRINTER_CLASS": InheritingFingerprinter},
    {"REQUEST_FINGERPRINTER_CLASS": PageFingerprinter, "PAGE_BASE": HeaderFingerprinter},
    {"SPIDER_MIDDLEWARES": {RewritingMiddleware: 500}},
    {"SPIDER_MIDDLEWARES": {RewritingMiddleware: 2000}},
    {"SPIDER_MIDDLEWARES": {RewritingMiddleware: 2000}, "DEPTH_PRIORITY": 1},
)
identities = st.sampled_from([*IDENTITIES[:6] * 3, *IDENTITIES])


def is_known(identity):
    """Return True if it is known what the fingerprints of `identity` depend on."""
    fingerprinter = identity.get("REQUEST_FINGERPRINTER_CLASS")
    unknown = (OwnFingerprinter, InheritingFingerprinter)
    return fingerprinter not in unknown and identity.get("PAGE_BASE") is not HeaderFingerprinter


def verdicts(stream, **options):
    """Return what becomes of each thing that callbacks of three pages yield by turns: whether
    it is scheduled, or reaches the pipelines; and how many requests were filtered."""
    crawl = Crawl(**options)
    waiting = [[], [], []]
    outcome = {}
    current = None

    def deliver(thing):
        if isinstance(thing, Request):
            outcome[current] = "failed"
            with suppress(RuntimeError):
                outcome[current] = crawl.scheduler.enqueue_request(thing)
        else:
            outcome[current] = thing

    def things(queue):
        while True:
            yield queue.pop()

    pages = [crawl.scrape(page(str(n)), things(queue), deliver) for n, queue in enumerate(waiting)]
    for one in pages:
        step(one)
    inprogress = crawl.engine._slot.inprogress
    for current, (number, thing) in enumerate(stream):
        if thing.kind == "yielded":
            waiting[number].append(thing.make(crawl.spider))
        elif thing.kind == "item":
            waiting[number].append({"n": current})
        elif thing.kind == "nothing":
            waiting[number].append(None)
        elif thing.kind == "scheduled":
            deliver(thing.make(crawl.spider))
        elif thing.kind == "downloaded":
            inprogress.add(thing.make(crawl.spider))
        elif thing.kind == "done":
            inprogress.clear()
        elif (request := crawl.scheduler.next_request()) is not None:
            inprogress.add(request)
        if waiting[number]:
            inprogress.clear()  # a download leads to its redirect at once, or is in a callback
            assert step(pages[number])
    for one in pages:
        one.close()
    filtered = crawl.filtered
    early = crawl.early is not None and crawl.early._known is not None
    crawl.close()
    return [outcome.get(n, False) for n in range(len(stream))], filtered, early


def known_and_again(again, **known):
    """Return a stream: a request is scheduled, and then a callback yields another one."""
    first = Thing("scheduled", f"{SITE}b", options=known)
    return [(0, first), (0, Thing("downloaded", f"{SITE}b")), (0, again)]


REDIRECT = {"redirect_urls": [f"{SITE}b"], "redirect_times": 1}
BY_PAGE = {"REQUEST_FINGERPRINTER_CLASS": PageFingerprinter}
BY_FRAGMENT = {"REQUEST_FINGERPRINTER_CLASS": DiscardingFingerprinter}


def told_apart(known, again):
    """Return an example: two callbacks of one URL, which make two requests of it."""
    thing = Thing("yielded", f"{SITE}b", options={"callback": again})
    stream = known_and_again(thing, callback=known)
    return example(stream=stream, identity=BY_PAGE, recent=8, job=False)


@told_apart("parse_other", "parse")
@told_apart("parse_other", "None")
@told_apart("parse", "None")
@told_apart("parse", "of another")
@example(  # a child whose meta is that of a redirect
    stream=known_and_again(Thing("yielded", f"{SITE}b", options={"meta": REDIRECT})),
    identity={},
    recent=8,
    job=False,
)
@example(  # a fragment that counts
    stream=known_and_again(Thing("yielded", f"{SITE}b#f")),
    identity=BY_FRAGMENT,
    recent=8,
    job=False,
)
@example(  # what could not be stored in a job is as if it had not been
    stream=[(0, Thing("scheduled", f"{SITE}b", FailingRequest)), (0, Thing("yielded", f"{SITE}b"))],
    identity={},
    recent=8,
    job=True,
)
@settings(max_examples=settings.default.max_examples * 3 // 4)
@given(
    stream=streams,
    identity=identities,
    recent=st.sampled_from([0, 3, 8, 65_536, 65_536]),
    job=st.sampled_from([False, False, True]),
)
def test_any_stream_has_the_same_verdicts(stream, identity, recent, job, tmp_path_factory):
    """Whatever callbacks yield by turns, through all of Scrapy's middlewares, the same of it
    is scheduled, and the same number filtered, with the middleware and without; and with nothing
    but the fingerprinter and a filter. So it is in a job, where fingerprints are held back until
    requests are safe, and forgotten where they are not."""

    def crawled(**options):
        if job:
            options["JOBDIR"] = str(tmp_path_factory.mktemp("job"))
        return verdicts(stream, **{"BLOOM_URL_CACHE": recent, **identity, **options})

    *late, off = crawled(BLOOM_DROP_EARLY=False)
    *early, on = crawled()
    *alone, _ = crawled(BLOOM_URL_CACHE=0)
    assert early == late == alone
    assert not off
    between = identity.get("SPIDER_MIDDLEWARES", {}).get(RewritingMiddleware) == 500
    assert on == (recent > 0 and not between and is_known(identity))
    # redirects to their own page are new, which Scrapy's dupefilter drops
    redirects = any("redirect_urls" in thing.options.get("meta", {}) for _, thing in stream)
    if "REQUEST_FINGERPRINTER_CLASS" not in identity and not redirects and not job:
        *stock, _ = verdicts(stream, ADDONS={}, **identity)
        assert early == stock


@given(offered=st.lists(requests, max_size=30), identity=identities)
def test_known_is_what_the_short_way_answers(offered, identity):
    """`is_known` says of each request what `request_seen` would say without asking filter or
    engine: the two conditions are one."""
    crawl = Crawl(**identity)
    tested, see = crawl.scheduler.df, crawl.scheduler.df._see
    asked = []
    tested._see = lambda fingerprint: asked.append(fingerprint) or see(fingerprint)
    if not is_known(identity):
        crawl.close()
        return
    for thing in offered:
        request = thing.make(crawl.spider)
        known = known_urls(tested).is_known(request)
        asked.clear()
        seen = tested.request_seen(request)
        if "redirect_urls" in request.meta:  # next to the spider it is a child
            assert seen or not known
        elif tested.fingerprint(request) in tested._recent.urls:
            assert not known  # by its fingerprint, which is no short way next to the spider
        else:
            assert known == (seen and not asked and not request.dont_filter)
    crawl.close()


def test_sync_callbacks_of_older_releases(crawl):
    """The method for sync output drops what the other one drops."""
    tested = crawl()
    known, item, other = Request(f"{SITE}#a"), {"item": 1}, Request(f"{SITE}other")
    tested.scheduler.enqueue_request(Request(SITE))
    passed = list(tested.early.process_spider_output(page("from"), [known, item, None, other]))
    assert passed == [item, None, other]
    assert tested.filtered == 1


# when it is off


class PassingMiddleware:
    """Has no method for output, unless its objects get one."""

    def process_spider_exception(self, response, exception):
        return None


class EndowedMiddleware:
    """One whose objects get a method for output."""

    def __init__(self):
        self.process_spider_output = self._output

    async def _output(self, response, result):
        async for thing in result:
            yield thing


class PlainMiddleware(BaseSpiderMiddleware):
    """Changes nothing, and does not say so."""


class NeutralMiddleware(BaseSpiderMiddleware):
    """Says that it does nothing to requests that will be dropped."""

    bloom_neutral = True


class BiasedMiddleware(NeutralMiddleware):
    """Overrides, and does not say so again."""

    def get_processed_request(self, request, response):
        return request.replace(url=request.url + "?biased")


class PatchedMiddleware:
    """Makes a NeutralMiddleware whose object somebody has given another method."""

    @classmethod
    def from_crawler(cls, crawler):
        async def output(self, response, result):
            async for thing in result:
                yield thing

        made = NeutralMiddleware.from_crawler(crawler)
        made.process_spider_output_async = MethodType(output, made)
        made.process_spider_output = MethodType(lambda self, response, result: result, made)
        return made


class PluginMiddleware(BaseSpiderMiddleware):
    """One of a package whose name begins like Scrapy's."""

    __module__ = "scrapy_plugin.middlewares"


def own(base, name="from_crawler"):
    """Return somebody's subclass, which overrides a method and changes nothing."""

    def method(self, *args):
        return getattr(super(cls, self), name)(*args)

    attributes = {} if name == "from_crawler" else {name: method}
    cls = type(f"Own{base.__name__}", (base,), {**attributes, "__module__": __name__})
    return cls


OwnReferer, OwnScheduler, OwnDurableScheduler = map(
    own, (RefererMiddleware, Scheduler, DurableScheduler)
)
OwnOffsite = own(OffsiteMiddleware, "process_request")


def name_of(thing):
    """Return what a line of the log calls a class."""
    return thing if isinstance(thing, str) else f"{thing.__module__}.{thing.__name__}"


def passed(cls, order=543, wanted=None):
    """Return a row of the table: the options of a middleware that does not keep it off."""
    return {"SPIDER_MIDDLEWARES": {cls: order}, "BLOOM_DROP_EARLY": wanted}, None


def between(cls, named=None, wanted=None):
    """Return a row of the table: a middleware between the spider and the engine."""
    return passed(cls, wanted=wanted)[
        0
    ], f"{name_of(named or cls)} is between the spider and the engine"


def changed(name, wanted=None):
    """Return a row of the table: a dupefilter with a method of its own."""
    cls = own(BloomDupeFilter, name)
    options = {"DUPEFILTER_CLASS": cls, "BLOOM_DROP_EARLY": wanted}
    return options, f"{name_of(cls)} has a changed {name}"


def identified(cls, named=None, **options):
    """Return a row of the table: a fingerprinter, and who keeps it off."""
    reason = named and f"the fingerprinter is {name_of(named)}"
    return {"REQUEST_FINGERPRINTER_CLASS": cls, **options}, reason


NO_LINKS = "dropped early as requests, not as links:"
REWRITING = name_of(RewritingMiddleware)
NEUTRAL = name_of(NeutralMiddleware)
OFF, NO_FILTER = "BLOOM_DROP_EARLY is False", "without scrapy-bloom's filter"
BY_HAND = {"ADDONS": {}, "DUPEFILTER_CLASS": BloomDupeFilter}


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        *(({"BLOOM_DROP_EARLY": wanted}, None) for wanted in (None, "1")),
        *(({"BLOOM_DROP_EARLY": wanted}, OFF) for wanted in ("0", False)),
        *(({"DUPEFILTER_CLASS": RFP, "BLOOM_DROP_EARLY": w}, NO_FILTER) for w in (None, True)),
        between(RewritingMiddleware),
        between(REWRITING),
        between(EndowedMiddleware),
        between(BiasedMiddleware),
        between(PatchedMiddleware, NeutralMiddleware),
        between(BiasedMiddleware, wanted=[NEUTRAL, REWRITING]),
        between(OwnReferer),
        between(PluginMiddleware),
        passed(RewritingMiddleware, wanted=True),
        passed(RewritingMiddleware, wanted=[REWRITING]),
        passed(RewritingMiddleware, 1200, f"{NEUTRAL}, {REWRITING}"),
        passed(RewritingMiddleware, 1200, wanted=True),
        passed(PassingMiddleware),
        passed(NeutralMiddleware),
        passed(NeutralMiddleware, 1200),
        passed(RefererMiddleware, None),
        (
            {"SPIDER_MIDDLEWARES": {RewritingMiddleware: 1200}},
            f"{NO_LINKS} {REWRITING} is next to the spider",
        ),
        ({"DUPEFILTER_DEBUG": True}, f"{NO_LINKS} DUPEFILTER_DEBUG logs requests"),
        changed("log"),
        changed("request_seen", wanted=True),
        changed("fingerprint"),
        ({"DUPEFILTER_CLASS": own(BloomDupeFilter, "close")}, None),
        ({"SCHEDULER": Scheduler}, None),
        ({"SCHEDULER": OwnScheduler}, f"the scheduler is {name_of(OwnScheduler)}"),
        (
            {"SCHEDULER": OwnDurableScheduler, "BLOOM_DROP_EARLY": True},
            f"the scheduler is {name_of(OwnDurableScheduler)}",
        ),
        ({"BLOOM_URL_CACHE": 0}, "BLOOM_URL_CACHE is 0"),
        *((each, None) for each in IDENTITIES[:6]),
        identified(OwnFingerprinter, OwnFingerprinter),
        identified(InheritingFingerprinter, InheritingFingerprinter),
        identified(
            PageFingerprinter,
            HeaderFingerprinter,
            PAGE_BASE=HeaderFingerprinter,
            BLOOM_DROP_EARLY=True,
        ),
        identified("scrapy_bloom.ScrapyRedisFingerprinter"),
        identified("scrapy_bloom.FastRequestFingerprinter"),
        (BY_HAND, "not there"),
        (BY_HAND | {"SPIDER_MIDDLEWARES": {"scrapy_bloom.DropEarlyMiddleware": 950}}, None),
    ],
    ids=str,
)
def test_it_drops_where_nobody_else_sees(crawl, caplog, options, reason):
    """Settings decide in `from_crawler`; the dupefilter, the scheduler and the middlewares
    that were built when the engine starts; a line at the start says which and why. Links are
    left out where their requests would be dropped, and no other may notice."""
    with caplog.at_level(logging.INFO):
        tested = crawl(**options)
    told = [r.getMessage() for r in caplog.records if r.name == "scrapy_bloom.startup"]
    said = "".join(re.findall("^duplicates: +(.*)", "\n".join(told), re.MULTILINE))
    on = reason is None or reason.startswith(NO_LINKS)
    expected = {None: "dropped early", "not there": ""}.get(reason, f"not dropped early, {reason}")
    assert said == (reason if on and reason else expected)
    assert tested.is_on == on
    assert (tested.early is None) == (reason in (OFF, NO_FILTER, "not there"))
    if tested.early is not None:  # where it is off, Scrapy does not call it
        output = output_methods(tested.crawler)
        assert on == any(getattr(method, "__self__", None) is tested.early for method in output)
    response, other = tested.links(), tested.links()
    assert len(list(follow_new(response, css="a"))) == (reason is not None)
    assert has_left_out(response) == (reason is None)
    all_stay = reason is not None or PageFingerprinter in options.values()  # by a callback
    assert len(NewLinkExtractor().extract_links(other)) == all_stay
    assert has_left_out(other) == (not all_stay)


def test_it_drops_in_a_worker(crawl, redis_server, key):
    """As in the one process of a job."""
    assert crawl(BLOOM_REDIS_URL=redis_server.url, BLOOM_REDIS_KEY=key).is_on


def test_a_subclass_with_an_output_of_its_own_is_called_where_it_is_off(crawl):
    """What it does to items has nothing to do with duplicates."""

    class Marking(DropEarlyMiddleware):
        async def process_spider_output_async(self, response, result):
            async for thing in super().process_spider_output_async(response, result):
                yield {"marked": thing}

    tested = crawl(
        SPIDER_MIDDLEWARES={DropEarlyMiddleware: None, Marking: 1100},
        REQUEST_FINGERPRINTER_CLASS=OwnFingerprinter,
    )
    assert tested.output([1]) == [{"marked": 1}]


@pytest.mark.parametrize("name", ["request_seen", "fingerprint", "log", "enqueue_request"])
def test_it_is_off_for_an_object_that_was_changed(crawl, name):
    """A dupefilter or a scheduler whose method somebody has wrapped counts like a subclass."""

    def wrap(tested):
        owner = tested.scheduler if name == "enqueue_request" else tested.scheduler.df
        found = getattr(owner, name)
        setattr(owner, name, lambda *args: found(*args))

    assert not crawl(wrap).is_on


@pytest.mark.parametrize("disguised", [False, True])
@pytest.mark.parametrize(
    ("cls", "name"),
    [
        (FilterDupeFilter, "request_seen"),
        (FilterDupeFilter, "fingerprint"),
        (FilterDupeFilter, "log"),
        (BloomDupeFilter, "request_seen"),
        (Scheduler, "enqueue_request"),
        (DurableScheduler, "enqueue_request"),
    ],
)
def test_it_is_off_for_a_class_that_was_changed(crawl, caplog, monkeypatch, cls, name, disguised):
    """A method that somebody has replaced in Scrapy's class, or in ours, may look at more
    than the URL; so may one that has taken over the name and the module of the old one."""
    found = getattr(cls, name)

    def changed(*args):
        return found(*args)

    monkeypatch.setattr(cls, name, wraps(found)(changed) if disguised else changed)
    scheduler = cls if "Scheduler" in cls.__name__ else Scheduler
    with caplog.at_level(logging.INFO):
        tested = crawl(SCHEDULER=scheduler, BLOOM_DROP_EARLY=True)
    assert f" has a changed {name}" in caplog.text
    assert not tested.is_on


def handler(**_):
    """Takes any signal."""


class Listener:
    def method(self, **_):
        pass


@pytest.mark.parametrize("signal", ["request_scheduled", "request_dropped"])
@pytest.mark.parametrize("wanted", [None, True])
@pytest.mark.parametrize("kind", ["function", "method", "partial", "subclass", "any sender"])
def test_it_is_off_where_somebody_listens(crawl, caplog, signal, wanted, kind):
    """A handler of a signal that would not be sent, connected when the engine starts, turns
    it off, unless it is to go past them."""
    kept = []

    def connect(tested):
        receivers = {
            "method": Listener().method,
            "partial": partial(handler),
            "subclass": OwnOffsite(tested.crawler).request_scheduled,
        }
        sender = dispatcher.Any if kind == "any sender" else tested.crawler
        kept.extend((receivers.get(kind, handler), getattr(signals, signal), sender))
        dispatcher.connect(*kept)

    with caplog.at_level(logging.INFO):
        tested = crawl(connect, BLOOM_DROP_EARLY=wanted)
    try:
        assert tested.is_on == (wanted is True)
        assert (f"handles {signal}" in caplog.text) == (wanted is None)
    finally:
        dispatcher.disconnect(*kept)


def test_scrapys_own_handlers_do_not_count(crawl):
    """Scrapy's middlewares listen to `request_scheduled`."""
    kept = []

    def connect(tested):
        kept.append(OffsiteMiddleware.from_crawler(tested.crawler))

    assert crawl(connect).is_on


@pytest.mark.parametrize("changed", [False, True])
@pytest.mark.parametrize("cls", [Addon, DeltaMiddleware])
def test_our_own_handlers_do_not_count(crawl, cls, changed):
    """Of those that can do without the signals, unless they were changed."""
    owner = cls.__new__(cls)
    if changed:
        owner._request_scheduled = MethodType(handler, owner)
    receiver = owner._request_scheduled

    def connect(tested):
        tested.crawler.signals.connect(receiver, signals.request_dropped)

    assert crawl(connect).is_on != changed


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("maybe", "'maybe': it must be True, False, or"),
        (["tests.nowhere.Middleware"], r"\['tests.nowhere.Middleware'\]: "),
        (["tests.test_early"], r"\['tests.test_early'\]: "),
        (["os.path.join"], r"\['os.path.join'\]: "),
    ],
)
def test_a_bad_setting_is_refused(caplog, value, why):
    """The error names it, the value and the range, or what failed, in one line."""
    with pytest.raises(ValueError, match=f"BLOOM_DROP_EARLY is {why}"):
        Crawl(BLOOM_DROP_EARLY=value)
    assert [r.levelname for r in caplog.records].count("ERROR") == 1


# callbacks


class BindingFingerprinter:
    """Takes requests with callbacks of other objects for others."""

    bloom_reads = ("callback",)

    def fingerprint(self, request):
        return f"{request.url} {id(getattr(request.callback, '__self__', None))}".encode()


@pytest.fixture
def paged(crawl):
    """Return a crawl whose fingerprints depend on callbacks, with one known request."""
    tested = crawl(REQUEST_FINGERPRINTER_CLASS=PageFingerprinter)
    tested.scheduler.enqueue_request(Request(f"{SITE}b", tested.spider.parse_other))
    return tested


def test_a_callback_that_was_replaced_is_another(paged):
    """What counts is the function, whatever its name."""

    def parse_other(self, response):
        pass

    old = paged.spider.parse_other
    paged.spider.parse_other = MethodType(parse_other, paged.spider)
    (request,) = paged.output([Request(f"{SITE}b", paged.spider.parse_other)])
    assert paged.scheduler.enqueue_request(request)
    assert (
        paged.output([Request(f"{SITE}b", callback) for callback in (old, request.callback)]) == []
    )


def test_a_callback_of_another_object_may_be_another(crawl):
    """A fingerprinter that reads the callback may tell apart what the same function is bound to."""
    tested = crawl(REQUEST_FINGERPRINTER_CLASS=BindingFingerprinter)
    request = Request(f"{SITE}b", EarlySpider().parse)
    tested.scheduler.enqueue_request(Request(f"{SITE}b", tested.spider.parse))
    assert tested.output([request]) == [request]


def test_only_so_many_callbacks_are_told_apart(paged, monkeypatch):
    """A spider that makes methods without end costs no memory without end."""
    monkeypatch.setattr("scrapy_bloom.speed.known.MOST_CALLBACKS", 3)
    for number in range(6):
        callback = MethodType(lambda self, response: None, paged.spider)
        assert paged.scheduler.enqueue_request(Request(f"{SITE}{number}", callback))
        left = paged.output([Request(f"{SITE}{number}", callback)])
        assert len(left) == (number > 1)  # one was there before


def test_what_a_url_does_not_decide_is_known_by_its_fingerprint(paged):
    """Such a duplicate needs no look into the filter, which Scrapy's dupefilter does not have."""
    tested = paged.scheduler.df
    request = Request(f"{SITE}c", meta={"page_params": {"a": 1}})
    assert not tested.request_seen(request)
    tested._see = None
    assert tested.request_seen(request.copy())


def test_a_fingerprint_that_failed_is_not_known(crawl):
    """What raised once may have an answer later, which is another one."""
    tested = crawl(REQUEST_FINGERPRINTER_CLASS=PageFingerprinter)
    fingerprinter = tested.crawler.request_fingerprinter
    needs, fingerprinter._needs = fingerprinter._needs, None
    request, again = (Request(f"{SITE}b", tested.spider.parse) for _ in range(2))
    assert tested.scheduler.enqueue_request(request)
    fingerprinter._needs = needs
    assert tested.output([again]) == [again]
    assert tested.scheduler.enqueue_request(again)


class UnhashableCallback:
    """Can be bound to a spider."""

    __hash__ = None

    def __call__(self, spider, response):
        pass


def test_a_strange_callback_is_no_error(paged):
    """The scheduler decides about its requests."""
    response = paged.input(page("from", b"<a href=b>b</a>"))
    callback = MethodType(UnhashableCallback(), paged.spider)
    (request,) = paged.output(follow_new(response, css="a", callback=callback), response)
    assert request.callback is callback


class RuleFingerprinter(DiscardingFingerprinter):
    """Reads what CrawlSpider writes into the meta."""

    bloom_reads = ("meta:rule",)


def test_links_of_rules_have_a_meta(crawl):
    """Where it counts, the extractor cannot tell."""
    tested = crawl(REQUEST_FINGERPRINTER_CLASS=RuleFingerprinter)
    response = tested.links()
    assert list(follow_new(response, css="a")) == []
    assert len(NewLinkExtractor().extract_links(response)) == 1


# the add-on


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {DropEarlyMiddleware: 1100}),
        ({RewritingMiddleware: 543}, {RewritingMiddleware: 543, DropEarlyMiddleware: 1100}),
        ({"scrapy_bloom.DropEarlyMiddleware": 50}, {"scrapy_bloom.DropEarlyMiddleware": 50}),
        ({DropEarlyMiddleware: None}, {DropEarlyMiddleware: None}),
    ],
    ids=str,
)
def test_the_addon_puts_it_next_to_the_spider(given, expected):
    """Unless somebody has put it elsewhere, or taken it out."""
    crawler = get_crawler(settings_dict={"ADDONS": ADDON, "SPIDER_MIDDLEWARES": given})
    assert crawler.settings.getdict("SPIDER_MIDDLEWARES") == expected


def test_it_is_the_closest_to_the_spider(crawl):
    """Behind all of Scrapy's own."""
    closest = crawl().chain.middlewares[-1]
    assert isinstance(closest, DropEarlyMiddleware)
    assert not hasattr(closest, "process_start")  # what `start` yields is not dropped


# counts and logs


def test_the_first_duplicate_is_logged(crawl, caplog):
    """As the scheduler does, with the remark that others are not."""
    tested = crawl()
    tested.scheduler.enqueue_request(Request(SITE))
    with caplog.at_level(logging.DEBUG, "scrapy_bloom.dupefilter"):
        assert tested.output([Request(SITE), Request(f"{SITE}#a")]) == []
    (message,) = [r.getMessage() for r in caplog.records]
    assert message.startswith(f"Filtered duplicate request: <GET {SITE}> - no more duplicates")
    assert tested.filtered == 2


@pytest.mark.parametrize(
    "options",
    [{}, {"REFERRER_POLICY": "no-referrer"}, {"REFERRER_POLICY": "origin"}, {"REFERER_ENABLED": 0}],
    ids=str,
)
def test_each_duplicate_is_logged_on_demand(crawl, caplog, options):
    """With DUPEFILTER_DEBUG the lines are those of the scheduler, referer included, also of
    links that would not become requests."""

    def lines(wanted):
        tested = crawl(BLOOM_DROP_EARLY=wanted, DUPEFILTER_DEBUG=True, **options)
        response = tested.links(b"<a href=/b>b</a> <a href=/b#c>b</a>")
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


def shown(requests):
    """Yield what requests are made of, and the error that ends them."""
    try:
        for request in requests:
            yield request.to_dict(spider=EarlySpider())
    except Exception as error:  # noqa: BLE001 - compared
        yield type(error), str(error)


def see(crawl, response, texts):
    """Schedule the requests for links that are any."""
    for text in texts:
        with suppress(ValueError):
            crawl.scheduler.enqueue_request(response.follow(text))


def difference(everything, some):
    """Return what is missing in `some`, which has the rest in the same order."""
    rest = iter(some)
    following = next(rest, None)
    missing = []
    for one in everything:
        if one == following:
            following = next(rest, None)
        else:
            missing.append(one)
    assert following is None
    return missing


PLAIN_HREFS = [
    "b",
    "/b",
    "b#f",
    "#",
    "",
    "/b?d=1&sid=2",
    "?d=1",
    "../b",
    f"{SITE}b",
    "//a.example/b",
]
ODD_HREFS = [
    *(" b ", "\tb\n", "b\xa0", "é", "/%7e", "b c", "http://a.example", "HTTP://A.example/b"),
    *("mailto:x", "javascript:f()", "http://[b", "http://a.example:x/", "http://a.example/b #x"),
]
hrefs = st.sampled_from(PLAIN_HREFS) | st.sampled_from(PLAIN_HREFS + ODD_HREFS)
# so many that most links of a page are among them
known_hrefs = st.lists(hrefs, min_size=3, max_size=12)
elements = st.builds(
    "<{} {}>".format,
    st.sampled_from(["a", "a", "a", "link", "area", "p"]),
    st.one_of(hrefs.map('href="{}"'.format), hrefs.map('href="{}"'.format), st.just("name=x")),
)
bodies = st.builds(
    "<html><head>{}</head><body>{}</body></html>".format,
    st.sampled_from(["", "", "", '<base href="/c/">', '<base href="http://b.example/">']),
    st.lists(elements, min_size=3, max_size=12).map("".join),
)
encodings = st.sampled_from(["utf-8"] * 4 + ["latin-1", "utf-16", "cp932", "hz"])
plain_arguments = st.sampled_from(
    [{}, {"callback": EarlySpider().parse, "cb_kwargs": {"a": 1}}, {"priority": 1, "flags": ["f"]}]
)
arguments = plain_arguments | st.fixed_dictionaries(
    {},
    optional={
        "method": st.sampled_from(["GET", "get", "POST"]),
        "body": st.sampled_from([None, b"", "b"]),
        "meta": st.sampled_from(
            [
                None,
                {"a": 1},
                {"verbatim_url": True},
                {"bloom_fingerprint": "k"},
                [("verbatim_url", True)],
                {"redirect_urls": [SITE], "redirect_times": 1},
                5,
            ]
        ),
        "dont_filter": st.booleans(),
        "encoding": st.sampled_from([None, "utf-8", "utf-16", "no-such"]),
        "callback": st.sampled_from([None, EarlySpider().parse, "parse"]),
        "priority": st.sampled_from([0, 3, "high"]),
        "cb_kwargs": st.just({"a": 1}),
        "headers": st.just({"A": "1"}),
        "flags": st.just(["f"]),
    },
)
ways = st.sampled_from(
    [
        lambda response, texts: {"css": "a"},
        lambda response, texts: {"css": "a, p, area, link"},
        lambda response, texts: {"css": "a::attr(href)"},
        lambda response, texts: {"css": ""},
        lambda response, texts: {"css": "a", "xpath": "//a"},
        lambda response, texts: {},
        lambda response, texts: {"xpath": "//a/@href"},
        lambda response, texts: {"xpath": "//text()"},
        lambda response, texts: {"urls": response.css("a")},
        lambda response, texts: {"urls": list(response.css("a"))},
        lambda response, texts: {"urls": list(texts)},
        lambda response, texts: {"urls": iter(texts)},
        lambda response, texts: {"urls": [*texts, None]},
        lambda response, texts: {"urls": 5},
        lambda response, texts: {"urls": list(texts), "css": "a"},
        lambda response, texts: {"urls": LinkExtractor().extract_links(response)},
    ]
)


@given(
    body=bodies,
    encoding=encodings,
    texts=st.lists(hrefs, max_size=8).map(tuple),
    known=known_hrefs,
    way=ways,
    options=arguments,
    identity=identities,
    cls=st.sampled_from([HtmlResponse] * 4 + [TextResponse, OwnResponse]),
)
def test_follow_new_is_follow_all_less_what_is_known(
    body, encoding, texts, known, way, options, identity, cls
):
    """Same arguments, same requests in the same order, same errors; what is missing is what
    would have been dropped, and is counted as if it had been."""
    crawl = Crawl(**identity)
    response = page("c/d?e#f", body.encode(encoding, "ignore"), cls, encoding=encoding)
    see(crawl, response, known)
    crawl.input(response)
    before = crawl.filtered
    outcomes = []
    for function in (partial(response.follow_all), partial(follow_new, response)):
        try:
            outcomes.append(list(shown(function(**way(response, texts), **options))))
        except Exception as error:  # noqa: BLE001, PERF203 - compared
            outcomes.append([(type(error), str(error))])
    missing = difference(*outcomes)
    assert crawl.filtered - before == len(missing)
    for one in missing:
        names = ("url", "method", "body", "meta", "dont_filter")
        # all the way through the middlewares
        assert crawl.output([Request(**{name: one[name] for name in names})], response) == []
    crawl.close()


@pytest.mark.parametrize(
    "options",
    [
        {"dont_filter": True},
        {"method": "POST"},
        {"body": "b"},
        {"meta": {"verbatim_url": True}},
        {"meta": [("verbatim_url", True)]},
        {"meta": {"bloom_fingerprint": "k"}},
        {"encoding": "utf-16"},
        # a mistake in a callback shows at the first link, whatever is known
        *({name: "bad"} for name in ("callback", "priority", "headers")),
        *({name: 5} for name in ("errback", "flags")),
    ],
    ids=str,
)
def test_arguments_that_make_other_requests(crawl, options):
    """A link to a known page is followed where it becomes a request for something else, or an
    error."""
    response = crawl().links(b"<a href='b?c=d'>b</a>", "b?c=d")
    assert list(follow_new(response, css="a")) == []
    for links in ({"urls": ["b?c=d"]}, {"css": "a"}):
        (expected,) = shown(response.follow_all(**links, **options))
        assert list(shown(follow_new(response, **links, **options))) == [expected]


def test_a_link_stands_for_what_the_base_of_its_page_makes_of_it(crawl):
    """And not for what it would be without that, though that is known."""
    response = crawl().links(b"<base href='/c/'><a href='b'>b</a>")
    (request,) = follow_new(response, css="a")
    assert request.url == f"{SITE}c/b"


def test_follow_new_makes_no_request_of_a_known_link(crawl):
    """Whether relative, absolute, a selector or a link, and whatever its fragment."""
    tested = crawl()
    tested.scheduler.enqueue_request(Request(f"{SITE}b?c=1"))
    body = (
        b"<a href='b?c=1'>1</a> <a href=' /b?c=1#x '>2</a> <a href=http://a.example/b?c=1#y>3</a>"
    )
    response = tested.input(page("from", body))
    for links in (
        {"css": "a"},
        {"xpath": "//a"},
        {"css": "a::attr(href)"},
        {"urls": response.css("a")},
        {"urls": list(response.css("a"))},
        {"urls": ["b?c=1", "/b?c=1#x", "http://a.example/b?c=1#y"]},
        {"urls": LinkExtractor(unique=False).extract_links(response)},
    ):
        before = tested.filtered
        assert list(follow_new(response, **links)) == []
        assert tested.filtered == before + 3


def test_follow_new_takes_positional_arguments(crawl):
    """As `response.follow_all` does."""
    tested = crawl()
    response = tested.links(b"")
    spider = tested.spider
    assert list(follow_new(response, ["b"], spider.parse)) == []
    (request,) = follow_new(response, ["b", "c"], spider.parse)
    assert (request.url, request.callback) == (f"{SITE}c", spider.parse)
    (request,) = follow_new(response, ["b"], spider.parse, "POST")
    assert request.method == "POST"


def test_follow_new_looks_at_a_link_when_it_is_due(crawl):
    """Like `response.follow_all` it can be given links without end, and it knows what has
    become known since the last one."""
    tested = crawl()
    response = tested.input(page("from"))

    def links():
        while True:
            yield from ("b", "c")

    requests = iter(follow_new(response, links()))
    for expected in ("b", "c"):
        request = next(requests)
        assert request.url == SITE + expected
        tested.scheduler.enqueue_request(request)


def test_links_count_when_the_spider_stops_early(crawl):
    """A callback that takes the first request only, or raises, has dropped what came before."""
    tested = crawl()
    response = tested.links(b"")
    requests = iter(follow_new(response, ["b", "b", "c", "b"]))
    assert next(requests).url == f"{SITE}c"
    del requests
    assert tested.filtered == 2


def test_no_stat_without_a_duplicate(crawl):
    """A crawl without duplicates has no stat about them, as with Scrapy's own."""
    tested = crawl()
    response = tested.input(page("from"))
    assert len(list(follow_new(response, ["b"]))) == 1
    assert NewLinkExtractor().extract_links(response) == []
    assert tested.crawler.stats.get_value("dupefilter/filtered") is None


def test_links_of_a_response_that_no_callback_got(crawl):
    """Nor is it with a response made by hand."""
    tested = crawl()
    tested.scheduler.enqueue_request(Request(f"{SITE}b"))
    assert len(list(follow_new(page("from"), ["b"]))) == 1
    assert len(list(follow_new(page("from", cls=Response), ["b"]))) == 1


def test_two_crawls_of_a_process_know_their_own(crawl):
    """The links of a response are looked up in the crawl that it belongs to."""
    one, other = crawl(), crawl()
    one.scheduler.enqueue_request(Request(f"{SITE}b"))
    extractor = NewLinkExtractor()
    for tested, expected in ((one, 0), (other, 1), (one, 0)):
        response = tested.input(page("from", b"<a href=b>b</a>"))
        assert len(list(follow_new(response, ["b"]))) == expected
        assert len(extractor.extract_links(response)) == expected


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32", "utf-7", "hz"])
def test_a_query_of_a_page_in_an_encoding_that_is_not_like_ascii(crawl, encoding):
    """Scrapy makes another URL of it, which nobody has seen."""
    tested = crawl()
    tested.scheduler.enqueue_request(Request(f"{SITE}b?c=+~"))
    body = '<html><body><a href="/b?c=+~">b</a></body></html>'.encode(encoding)
    response = tested.input(page("from", body, encoding=encoding))
    (expected,) = response.follow_all(css="a")
    if known_urls(tested.scheduler.df).is_known(expected):
        pytest.skip("this release of w3lib writes it in the same way")
    (request,) = follow_new(response, css="a")
    assert request.url == expected.url
    (link,) = NewLinkExtractor().extract_links(response)
    assert not known_urls(tested.scheduler.df).is_known(Request(link.url))


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
    encoding=encodings,
    known=known_hrefs,
    options=extractors,
    identity=identities,
)
def test_new_links_are_the_links_less_what_is_known(body, encoding, known, options, identity):
    """Same links in the same order; what is missing is seen, and counted. Of two spellings
    of a seen link the other one may be there."""
    crawl = Crawl(**identity)
    response = page("c/d", body.encode(encoding, "ignore"), encoding=encoding)
    see(crawl, response, known)
    crawl.input(response)
    before = crawl.filtered
    seen, fingerprint = crawl.scheduler.df.filter, crawl.scheduler.df.fingerprint
    all_links = LinkExtractor(**options).extract_links(response)
    new_links = NewLinkExtractor(**options).extract_links(response)
    everything, some = (
        [link for link in links if fingerprint(Request(link.url)) not in seen]
        for links in (all_links, new_links)
    )
    assert some == everything
    assert all(link in all_links for link in new_links)
    if len(new_links) < len(all_links):
        assert crawl.filtered > before
        assert crawl.early._known_links is not None
    crawl.close()


def test_the_extractor_goes_by_the_value_of_its_own(crawl):
    """What a link leads to is what `process_value` makes of it."""
    response = crawl().links(b"<a href=b>1</a> <a href=c>2</a>")
    swapped = {f"{SITE}b": f"{SITE}c", f"{SITE}c": f"{SITE}b"}
    links = LinkExtractor(process_value=swapped.get).extract_links(response)
    assert NewLinkExtractor(process_value=swapped.get).extract_links(response) == links[:1]


class SpellingFingerprinter:
    """Takes each spelling of a URL for a page of its own."""

    bloom_reads = ()

    def fingerprint(self, request):
        return request.url.encode()


def test_a_canonical_link_may_be_new_where_its_other_spelling_is_known(crawl):
    """The extractor leaves out nothing where it would change the URL, and spellings may count."""
    tested = crawl(REQUEST_FINGERPRINTER_CLASS=SpellingFingerprinter)
    response = tested.links(b"<a href='b?d=2&c=1'>1</a>", "b?d=2&c=1")
    assert NewLinkExtractor().extract_links(response) == []
    (link,) = NewLinkExtractor(canonicalize=True).extract_links(response)
    assert link.url == f"{SITE}b?c=1&d=2"


def test_the_extractor_takes_positional_arguments(crawl):
    """All that LinkExtractor takes, in its order; a mistake is an error as it is there."""
    response = crawl().links(b"<a href=x>1</a> <a href=y>2</a> <a href=z>3</a>")
    given = {
        "deny": "/z",
        "process_value": {f"{SITE}x": f"{SITE}b", f"{SITE}y": f"{SITE}c"}.get,
        "restrict_css": "a",
    }
    parameters = signature(LinkExtractor).parameters.values()
    assert all(each.kind is Parameter.POSITIONAL_OR_KEYWORD for each in parameters)
    arguments = [given.get(each.name, each.default) for each in parameters]
    for count in range(len(arguments) + 1):
        names = [each.name for each in parameters][:count]
        options = {name: value for name, value in given.items() if name not in names}
        extractor = NewLinkExtractor(*arguments[:count], **options)
        assert [link.url for link in extractor.extract_links(response)] == [f"{SITE}c"]
    for args, options in (([*arguments, 1], {}), (["b"], {"allow": "b"}), ([], {"allowed": "b"})):
        with pytest.raises(TypeError):
            NewLinkExtractor(*args, **options)


def test_the_extractor_does_not_count_what_it_does_not_want(crawl):
    """Links that LinkExtractor would leave out are no duplicates; and rules, which are class
    attributes, outlive a crawl of which they keep nothing."""
    tested = crawl()
    response = tested.links(b"<a href=b>1</a>")
    extractor = NewLinkExtractor(allow="/c")
    assert extractor.extract_links(response) == []
    assert (tested.filtered, has_left_out(response)) == (0, False)
    assert (extractor._cache, extractor._known) == (None, set())
