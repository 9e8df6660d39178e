"""A connection to Redis that knows which commands may have been carried out.

redis-py repeats a command that got no answer. A test-and-set that was applied, timed
out and was sent again answers "already there" for a new key. So redis-py's repeating
is off, and what is repeated here comes back with a mark that it was.
"""

from __future__ import annotations

import time
from hashlib import sha1
from importlib import import_module
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from ..errors import SharedFilterError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_CLUSTER = "+cluster"
_FIRST_PAUSE = 0.05
_LONGEST_PAUSE = 1.0
_SHARE_OF_TIME = 0.1  # for asking again, while Redis is down


class Script:
    """A Lua script."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.digest = sha1(text.encode(), usedforsecurity=False).hexdigest()


class RedisClient:
    """Redis, Valkey or a Cluster of them, at a URL as redis-py reads it.

    `redis+cluster://` and `rediss+cluster://` name any node of a Cluster. `patience` is
    how many seconds `insist` asks again; connecting and each answer may take a third
    of that, or what the URL says. `name` is the URL without the password. Raises
    SharedFilterError if the URL cannot be read or nobody answers there.
    """

    def __init__(self, url: str, patience: float = 5.0) -> None:
        try:
            redis: Any = import_module("redis")
        except ImportError as error:
            raise SharedFilterError(
                f"the package redis is needed and cannot be imported ({error}):"
                " pip install 'scrapy-bloom[redis]'"
            ) from error
        self.name, self._clustered, plain_url = _parts(url)
        self._patience = patience
        self._down: SharedFilterError | None = None
        self._not_before = 0.0
        self._errors = (redis.RedisError, redis.exceptions.RedisClusterException, OSError)
        self._answers = redis.ResponseError
        self._no_script = redis.exceptions.NoScriptError
        once = import_module("redis.retry").Retry(import_module("redis.backoff").NoBackoff(), 0)
        options: dict[str, Any] = {
            "socket_timeout": patience / 3,
            "socket_connect_timeout": patience / 3,
            "retry": once,
        }
        if self._clustered and int(redis.__version__.partition(".")[0]) < 6:
            options["cluster_error_retry_attempts"] = 0
        kind = redis.RedisCluster if self._clustered else redis.Redis
        try:
            self._redis: Any = kind.from_url(plain_url, **options)
            try:
                self._redis.ping()
            except BaseException:
                self._redis.close()
                raise
        except self._errors as error:
            raise self._failed(error) from error
        except (ValueError, TypeError):  # an option; its text may quote a secret
            raise _unreadable(self.name) from None

    def run(self, script: Script, keys: Sequence[str], *arguments: str | bytes | int) -> Any:
        """Return what `script` answers. One round trip, two if Redis does not have the
        script yet (the first does nothing then). Raises SharedFilterError."""
        try:
            return self._run(script, keys, arguments)
        except self._errors as error:
            raise self._failed(error) from error

    def insist(
        self, script: Script, keys: Sequence[str], *arguments: str | bytes | int
    ) -> tuple[Any, bool]:
        """Return what `script` answers, and whether an earlier attempt of this call may
        have been carried out as well.

        Asks again for `patience` seconds before it raises SharedFilterError. From then
        on, until Redis answers, it raises at once most of the time: asking takes less
        than a tenth of it.
        """
        if self._down is not None and time.monotonic() < self._not_before:
            raise self._down.with_traceback(None)
        deadline = time.monotonic() + (0 if self._down else self._patience)
        pause, doubtful = _FIRST_PAUSE, False
        while True:
            asked = time.monotonic()
            try:
                answer = self._run(script, keys, arguments)
            except self._errors as error:
                doubtful = doubtful or not isinstance(error, self._answers)
                if "READONLY" in str(error) and not self._clustered:
                    # after a failover the name may lead to another server than these do
                    self._redis.connection_pool.disconnect()
                now = time.monotonic()
                if now + pause > deadline:
                    self._not_before = now + max(_LONGEST_PAUSE, (now - asked) / _SHARE_OF_TIME)
                    self._down = self._failed(error)
                    raise self._down from error
                time.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
            else:
                self._down = None
                return answer, doubtful

    def call(self, command: str, *arguments: str | bytes | int) -> Any:
        """Return what the method `command` of redis-py's client does. Raises
        SharedFilterError."""
        try:
            return getattr(self._redis, command)(*arguments)
        except self._errors as error:
            raise self._failed(error) from error

    def evicting(self) -> str | None:
        """Return the name of an eviction policy under which keys can be dropped, or
        None: there is none, or Redis may not be asked."""
        try:
            for memory in self._memory():
                policy = str(memory.get("maxmemory_policy", ""))
                if policy.startswith("allkeys") and int(memory.get("maxmemory", 0)):
                    return policy
        except self._errors:
            pass
        return None

    def close(self) -> None:
        """Close the connections."""
        self._redis.close()

    def __enter__(self) -> RedisClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self, script: Script, keys: Sequence[str], arguments: Sequence[Any]) -> Any:
        try:
            return self._redis.evalsha(script.digest, len(keys), *keys, *arguments)
        except self._no_script:
            return self._redis.eval(script.text, len(keys), *keys, *arguments)

    def _failed(self, error: Exception) -> SharedFilterError:
        return SharedFilterError(
            f"Redis at {self.name} cannot be used: {error} (see BLOOM_REDIS_URL)"
        )

    def _memory(self) -> Iterator[dict[str, Any]]:
        if self._clustered:
            for node in self._redis.get_primaries():
                yield self._redis.info("memory", target_nodes=node)
        else:
            yield self._redis.info("memory")


def public_url(url: str) -> str:
    """Return `url` without secrets. Raises SharedFilterError if it cannot be read."""
    return _parts(url)[0]


def _parts(url: str) -> tuple[str, bool, str]:
    """Return the URL without secrets, whether it names a Cluster, and the URL as
    redis-py reads it."""
    try:
        parts = urlsplit(url)
        scheme, host, port = parts.scheme, parts.hostname or "", parts.port
    except ValueError:  # a port that is none is perhaps a part of a password
        raise _unreadable("(not shown)") from None
    if "@" in parts.path + parts.query + parts.fragment:  # so is what stands before it
        raise _unreadable("(not shown)")
    if scheme.removesuffix(_CLUSTER) not in ("redis", "rediss") and scheme != "unix":
        raise _unreadable(f"{scheme}:// …")
    name = f"{scheme}://{host}:{port}{parts.path}" if port else f"{scheme}://{host}{parts.path}"
    return name, scheme.endswith(_CLUSTER), url.replace(_CLUSTER, "", 1)


def _unreadable(shown: str) -> SharedFilterError:
    return SharedFilterError(
        f"BLOOM_REDIS_URL cannot be read: {shown}; write it as redis://user:password@host:port/0,"
        " rediss:// for TLS, unix:///path/to/socket, or redis+cluster://host:port, with special"
        " characters of the password percent-encoded"
    )
