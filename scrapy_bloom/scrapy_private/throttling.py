"""Scopes in the place of download slots, as https://github.com/scrapy/scrapy/pull/6931 has them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from . import SLOT_KEY, get

if TYPE_CHECKING:
    from scrapy import Request

SCOPES_KEY = "throttling_scopes"
"""Meta key: a scope or several, our slot first."""


def slot_named(meta: dict[str, Any]) -> Any:
    """Return the download slot that the `meta` of a request names, None without one."""
    scopes = meta.get(SCOPES_KEY)
    if scopes is None or isinstance(scopes, str):
        return meta.get(SLOT_KEY) if scopes is None else scopes
    return next(iter(scopes), "")


def slot_keys(crawler: Any) -> Callable[[Request], str]:
    """Return the function that gives the first scope of a request."""
    return partial(_first_scope, crawler.throttler)


def _first_scope(throttler: Any, request: Request) -> str:
    meta = request.meta
    before = len(meta)
    throttler.get_scopes_key(request)  # a copied meta has the scopes of another request
    scopes = throttler.get_applied_scopes(request)
    while len(meta) > before:  # what the throttler notes there is not stored
        meta.popitem()
    return scopes[0] if scopes else ""


def slot_loads(crawler: Any) -> Callable[[str], float]:
    """Return the function that gives the load of a scope."""
    return crawler.throttler.get_scope_load  # type: ignore[no-any-return]


def backs_off(crawler: Any, request: Request, status: int) -> bool:
    """Return True if the throttler keeps requests off the scopes of `request` after that status."""
    if not crawler.settings.getbool("BACKOFF_ENABLED", True):
        return False
    with suppress(Exception):  # its interface is not released
        throttler = crawler.throttler
        find = get(throttler, "get_applied_scopes") or throttler.get_resolved_scopes
        scopes = find(request) or ()
        managers = map(throttler.get_scope_manager, [scopes] if isinstance(scopes, str) else scopes)
        found = [get(each, "triggers_backoff_for_status") for each in managers]
        return any(decides is not None and decides(status) for decides in found)
    return True
