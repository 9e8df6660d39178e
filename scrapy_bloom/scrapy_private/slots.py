"""The download slots of requests, and their loads."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from scrapy import Request, pqueues
from scrapy.utils.httpobj import urlparse_cached

if TYPE_CHECKING:
    from scrapy.crawler import Crawler

from . import get, miss

SLOT_KEY = "download_slot"
"""Meta key: the download slot that a request names, or was sent in."""
SCOPES_KEY = "throttling_scopes"
"""Meta key of https://github.com/scrapy/scrapy/pull/6931: a scope or several, our slot first."""


def slot_named(meta: dict[str, Any]) -> Any:
    """Return the download slot that the `meta` of a request names, None without one."""
    scopes = meta.get(SCOPES_KEY)
    if scopes is None or isinstance(scopes, str):
        return meta.get(SLOT_KEY) if scopes is None else scopes
    return next(iter(scopes), "")


def slot_keys(crawler: Crawler) -> Callable[[Request], str]:
    """Return the function that gives the download slot of a request, as a plain str."""
    find = raw_slot_keys(crawler)
    return lambda request: str.__str__(slot) if isinstance(slot := find(request), str) else slot


def raw_slot_keys(crawler: Crawler) -> Callable[[Request], str]:
    """Return the function that gives the download slot of a request, as Scrapy has it."""
    throttler = getattr(crawler, "throttler", None)
    if throttler is not None:
        return partial(_first_scope, throttler)
    downloader: Any = crawler.engine.downloader
    if hasattr(downloader, "get_slot_key"):
        return downloader.get_slot_key  # type: ignore[no-any-return]
    miss("Downloader.get_slot_key", "a slot is what the meta of a request names, or its host")
    return lambda request: str(slot_named(request.meta) or urlparse_cached(request).hostname or "")


def _first_scope(throttler: Any, request: Request) -> str:
    meta = request.meta
    before = len(meta)
    throttler.get_scopes_key(request)  # a copied meta has the scopes of another request
    scopes = throttler.get_applied_scopes(request)
    while len(meta) > before:  # what the throttler notes there is not stored
        meta.popitem()
    return scopes[0] if scopes else ""


def slot_loads(crawler: Crawler) -> Callable[[str], float]:
    """Return the function that gives how many requests the downloader has of a slot, or their share
    of as many as it may have."""
    throttler: Any = getattr(crawler, "throttler", None)
    if throttler is not None:
        return throttler.get_scope_load  # type: ignore[no-any-return]
    slots = getattr(crawler.engine.downloader, "slots", None)
    if slots is None:
        miss("Downloader.slots", "slots take turns, whatever their load")
        slots = {}
    return lambda slot: len(slots[slot].active) if slot in slots else 0


def answer_unsent(crawler: Crawler, slot: str, answer: Callable[[Request], Request | None]) -> None:
    """Give the engine `answer(request)` for each request that waits in the downloader, as a
    downloader middleware may; None leaves it there."""
    if getattr(crawler, "throttler", None) is not None:
        return  # there requests wait before they reach the middlewares
    found = (get(crawler.engine, "downloader", "slots") or {}).get(slot)
    if found is None:
        return
    if not isinstance(get(found, "queue"), deque):
        miss("downloader.Slot.queue", "what waits for a slot when its hold begins is still sent")
        return
    waiting = [*found.queue]
    found.queue.clear()
    for request, deferred in waiting:
        again = answer(request)
        if again is None:
            found.queue.append((request, deferred))
        else:
            deferred.callback(again)


def backs_off(crawler: Crawler, request: Request, status: int) -> bool:
    """Return True if Scrapy itself keeps requests off the slots of `request` after a response with
    that status, as https://github.com/scrapy/scrapy/pull/6931 does."""
    throttler: Any = getattr(crawler, "throttler", None)
    if throttler is None or not crawler.settings.getbool("BACKOFF_ENABLED", True):
        return False
    with suppress(Exception):  # its interface is not released
        find = get(throttler, "get_applied_scopes") or throttler.get_resolved_scopes
        scopes = find(request) or ()
        managers = map(throttler.get_scope_manager, [scopes] if isinstance(scopes, str) else scopes)
        found = [get(each, "triggers_backoff_for_status") for each in managers]
        return any(decides is not None and decides(status) for decides in found)
    return True


def slots_take_turns() -> bool:
    """Return how DownloaderAwarePriorityQueue chooses among the slots with the fewest downloads:
    False for the first by name, as up to Scrapy 2.14, True for the first behind the last."""
    return hasattr(pqueues.DownloaderAwarePriorityQueue, "_next_slot")
