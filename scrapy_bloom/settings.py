"""The settings of this package: one table, from which each reader takes default and check.

tests/test_documents.py holds the reference page against the table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar
from urllib.parse import parse_qs, quote, urlencode

from scrapy.settings import BaseSettings

from .amounts import MOST, seconds, whole_number
from .bloom.growing import ScalableBloomFilter
from .bloom.sizing import ERROR_RATES, is_error_rate
from .jobdir import JobDirectory

if TYPE_CHECKING:
    from typing_extensions import Self

T = TypeVar("T")

_OFF = (None, False, "", "None", "False", "false", "0")


@dataclass(frozen=True)
class Values:
    """The values that a setting can have: `allowed` in words; `convert` returns one, None for
    the default, or raises as `float` does. Text from the command line (`-s`) will do."""

    allowed: str
    convert: Callable[[Any], Any]


@dataclass(frozen=True)
class Setting(Generic[T]):
    """A setting: its part of docs/settings.md begins with `meaning`."""

    name: str
    default: T
    values: Values
    meaning: str

    def read(self, settings: BaseSettings) -> T:
        """Return the value in `settings`, or the default. Raises ValueError with the name, the
        value and what is allowed."""
        given = self.given(settings)
        if given is None:
            return self.default
        try:
            value: T | None = self.values.convert(given)
        except (OverflowError, TypeError, ValueError):
            # a URL of Redis may hold a password, even as bytes
            shown = f"a {type(given).__name__}" if self.name == "BLOOM_REDIS_URL" else repr(given)
            raise ValueError(f"{self.name} is {shown}: it must be {self.values.allowed}") from None
        return self.default if value is None else value

    def given(self, settings: BaseSettings) -> Any:
        """Return the unchecked value in `settings`, None for none."""
        return settings.get(self.name)

    def field(self) -> T:
        """Return the field of this setting in a group."""
        return field(default=self.default, metadata={"setting": self})


def _require(is_allowed: bool) -> None:
    if not is_allowed:
        raise ValueError


def _whole(first: int, last: int, meaning: str) -> Values:
    def convert(value: Any) -> int:
        number = whole_number(value)
        if number is None or not first <= number <= last:
            raise ValueError
        return number

    return Values(f"a whole number from {first} to {last:,}, {meaning}", convert)


def _number(allowed: str, is_allowed: Callable[[float], bool]) -> Values:
    def convert(value: Any) -> float:
        _require(isinstance(value, (int, float, str)) and not isinstance(value, bool))
        number = float(value)
        _require(is_allowed(number))
        return number

    return Values(f"a number {allowed}", convert)


def _words(words: Sequence[str]) -> str:
    return f"{', '.join(map(repr, words[:-1]))} or {words[-1]!r}"


def _one_of(*words: str) -> Values:
    def convert(value: Any) -> str:
        _require(value in words)
        return str(value)

    return Values(_words(words), convert)


def _some_of(*words: str) -> Values:
    def convert(value: Any) -> frozenset[str]:
        given = BaseSettings({"value": value}).getlist("value")
        found = frozenset(str(word).strip() for word in given)
        _require(found <= {*words})
        return found

    return Values(f"a list of some of {_words(words)}", convert)


def _mode(value: Any) -> str | None:
    return None if value in _OFF else _one_of(*MODES).convert(value)


class Digest(NamedTuple):
    """What BLOOM_DELTA_DIGEST asks for: digests of items `without` some fields; whether the feeds
    get no items of unchanged pages."""

    without: tuple[str, ...] = ()
    skips: bool = False


def _digest(value: Any) -> Digest | None:
    if value in _OFF:
        return None
    if value in (True, "True", "true", "1"):
        return Digest()
    skips = False
    if isinstance(value, str):
        before, colon, after = value.partition(":")
        if skips := before.strip() == "skip":
            value = after.split(",") if colon else []
        else:
            value = value.split(",")
    _require(isinstance(value, (list, tuple, set, frozenset)))
    fields = tuple(sorted(map(str.strip, value)))
    _require(all(fields) and (skips or "skip" not in fields))
    return Digest(fields, skips)


def _patterns(value: Any) -> tuple[str, ...]:
    """Return names and globs, sorted, from a list or from text with commas."""
    if value in (True, "True", "true"):
        return ("*",)
    if value in (False, "False", "false", ""):
        return ()
    found = set(map(str.strip, value.split(",") if isinstance(value, str) else value))
    _require("" not in found)
    return tuple(sorted(found))


def _switch_or_paths(value: Any) -> bool | tuple[str, ...]:
    """Return a boolean, or the paths in a list or in text with commas."""
    if isinstance(value, str) and "." in value:
        value = value.split(",")
    if not isinstance(value, (list, tuple, set, frozenset)):
        return bool(BOOLEAN.convert(value))
    _require(all(isinstance(path, str) and "." in path.strip(" .") for path in value))
    return tuple(path.strip() for path in value)


def _path(value: Any) -> str | None:
    _require(not value or isinstance(value, (str, PathLike)))
    return str(value) if value else None


def _text(value: Any) -> str | None:
    _require(not value or isinstance(value, str))
    return value or None


def _key(value: Any) -> str | None:
    text = _text(value)
    _require(text is None or not {"{", "}"} & {*text})
    return text


def _period(value: Any) -> float | None:
    if value in ("", "None"):
        return None
    period = seconds(value)
    _require(period is not None)
    return period


def _budget(value: Any) -> dict[str, int]:
    """Return most pages by slot, from a dictionary or its JSON."""
    if value in ("", "None"):
        return {}
    _require(isinstance(value, (str, Mapping)))
    found = BaseSettings({"value": value}).getdict("value")
    for slot, most in found.items():
        _require(isinstance(slot, str) and (slot == "*" or (slot != "" and "*" not in slot)))
        _require(type(most) is int and 0 <= most <= MOST)
    return found


def _wait(value: Any) -> float | None:
    if value in ("", "None"):
        return None
    with suppress(ValueError):  # of text
        return float(_number("", lambda wait: wait >= 0).convert(value))
    return _period(value)


MODES = ("item", "success", "response")
BOOLEAN = Values("True or False", lambda value: BaseSettings({"value": value}).getbool("value"))
PATH = Values("the path of a file or directory", _path)
PATTERNS = Values(
    "a list of names and globs that are not empty, such as ['gclid', 'utm_*'], or True for all",
    _patterns,
)


def _switch(name: str, default: bool, meaning: str) -> Setting[bool]:
    return Setting(name, default, BOOLEAN, meaning)


# -- the table -----------------------------------------------------------------------

CAPACITY = Setting(
    "BLOOM_CAPACITY",
    1_000_000,
    _whole(1, MOST, "the requests expected, such as 10000000, '10M' or 1e7"),
    "How many distinct requests you expect: the size of the first layer",
)
ERROR_RATE = Setting(
    "BLOOM_ERROR_RATE",
    1e-6,
    _number(ERROR_RATES, is_error_rate),
    "The bound on the chance that a new request is taken for a seen one",
)
EXACT = _switch("BLOOM_EXACT", False, "Whether an exact table stands behind the filter")
ON_FULL = Setting(
    "BLOOM_ON_FULL", "grow", _one_of("grow", "close"), "What happens at `BLOOM_CAPACITY`"
)
URL_CACHE = Setting(
    "BLOOM_URL_CACHE",
    65_536,
    _whole(0, 2**24, "the URLs remembered; 0 is off"),
    "So many URLs that were seen last are remembered as they are",
)
DROP_EARLY: Setting[bool | tuple[str, ...] | None] = Setting(
    "BLOOM_DROP_EARLY",
    None,
    Values("True, False, or a list of paths of spider middlewares", _switch_or_paths),
    "Whether duplicates are dropped next to the spider",
)
AUDIT = Setting(
    "BLOOM_AUDIT",
    "",
    PATH,
    "The path of a file that gets a line of JSON for each request that is dropped",
)
DURABLE = _switch("BLOOM_DURABLE", True, "Whether the add-on sets `SCHEDULER`")
DURABLE_FEEDS = _switch(
    "BLOOM_DURABLE_FEEDS",
    True,
    "Whether the add-on puts [`DurableFeedExporter`](feeds.md) in the place of Scrapy's",
)
REPEAT_START = _switch(
    "BLOOM_REPEAT_START", False, "Whether each start of an unfinished job sends all start requests"
)
ANY_SPIDER = _switch("BLOOM_ANY_SPIDER", False, "Whether a spider may go on with a job")
PICKLE = _switch(
    "BLOOM_PICKLE", True, "Whether values of a stored request that are not plain may be a pickle"
)
KEEP_FAILED = _switch(
    "BLOOM_KEEP_FAILED", True, "Whether requests that have failed stay in the job"
)
FAILED_KINDS = Setting(
    "BLOOM_FAILED_KINDS",
    frozenset(("download", "status", "callback", "feed")),
    _some_of("download", "status", "callback", "feed", "ignored", "item"),
    "What [counts as failed](failed.md#what-has-failed)",
)
RETRY_FAILED = _switch(
    "BLOOM_RETRY_FAILED", False, "Whether each start of the job retries failed requests"
)
DELAY_WAIT: Setting[float | None] = Setting(
    "BLOOM_DELAY_WAIT",
    None,
    Values("a number of seconds from 0, or text such as '90s' or '12h'; None is for ever", _wait),
    "How long a spider with nothing else to do waits for a delayed request",
)
HOLD = _switch(
    "BLOOM_HOLD", True, "Whether a host that answers 429 or 503 is left alone for a while"
)
HOLD_MAX = Setting(
    "BLOOM_HOLD_MAX",
    3600.0,
    _number("of seconds above 0 and at most 31536000", lambda most: 0 < most <= 31_536_000),
    "The longest hold, in seconds, whatever `Retry-After` says",
)
HOLD_TIMES = Setting(
    "BLOOM_HOLD_TIMES",
    10,
    _whole(1, 1000, "the holds in a row"),
    "So many holds in a row are waited out; then pages are retried, and fail, as without them",
)
BUDGET: Setting[dict[str, int]] = Setting(
    "BLOOM_BUDGET",
    {},
    Values(
        f"a dictionary of download slots and whole numbers from 0 to {MOST:,}, such as"
        " {'*': 10000, 'example.com': 50}; '*' is each other slot",
        _budget,
    ),
    "The most pages that a round fetches of a download slot",
)
DELTA: Setting[str | None] = Setting(
    "BLOOM_DELTA", None, Values(f"None, {_words(MODES)}", _mode), "What counts as done"
)
DELTA_DIR = Setting("BLOOM_DELTA_DIR", "bloom/%(spider)s", PATH, "The directory of the delta store")
DELTA_DAYS: Setting[float | None] = Setting(
    "BLOOM_DELTA_DAYS",
    None,
    Values("a number of days above 0, or text such as '12h' or '30d'; None is for ever", _period),
    "For how long a page counts as done",
)
DELTA_RESET = _switch(
    "BLOOM_DELTA_RESET", False, "Whether everything is forgotten when a round begins"
)
DELTA_READ_ONLY = _switch(
    "BLOOM_DELTA_READ_ONLY", False, "Whether nothing is marked, while what is done is skipped"
)
DELTA_DIGEST: Setting[Digest | None] = Setting(
    "BLOOM_DELTA_DIGEST",
    None,
    Values(
        "True, a list of item fields to leave out, or 'skip', alone or as in 'skip: field, other'",
        _digest,
    ),
    "Whether pages that are fetched again are compared",
)
IGNORE_QUERY_PARAMS: Setting[tuple[str, ...]] = Setting(
    "BLOOM_IGNORE_QUERY_PARAMS", (), PATTERNS, "Names and globs of query parameters to leave out"
)
IGNORE_PATH_PARAMS: Setting[tuple[str, ...]] = Setting(
    "BLOOM_IGNORE_PATH_PARAMS", (), PATTERNS, "Names and globs of path parameters to leave out"
)
IGNORE_SCHEME = _switch("BLOOM_IGNORE_SCHEME", False, "Whether `https` is the same as `http`")
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
    _number("of seconds above 0 and below 3600", lambda timeout: 0 < timeout < 3600),
    "Seconds that a request waits for Redis before that is an outage",
)
REDIS_ON_ERROR = Setting(
    "BLOOM_REDIS_ON_ERROR", "wait", _one_of("wait", "close"), "What an outage of Redis does"
)
REDIS_LEASE = Setting(
    "BLOOM_REDIS_LEASE",
    60.0,
    _number("of seconds from 1 to 86400", lambda lease: 1 <= lease <= 86400),
    "Seconds without a sign of life after which a worker counts as dead",
)
REDIS_SLOT_WORKERS = Setting(
    "BLOOM_REDIS_SLOT_WORKERS",
    0,
    _whole(0, 1, "the workers of a slot; 0 is any"),
    "With `1` the requests of a download slot (a domain) go to one worker at a time",
)
REDIS_MAX_ATTEMPTS = Setting(
    "BLOOM_REDIS_MAX_ATTEMPTS",
    5,
    _whole(1, MOST, "after which a page that kills its workers has failed"),
    "A page that was lost alone with so many workers has [failed](failed.md#in-redis)",
)
REDIS_IDLE = Setting(
    "BLOOM_REDIS_IDLE",
    0.0,
    _number("of seconds from 0, or inf to wait for ever", lambda idle: idle >= 0),
    "Seconds that workers stay when nothing is left, to wait for more",
)
REDIS_ROUND = Setting(
    "BLOOM_REDIS_ROUND",
    "",
    Values("any text", lambda value: str(value) if value else None),
    "Any text, such as a date, that begins a new round of a crawl that is over",
)

SETTINGS = tuple(each for each in tuple(globals().values()) if isinstance(each, Setting))
"""All of them."""


def misspelt(settings: BaseSettings) -> list[str]:
    """Return a line for each setting of the project whose name begins as ours and is none."""
    names = [each.name for each in SETTINGS]
    return [
        f"{name} is no setting of scrapy-bloom: did you mean"
        f" {get_close_matches(name, names, n=1, cutoff=0)[0]}?"
        for name in settings
        if str(name).startswith("BLOOM_") and name not in names
    ]


def wants_delta(settings: BaseSettings) -> bool:
    """Return whether BLOOM_DELTA or BLOOM_DELTA_DIGEST is on, also for a bad value, which
    DeltaMiddleware refuses."""
    return any(each.given(settings) not in _OFF for each in (DELTA, DELTA_DIGEST))


# -- the readers ---------------------------------------------------------------------


@dataclass(frozen=True)
class Group:
    """Settings that are read together: a dataclass with a `Setting.field` for each."""

    @classmethod
    def read(cls, settings: BaseSettings) -> Self:
        """Return the values in `settings`. Raises ValueError for the first bad one, as
        `Setting.read` does."""
        found = {each.name: each.metadata["setting"] for each in fields(cls) if each.metadata}
        return cls(**{name: setting.read(settings) for name, setting in found.items()})


@dataclass(frozen=True)
class BloomSettings(Group):
    """The settings of a dupefilter."""

    capacity: int = CAPACITY.field()
    error_rate: float = ERROR_RATE.field()
    exact: bool = EXACT.field()
    on_full: str = ON_FULL.field()
    url_cache: int = URL_CACHE.field()
    job: JobDirectory | None = None
    debug: bool = False

    @classmethod
    def read(cls, settings: BaseSettings) -> Self:
        """Return the values in `settings`, also of JOBDIR and DUPEFILTER_DEBUG."""
        job, debug = JobDirectory.of(settings.get("JOBDIR")), settings.getbool("DUPEFILTER_DEBUG")
        return replace(super().read(settings), job=job, debug=debug)

    def open_filter(
        self, path: Path | None, identity: str = "", keys: int = 0
    ) -> ScalableBloomFilter:
        """Open the filter at `path`, or make it, for `keys` if these are more than the capacity;
        without a path in memory. Raises as ScalableBloomFilter does."""
        capacity = max(self.capacity, keys)
        return ScalableBloomFilter(
            capacity, self.error_rate, path, identity=identity, exact=self.exact
        )


@dataclass(frozen=True)
class RedisSettings(Group):
    """The place of a shared filter, and the reaction to an outage of Redis."""

    url: str = REDIS_URL.field()
    key: str = REDIS_KEY.field()
    timeout: float = REDIS_TIMEOUT.field()
    on_error: str = REDIS_ON_ERROR.field()

    @classmethod
    def read(cls, settings: BaseSettings, spider: str) -> Self:  # type: ignore[override]
        """Return the values in `settings` for the spider of that name."""
        found = super().read(settings)
        url = None if REDIS_URL.given(settings) else scrapy_redis_url(settings)
        name = spider.replace("{", "(").replace("}", ")")
        return replace(found, url=url or found.url, key=found.key.replace("%(spider)s", name))


@dataclass(frozen=True)
class WorkerSettings(Group):
    """The timing of a worker, its share of the slots, and its round."""

    lease: float = REDIS_LEASE.field()
    slot_workers: int = REDIS_SLOT_WORKERS.field()
    max_attempts: int = REDIS_MAX_ATTEMPTS.field()
    idle: float = REDIS_IDLE.field()
    round: str = REDIS_ROUND.field()


@dataclass(frozen=True)
class IdentitySettings(Group):
    """The parts of a URL that CanonicalRequestFingerprinter leaves out."""

    query_params: tuple[str, ...] = IGNORE_QUERY_PARAMS.field()
    path_params: tuple[str, ...] = IGNORE_PATH_PARAMS.field()
    scheme: bool = IGNORE_SCHEME.field()


@dataclass(frozen=True)
class FailedSettings(Group):
    """The `kinds` of failure that keep a request in the job without a call of `fail`, whether
    failed requests are kept at all, and whether each start retries them once."""

    kinds: frozenset[str] = FAILED_KINDS.field()
    keep: bool = KEEP_FAILED.field()
    retry: bool = RETRY_FAILED.field()

    @classmethod
    def read(cls, settings: BaseSettings) -> Self:
        """Return the values in `settings`, no `kinds` where none are kept."""
        found = super().read(settings)
        return found if found.keep else replace(found, kinds=frozenset())


@dataclass(frozen=True)
class HoldSettings(Group):
    """Whether download slots are held, for at most how many seconds, and how many times in a
    row."""

    on: bool = HOLD.field()
    longest: float = HOLD_MAX.field()
    times: int = HOLD_TIMES.field()


# -- scrapy-redis ---------------------------------------------------------------------


def scrapy_redis_clears(settings: BaseSettings) -> bool:
    """Return True unless SCHEDULER_PERSIST is set: scrapy-redis's scheduler clears the
    queue and the filter when a worker closes."""
    return not settings.getbool("SCHEDULER_PERSIST")


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
