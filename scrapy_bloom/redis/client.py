"""A connection to Redis that tells whether a call may have run twice, and on which server.

redis-py repeats a command that got no answer. A test-and-set that was applied, timed out and was
sent again answers "seen" for a new key. So redis-py's repeating is off, and an answer to a call
that was repeated here says so.
"""

from __future__ import annotations

import re
import time
from functools import partial
from importlib import import_module
from math import inf
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from ..errors import SharedFilterError
from .layout import ODD_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from .scripts import Script

    Answer = TypeVar("Answer")

REDIS_SCHEMES = ("redis://", "rediss://", "redis+cluster://", "rediss+cluster://", "unix://")
"""How a URL of Redis begins, as redis-py reads it."""

_CLUSTER = "+cluster"
_NOT_SHOWN = "(not shown)"
_FIRST_PAUSE = 0.05
_LONGEST_PAUSE = 1.0
_SHARE_OF_TIME = 0.1  # spent on repeated calls during an outage, and on `confirm` otherwise
_SERVER = re.compile(rb"^(?:run_id|role|master_replid):(\w+)", re.MULTILINE)

# Errors of a script, or of the keys that it finds: a repeated call fails as well.
_BROKEN = re.compile(r"user_script|WRONGTYPE|is not an integer|is not a valid float|of seeds$")
# Errors in a script that are an outage: the name of a key may have such words.
_PASSING = re.compile(
    r"(?:^|: |-)(?:OOM|READONLY|MISCONF|NOREPLICAS|LOADING|MASTERDOWN|CLUSTERDOWN|TRYAGAIN|MOVED"
    r"|ASK|NOPERM|BUSY|NOSCRIPT) |The user executing|Script attempted|Script killed"
)


class ScriptError(SharedFilterError):
    """A script failed, and a repeated call would fail as well."""


