"""The thread that calls Redis while the reactor works: commits, one after the other, and between
them a heartbeat."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from concurrent.futures import Future, wait
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from ..errors import SharedFilterError, message_of
from .client import RedisClient, ScriptError
from .scripts import COMMIT, HEARTBEAT

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .call import Argument

logger = logging.getLogger(__name__)

FIRST_PAUSE = 0.2
LONGEST_PAUSE = 2.0
REACTOR_MAY_REST = 600.0
"""Seconds without a turn of the reactor after which the heartbeat stops."""


class Transport:
    """Sends commits of a worker in `crawl` from a thread, and repeats each until it is answered. So
    long as none is sent it renews the lease (seconds), while the reactor turns now and then.

    It needs the GIL: a single call into C that keeps the GIL for longer than the lease loses the
    lease, and the worker's requests are repeated.

    `in_reactor` runs a function in the reactor's thread. There, `on_answer` of a call gets its
    answer, and `on_outage` each error until then. One call is open at a time.
    """

    def __init__(
        self,
        client: RedisClient,
        key: str,
        crawl: str,
        lease: float,
        in_reactor: Callable[..., object],
        on_outage: Callable[[SharedFilterError], None],
    ) -> None:
        self._client = client
        self._key = key
        self._crawl = crawl
        self._lease = lease
        self._worker = ""
        self._turned = self._renewed = time.monotonic()
        self._told = ""
        self._in_reactor = in_reactor
        self._on_outage = on_outage
        self._calls: SimpleQueue[tuple[Sequence[Argument], Future[Any]]] = SimpleQueue()
        self._ending = threading.Event()
        self.busy = False
        """True until `on_answer` of the last call has been called."""
        self._thread = threading.Thread(target=self._work, name="scrapy-bloom", daemon=True)
        self._thread.start()

    def send(self, arguments: Sequence[Argument], on_answer: Callable[[Any], None]) -> None:
        """Send a call; no other may be open."""
        assert not self.busy
        self.busy = True
        self._answer: Future[Any] = Future()
        self._on_answer = on_answer
        self._calls.put((arguments, self._answer))

    def wait(self, seconds: float) -> bool:
        """Wait until no call is open, and pass each answer on at once; return whether all came. The
        reactor waits as well, but for no answer after an error of the script."""
        deadline = time.monotonic() + (seconds if self._thread.is_alive() else 0.0)
        while self.busy and wait([self._answer], max(0.0, deadline - time.monotonic())).done:
            self._pass_on()
        return not self.busy

    def turn(self, worker: str) -> None:
        """Note a turn of the reactor, and the name of this worker."""
        self._worker = worker
        self._turned = time.monotonic()

    def stop(self) -> None:
        """End the thread. After the answer to the last call it is not in one: then the client is
        free for the reactor's thread."""
        self._ending.set()
        self._calls.put(((), Future()))
        self._thread.join(FIRST_PAUSE)

    def close(self) -> None:
        """End the thread, and close the connection."""
        self.stop()
        self._client.close()

    def _pass_on(self) -> None:
        """Pass an answer that has come to `on_answer` of its call, in the reactor's thread."""
        if self.busy and self._answer.done():
            self.busy = False
            self._on_answer(self._answer.result())

    def _work(self) -> None:
        while not self._ending.is_set():
            try:
                arguments, future = self._calls.get(timeout=self._lease / 4)
            except Empty:
                self._beat()
                continue
            if (answer := self._insist(arguments)) is None:
                return
            self._renewed = time.monotonic()
            future.set_result(answer)
            self._tell(self._pass_on)

    def _insist(self, arguments: Sequence[Argument]) -> Any:
        pause = FIRST_PAUSE
        while not self._ending.is_set():
            try:
                return self._client.run(COMMIT, [self._key], *arguments)
            except Exception as error:
                if self._ending.is_set():
                    return None  # the client was closed during the call
                if not isinstance(error, SharedFilterError):
                    raise
                self._tell(self._on_outage, error)
                if isinstance(error, ScriptError):
                    return None
            self._beat()
            self._ending.wait(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
        return None

    def _beat(self) -> None:
        """Renew the lease, if that was not done lately."""
        now, worker = time.monotonic(), self._worker
        is_alive = worker and now - self._turned < REACTOR_MAY_REST
        if not is_alive or now - self._renewed < self._lease / 4:
            return
        self._renewed = now
        try:
            lease = int(self._lease * 1000)
            self._client.run(HEARTBEAT, [self._key], self._crawl, worker, lease)
        except SharedFilterError:
            pass  # the calls of the crawl tell of an outage
        except Exception as error:  # noqa: BLE001 - a thread that ends shows a traceback
            if self._told != message_of(error) and not self._ending.is_set():
                self._told = message_of(error)
                logger.warning("The lease of %s was not renewed: %s", worker, self._told)

    def _tell(self, function: Callable[..., None], *arguments: object) -> None:
        with suppress(RuntimeError):  # the reactor or its loop has stopped
            self._in_reactor(function, *arguments)


def in_reactor() -> Callable[..., Any]:
    """Return a function that any thread can use to call another one in the thread of the running
    reactor or event loop."""
    try:
        return asyncio.get_running_loop().call_soon_threadsafe
    except RuntimeError:
        from twisted.internet import reactor

        return reactor.callFromThread  # type: ignore[no-any-return]
