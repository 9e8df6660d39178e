"""Redirects to a page that led to them, told from duplicates."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from .errors import JobDirectoryError
from .fingerprints.fast import REDIRECT_URLS, is_default
from .scrapy_private.progress import REDIRECT_TIMES, EngineProgress

if TYPE_CHECKING:
    from scrapy import Request

    from .dupefilter import FilterDupeFilter

logger = logging.getLogger(__name__)

COPIED = "bloom_copied_redirects"
"""Meta key: how many of these URLs are of another request, whose meta was copied."""
META_REFRESH = "meta refresh"
"""Scrapy's reason of a redirect by a page, among those in the meta."""


def attach(df: FilterDupeFilter) -> None:
    """Have `df` tell redirects from duplicates. Raises JobDirectoryError where Scrapy does not show
    what the engine does, unless the fingerprints are those of its default fingerprinter."""
    try:
        engine = EngineProgress(df.crawler)
    except (JobDirectoryError, RuntimeError) as error:  # in a script there is no engine
        if not is_default(df.crawler.request_fingerprinter):
            raise
        if isinstance(error, JobDirectoryError):
            missing = str(error).partition(", which")[0]
            logger.warning("%s: redirects to a page that led to them are dropped", missing)
        return
    ask = df._ask

    def request_seen(request: Request) -> bool:
        """Return True if `request` was seen before, else add it. Never raises.

        A redirect is no duplicate of the requests that led to it.
        """
        fingerprint = _lead_back(request, df, engine)
        if fingerprint is None:
            return ask(request)
        df.let_pass(fingerprint)
        return False

    df.put_in_front(request_seen)


def _lead_back(request: Request, df: FilterDupeFilter, engine: EngineProgress) -> bytes | None:
    """Return the fingerprint by `df` of a redirect to the page of a request that led to it.

    Such a redirect must not be dropped; REDIRECT_MAX_TIMES ends loops. By a meta tag a page leads
    back once. The meta of a request is not enough: a child may have copied it from its response. A
    redirect is scheduled while its source is in the engine and in no callback. In the meta of any
    other request with `redirect_urls` it is noted how many of them were copied. Never raises.
    Source: https://github.com/scrapy/scrapy/issues/1225
    """
    try:
        meta = request.meta
        if REDIRECT_URLS not in meta:
            return None
        this, fingerprint = df.fingerprint_of_any(request), df.fingerprint
        source = next(engine.sent_again_as(request, (REDIRECT_TIMES,)), None)
        if source is None:
            meta[COPIED] = len(meta[REDIRECT_URLS])
            return None
        first = meta.get(COPIED, 0)
        before = [request.replace(url=url) for url in meta[REDIRECT_URLS][first:-1]]
        leads = [fingerprint(each) == this for each in (*before, source)]
        reasons = meta.get("redirect_reasons", ())[first:]
        again = (META_REFRESH, True) in zip(reasons, leads[1:], strict=False)
        if not any(leads) or (again and reasons[-1] == META_REFRESH):
            return None
        meta["dont_cache"] = True  # the HTTP cache would answer with the same redirect
        return this
    except Exception:  # noqa: BLE001 - a request like no other
        return None
