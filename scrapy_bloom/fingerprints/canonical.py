"""Fingerprints that leave out parts of a URL. All of it is off by default: leaving out too much
loses pages."""

from __future__ import annotations

import json
import logging
import re
from contextlib import suppress
from fnmatch import translate
from hashlib import sha1
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote_plus

from scrapy import signals
from scrapy.utils.python import to_unicode
from w3lib.url import canonicalize_url, url_query_cleaner

from ..startup import refuse
from .component import FastRequestFingerprinter
from .fast import META_KEY, canonical_url, hash_get
from .settings import IdentitySettings

if TYPE_CHECKING:
    from collections.abc import Callable

    from scrapy import Request
    from scrapy.crawler import Crawler
    from scrapy.settings import BaseSettings
    from typing_extensions import Self

logger = logging.getLogger(__name__)

RECEIVED = "bloom_received_fingerprint"
"""Meta key: the META_KEY of a request whose response has come, which children may copy."""

_path_param = re.compile(r";([^/;=]*)[^/;]*")


class CanonicalRequestFingerprinter:
    """Request fingerprinter for REQUEST_FINGERPRINTER_CLASS that can leave out parts of a URL.

    BLOOM_IGNORE_QUERY_PARAMS and BLOOM_IGNORE_PATH_PARAMS (`;jsessionid=…`) name
    parameters, decoded, with globs such as `utm_*`, in upper and lower case as in the
    URL; True stands for all. BLOOM_IGNORE_SCHEME takes https for http. Apart from that
    the fingerprints are Scrapy's, those of requests with `verbatim_url` included.

    `request.meta["bloom_fingerprint"]` (bytes or str) stands for a request instead of
    its method, URL and body.
    """

    identity: str
    """The settings; empty for none, which is Scrapy's default."""

    def __init__(self, settings: BaseSettings) -> None:
        ignored = IdentitySettings.read(settings)
        self._ignores_query_param = _matcher(ignored.query_params)
        self._ignores_path_param = _matcher(ignored.path_params)
        self._ignores_scheme = ignored.scheme
        self._default = FastRequestFingerprinter()
        self.identity = json.dumps(vars(ignored)) if any(vars(ignored).values()) else ""

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Return the fingerprinter of `crawler`. Raises ValueError for a bad setting, and refuses
        the start then."""
        try:
            return cls(crawler.settings)
        except ValueError as error:
            if crawler.spider is None:  # a command
                raise
            refuse(crawler, error)

    def fingerprint(self, request: Request) -> bytes:
        """Return 20 bytes that stand for `request`.

        Raises TypeError for a meta key that is neither bytes nor str, ValueError for a
        URL that w3lib cannot read.
        """
        meta = request.meta
        if META_KEY in meta:
            key = meta[META_KEY]
            if isinstance(key, str):
                key = key.encode(errors="surrogatepass")
            if not isinstance(key, bytes):
                raise TypeError(f"request.meta[{META_KEY!r}] is {key!r}: it must be bytes or str")
            # hashed, since the input of the filter's keyed hash must not be chosen freely
            return sha1(b"bloom_fingerprint " + key, usedforsecurity=False).digest()
        if not self.identity or "verbatim_url" in meta:
            return self._default.fingerprint(request)
        parts = {
            "body": (request.body or b"").hex(),
            "headers": {},
            "method": to_unicode(request.method),
            # not made canonical again after the cut, which could change it once more
            "url": self._cut(canonicalize_url(request.url)),
        }
        text = json.dumps(parts)  # in the order of their names, as Scrapy sorts them
        return sha1(text.encode(), usedforsecurity=False).digest()

    def fingerprint_of_url(self, url: str) -> bytes | None:
        """Return the fingerprint of a GET request for `url` without a body and without meta keys
        that matter, or None if only w3lib can tell."""
        canonical = canonical_url(url)
        return None if canonical is None else hash_get(self._cut(canonical))

    def _cut(self, canonical: str) -> str:
        """Return a canonical URL without the ignored parts."""
        if "://" not in canonical:
            return canonical
        if self._ignores_scheme and canonical.startswith("https:"):
            canonical = "http:" + canonical.removeprefix("https:")
        if self._ignores_path_param is not None and ";" in canonical:
            path, mark, query = canonical.partition("?")
            start = path.find("/", path.index("://") + 3)
            if start != -1:
                path = path[:start] + _path_param.sub(self._path_param, path[start:])
            canonical = path + mark + query
        if self._ignores_query_param is not None and "?" in canonical:
            names = {field.partition("=")[0] for field in canonical.partition("?")[2].split("&")}
            if cut := [name for name in names if self._ignores_query_param(unquote_plus(name))]:
                canonical = url_query_cleaner(canonical, cut, remove=True, unique=False)
        return canonical

    def _path_param(self, match: re.Match[str]) -> str:
        assert self._ignores_path_param is not None
        return "" if self._ignores_path_param(unquote_plus(match[1])) else match[0]


def _matcher(patterns: tuple[str, ...]) -> Callable[[str], object] | None:
    return re.compile("|".join(map(translate, patterns))).match if patterns else None


def attach(df: Any) -> None:
    """Have the dupefilter `df` look for a copied META_KEY before it asks for a fingerprint."""
    if (remove := copied_key_remover(df.crawler)) is None:
        return
    fingerprint_of_any = df.fingerprint_of_any

    def fingerprint_without_copied_key(request: Request) -> Any:
        remove(request)
        return fingerprint_of_any(request)

    df.fingerprint_of_any = fingerprint_without_copied_key


def copied_key_remover(crawler: Crawler) -> Callable[[Request], None] | None:
    """Return a function that removes META_KEY where it was copied with the meta of a response, and
    never raises; None for a fingerprinter that does not read the key."""
    reads_key = isinstance(crawler.request_fingerprinter, CanonicalRequestFingerprinter)
    return _CopiedKeys(crawler).remove if reads_key else None


class _CopiedKeys:
    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler
        self._has_told = False
        crawler.signals.connect(self._note_key, signals.response_received)

    def _note_key(self, request: Request) -> None:
        request.meta.pop(RECEIVED, None)  # that of a page before
        if META_KEY in request.meta:
            request.meta[RECEIVED] = request.meta[META_KEY]

    def remove(self, request: Request) -> None:
        with suppress(Exception):  # a request like no other
            meta = request.meta
            if RECEIVED in meta and meta.pop(RECEIVED) == meta.get(META_KEY):
                del meta[META_KEY]
                if not self._has_told:
                    self._has_told = True
                    logger.warning(
                        "%(request)s has the meta key %(key)s of the response that its meta was"
                        " copied from; it does not count there, nor in other such requests. Copy"
                        " the keys that you need only.",
                        {"request": request, "key": META_KEY},
                        extra={"spider": self._crawler.spider},
                    )
