"""Leaves out links to known pages, before they become requests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache, partial
from inspect import signature
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urljoin
from weakref import WeakKeyDictionary, WeakSet

from parsel import SelectorList
from scrapy.http import Response, TextResponse
from scrapy.link import Link
from scrapy.linkextractors import LinkExtractor
from scrapy.utils.response import get_base_url
from w3lib.html import strip_html5_whitespace

if TYPE_CHECKING:
    from parsel import Selector
    from scrapy import Request

    from ..speed.known import KnownUrls

_Link = TypeVar("_Link")

known_links: WeakKeyDictionary[Response, KnownUrls] = WeakKeyDictionary()
"""The cache of seen URLs for each response whose known links are left out."""

_shortened: WeakSet[Response] = WeakSet()
"""Responses whose known links were left out."""


FILTERED = "dupefilter/filtered"
"""The stat of links to known pages that did not become requests."""
_ANY = object()
"""A callback that no spider has."""
_META_OF_RULES = {"rule": 0, "link_text": ""}
"""The meta of the requests that CrawlSpider makes of links."""


def has_left_out(response: Response) -> bool:
    """Return True if known links of `response` were left out."""
    return response in _shortened


def follow_new(
    response: Response,
    urls: Iterable[str | Link | Selector] | None = None,
    callback: Callable[..., Any] | None = None,
    *args: Any,
    css: str | None = None,
    xpath: str | None = None,
    **options: Any,
) -> Iterable[Request]:
    """Return the requests of `response.follow_all` for these arguments, less those that
    DropEarlyMiddleware would drop. Without that middleware all are returned."""
    follow_all: Callable[..., Iterable[Request]] = response.follow_all
    query = {name: text for name, text in (("css", css), ("xpath", xpath)) if text is not None}
    new_of = None if args else _new_of(response, callback, **options)
    if new_of is None or (urls is not None) + len(query) != 1:
        return follow_all(urls, callback, *args, **query, **options)
    if css or xpath:
        urls = response.css(css) if css else response.xpath(xpath or "")
    if not isinstance(urls, Iterable):
        return follow_all(urls, callback, **query, **options)
    new = new_of(urls, partial(response.follow, callback=callback, **options))
    if not isinstance(urls, SelectorList):
        return follow_all(new, callback, **options)
    # one list a link: `follow_all` passes over elements that are no links only in such a list
    lists = (follow_all(SelectorList([link]), callback, **options) for link in new)
    return chain(follow_all(SelectorList(), callback, **options), chain.from_iterable(lists))


class NewLinkExtractor(LinkExtractor):
    """LinkExtractor that leaves out links whose requests DropEarlyMiddleware would drop, before
    they become links. It extracts all links without that middleware, with `restrict_text`, and
    where fingerprints depend on the callback, which a link does not have yet.

    Use it for links that become plain requests, as with CrawlSpider's rules: GET, filtered, and no
    meta key that counts for a fingerprint. Do not use it in or before a rule whose `process_links`
    rewrites links or whose `process_request` makes other requests: that rule would get the links
    that this one leaves out.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        given = signature(LinkExtractor).bind(*args, **options).arguments
        process = given.get("process_value")
        self._process: Callable[[Any], Any] | None = process if callable(process) else None
        super().__init__(**{**given, "process_value": self._process_new})
        self._cache: KnownUrls | None = None
        self._known: set[str] = set()

    def extract_links(self, response: TextResponse) -> list[Link]:
        """Return the links of `response` to unknown pages; count the others."""
        cache = _cache_of(response, response.encoding)
        if cache is not None and (
            cache.prefix_of(_ANY, "GET", b"", _META_OF_RULES) != ""
            # the request has another spelling, which a fingerprinter of others may tell apart
            or (self.canonicalize and not cache.ignores_fragments)
            or self.restrict_text  # which only LinkExtractor can look at
        ):
            cache = None
        self._cache = cache
        try:
            links: list[Link] = super().extract_links(response)
        finally:
            known, self._known, self._cache = self._known, set(), None
        if cache is not None:
            left_out = sum(map(self.matches, known))
            if left_out:
                cache.stats.inc_value(FILTERED, left_out)
                _shortened.add(response)
        return links

    def _process_new(self, value: Any) -> Any:
        if self._process is not None:
            value = self._process(value)
        cache = self._cache
        if cache is not None and type(value) is str and cache.has_recent("", value):
            self._known.add(value)
            return None
        return value


def _without_known(
    response: TextResponse,
    cache: KnownUrls,
    prefix: str,
    links: Iterable[_Link],
    follow: Callable[[_Link], Any],
) -> Iterator[_Link]:
    """Yield `links` less those to known pages, which are counted. Follow the first known link
    anyway, so that bad arguments still raise."""
    base, known = get_base_url(response), 0
    urls: dict[str, str] = {}
    """Absolute URL by link, both without a fragment that does not count: most links differ in that
    only."""
    try:
        for link in links:
            text = link.url if isinstance(link, Link) else _href(link)
            if text is not None:
                if cache.ignores_fragments:
                    text = text.partition("#")[0]
                if text not in urls:
                    # ValueError here is one in `response.follow`, too
                    urls[text] = urljoin(base, text)
                if cache.has_recent(prefix, urls[text]):
                    if not known:
                        follow(link)
                        _shortened.add(response)
                    known += 1
                    continue
            yield link
    finally:
        if known:
            cache.stats.inc_value(FILTERED, known)


def _href(link: object) -> str | None:
    """Return the text of a link, None for objects that only `response.follow` understands."""
    if isinstance(link, str):
        return link
    root: Any = getattr(link, "root", None)
    if getattr(root, "tag", None) in ("a", "link"):
        root = root.get("href")
    return strip_html5_whitespace(root) if isinstance(root, str) else None


def _new_of(
    response: Response, callback: object, **options: Any
) -> Callable[..., Iterator[Any]] | None:
    """Return the function that yields those links of `response` that are not known, or None if
    their URLs do not decide whether the requests of `response.follow_all` with this callback and
    these options were seen."""
    if not isinstance(response, TextResponse) or any(
        getattr(type(response), name) is not getattr(TextResponse, name)
        for name in ("follow", "follow_all", "urljoin")
    ):
        return None
    cache = _cache_of(response, options.get("encoding") or response.encoding)
    meta = options.get("meta") or {}
    if cache is None or options.get("dont_filter") or type(meta) is not dict:
        return None
    method, body = options.get("method", "GET"), options.get("body")
    prefix = cache.prefix_of(callback, method, body, meta)
    return None if prefix is None else partial(_without_known, response, cache, prefix)


def _cache_of(response: Response, encoding: str) -> KnownUrls | None:
    """Return the cache of seen URLs for `response`, None if its links are not to be left out."""
    found = known_links.get(response)
    return found if found is not None and _keeps_ascii(encoding) else None


@lru_cache
def _keeps_ascii(encoding: str) -> bool:
    """Return False for encodings such as UTF-16, in which Scrapy changes a plain query."""
    text = "".join(map(chr, range(33, 127)))
    try:
        return text.encode(encoding) == text.encode("ascii")
    except LookupError:
        return False
