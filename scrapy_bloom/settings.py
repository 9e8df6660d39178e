"""The settings of the dupefilter, read from Scrapy's and checked."""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, quote, urlencode

from .bloom import sizing
from .jobdir import JobDirectory
from .quantities import MOST, whole_number

if TYPE_CHECKING:
    from scrapy.settings import BaseSettings

ON_FULL = ("grow", "close")
ON_ERROR = ("close", "local")
FAILED = ("download", "status", "callback", "feed", "ignored", "item")
QUEUE_ON_ERROR = ("wait", "close")
MOST_RECENT_URLS = 2**24


@dataclass(frozen=True)
class BloomSettings:
    """The settings of a dupefilter. docs/settings.md says what each means."""

    capacity: int = 1_000_000
    error_rate: float = 1e-6
    exact: bool = False
    on_full: str = "grow"
    recent_urls: int = 65_536
    job: JobDirectory | None = None
    debug: bool = False

    @classmethod
    def read(cls, settings: BaseSettings) -> BloomSettings:
        """Return the settings in `settings`, where numbers may be text (`-s`).

        Raises ValueError with the name, the value and the allowed range of the first
        bad one.
        """
        capacity = _quantity(
            settings,
            "BLOOM_CAPACITY",
            cls.capacity,
            range(1, MOST + 1),
            f"from 1 to {MOST:,}, the requests expected, such as 10000000, '10M' or 1e7",
        )
        error_rate = _number(float, settings.get("BLOOM_ERROR_RATE", cls.error_rate))
        on_full = settings.get("BLOOM_ON_FULL", cls.on_full)
        recent_urls = _quantity(
            settings,
            "BLOOM_RECENT_URLS",
            cls.recent_urls,
            range(MOST_RECENT_URLS + 1),
            f"from 0 (off) to {MOST_RECENT_URLS:,}, the URLs remembered",
        )
        sizing.check_error_rate(error_rate, "BLOOM_ERROR_RATE")
        if on_full not in ON_FULL:
            raise ValueError(f"BLOOM_ON_FULL is {on_full!r}: it must be one of {ON_FULL}")
        return cls(
            capacity=capacity,
            error_rate=error_rate,
            exact=_boolean(settings, "BLOOM_EXACT", cls.exact),
            on_full=on_full,
            recent_urls=recent_urls,
            job=JobDirectory.of(settings.get("JOBDIR")),
            debug=settings.getbool("DUPEFILTER_DEBUG"),
        )


@dataclass(frozen=True)
class RedisSettings:
    """Where a shared filter is, and what a worker does when it cannot be reached."""

    url: str = "redis://localhost:6379/0"
    key: str = "%(spider)s:bloom"
    timeout: float = 5.0
    on_error: str = "close"

    @classmethod
    def read(cls, settings: BaseSettings, spider: str, *, queue: bool = False) -> RedisSettings:
        """Return the settings in `settings` for the spider of that name, for the filter
        alone or with a `queue` in the same place. Raises ValueError as BloomSettings does."""
        url = settings.get("BLOOM_REDIS_URL") or scrapy_redis_url(settings) or cls.url
        key = settings.get("BLOOM_REDIS_KEY") or cls.key
        timeout = _number(float, settings.get("BLOOM_REDIS_TIMEOUT", cls.timeout))
        ways = QUEUE_ON_ERROR if queue else ON_ERROR
        on_error = settings.get("BLOOM_REDIS_ON_ERROR", ways[0])
        if not isinstance(url, str):
            raise ValueError("BLOOM_REDIS_URL must be text, such as 'redis://localhost:6379/0'")
        if not isinstance(key, str) or "{" in key or "}" in key:
            raise ValueError(
                f"BLOOM_REDIS_KEY is {key!r}: it must be text without braces, which are for Redis"
                " Cluster; %(spider)s stands for the spider's name"
            )
        if type(timeout) not in (int, float) or not 0 < timeout < 3600:
            raise ValueError(
                f"BLOOM_REDIS_TIMEOUT is {timeout!r}: it must be a number above 0 and below 3600,"
                " the seconds that a request may wait for Redis"
            )
        if on_error not in ways:
            raise ValueError(f"BLOOM_REDIS_ON_ERROR is {on_error!r}: it must be one of {ways}")
        name = spider.replace("{", "(").replace("}", ")")
        return cls(url, key.replace("%(spider)s", name), float(timeout), on_error)


