"""Decides which pages of a crawl are done, and by which keys later crawls know them."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from ..crawl.failed_request import ATTEMPTS_KEY
from ..fingerprints import UnfailingFingerprinter
from ..fingerprints.fast import META_KEY
from ..scrapy_private.progress import EngineProgress
from .digests import Digests, digest_of
from .file_store import Row
from .marks import CHANGED, NEW, UNCHANGED
from .settings import (
    HASH_BYTES,
    KEYS,
    SOURCES,
    VERSION,
    given_key,
    key_of_fingerprint,
    short_hash,
    version_of,
    wish_of,
)

if TYPE_CHECKING:
    from hashlib import blake2b

    from scrapy import Request
    from scrapy.crawler import Crawler
    from scrapy.http import Response

    from .file_store import FileDeltaStore
    from .marks import Marks
    from .redis_store import RedisDeltaStore
    from .settings import DeltaSettings

logger = logging.getLogger(__name__)

_OF_THE_PAGE = frozenset(("callback", "feed", "item"))
"""The reasons of failures after the response has reached the callback."""
VALIDATORS = {b"If-None-Match": "ETag", b"If-Modified-Since": "Last-Modified"}
"""The headers of a response by those of a conditional request (RFC 9110, section 13)."""


def unmodified(response: Response, **arguments: Any) -> tuple[()]:
    """Stand in for the callback of a page of which the server says that it has not changed."""
    return ()


@dataclass(slots=True)
class Outcome:
    """The outcome of a request whose response has reached the callback."""

    is_index_page: bool = False
    """True for an index page: the callback has yielded requests, or has left some out."""
    is_complete: bool = False
    """True if the callback has ended without raising."""
    has_failed: bool = False
    """True if the callback or a pipeline has raised."""
    items: int = 0
    """Number of items that have passed the pipelines."""
    hash: blake2b | None = None
    """Of those items, None without any."""
    verdict: str | None = None
    """Whether the page has changed, once that was asked."""
    is_asked_again: bool = False
    """True if the callback has yielded the same request once more: a retry, or a poll."""
    is_unmodified: bool = False
    """True if the server has said so, and there is no callback."""
    validators: bytes | None = None
    """Those of the response, as they are stored; empty where no earlier ones are its."""

    def leads_to(self, request: Request, response: Response) -> None:
        """Record that the callback of `response` has yielded `request`."""
        self.is_index_page = True
        self.is_asked_again |= is_same(request, response.request)


class Pages:
    """Adds pages to `marks`, with the clock of the delta `store`, when the engine is done with
    their requests, if they are done according to `settings`.

    Index pages are not marked; when in doubt, do not mark: the cost is a refetch. Pages are
    compared by their items, if the settings say so, unless they have failed. Where the store is
    read-only nothing is marked, and no digest stays.
    """

    def __init__(
        self,
        crawler: Crawler,
        marks: Marks,
        settings: DeltaSettings,
        store: FileDeltaStore | RedisDeltaStore,
    ) -> None:
        self.marks = marks
        self.store = store
        self.marked = 0
        without = None if settings.digest is None else settings.digest.without
        self.digests = None if without is None else Digests(crawler, store, marks, without)
        self._has_told = False
        self.settings = settings
        self._crawler = crawler
        self._engine = EngineProgress(crawler)
        self._fingerprinter = UnfailingFingerprinter(crawler)
        self._outcomes: dict[Request, Outcome] = {}
        self._sent_again: WeakSet[Request] = WeakSet()

    def begin(self, request: Request, response: Response | None = None) -> Outcome:
        """Record that the `response` to `request` has reached the callback."""
        outcome = self._outcomes[request] = Outcome(is_unmodified=request.callback is unmodified)
        asks = self.settings.conditional and may_be_conditional(request)
        if asks and response is not None and not outcome.is_unmodified:
            values = [response.headers.get(name) or b"" for name in VALIDATORS.values()]
            has_any = any(values) and response.status == 200
            outcome.validators = self._owner_of(request) + b"\n".join(values) if has_any else b""
        return outcome

    def validators_of(self, request: Request) -> list[bytes]:
        """Return the values of VALIDATORS for a page that an earlier round has done, empty for none
        of a kind. Raises as the store does."""
        keys = self._keys_of(request)
        found, *others = {self.store.fact(key, "validators") or b"" for key in keys}
        # another URL may share the key, and the source of a new redirect has others, or none
        is_own = not others and found.startswith(self._owner_of(request))
        is_own = is_own and not any(key in self.marks for key in keys)
        return found[HASH_BYTES:].split(b"\n") if is_own else []

    def _owner_of(self, request: Request) -> bytes:
        # a redirect, or another URL, may have its key, and not its validators
        meta = {name: value for name, value in request.meta.items() if name != META_KEY}
        return short_hash(self._fingerprinter.fingerprint(request.replace(meta=meta)))

    def outcome(self, request: Request | None) -> Outcome | None:
        """Return the outcome of `request` so far, None before its callback."""
        return None if request is None else self._outcomes.get(request)

    def key_of(self, request: Request) -> bytes:
        """Return the key of `request`: the one in its meta, or its fingerprint."""
        key = given_key(request.meta)
        if key is None:
            key = key_of_fingerprint(self._fingerprinter.fingerprint(request))
        return key

    def scheduled(self, request: Request) -> None:
        """Record that `request` goes to the scheduler. If it is a redirect or a retry, add the keys
        of the redirected requests to its meta."""
        self.drop_copied_key(request)
        sources = [*self._engine.sent_again_as(request)]
        self._sent_again.update(sources)
        times = request.meta.get("redirect_times", 0)
        for source in sources:
            if source.meta.get("redirect_times", 0) < times:
                keys = [key.hex() for key in self._keys_of(source)]
                request.meta[SOURCES] = {"url": request.url, "keys": keys}

    def drop_copied_key(self, request: Request) -> None:
        """Remove a key, or a version, that an errback copied from the failed request."""
        meta, copied = request.meta, set[str]()
        key = given_key(meta)
        has_any = not meta.keys().isdisjoint((*KEYS, META_KEY, VERSION))
        for source in self._engine.with_callbacks() if has_any else ():
            if source in self._outcomes or is_same(source, request):
                continue
            theirs = source.meta
            if key is not None and given_key(theirs) == key:
                copied.update(KEYS)
            if META_KEY in theirs and theirs[META_KEY] == meta.get(META_KEY):
                copied.add(META_KEY)
            # many pages have one version: what was copied with it tells
            if VERSION in theirs and theirs.items() <= meta.items():
                copied.add(VERSION)
        for name in copied:
            meta.pop(name, None)

    def done(self, request: Request, reason: str | None = None) -> list[Row]:
        """Record that the engine is done with `request`, which has failed if there is a `reason`.
        Return what later crawls should know. Raises sqlite3.Error."""
        digest, verdict = self._compare(request, reason)
        outcome = self._outcomes.pop(request, None)
        if outcome is None or request in self._sent_again:
            return []
        now = self.store.clock() if self._is_done(request, outcome, reason) else None
        if now is not None:
            self.marked += 1
            self._crawler.stats.set_value("bloom/delta_marked", self.marked)
        version, validators = version_of(request.meta), outcome.validators
        if version is not None and ATTEMPTS_KEY in request.meta:
            version = b""  # the page may be newer than the link that named it: equal to none
        if now is None:
            # an index page is not conditional, whatever it was in an earlier round
            is_index_page = validators is not None and outcome.is_index_page
            version, validators = None, b"" if is_index_page else None
        if self.settings.read_only:
            digest = validators = None
        if now is None and all(each is None for each in (digest, verdict, validators)):
            return []
        rows = [Row(key, now, digest, version, validators) for key in self._keys_of(request)]
        self.marks.add(rows, verdict)
        if verdict is not None:
            self.count_verdicts()
        return [] if self.settings.read_only else rows

    def is_unchanged(self, request: Request, reason: str | None = None) -> bool:
        """Return True if the items of `request`, with which the engine is done, are those that an
        earlier crawl had. Raises sqlite3.Error."""
        return self._compare(request, reason)[1] == UNCHANGED

    def count_verdicts(self) -> None:
        """Set the stats of the pages that were compared in this round."""
        names = "bloom/delta_new", "bloom/delta_changed", "bloom/delta_unchanged"
        for name, verdict in zip(names, (NEW, CHANGED, UNCHANGED), strict=True):
            self._crawler.stats.set_value(name, self.marks.verdicts[verdict])

    def _compare(self, request: Request, reason: str | None) -> tuple[bytes | None, str | None]:
        """Return digest and verdict of a page, None for a page without digest."""
        outcome = self._outcomes.get(request)
        if (
            self.digests is None
            or outcome is None
            or request in self._sent_again
            or outcome.is_unmodified
            or not _is_sound(outcome, reason)
            # of a retry the items count, and not that there were none before
            or (outcome.is_asked_again and not outcome.items)
        ):
            return None, None
        digest = digest_of(outcome.hash)
        if outcome.verdict is None:
            outcome.verdict = self.digests.verdict(self._keys_of(request), digest)
        return digest, outcome.verdict

    def _tell_of_index_page(self, request: Request) -> None:
        if not self._has_told:
            self._has_told = True
            logger.warning(
                "%(request)s is an index page, which each crawl fetches: bloom_delta = True in its"
                " meta, or crawl_once, marks only pages without requests - no more such pages will"
                " be shown",
                {"request": request},
                extra={"spider": self._crawler.spider},
            )

    def _is_done(self, request: Request, outcome: Outcome, reason: str | None) -> bool:
        wish = wish_of(request.meta)
        if wish is False or outcome.is_index_page:
            if wish is True:
                self._tell_of_index_page(request)
            return False
        mode = self.settings.mode
        if self.settings.read_only or mode is None:
            return False
        if mode == "response":
            return reason is None or reason in _OF_THE_PAGE
        is_done = mode == "success" or outcome.items > 0 or outcome.is_unmodified
        return is_done and _is_sound(outcome, reason)

    def _keys_of(self, request: Request) -> list[bytes]:
        """Return the keys of `request` and of those that were redirected to it."""
        keys = [self.key_of(request)]
        sources = request.meta.get(SOURCES) or {"url": None}
        if sources["url"] == request.url:  # else the meta is another page's
            keys += map(bytes.fromhex, sources["keys"])
        return [*dict.fromkeys(keys)]

    def finish(self, *, all_: bool = False) -> None:
        """Call `done` for the requests that the engine is done with, or for all that are left."""
        for request in [*self._outcomes]:
            if all_ or not self._engine.is_in_progress(request):
                self.done(request)


def is_same(one: Request, other: Request | None) -> bool:
    """Return True if the two ask for the same, whatever their meta says."""
    what = attrgetter("url", "method", "body")
    return other is not None and what(one) == what(other)


def may_be_conditional(request: Request) -> bool:
    """Return True for a GET without a body, which may have validators."""
    return request.method == "GET" and not request.body


def _is_sound(outcome: Outcome, reason: str | None) -> bool:
    return outcome.is_complete and not outcome.has_failed and reason is None
