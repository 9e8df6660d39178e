"""The settings of crawls in Redis, and those of scrapy-redis that stand in for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, quote, urlencode

from scrapy.settings import BaseSettings

from ..amounts import MOST
from ..settings import Group, Setting, Values, in_words, number, require, whole

if TYPE_CHECKING:
    from typing_extensions import Self


def _text(value: Any) -> str | None:
    require(not value or isinstance(value, str))
    return value or None


def _key(value: Any) -> str | None:
    text = _text(value)
    require(text is None or not {"{", "}"} & {*text})
    return text


REDIS_URL = Setting(
    "BLOOM_REDIS_URL",
    "redis://localhost:6379/0",
    Values("text, such as 'redis://localhost:6379/0'", _text),
    "Where Redis is",
)
REDIS_KEY = Setting(
    "BLOOM_REDIS_KEY",
    "%(spider)s:bloom",
    Values("text without braces, which are for Redis Cluster; %(spider)s is its spider", _key),
    "The key of the filter, and of the crawl that belongs to it",
)
REDIS_TIMEOUT = Setting(
    "BLOOM_REDIS_TIMEOUT",
    5.0,
    number("of seconds above 0 and below 3600", lambda timeout: 0 < timeout < 3600),
    "Seconds that a request waits for Redis before that is an outage",
)
ON_ERROR = "wait", "close"
REDIS_ON_ERROR = Setting(
    "BLOOM_REDIS_ON_ERROR",
    "wait",
    Values(in_words(ON_ERROR), str, ON_ERROR.__contains__),
    "What an outage of Redis does",
)
REDIS_LEASE = Setting(
    "BLOOM_REDIS_LEASE",
    60.0,
    number("of seconds from 1 to 86400", lambda lease: 1 <= lease <= 86400),
    "Seconds without a sign of life after which a worker counts as dead",
)
REDIS_SLOT_WORKERS = Setting(
    "BLOOM_REDIS_SLOT_WORKERS",
    0,
    whole(0, 1, "the workers of a slot; 0 is any"),
    "With `1` the requests of a download slot (a domain) go to one worker at a time",
)
REDIS_MAX_ATTEMPTS = Setting(
    "BLOOM_REDIS_MAX_ATTEMPTS",
    5,
    whole(1, MOST, "after which a page that kills its workers has failed"),
    "After how many workers lost alone with it a page has [failed](failed.md#in-redis)",
)
REDIS_IDLE = Setting(
    "BLOOM_REDIS_IDLE",
    0.0,
    number("of seconds from 0, or inf to wait for ever", lambda idle: idle >= 0),
    "Seconds that workers stay when nothing is left, to wait for more",
)
REDIS_ROUND = Setting(
    "BLOOM_REDIS_ROUND",
    "",
    Values("any text", lambda value: str(value) if value else None),
    "Any text, such as a date, that begins a new round of a crawl that is over",
)


class RedisSettings(Group):
    """The place of a shared filter, and the reaction to an outage of Redis."""

    url = REDIS_URL
    key = REDIS_KEY
    timeout = REDIS_TIMEOUT
    on_error = REDIS_ON_ERROR

    @classmethod
    def read(cls, settings: BaseSettings, spider: str) -> Self:  # type: ignore[override]
        """Return the values in `settings` for the spider of that name."""
        found = super().read(settings)
        url = None if settings.get(REDIS_URL.name) else scrapy_redis_url(settings)
        name = spider.replace("{", "(").replace("}", ")")
        return found.but(url=url or found.url, key=found.key.replace("%(spider)s", name))


class WorkerSettings(Group):
    """The timing of a worker, its share of the slots, and its round."""

    lease = REDIS_LEASE
    slot_workers = REDIS_SLOT_WORKERS
    max_attempts = REDIS_MAX_ATTEMPTS
    idle = REDIS_IDLE
    round = REDIS_ROUND


def scrapy_redis_url(settings: BaseSettings) -> str | None:
    """Return the server that scrapy-redis is set to use, if it is: by REDIS_PARAMS, and
    REDIS_URL, REDIS_HOST, REDIS_PORT and REDIS_DB, which come before those."""
    params = dict(settings.getdict("REDIS_PARAMS"))
    for name in ("url", "host", "port", "db"):
        params[name] = settings.get(f"REDIS_{name.upper()}") or params.get(name)
    for name in ("redis_cls", "connection_pool", "credential_provider"):
        if params.get(name):
            raise ValueError(
                f"REDIS_PARAMS has {name!r}, and what server that leads to cannot be known: set"
                " BLOOM_REDIS_URL"
            )
    url, host, port, db = (params[name] for name in ("url", "host", "port", "db"))
    scheme = "rediss" if params.get("ssl") or str(url).startswith("rediss") else "redis"
    wanted = ("username", "password", "ssl_") if scheme == "rediss" else ("username", "password")
    options = {
        name: value
        for name, value in params.items()
        if value is not None and name.startswith(wanted)
    }
    if url:
        _, _, after_host = url.partition("?")[0].partition("://")[2].partition("/")
        if db and (not after_host or url.startswith("unix:")):
            options["db"] = db
        return _with_options(str(url), options)
    if path := params.get("unix_socket_path"):
        return _with_options(f"unix://{quote(path)}", {"db": db or 0, **options})
    if not (host or port or db or options):
        return None
    host = f"[{host}]" if ":" in str(host) else host or "localhost"
    return _with_options(f"{scheme}://{host}:{port or 6379}/{db or 0}", options)


def _with_options(url: str, options: dict[str, Any]) -> str:
    """Return `url` with those of the `options` of redis-py that it does not have."""
    found = parse_qs(url.partition("?")[2])
    missing = {name: value for name, value in options.items() if name not in found}
    if not missing:
        return url
    return f"{url}{'&' if '?' in url else '?'}{urlencode(missing)}"