@dataclass(frozen=True)
class WorkerSettings:
    """How workers share a queue in Redis. docs/workers.md says what each means."""

    lease: float = 60.0
    slot_workers: int = 0
    max_attempts: int = 5
    idle: float = 0.0
    round: str = ""

    @classmethod
    def read(cls, settings: BaseSettings) -> WorkerSettings:
        """Return the settings in `settings`. Raises ValueError as BloomSettings does."""
        idle = _number(float, settings.get("BLOOM_REDIS_IDLE", cls.idle))
        lease = _number(float, settings.get("BLOOM_REDIS_LEASE", cls.lease))
        slot_workers = _quantity(
            settings, "BLOOM_REDIS_SLOT_WORKERS", 0, range(2), "0 (any) or 1, the workers of a slot"
        )
        max_attempts = _quantity(
            settings,
            "BLOOM_REDIS_MAX_ATTEMPTS",
            cls.max_attempts,
            range(1, MOST),
            "above 0, after which a page that kills its workers has failed",
        )
        if type(lease) not in (int, float) or not 1 <= lease <= 86400:
            raise ValueError(
                f"BLOOM_REDIS_LEASE is {lease!r}: it must be a number from 1 to 86400, the seconds"
                " after which a worker counts as dead"
            )
        if type(idle) not in (int, float) or not idle >= 0:
            raise ValueError(
                f"BLOOM_REDIS_IDLE is {idle!r}: it must be a number of seconds from 0, or inf to"
                " wait for ever"
            )
        round_ = str(settings.get("BLOOM_REDIS_ROUND") or "")
        return cls(float(lease), slot_workers, max_attempts, float(idle), round_)


def scrapy_redis_clears(settings: BaseSettings) -> bool:
    """Return True unless SCHEDULER_PERSIST is set: scrapy-redis's scheduler clears the
    queue and the filter when a worker closes."""
    return not settings.getbool("SCHEDULER_PERSIST")


@dataclass(frozen=True)
class IdentitySettings:
    """What CanonicalRequestFingerprinter leaves out of a URL."""

    query_params: tuple[str, ...] = ()
    path_params: tuple[str, ...] = ()
    scheme: bool = False

    @classmethod
    def read(cls, settings: BaseSettings) -> IdentitySettings:
        """Return the settings in `settings`. Raises ValueError as BloomSettings does."""
        return cls(
            query_params=_patterns(settings, "BLOOM_IGNORE_QUERY_PARAMS"),
            path_params=_patterns(settings, "BLOOM_IGNORE_PATH_PARAMS"),
            scheme=_boolean(settings, "BLOOM_IGNORE_SCHEME", False),
        )


@dataclass(frozen=True)
class FailedSettings:
    """Whether requests stay in the job as failed, which do without a call of fail(),
    `kinds` of FAILED or none, and whether each start of the job asks those once more."""

    kinds: frozenset[str] = frozenset(("download", "status", "callback", "feed"))
    keep: bool = True
    retry: bool = False

    @classmethod
    def read(cls, settings: BaseSettings) -> FailedSettings:
        """Return the settings in `settings`. Raises ValueError as BloomSettings does."""
        value = settings.get("BLOOM_FAILED")
        kinds = cls.kinds
        if value is not None:
            kinds = frozenset(str(kind).strip() for kind in settings.getlist("BLOOM_FAILED"))
        if not kinds <= {*FAILED}:
            raise ValueError(f"BLOOM_FAILED is {value!r}: it must be a list of some of {FAILED}")
        keep = _boolean(settings, "BLOOM_KEEP_FAILED", True)
        return cls(
            kinds=kinds if keep else frozenset(),
            keep=keep,
            retry=_boolean(settings, "BLOOM_RETRY_FAILED", False),
        )


