"""The settings of the delta store, and the meta keys of requests that concern it."""

from __future__ import annotations

from contextlib import suppress
from hashlib import blake2b
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from scrapy.utils.misc import load_object
from scrapy.utils.project import data_path

from ..amounts import DAY
from ..crawl.failed_request import ATTEMPTS_KEY
from ..crawl.settings import times, wants_delta
from ..settings import (
    OFF,
    PATH,
    Group,
    Setting,
    Values,
    in_words,
    require,
    switch,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from scrapy import Request
    from scrapy.crawler import Crawler
    from scrapy.settings import BaseSettings
    from typing_extensions import Self

MODES = ("item", "success", "response")


class Digest(NamedTuple):
    """What BLOOM_DELTA_DIGEST asks for: digests of items `without` some fields; whether the feeds
    get no items of unchanged pages."""

    without: tuple[str, ...] = ()
    skips: bool = False


def _digest(value: Any) -> Digest | None:
    if value in OFF:
        return None
    if value in (True, "True", "true", "1"):
        return Digest()
    skips = False
    if isinstance(value, str):
        require(not value.lstrip().startswith("["))  # JSON
        before, colon, after = value.partition(":")
        if skips := before.strip() == "skip":
            value = after.split(",") if colon else []
        else:
            value = value.split(",")
    require(isinstance(value, (list, tuple, set, frozenset)))
    fields = tuple(sorted(map(str.strip, value)))
    require(all(fields) and (skips or "skip" not in fields))
    return Digest(fields, skips)


DELTA: Setting[str | None] = Setting(
    "BLOOM_DELTA",
    None,
    Values(
        f"None, {in_words(MODES)}",
        lambda value: None if value in OFF else value,
        (None, *MODES).__contains__,
    ),
    "What counts as done",
)
DELTA_DIR = Setting("BLOOM_DELTA_DIR", "bloom/%(spider)s", PATH, "The directory of the delta store")
DELTA_DAYS: Setting[float | None] = Setting(
    "BLOOM_DELTA_DAYS",
    None,
    times("days above 0, or text such as '12h' or '30d'; None is for ever", bool, DAY),
    "For how long a page counts as done",
)
DELTA_RESET = switch(
    "BLOOM_DELTA_RESET", False, "Whether everything is forgotten when a round begins"
)
DELTA_READ_ONLY = switch(
    "BLOOM_DELTA_READ_ONLY", False, "Whether nothing is marked, while what is done is skipped"
)
DELTA_DIGEST: Setting[Digest | None] = Setting(
    "BLOOM_DELTA_DIGEST",
    None,
    Values(
        "True, a list of item fields to leave out, as text field,other, or 'skip', alone or as in"
        " 'skip: field, other'",
        _digest,
    ),
    "Whether pages that are fetched again are compared",
)

DELTA_CONDITIONAL = switch(
    "BLOOM_DELTA_CONDITIONAL", False, "Whether pages are asked for only if they have changed"
)

WISH = "bloom_delta"
KEYS = ("bloom_delta_key", "deltafetch_key")
VERSION = "bloom_delta_version"
MARK_KEYS = frozenset((WISH, *KEYS, VERSION, "deltafetch_enabled", "crawl_once"))
"""Meta keys that a spider may set, those of deltafetch and crawl-once included."""
SOURCES = "_bloom_delta_sources"
"""In the meta of a redirect: its URL, and the keys of the requests that were redirected to it."""
KEY_BYTES = 20
HASH_BYTES = 8
"""Of a version, and of the fingerprint that validators belong to."""

_OF_SCRAPY = frozenset(("download_latency", "depth"))
"""In the meta of a fetched request. The first is missing for responses from HttpCache, the second
without DepthMiddleware."""


def check(crawler: Crawler) -> None:
    """Raise ValueError if BLOOM_DELTA or BLOOM_DELTA_DIGEST is set in vain."""
    settings = crawler.settings
    if not wants_delta(settings):
        return
    with suppress(RuntimeError):  # a script without an engine has no middlewares
        # by its path: the class is loaded for this question alone
        if crawler.get_spider_middleware(load_object("scrapy_bloom.DeltaMiddleware")) is not None:
            return
    name = DELTA.name if settings.get(DELTA.name) else DELTA_DIGEST.name
    raise ValueError(
        f"{name} is {settings.get(name)!r}, but DeltaMiddleware is not enabled: put"
        " 'scrapy_bloom.Addon': 300 into ADDONS, leave its DeltaMiddleware in"
        f" SPIDER_MIDDLEWARES, or set {name} to None"
    )


class Lifetime(NamedTuple):
    """How long a mark counts: `period` in seconds, None without expiry; and for whom: `identity` is
    the text about the fingerprinter."""

    period: float | None = None
    identity: str = ""

    @property
    def reach(self) -> float:
        """Seconds for which a mark counts, infinite without expiry."""
        return inf if self.period is None else self.period


class DeltaSettings(Group):
    """The `mode` that says which pages are done, None for none, the `name` of the delta store, the
    `period` of a mark in seconds, None for ever, and how pages are compared by `digest`."""

    mode = DELTA
    name = DELTA_DIR
    period = DELTA_DAYS
    reset = DELTA_RESET
    read_only = DELTA_READ_ONLY
    digest = DELTA_DIGEST
    conditional = DELTA_CONDITIONAL

    @property
    def directory(self) -> Path:
        """The place of the delta store on the disk."""
        return Path(data_path(self.name))

    @classmethod
    def read(cls, settings: BaseSettings, spider: str) -> Self | None:  # type: ignore[override]
        """Return the values in `settings` for the spider of that name, None if BLOOM_DELTA
        and BLOOM_DELTA_DIGEST are off. Raises ValueError as BloomSettings does."""
        if DELTA.read(settings) is None and DELTA_DIGEST.read(settings) is None:
            return None
        found = super().read(settings)
        if found.reset and found.read_only:
            raise ValueError(
                "BLOOM_DELTA_RESET is True, and so is BLOOM_DELTA_READ_ONLY: what is read only"
                " cannot be forgotten; leave one of them out"
            )
        name = found.name.replace("%(spider)s", spider.replace("/", "_"))
        has_cache = settings.getbool("HTTPCACHE_ENABLED")
        return found.but(name=name, conditional=found.conditional and not has_cache)


def wish_of(meta: Mapping[str, Any]) -> Any:
    """Return bloom_delta of a request (True, False or a number of days), None for the default."""
    if WISH in meta:
        return meta[WISH]
    if "deltafetch_enabled" in meta:
        return None if meta["deltafetch_enabled"] else False
    if "crawl_once" in meta:
        return bool(meta["crawl_once"])
    return None


def key_in(meta: Mapping[str, Any]) -> Any:
    """Return the key that a spider gave to a request, None for none. It may be of any type."""
    return next(filter(None, map(meta.get, KEYS)), None)


def given_key(meta: Mapping[str, Any]) -> bytes | None:
    """Return the key for the text or the bytes that `key_in` finds, None for anything else."""
    given = key_in(meta)
    return key_of_text(given) if isinstance(given, (str, bytes)) else None


def version_of(meta: Mapping[str, Any]) -> bytes | None:
    """Return a hash of the version that a spider gave to a page, None without any text."""
    given = meta.get(VERSION)
    if not given or not isinstance(given, str):
        return None
    return short_hash(given.encode("utf-8", "surrogatepass"))


def short_hash(data: bytes) -> bytes:
    """Return HASH_BYTES for `data`."""
    return blake2b(data, digest_size=HASH_BYTES, usedforsecurity=False).digest()


def key_of_text(text: str | bytes) -> bytes:
    """Return the key for a text; it differs from all fingerprints."""
    if isinstance(text, str):
        text = text.encode("utf-8", "surrogatepass")
    return blake2b(text, digest_size=KEY_BYTES, person=b"bloom_delta_key").digest()


def key_of_fingerprint(fingerprint: bytes) -> bytes:
    """Return the key for a fingerprint: itself if it has the length of Scrapy's."""
    if len(fingerprint) == KEY_BYTES:
        return fingerprint
    return blake2b(fingerprint, digest_size=KEY_BYTES).digest()


def drop_copied(request: Request, meta: Mapping[str, Any]) -> bool:
    """Remove the delta keys and the attempts that a request has copied from the `meta` of the
    response that led to it, since these concern that page. Return True if there were delta keys.

    Copied meta is recognised by Scrapy's own keys and an unchanged value.
    """
    own = request.meta
    for name in (SOURCES, ATTEMPTS_KEY):
        own.pop(name, None)
    if own.keys().isdisjoint(MARK_KEYS) or own.keys().isdisjoint(_OF_SCRAPY):
        return False
    copied = [name for name in MARK_KEYS & own.keys() if name in meta and own[name] == meta[name]]
    for name in copied:
        del own[name]
    return bool(copied)
