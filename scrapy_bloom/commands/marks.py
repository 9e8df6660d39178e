"""The subcommand about the marks of a delta store: count, list, forget."""

from __future__ import annotations

import json
import sys
import time
from contextlib import closing
from dataclasses import replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from ..delta.file_store import FileDeltaStore
from ..delta.settings import KEY_BYTES, key_of_fingerprint
from ..delta.slices import Shape, Slice
from ..errors import BloomError
from ..quantities import seconds
from ..redis_backend.layout import in_one_slot
from ..reporting import counted
from ..settings import DELTA_DIR, REDIS_KEY
from .delta import store_at, written
from .running import fingerprints_of
from .target import Kind

if TYPE_CHECKING:
    from ..delta.redis_store import RedisDeltaStore
    from .running import Session

PATIENCE = 5.0
"""Seconds to wait for Redis."""
ACTIONS = ("count", "list", "forget")


def delta(session: Session) -> int:
    """Count, list or forget the marks of a delta store."""
    options = session.options
    action, place, *urls = options.words if _has_action(options.words) else ["", *options.words]
    older = None
    if options.older is not None and (older := seconds(options.older)) is None:
        raise BloomError(
            f"--older is {options.older!r}: it must be days, or text such as 12h or 30d"
        )
    if not action:
        if urls or options.hex_keys or older is None:
            raise BloomError(
                "say what to do: count MEMORY, list MEMORY, or forget MEMORY with URLs, --key or"
                " --older"
            )
        action = "forget"
    given = bool(urls or options.hex_keys)
    if action == "forget" and not given and older is None:
        raise BloomError("say what to forget: URLs, - for standard input, --key HEX, or --older")
    if action != "forget" and given:
        raise BloomError(f"{action} takes no URLs and no --key: 'scrapy bloom check' knows URLs")
    keys = [_key(text) for text in options.hex_keys]
    with closing(_store(session, place, action)) as store:
        before = None if older is None else time.time() - older
        if action == "count":
            return _count(session, store, before)
        if action == "list":
            return _list(session, store, before)
        return _forget(session, store, keys, urls, older)


def _has_action(words: list[str]) -> bool:
    return words[0] in ACTIONS and len(words) > 1


def _key(text: str) -> bytes:
    try:
        key = bytes.fromhex(text)
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        raise BloomError(
            f"--key is {text!r}: it must be {2 * KEY_BYTES} hexadecimal digits, as 'delta list'"
            " prints them"
        )
    return key


def _store(session: Session, place: str, action: str) -> FileDeltaStore | RedisDeltaStore:
    """Return the delta store at `place`, open, with all slices that are there."""
    target = session.target(place, Kind.DELTA_STORE, Kind.REDIS)
    if Kind.DELTA_STORE in target.kinds:
        store = store_at(session, target.path)
        if action == "forget":
            store.table.roll_back()
        store.slices.shape = store.shape = replace(store.shape, period=None)
        store.look()
        return store
    from ..delta.redis_store import RedisDeltaStore

    crawler = session.crawler()
    name = DELTA_DIR.read(crawler.settings)
    if session.options.spider:
        name = name.replace("%(spider)s", session.options.spider.replace("/", "_"))
    if "%(spider)s" in name:
        raise BloomError(
            "which delta store is meant says BLOOM_DELTA_DIR: give --spider NAME in its project, or"
            " -s BLOOM_DELTA_DIR=NAME"
        )
    found = RedisDeltaStore(place, name, Shape(), PATIENCE)
    if not found.identity:
        found.close()
        raise BloomError(f"{found.name} is no delta store: give the BLOOM_DELTA_DIR of its crawl")
    if action == "forget" and _carry_over(session, found, place):
        found.close()
        found = RedisDeltaStore(place, name, Shape(), PATIENCE)
    return found


def _carry_over(session: Session, store: RedisDeltaStore, url: str) -> int:
    """Add the marks for `store` that wait in the crawl of the settings, so that those of pages to
    forget do not come later; return how many."""
    from ..delta.waiting import carry_over_left

    waiting, crawl = _waiting(session, store)
    return carry_over_left(store.client, url, in_one_slot(crawl))[0] if waiting else 0


def _count(session: Session, store: FileDeltaStore | RedisDeltaStore, before: float | None) -> int:
    pages, slices = store.counts(before)
    parts = [counted(pages, "page")] if pages or not slices else []
    if slices:
        parts.append(f"{counted(sum(slices.values()), 'mark')} in {counted(len(slices), 'slice')}")
    digests = store.digests if before is None else 0
    parts += [counted(digests, "digest")] if digests else []
    lines = [f"{store.name}: {' and '.join(parts)}"]
    figures: dict[str, object] = {"pages": pages, "digests": digests, "slices": slices}
    if not isinstance(store, FileDeltaStore):
        waiting, crawl = _waiting(session, store)
        figures["marks_waiting"] = waiting
        if waiting:
            lines.append(f"{counted(waiting, 'mark')} on the way from the crawl {crawl}")
    session.print(figures, lines)
    return 0


def _waiting(session: Session, store: RedisDeltaStore) -> tuple[int, str]:
    """Return how many marks for `store` wait in the crawl of the settings, and its key; 0 where the
    settings name none, or the user has no right to it."""
    from ..delta.waiting import waiting_in

    key = REDIS_KEY.read(session.crawler().settings)
    key = key.replace("%(spider)s", session.options.spider or "%(spider)s")
    if not store.client.may_touch(in_one_slot(key)):
        return 0, key
    count, text = waiting_in(store.client, in_one_slot(key))
    return (count if text and json.loads(text)["name"] == store.key else 0), key


def _list(session: Session, store: FileDeltaStore | RedisDeltaStore, before: float | None) -> int:
    for key, when, digest in store.marks(before):
        figures = {"key": key.hex(), "time": None, "digest": digest and digest.hex()}
        if when is not None:
            figures["time"] = datetime.fromtimestamp(when, timezone.utc).isoformat("T", "seconds")
        if session.options.json:
            session.print_json(figures)
        else:
            session.print_lines(["  ".join(text or "-" for text in figures.values())])
    if unlisted := store.unlisted:
        sys.stderr.write(f"{counted(unlisted, 'slice')} of {store.name} cannot be listed\n")
    return 0


def _forget(
    session: Session,
    store: FileDeltaStore | RedisDeltaStore,
    keys: list[bytes],
    urls: list[str],
    older: float | None,
) -> int:
    if urls:
        session.options.urls = urls
        found = fingerprints_of(session, store.identity, store.name)
        keys += [key_of_fingerprint(fingerprint) for _, fingerprint in found]
    pages, dropped = store.forget([*dict.fromkeys(keys)]), list[Slice]()
    if older is not None:
        aged, dropped = store.drop_older(older)
        pages += aged
    forgot = [counted(pages, "page")] if pages or not dropped else []
    forgot += [counted(len(dropped), "slice")] if dropped else []
    times = [f"  {written(each.start)} to {written(each.end)}" for each in dropped]
    session.print(
        {"pages": pages, "dropped": [vars(each) for each in dropped]},
        [f"forgot {' and '.join(forgot)}", *times],
    )
    return 0