@dataclass(frozen=True)
class AuditSettings:
    """Where dropped requests are recorded, if `path` is not empty, and which share of them."""

    path: str = ""
    share: float = 1.0

    @classmethod
    def read(cls, settings: BaseSettings) -> AuditSettings:
        """Return the settings in `settings`. Raises ValueError as BloomSettings does."""
        path = settings.get("BLOOM_AUDIT") or cls.path
        share = _number(float, settings.get("BLOOM_AUDIT_SHARE", cls.share))
        if not isinstance(path, (str, PathLike)):
            raise ValueError(f"BLOOM_AUDIT is {path!r}: it must be the path of a file")
        if type(share) not in (int, float) or not 0 < share <= 1:
            raise ValueError(
                f"BLOOM_AUDIT_SHARE is {share!r}: it must be a number above 0 and at most 1, the"
                " share of the dropped requests that is recorded"
            )
        return cls(str(path), float(share))


def wants_durable(settings: BaseSettings) -> bool:
    """Return BLOOM_DURABLE: whether the add-on sets the durable scheduler."""
    return _boolean(settings, "BLOOM_DURABLE", True)


def repeats_start(settings: BaseSettings) -> bool:
    """Return BLOOM_REPEAT_START: whether each start of the process sends all start
    requests, as Scrapy does. Raises ValueError."""
    return _boolean(settings, "BLOOM_REPEAT_START", False)


def takes_any_spider(settings: BaseSettings) -> bool:
    """Return BLOOM_ANY_SPIDER: whether a spider may go on with another one's requests. Raises
    ValueError."""
    return _boolean(settings, "BLOOM_ANY_SPIDER", False)


def wants_durable_feeds(settings: BaseSettings) -> bool:
    """Return BLOOM_DURABLE_FEEDS: whether the add-on sets the durable feed exporter."""
    return _boolean(settings, "BLOOM_DURABLE_FEEDS", True)


def wants_early(settings: BaseSettings) -> bool | None:
    """Return BLOOM_DROP_EARLY: whether duplicates are dropped next to the spider; None for
    only where no other component would see them. Raises ValueError."""
    if settings.get("BLOOM_DROP_EARLY") is None:
        return None
    return _boolean(settings, "BLOOM_DROP_EARLY", False)


def wants_delta(settings: BaseSettings) -> bool:
    """Return whether BLOOM_DELTA is on: it may be anything else than None or False."""
    return settings.get("BLOOM_DELTA") not in (None, False, "", "None", "False", "false")


def _boolean(settings: BaseSettings, name: str, default: bool) -> bool:
    try:
        return settings.getbool(name, default)
    except ValueError:
        raise ValueError(f"{name} is {settings.get(name)!r}: it must be True or False") from None


def _patterns(settings: BaseSettings, name: str) -> tuple[str, ...]:
    """Return names and globs, sorted, from a list or from text with commas; True stands
    for all, None and False for none."""
    value = settings.get(name)
    if value in (None, False, True, "True", "true", "False", "false", ""):
        return ("*",) if value in (True, "True", "true") else ()
    if isinstance(value, str):
        value = value.split(",")
    try:
        patterns = {pattern.strip() for pattern in value}
    except (AttributeError, TypeError):
        patterns = {""}
    if "" in patterns:
        raise ValueError(
            f"{name} is {settings.get(name)!r}: it must be a list of names and globs that are not"
            " empty, such as ['gclid', 'utm_*']"
        )
    return tuple(sorted(patterns))


def _quantity(settings: BaseSettings, name: str, default: int, allowed: range, meaning: str) -> int:
    value = settings.get(name, default)
    number = whole_number(value)
    if number is None or number not in allowed:
        raise ValueError(f"{name} is {value!r}: it must be a whole number {meaning}")
    return number


def _number(kind: type, value: Any) -> Any:
    """Return text as a number; what is no number stays for the range check to name."""
    if isinstance(value, str):
        try:
            return kind(value)
        except ValueError:
            pass
    return value


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
