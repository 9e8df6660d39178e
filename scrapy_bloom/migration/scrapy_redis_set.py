"""The set of seen requests that scrapy-redis keeps in Redis."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

from ..errors import BloomError, IncompatibleFilterError
from ..fingerprints.identity import FingerprinterIdentity
from ..fingerprints.scrapy_redis import ScrapyRedisFingerprinter

if TYPE_CHECKING:
    from scrapy.utils.request import RequestFingerprinterProtocol

_BATCH = 10_000


class RedisSet:
    """The fingerprints in the set `key` of the server at `url`, in hexadecimal digits.

    Refused with IncompatibleFilterError unless `fingerprinter` makes scrapy-redis's
    fingerprints: a filter full of others would know nothing.
    """

    unit = "fingerprint"
    noun = "member"

    def __init__(
        self, url: str, key: str | None, fingerprinter: RequestFingerprinterProtocol
    ) -> None:
        if not key:
            raise BloomError(
                f"{public_url(url)} needs --key, the name of the set (in scrapy-redis the spider's"
                " name and ':dupefilter')"
            )
        _require_scrapy_redis(fingerprinter)
        try:
            import redis
        except ImportError:
            raise BloomError("redis-py is missing: pip install redis") from None
        self.name = f"{public_url(url)} {key}"
        self.skipped = 0
        self.first_skipped = ""
        self._key = key
        self._errors = redis.RedisError
        try:
            self._client = client = cast("Any", redis.Redis.from_url(url, socket_timeout=30))
            found = client.type(key).decode()
            if found != "set":
                raise BloomError(
                    f"{self.name} is {'not there' if found == 'none' else f'a {found}'}: --key must"
                    " name the set of a scrapy-redis dupefilter"
                )
            self.size = self.keys = int(client.scard(key))
        except (redis.RedisError, ValueError) as error:
            raise BloomError(f"{public_url(url)} does not answer: {error}") from None

    def batches(self) -> Iterator[tuple[list[bytes], int]]:
        """Yield the members; one may come twice (SSCAN)."""
        batch: list[bytes] = []
        done = 0
        try:
            for member in self._client.sscan_iter(self._key, count=_BATCH):
                done += 1
                try:
                    batch.append(bytes.fromhex(member.decode()))
                except ValueError:
                    self.skipped += 1
                    self.first_skipped = self.first_skipped or f"{member!r}: not hexadecimal"
                if len(batch) >= _BATCH:
                    yield batch, done
                    batch = []
        except self._errors as error:
            raise BloomError(f"{self.name}: {error}; run it again to finish") from None
        yield batch, done


def _require_scrapy_redis(fingerprinter: RequestFingerprinterProtocol) -> None:
    now = FingerprinterIdentity.of(fingerprinter)
    if now.plain != FingerprinterIdentity.of(ScrapyRedisFingerprinter()).plain:
        raise IncompatibleFilterError(
            f"the fingerprinter here is {now.name}, and scrapy-redis has fingerprints of its own:"
            " set REQUEST_FINGERPRINTER_CLASS to 'scrapy_bloom.ScrapyRedisFingerprinter'"
            " for this command and the crawl"
        )


def public_url(url: str) -> str:
    """Return `url` without a password."""
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}"
