"""Digests of the items of a page, by which a later crawl knows whether the page has changed."""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Mapping, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from itemadapter import ItemAdapter

from ..crawl.forms import as_json
from ..errors import message_of
from .marks import CHANGED, NEW, UNCHANGED

if TYPE_CHECKING:
    from scrapy.crawler import Crawler
    from scrapy.http import Response

    from .file_store import FileDeltaStore
    from .marks import Marks
    from .redis_store import RedisDeltaStore


logger = logging.getLogger(__name__)

BYTES = 16


class Digests:
    """Compares the items of pages, less the fields `without`, with what the delta `store` has of
    earlier crawls, and `marks` of this round. Memory: a hash object for each page in progress."""

    def __init__(
        self,
        crawler: Crawler,
        store: FileDeltaStore | RedisDeltaStore,
        marks: Marks,
        without: Collection[str],
    ) -> None:
        self._log = logging.LoggerAdapter(logger, {"spider": crawler.spider})
        self._store = store
        self._marks = marks
        self._without = without
        self._has_told = False
        self._is_off = False

    def add(self, so_far: blake2b | None, item: Any, response: Response) -> blake2b:
        """Return the hash of a page whose hash is `so_far`, None for the first item, with one item
        more. The digest of an item that has no stable form equals no other. Never raises. Cost: 10
        µs for a small item."""
        so_far = so_far or _hash()
        fields: dict[str, Any] = {}
        try:
            fields = {k: v for k, v in ItemAdapter(item).items() if k not in self._without}
            text = as_json(fields)
        except Exception as error:  # noqa: BLE001 - classes of others
            self._tell_of_unstable(fields, response, error)
            so_far.update(os.urandom(BYTES))
        else:
            so_far.update(f"{text}\n".encode())
        return so_far

    def verdict(self, keys: Sequence[bytes], digest: bytes) -> str | None:
        """Return the verdict on a page, None if it cannot be compared. Its `keys` are asked from
        the last one on, that of the request which led to the page. Raises sqlite3.Error."""
        previous, earlier = None, None
        for key in reversed(keys):
            of_round, verdict = self._marks.find(key)
            previous = previous or of_round or self._stored(key)
            earlier = earlier or verdict
        if self._is_off:
            return None
        if earlier not in (None, UNCHANGED):
            return earlier
        if previous is None:
            return NEW
        return UNCHANGED if previous == digest else CHANGED

    def _stored(self, key: bytes) -> bytes | None:
        try:
            return None if self._is_off else self._store.fact(key, "digest")
        except Exception as error:  # noqa: BLE001 - pages are fetched and their items stay
            self._is_off = True
            what = "The delta store failed: %s. No more pages are compared in this crawl."
            self._log.error(what, message_of(error))
            return None

    def _tell_of_unstable(
        self, fields: Mapping[str, Any], response: Response, error: Exception
    ) -> None:
        if self._has_told:
            return
        self._has_told = True
        names = [name for name, value in fields.items() if not _is_stable(value)]
        what = "".join(f"field {name!r}: " for name in names[:1]) + message_of(error)
        self._log.warning(
            "An item of %s has no stable form (%s): its page counts as changed in each crawl. Let"
            " BLOOM_DELTA_DIGEST leave such fields out, or make them plain - no more such items"
            " will be shown",
            *(response, what),
        )


def digest_of(so_far: blake2b | None) -> bytes:
    """Return the digest of a page with that hash, None for a page without items."""
    return (so_far or _hash()).digest()


def _hash() -> blake2b:
    return blake2b(digest_size=BYTES, usedforsecurity=False)


def _is_stable(value: Any) -> bool:
    try:
        as_json(value)
    except Exception:  # noqa: BLE001 - see add
        return False
    return True
