"""The download slots of requests, and their loads."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from scrapy import Request, pqueues
from scrapy.utils.httpobj import urlparse_cached

if TYPE_CHECKING:
    from scrapy.crawler import Crawler

from . import SLOT_KEY, get, miss


def throttling_of(crawler: Crawler) -> Any:
    """Return the module for a Scrapy whose throttler stands in the place of its download slots,
    None for any other."""
    if getattr(crawler, "throttler", None) is None:
        return None
    from . import throttling

    return throttling


def slot_keys(crawler: Crawler) -> Callable[[Request], str]:
    """Return the function that gives the download slot of a request, as a plain str."""
    find = raw_slot_keys(crawler)
    return lambda request: str.__str__(slot) if isinstance(slot := find(request), str) else slot


def raw_slot_keys(crawler: Crawler) -> Callable[[Request], str]:
    """Return the function that gives the download slot of a request, as Scrapy has it."""
    if (throttling := throttling_of(crawler)) is not None:
        return throttling.slot_keys(crawler)  # type: ignore[no-any-return]
    if (find := get(crawler.engine.downloader, "get_slot_key")) is not None:
        return find  # type: ignore[no-any-return]
    miss("Downloader.get_slot_key", "a slot is what the meta of a request names, or its host")
    return lambda request: str(
        request.meta.get(SLOT_KEY) or urlparse_cached(request).hostname or ""
    )


def slot_loads(crawler: Crawler) -> Callable[[str], float]:
    """Return the function that gives how many requests the downloader has of a slot, or their share
    of as many as it may have."""
    if (throttling := throttling_of(crawler)) is not None:
        return throttling.slot_loads(crawler)  # type: ignore[no-any-return]
    slots = getattr(crawler.engine.downloader, "slots", None)
    if slots is None:
        miss("Downloader.slots", "slots take turns, whatever their load")
        slots = {}
    return lambda slot: len(slots[slot].active) if slot in slots else 0


def answer_unsent(crawler: Crawler, slot: str, answer: Callable[[Request], Request | None]) -> None:
    """Give the engine `answer(request)` for each request that waits in the downloader, as a
    downloader middleware may; None leaves it there."""
    if throttling_of(crawler) is not None:
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
    that status."""
    throttling = throttling_of(crawler)
    return throttling is not None and throttling.backs_off(crawler, request, status)


def slots_take_turns() -> bool:
    """Return how DownloaderAwarePriorityQueue chooses among the slots with the fewest downloads:
    False for the first by name, as up to Scrapy 2.14, True for the first behind the last."""
    return hasattr(pqueues.DownloaderAwarePriorityQueue, "_next_slot")
