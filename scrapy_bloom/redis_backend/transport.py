"""The threads that talk to Redis while the reactor works: one call after the other, and a
heartbeat beside them."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Protocol

from ..errors import SharedFilterError
from .client import ScriptError
from .scripts import COMMIT, HEARTBEAT

if TYPE_CHECKING:
    from .client import RedisClient
    from .protocol import Argument

FIRST_PAUSE = 0.2
LONGEST_PAUSE = 2.0
REACTOR_MAY_REST = 600.0
"""Seconds that the reactor may be busy with one thing before its worker counts as dead."""

Call = tuple[Sequence["Argument"], Callable[[Any], None]]


class Sender(Protocol):
    """Makes one call after the other."""

    @property
    def busy(self) -> bool:
        """True while a call is not answered."""

    def send(self, arguments: Sequence[Argument], on_answer: Callable[[Any], None]) -> None:
        """Make a call."""

    def wait(self, seconds: float) -> bool:
        """Wait until the last one is answered; return whether it is."""


class Transport:
    """Sends calls from a thread, each until it is answered, however long that takes.

    `in_reactor` runs a function in the reactor's thread. There, `on_answer` of a call gets
    its answer, and `on_outage` each error meanwhile. One call is under way at a time.
    """

    def __init__(
        self,
        client: RedisClient,
        key: str,
        in_reactor: Callable[..., object],
        on_outage: Callable[[SharedFilterError], None],
    ) -> None:
        self._client = client
        self._key = key
        self._in_reactor = in_reactor
        self._on_outage = on_outage
        self._calls: SimpleQueue[Call | None] = SimpleQueue()
        self._ending = threading.Event()
        self._answered = threading.Condition()
        self._answers: list[tuple[Callable[[Any], None], Any]] = []
        self._under_way = False
        self._thread = threading.Thread(target=self._work, name="scrapy-bloom", daemon=True)
        self._thread.start()

    @property
    def busy(self) -> bool:
        """True until `on_answer` of the last call has been called."""
        return self._under_way

    def send(self, arguments: Sequence[Argument], on_answer: Callable[[Any], None]) -> None:
        """Make a call; none may be under way."""
        assert not self._under_way
        self._under_way = True
        self._calls.put((arguments, on_answer))

    def wait(self, seconds: float) -> bool:
        """Wait for the answer to the call that is under way, and hand it on at once; return
        whether it came. The reactor waits meanwhile."""
        if self._under_way:
            with self._answered:
                self._answered.wait_for(lambda: self._answers, seconds)
            self._hand_on()
        return not self._under_way

    def close(self) -> None:
        """End the thread, and close the connection."""
        self._ending.set()
        self._calls.put(None)
        self._thread.join(FIRST_PAUSE)
        self._client.close()

    def _hand_on(self) -> None:
        """Call who waits for an answer that has come, in the reactor's thread."""
        with self._answered:
            answers, self._answers = self._answers, []
        for on_answer, answer in answers:
            self._under_way = False
            on_answer(answer)

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            arguments, on_answer = call
            answer = self._insist(arguments)
            if answer is None:
                return
            with self._answered:
                self._answers.append((on_answer, answer))
                self._answered.notify()
            self._tell(self._hand_on)

    def _insist(self, arguments: Sequence[Argument]) -> Any:
        pause = FIRST_PAUSE
        while not self._ending.is_set():
            try:
                return self._client.run(COMMIT, [self._key], *arguments)
            except SharedFilterError as error:
                self._tell(self._on_outage, error)
                if isinstance(error, ScriptError):
                    return None
            self._ending.wait(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
        return None

    def _tell(self, function: Callable[..., None], *arguments: object) -> None:
        with suppress(RuntimeError):  # the reactor or its loop has stopped
            self._in_reactor(function, *arguments)


class Heartbeat:
    """Renews the lease of a worker from a thread, while the reactor turns now and then.

    It needs the GIL: a single call into C that keeps it for longer than the lease loses
    the lease, and costs repetitions.
    """

    def __init__(self, client: RedisClient, key: str, crawl: str, lease: float) -> None:
        self._client = client
        self._key = key
        self._crawl = crawl
        self._lease = lease
        self._worker = ""
        self._turned = time.monotonic()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="scrapy-bloom beats", daemon=True)
        self._thread.start()

    def turn(self, worker: str) -> None:
        """Say that the reactor turns, and under which name this worker is known."""
        self._worker = worker
        self._turned = time.monotonic()

    def close(self) -> None:
        """Beat no more."""
        self._ending.set()
        self._thread.join(FIRST_PAUSE)
        self._client.close()

    def _beat(self) -> None:
        while not self._ending.wait(self._lease / 4):
            worker = self._worker
            if worker and time.monotonic() - self._turned < REACTOR_MAY_REST:
                try:
                    lease = int(self._lease * 1000)
                    self._client.run(HEARTBEAT, [self._key], self._crawl, worker, lease)
                except SharedFilterError:
                    pass  # the calls of the crawl tell of an outage


def in_reactor() -> Callable[..., Any]:
    """Return a function that has another one called in the thread of this one's reactor
    or event loop, from any thread."""
    try:
        return asyncio.get_running_loop().call_soon_threadsafe
    except RuntimeError:
        from twisted.internet import reactor

        return reactor.callFromThread  # type: ignore[no-any-return]
