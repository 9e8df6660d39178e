"""Links to known pages, which need not become requests at all."""

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

    from ..dupefilter.base import FilterDupeFilter

_Link = TypeVar("_Link")

_dupefilters: WeakKeyDictionary[Response, FilterDupeFilter] = WeakKeyDictionary()
"""Who knows the links of a response, while known ones are left out."""

_shortened: WeakSet[Response] = WeakSet()
"""Responses whose known links were left out."""


def leave_out_known(response: Response, dupefilter: FilterDupeFilter) -> None:
    """From now on leave out those links of `response` that `dupefilter` knows."""
    _dupefilters[response] = dupefilter


def keep_known(response: Response) -> None:
    """From now on leave out no links of `response`."""
    _dupefilters.pop(response, None)


def has_left_out(response: Response) -> bool:
    """Return True if links of `response` were left out, since they are known."""
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
    """Return what `response.follow_all` returns for these arguments, less the requests
    that DropEarlyMiddleware would drop, which are never made. Where that middleware is
    off, nothing is missing.
    """
    follow_all: Callable[..., Iterable[Request]] = response.follow_all
    query = {name: text for name, text in (("css", css), ("xpath", xpath)) if text is not None}
    links = None if args else _links_of(response, **options)
    if links is None or (urls is not None) + len(query) != 1:
        return follow_all(urls, callback, *args, **query, **options)
    if css or xpath:
        urls = response.css(css) if css else response.xpath(xpath or "")
    if not isinstance(urls, Iterable):
        return follow_all(urls, callback, **query, **options)
    new = links.new(urls, partial(response.follow, callback=callback, **options))
    if not isinstance(urls, SelectorList):
        return follow_all(new, callback, **options)
    # one by one: those that are no links are passed over in a list of selectors only
    lists = (follow_all(SelectorList([link]), callback, **options) for link in new)
    return chain(follow_all(SelectorList(), callback, **options), chain.from_iterable(lists))


class NewLinkExtractor(LinkExtractor):
    """LinkExtractor less the links to pages whose requests DropEarlyMiddleware would drop,
    which it finds before they become links. Where that middleware is off, nothing is
    missing.

    For links that become plain requests, as those of CrawlSpider's rules do: GET, with
    the filter, and with nothing in their meta that counts for a fingerprint. Not for a
    rule whose `process_links` rewrites them, or whose `process_request` makes other
    requests of them, nor before such a rule, which would get the links that this one
    leaves out.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        given = signature(LinkExtractor).bind(*args, **options).arguments
        process = given.get("process_value")
        self._process: Callable[[Any], Any] | None = process if callable(process) else None
        super().__init__(**{**given, "process_value": self._process_new})
        self._dupefilter: FilterDupeFilter | None = None
        self._known: set[str] = set()

    def extract_links(self, response: TextResponse) -> list[Link]:
        """Return the links of `response` to pages that are not known."""
        self._dupefilter = dupefilter = _dupefilter_of(response, response.encoding)
        try:
            links: list[Link] = super().extract_links(response)
        finally:
            known, self._known, self._dupefilter = self._known, set(), None
        if dupefilter is not None:
            left_out = sum(map(self.matches, known))
            dupefilter.count_filtered(left_out)
            if left_out:
                _shortened.add(response)
        return links

    def _process_new(self, value: Any) -> Any:
        if self._process is not None:
            value = self._process(value)
        dupefilter = self._dupefilter
        if dupefilter is not None and type(value) is str and dupefilter.has_recent(value):
            self._known.add(value)
            return None
        return value


class _Links:
    """The links of a response, on their way to requests that their URLs tell apart."""

    def __init__(self, response: TextResponse, dupefilter: FilterDupeFilter) -> None:
        self._response = response
        self._base = get_base_url(response)
        self._dupefilter = dupefilter
        self._urls: dict[str, str] = {}
        """What the links are, without fragments, in which most of them differ."""

    def new(self, links: Iterable[_Link], follow: Callable[[_Link], Any]) -> Iterator[_Link]:
        """Yield `links` less those to known pages, which are counted. The first of them is
        followed all the same, so that bad arguments are no less of an error."""
        known = 0
        try:
            for link in links:
                if self._is_known(link):
                    if not known:
                        follow(link)
                        _shortened.add(self._response)
                    known += 1
                else:
                    yield link
        finally:
            self._dupefilter.count_filtered(known)

    def _is_known(self, link: object) -> bool:
        text = link.url if isinstance(link, Link) else _href(link)
        if text is None:
            return False
        text = text.partition("#")[0]
        url = self._urls.get(text)
        if url is None:
            # where this raises ValueError, so would `response.follow`
            url = self._urls[text] = urljoin(self._base, text)
        return self._dupefilter.has_recent(url)


def _href(link: object) -> str | None:
    """Return the text of a link, or None for what only `response.follow` may take for one."""
    if isinstance(link, str):
        return link
    root: Any = getattr(link, "root", None)
    if getattr(root, "tag", None) in ("a", "link"):
        root = root.get("href")
    return strip_html5_whitespace(root) if isinstance(root, str) else None


def _links_of(response: Response, **options: Any) -> _Links | None:
    """Return the links of `response`, or None if their URLs do not tell apart what
    `response.follow_all` makes of them with these options."""
    if not isinstance(response, TextResponse) or any(
        getattr(type(response), name) is not getattr(TextResponse, name)
        for name in ("follow", "follow_all", "urljoin")
    ):
        return None
    dupefilter = _dupefilter_of(response, options.get("encoding") or response.encoding)
    meta = options.get("meta") or {}
    if (
        dupefilter is None
        or options.get("dont_filter")
        or type(meta) is not dict
        or not dupefilter.tells_by_url(options.get("method", "GET"), options.get("body"), meta)
    ):
        return None
    return _Links(response, dupefilter)


def _dupefilter_of(response: Response, encoding: str) -> FilterDupeFilter | None:
    """Return who knows the links of `response`, if anybody does."""
    found = _dupefilters.get(response)
    return found if found is not None and _keeps_ascii(encoding) else None


@lru_cache
def _keeps_ascii(encoding: str) -> bool:
    """Return True unless Scrapy writes a plain query in another way for a page in that
    encoding, as it does for UTF-16."""
    text = "".join(map(chr, range(33, 127)))
    try:
        return text.encode(encoding) == text.encode("ascii")
    except LookupError:
        return False
