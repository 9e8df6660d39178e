"""What scrapy-redis keeps in Redis: the set of seen requests, and the queue of pending ones."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

from ..errors import BloomError, IncompatibleFilterError
from ..fingerprints import FingerprinterIdentity
from ..fingerprints.scrapy_redis import ScrapyRedisFingerprinter
from ..settings import PICKLE
from .sources import Source

if TYPE_CHECKING:
    from scrapy.settings import BaseSettings
    from scrapy.utils.request import RequestFingerprinterProtocol

QUEUE_KEY = "%(spider)s:requests"
SET_KEY = "%(spider)s:dupefilter"
_AT_ONCE = 1_000
_STACKS = ("LifoQueue", "SpiderStack")
_PICKLES = {"pickle", "marshal", "scrapy_redis.picklecompat"}
_NEEDED = {"url": str, "priority": int, "meta": dict, "dont_filter": object}
_COMMANDS = {"zset": ("zcard", "zrange"), "list": ("llen", "lrange"), "none": ("zcard", "zrange")}
_BATCH = 10_000
_is_hexadecimal = re.compile(rb"(?:[0-9a-fA-F]{2})+").fullmatch


class Connection(Protocol):
    """A connection to Redis: `name` is its URL without secrets."""

    name: str

    def call(self, command: str, *arguments: str | bytes | int) -> Any:
        """Return what the method `command` of redis-py's client does. Raises BloomError."""


class RedisSet(Source):
    """The fingerprints in the set `key` of seen requests, in hexadecimal digits.

    Raises IncompatibleFilterError unless `fingerprinter` makes scrapy-redis's fingerprints: a
    filter full of others would know nothing. Raises BloomError if there is no fingerprint in the
    set.
    """

    unit = "fingerprint"
    noun = "member"

    def __init__(
        self, connection: Connection, key: str, fingerprinter: RequestFingerprinterProtocol
    ) -> None:
        now = FingerprinterIdentity.of(fingerprinter)
        if now.plain != FingerprinterIdentity.of(ScrapyRedisFingerprinter()).plain:
            raise IncompatibleFilterError(
                f"the fingerprinter here is {now.name}, and scrapy-redis has fingerprints of its"
                " own: set REQUEST_FINGERPRINTER_CLASS to 'scrapy_bloom.ScrapyRedisFingerprinter'"
                " for this command and the crawl"
            )
        self.name = f"{connection.name} {key}"
        self._connection = connection
        self._key = key
        found = connection.call("type", key).decode()
        if found != "set":
            raise BloomError(
                f"{self.name} is {'not there' if found == 'none' else f'a {found}'}: --key must"
                " name the set of a scrapy-redis dupefilter"
            )
        self.size = self.keys = int(connection.call("scard", key))
        if not any(fingerprints for fingerprints, _ in self.batches()):
            raise BloomError(
                f"{self.name} holds no fingerprint ({self.first_skipped}): --key must name the set"
                " of a scrapy-redis dupefilter"
            )

    def _batches(self) -> Iterator[tuple[list[bytes], int]]:
        done = cursor = 0
        while True:
            try:
                cursor, members = self._connection.call(
                    "execute_command", "SSCAN", self._key, cursor, "COUNT", _BATCH
                )
            except BloomError as error:
                raise BloomError(f"{error}; run it again to finish") from None
            done += len(members)
            yield list(self._fingerprints(members)), done
            if not cursor:
                break
        if done < self.size:
            raise BloomError(
                f"{self.name} has lost members meanwhile: {done:,} of {self.size:,} were read"
            )

    def _fingerprints(self, members: list[bytes]) -> Iterator[bytes]:
        for member in members:
            if _is_hexadecimal(member):
                yield bytes.fromhex(member.decode())
            else:
                self._skip(f"{member!r}: not hexadecimal")


class RedisQueue:
    """The queue of scrapy-redis for the spider of that name, by scrapy-redis's settings
    SCHEDULER_QUEUE_KEY, SCHEDULER_QUEUE_CLASS and SCHEDULER_SERIALIZER; `set_key` is the key of
    its dupefilter's set.

    Requests are unpickled as scrapy-redis does it: write access to that Redis is enough to run code
    here. Raises BloomError for a value that is no queue, and for pickles where BLOOM_PICKLE is
    False.
    """

    def __init__(self, connection: Connection, settings: BaseSettings, spider: str) -> None:
        self.key = _key(settings, "SCHEDULER_QUEUE_KEY", QUEUE_KEY, spider)
        self.set_key = _key(settings, "SCHEDULER_DUPEFILTER_KEY", SET_KEY, spider)
        self.name = f"{connection.name} {self.key}"
        self._connection = connection
        self._loads = _loads(settings)
        queue_class = settings.get("SCHEDULER_QUEUE_CLASS") or ""
        name = queue_class if isinstance(queue_class, str) else queue_class.__name__
        self._is_stack = name.rpartition(".")[2] in _STACKS
        self._kind = connection.call("type", self.key).decode()
        if self._kind not in _COMMANDS:
            raise BloomError(
                f"{self.name} is a {self._kind}, and no queue of scrapy-redis: set"
                " SCHEDULER_QUEUE_KEY as its crawl has it"
            )

    def __len__(self) -> int:
        return int(self._connection.call(_COMMANDS[self._kind][0], self.key))

    def set_size(self) -> int:
        """Return the number of members of the dupefilter's set."""
        return int(self._connection.call("scard", self.set_key))

    def requests(self, *, next_first: bool) -> Iterator[dict[str, Any]]:
        """Yield each request as `Request.to_dict` gives it, in scrapy-redis's order or the opposite
        one. The queue stays as it is. Raises BloomError for a request that cannot be read."""
        # a list is pushed to at its left; a stack takes from there, a queue from its right
        from_left = next_first == (self._kind == "zset" or self._is_stack)
        read = _COMMANDS[self._kind][1]
        size = len(self)
        for done in range(0, size, _AT_ONCE):
            count = min(_AT_ONCE, size - done)
            first = done if from_left else size - done - count
            found = self._connection.call(read, self.key, first, first + count - 1)
            for data in found if from_left else reversed(found):
                yield self._read(data)

    def _read(self, data: bytes) -> dict[str, Any]:
        try:
            fields: dict[str, Any] = self._loads(data)
            missing = _NEEDED.keys() - fields.keys()
            if missing:
                raise ValueError(f"it has no {', '.join(sorted(missing))}")
            for name, kind in _NEEDED.items():
                if not isinstance(fields[name], kind):
                    raise ValueError(f"its {name} is of type {type(fields[name]).__name__}")
            return fields
        except Exception as error:
            raise BloomError(
                f"a request in {self.name} cannot be read ({type(error).__name__}: {error}): run"
                " the command in the crawl's project, with the SCHEDULER_SERIALIZER of the crawl"
            ) from error


def _key(settings: BaseSettings, setting: str, default: str, spider: str) -> str:
    return str(settings.get(setting) or default).replace("%(spider)s", spider)


def _loads(settings: BaseSettings) -> Callable[[bytes], Any]:
    serializer: Any = settings.get("SCHEDULER_SERIALIZER") or pickle
    if isinstance(serializer, str):
        serializer = import_module(serializer)
    name = getattr(serializer, "__name__", "")
    if name in _PICKLES and not PICKLE.read(settings):
        raise BloomError(
            f"the requests of scrapy-redis are stored by {name}, and BLOOM_PICKLE is False: set it"
            " to True for the load, if you trust that Redis"
        )
    loads: Callable[[bytes], Any] = serializer.loads
    return loads