class RedisClient:
    """Redis, Valkey or a Cluster of them, at a URL as redis-py reads it.

    `redis+cluster://` and `rediss+cluster://` name any node of a Cluster. A call is repeated for
    `patience` seconds; connecting and each answer may take a third of that, or `longest` seconds,
    or what the URL says. `name` is the URL without secrets. Raises SharedFilterError if the URL
    cannot be read or no server answers there: with `waits` after `patience` seconds, else at once
    where a connection is refused or the server is loading its data.
    """

    servers = 0
    """How many servers were met. A server that was restarted or has changed its role counts
    again, and so does each connection to one that forbids INFO. A server loses data in no other
    way unless the connection ends, or a proxy hides that."""

    confirmed_until = 0.0
    """The time (`time.monotonic`) until which `servers` is up to date by the last answer."""

    def __init__(
        self, url: str, patience: float = 5.0, longest: float = inf, *, waits: bool = False
    ) -> None:
        try:
            redis: Any = import_module("redis")
        except ImportError as error:
            raise SharedFilterError(
                f"the package redis is needed and cannot be imported ({error}):"
                " pip install 'scrapy-bloom[redis]'"
            ) from error
        self.name = public_url(url)
        if self.name == _NOT_SHOWN or not url.startswith(REDIS_SCHEMES):
            raise _unreadable(self.name)
        self._clustered = _CLUSTER in url.partition("://")[0]
        self.patience = patience
        self._down: SharedFilterError | None = None
        self._not_before = 0.0
        self._known_servers: set[tuple[bytes, ...]] = set()
        self._errors = (redis.RedisError, redis.exceptions.RedisClusterException, OSError)
        # what the client makes of TRYAGAIN, and of being sent to and fro, in the end
        self._moving = redis.exceptions.ClusterError
        self._refusals = (redis.ResponseError, self._moving)
        self._no_script = redis.exceptions.NoScriptError
        self._no_permission = redis.exceptions.NoPermissionError
        once = import_module("redis.retry").Retry(import_module("redis.backoff").NoBackoff(), 0)
        options: dict[str, Any] = {
            "socket_timeout": min(patience / 3, longest),
            "socket_connect_timeout": min(patience / 3, longest),
            "retry": once,
            "encoding_errors": ODD_BYTES,
            "redis_connect_func": self._on_connect,
        }
        if self._clustered and int(redis.__version__.partition(".")[0]) < 6:
            options["cluster_error_retry_attempts"] = 0
        kind = redis.RedisCluster if self._clustered else redis.Redis
        make = partial(kind.from_url, url.replace(_CLUSTER, "", 1), **options)
        # what may pass: a server that is slow, restarts, or loads its data
        self._passing = (redis.TimeoutError, *[redis.ConnectionError] * waits)
        self._no_access = redis.AuthenticationError  # a ConnectionError as well
        deadline, pause = time.monotonic() + patience, _FIRST_PAUSE
        try:
            while not self._is_made(make, deadline - pause):
                time.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
        except self._errors as error:
            raise self._unusable(error) from error
        except (ValueError, TypeError):  # an option; its text may quote a secret
            raise _unreadable(self.name) from None

    def run(self, script: Script, keys: Sequence[str], *arguments: str | bytes | int) -> Any:
        """Return the answer of `script`, which may run more than once: the call is repeated for
        `patience` seconds, or not at all if that has failed lately, before it raises
        SharedFilterError. Cost: one round trip, two if Redis does not know the script yet."""
        return self._insist(lambda: self._run(script, keys, arguments))[0]

    def scan(
        self, script: Script, key: str, *arguments: str | bytes | int, cursor: int = 0
    ) -> Iterator[Any]:
        """Yield the answers of `script`, each without its cursor, the first argument of the next
        call. Raises SharedFilterError as `run` does."""
        following: Any = cursor
        while following is not None:
            following, *found = self.run(script, [key], following, *arguments)
            yield found[0] if len(found) == 1 else found
            following = following if int(following) else None

    def call(self, command: str, *arguments: object) -> Any:
        """Return the result of redis-py's method `command`, repeated and raising as `run`."""
        try:
            return self._insist(lambda: getattr(self._redis, command)(*arguments))[0]
        except ScriptError as error:
            raise ScriptError(f"{arguments[0]!s}: {error}") from error

    def insist(
        self, script: Script, keys: Sequence[str], *arguments: str | bytes | int
    ) -> tuple[Any, bool]:
        """Return the result of `run`, and whether an earlier attempt may have run as well.

        During an outage most calls raise at once: attempts take less than a tenth of the time.
        """
        if self._down is not None and time.monotonic() < self._not_before:
            raise self._down.with_traceback(None)
        return self._insist(lambda: self._run(script, keys, arguments))

    def confirm(self) -> bool:
        """Return True if Redis can be reached: then `servers` is up to date. Never raises.
        One round trip, or two where the connection has lost its server."""
        since = time.monotonic()
        reached = self._is_reached() or self._is_reached()
        self._set_confirmed(since)
        return reached

    def evicting(self) -> str | None:
        """Return the eviction policy under which keys can be dropped, None if there is none or the
        user may not ask."""
        try:
            nodes = self._redis.get_primaries() if self._clustered else ()
            for where in [{"target_nodes": node} for node in nodes] or [{}]:
                memory = self._redis.info("memory", **where)
                policy = str(memory.get("maxmemory_policy", ""))
                if policy.startswith("allkeys") and int(memory.get("maxmemory", 0)):
                    return policy
        except self._errors:
            pass
        return None

    def may_touch(self, key: str) -> bool:
        """Return False if the user has no right to `key`."""
        try:
            self._redis.exists(key)
        except self._no_permission:
            return False
        except self._errors:
            pass  # the next call raises it
        return True

    def is_volatile(self) -> bool:
        """Return True if Redis says that it keeps nothing on a disk; False also if the user may
        not ask."""
        try:
            snapshots, log = (self._redis.config_get(name) for name in ("save", "appendonly"))
        except self._errors:
            return False
        return bool(snapshots.get("save") == "" and log.get("appendonly") == "no")

    def close(self) -> None:
        """Close the connections."""
        self._redis.close()

    def __enter__(self) -> RedisClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _insist(self, attempt: Callable[[], Answer]) -> tuple[Answer, bool]:
        deadline = time.monotonic() + (0 if self._down else self.patience)
        pause, doubtful = _FIRST_PAUSE, False
        while True:
            since = time.monotonic()
            try:
                answer = attempt()
            except self._errors as error:
                if self._is_broken(error):
                    raise ScriptError(
                        f"Redis at {self.name} holds what this version cannot work with: {error}."
                        " 'scrapy bloom verify' may tell what it is"
                    ) from error
                doubtful = doubtful or not isinstance(error, self._refusals)
                # after a failover the name may lead to another server than this does, which
                # refuses to write, is loading, or whatever its version says then
                self._disconnect()
                now = self._set_confirmed(since)
                if now + pause > deadline:
                    self._not_before = now + max(_LONGEST_PAUSE, (now - since) / _SHARE_OF_TIME)
                    self._down = self._unusable(error)
                    raise self._down from error
                time.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
            else:
                self._down = None
                self._set_confirmed(since)
                return answer, doubtful

    def _is_made(self, make: Callable[[], Any], last: float) -> bool:
        """Make the client; return False for an error that may pass, and raise it if it comes after
        the `last` time. The client of a Cluster asks its nodes when it is made."""
        client = None
        try:
            client = make()
            client.ping()
        except BaseException as error:
            if client is not None:
                client.close()
            cause = error if isinstance(error, self._passing) else error.__cause__
            may_pass = isinstance(cause, self._passing) and not isinstance(cause, self._no_access)
            if may_pass and time.monotonic() <= last:
                return False
            raise
        self._redis: Any = client
        return True

    def _is_reached(self) -> bool:
        try:
            nodes = {"target_nodes": self._redis.PRIMARIES} if self._clustered else {}
            self._redis.ping(**nodes)
        except Exception:  # noqa: BLE001 - whatever it is, no server was reached
            return False
        return True

    def _run(self, script: Script, keys: Sequence[str], arguments: Sequence[Any]) -> Any:
        keys = script.keys(keys)
        words = len(keys), *keys, *arguments
        try:
            try:
                return self._redis.evalsha(script.digest, *words)
            except self._no_script:
                return self._redis.eval(script.text, *words)
        except self._refusals as error:
            if not self._is_broken(error):
                raise
            return self._redis.eval(script.traced, *words)  # which fails as well, and names the key

    def _is_broken(self, error: Exception) -> bool:
        text = str(error)
        is_refusal = isinstance(error, self._refusals)
        return is_refusal and bool(_BROKEN.search(text)) and not _PASSING.search(text)

    def _set_confirmed(self, since: float) -> float:
        now = time.monotonic()
        self.confirmed_until = now + max(_FIRST_PAUSE, (now - since) / _SHARE_OF_TIME)
        return now

    def _disconnect(self) -> None:
        clients = [self._redis]
        if self._clustered:
            clients = [node.redis_connection for node in self._redis.get_nodes()]
        for client in clients:
            if client is not None:
                client.connection_pool.disconnect()

    def _on_connect(self, connection: Any) -> None:
        """Count the server of a new connection unless it is known."""
        if not self._clustered:  # a Cluster's client has done it
            connection.on_connect()
        connection.send_command("INFO")
        try:
            told = tuple(_SERVER.findall(connection.read_response()))
        except self._refusals:
            told = ()
        if self._clustered and b"slave" in told:
            return  # it only tells where the others are
        if not told or told not in self._known_servers:
            self._known_servers.add(told)
            self.servers += 1

    def _unusable(self, error: Exception) -> SharedFilterError:
        if type(error) is self._moving:
            return SharedFilterError(
                f"Redis at {self.name} cannot be used: a hash slot is being moved to another node;"
                " try again when it is there ('redis-cli --cluster fix' ends a move that was"
                " interrupted)"
            )
        return SharedFilterError(
            f"Redis at {self.name} cannot be used: {error} (see BLOOM_REDIS_URL)"
        )


def public_url(url: str) -> str:
    """Return `url` without user, password and options; nothing of it if a special character in
    the password may have moved the password to another part."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        return _NOT_SHOWN
    if "@" in parts.path + parts.query + parts.fragment or "://" not in url:
        return _NOT_SHOWN
    if not url.startswith(REDIS_SCHEMES):
        return f"{parts.scheme}://…"
    host = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{host}{f':{port}' if port else ''}{parts.path}"


def _unreadable(shown: str) -> SharedFilterError:
    return SharedFilterError(
        f"BLOOM_REDIS_URL cannot be read: {shown}; write it as redis://user:password@host:port/0,"
        " rediss:// for TLS, unix:///path/to/socket, or redis+cluster://host:port, with special"
        " characters of the password percent-encoded"
    )
