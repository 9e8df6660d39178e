"""Settings: how one is described and read, and those of a dupefilter.

Other rooms have theirs in their `settings.py`, or where one is read; `all_settings.py` lists them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from os import fsdecode
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from scrapy.settings import BaseSettings

from .amounts import MOST, whole_number
from .bloom import GrowingFilter
from .bloom.sizing import ERROR_RATES, is_error_rate

if TYPE_CHECKING:
    from typing_extensions import Self

T = TypeVar("T")
OFF: tuple[object, ...] = (None, False, "", "None", "False", "false", "0", {})


class Values(NamedTuple):
    """The values that a setting can have: `allowed` in words. What `convert` returns of one must be
    what `is_allowed`, and None is the default; for others both may raise as `float` does. Text from
    the command line (`-s`) will do."""

    allowed: str
    convert: Callable[[Any], Any]
    is_allowed: Callable[[Any], bool] = lambda value: True


class Setting(Generic[T]):
    """A setting: its part of docs/settings.md begins with `meaning`. In a Group it stands for its
    value."""

    def __init__(self, name: str, default: T, values: Values, meaning: str) -> None:
        self.name = name
        self.default = default
        self.values = values
        self.meaning = meaning

    def __get__(self, group: object, owner: type) -> T:
        return self.default

    def read(self, settings: BaseSettings) -> T:
        """Return the value in `settings`, or the default, also for None as text. Raises ValueError
        with the name, the value and what is allowed."""
        given = settings.get(self.name)
        if given is None or (self.default is None and given in ("", "None")):
            return self.default
        try:
            value: T | None = self.values.convert(given)
            require(self.values.is_allowed(value))
        except (OverflowError, TypeError, ValueError):
            # a URL of Redis may hold a password, even as bytes
            shown = f"a {type(given).__name__}" if self.name == "BLOOM_REDIS_URL" else repr(given)
            raise ValueError(f"{self.name} is {shown}: it must be {self.values.allowed}") from None
        return self.default if value is None else value


def require(is_allowed: bool) -> None:
    """Raise ValueError unless a value is allowed."""
    if not is_allowed:
        raise ValueError


def whole(first: int, last: int, meaning: str) -> Values:
    """Return whole numbers from `first` to `last`."""
    allowed = f"a whole number from {first} to {last:,}, {meaning}"
    return Values(allowed, whole_number, lambda number: first <= number <= last)


def number(allowed: str, is_allowed: Callable[[float], bool]) -> Values:
    """Return numbers that are allowed."""
    return Values(f"a number {allowed}", _number, is_allowed)


def _number(value: Any) -> float | None:
    return None if isinstance(value, bool) else float(value)


def in_words(words: Sequence[str]) -> str:
    """Return the list of `words` as text: 'a', 'b' or 'c'."""
    return f"{', '.join(map(repr, words[:-1]))} or {words[-1]!r}"


BOOLEAN = Values("True or False", lambda value: BaseSettings({"value": value}).getbool("value"))
PATH = Values("the path of a file or directory", lambda value: fsdecode(value) if value else None)


def switch(name: str, default: bool, meaning: str) -> Setting[bool]:
    """Return a setting that is True or False."""
    return Setting(name, default, BOOLEAN, meaning)


CAPACITY = Setting(
    "BLOOM_CAPACITY",
    1_000_000,
    whole(1, MOST, "the requests expected, such as 10000000, '10M' or 1e7"),
    "How many distinct requests you expect: the size of the first layer",
)
ERROR_RATE = Setting(
    "BLOOM_ERROR_RATE",
    1e-6,
    number(ERROR_RATES, is_error_rate),
    "The bound on the chance that a new request is taken for a seen one",
)
EXACT = switch("BLOOM_EXACT", False, "Whether an exact table stands behind the filter")
URL_CACHE = Setting(
    "BLOOM_URL_CACHE",
    65_536,
    whole(0, 2**24, "the URLs remembered; 0 is off"),
    "How many of the URLs seen last are kept as text",
)
PICKLE = switch(
    "BLOOM_PICKLE", True, "Whether values of a stored request that are not plain may be a pickle"
)


def misspelt(settings: BaseSettings) -> list[str]:
    """Return a line for each setting of the project whose name begins as ours and is none."""
    known = {each.name for each in globals().values() if isinstance(each, Setting)}
    odd = {str(name) for name in settings if str(name).startswith("BLOOM_")} - known
    return import_module("scrapy_bloom.all_settings").lines_for(odd) if odd else []


class Group:
    """Settings that are read together: class attributes, which objects replace by values."""

    def __init__(self, **values: Any) -> None:
        vars(self).update(values)

    @classmethod
    def read(cls, settings: BaseSettings) -> Self:
        """Return the values in `settings`. Raises ValueError for a bad one, as a Setting does."""
        found = {name: each for name, each in vars(cls).items() if isinstance(each, Setting)}
        return cls(**{name: setting.read(settings) for name, setting in found.items()})

    def but(self, **values: Any) -> Self:
        """Return a copy with some other `values`."""
        return type(self)(**{**vars(self), **values})


class BloomSettings(Group):
    """The settings of a dupefilter."""

    capacity = CAPACITY
    error_rate = ERROR_RATE
    exact = EXACT
    url_cache = URL_CACHE

    def open_filter(self, path: Path | None, identity: str = "", keys: int = 0) -> GrowingFilter:
        """Open the filter at `path`, or make it, for `keys` if these are more than the capacity;
        without a path in memory. Raises as GrowingFilter does."""
        capacity = max(self.capacity, keys)
        return GrowingFilter(capacity, self.error_rate, path, identity=identity, exact=self.exact)
