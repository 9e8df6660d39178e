"""The set of seen requests that scrapy-redis keeps in Redis."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol

from ..errors import BloomError, IncompatibleFilterError
from ..fingerprint import FingerprinterIdentity
from ..fingerprints.scrapy_redis import ScrapyRedisFingerprinter

if TYPE_CHECKING:
    from scrapy.utils.request import RequestFingerprinterProtocol

_BATCH = 10_000
_is_hexadecimal = re.compile(rb"(?:[0-9a-fA-F]{2})+").fullmatch


class Connection(Protocol):
    """A connection to Redis: `name` is its URL without secrets."""

    name: str

    def call(self, command: str, *arguments: str | bytes | int) -> Any:
        """Return what the method `command` of redis-py's client does. Raises BloomError."""


class RedisSet:
    """The fingerprints in the set `key`, in hexadecimal digits.

    A source of fingerprints (see `sources.Source`). Raises IncompatibleFilterError unless
    `fingerprinter` makes scrapy-redis's fingerprints: a filter full of others would know
    nothing. Raises BloomError if there is no fingerprint in the set.
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

    def batches(self) -> Iterator[tuple[list[bytes], int]]:
        """Yield the fingerprints, and how many members are done; one may come twice (SSCAN)."""
        self.skipped, self.first_skipped = 0, ""
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
                self.skipped += 1
                self.first_skipped = self.first_skipped or f"{member!r}: not hexadecimal"
