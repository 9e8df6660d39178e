"""Which requests the engine works on, and which of them may be acknowledged."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scrapy import Request


@dataclass(eq=False)
class Job:
    """A request that is stored in row `row`, or, if that is None, in memory only.

    `fingerprints` are those that the filter may hold once it is acknowledged.
    """

    request: Request
    row: int | None = None
    fingerprints: list[bytes] = field(default_factory=list)
    queued: int = 0
    """How often the request waits in the memory queue, where it is no copy."""
    waits_for: set[Job] = field(default_factory=set)
    awaited_by: set[Job] = field(default_factory=set)


class InFlight:
    """The requests that the engine has got, and those that live in memory only.

    A crash takes the latter with it, and nobody says which request they came from.
    So whatever was in progress when one came waits for it, and is acknowledged no
    sooner than the whole tree of them is finished: fetched again, it yields them again.
    """

    def __init__(self) -> None:
        self._jobs: dict[int, Job] = {}
        self._running: dict[int, Job] = {}

    def __iter__(self) -> Iterator[Request]:
        """The requests that the engine has got and that were not finished yet."""
        return iter([job.request for job in self._running.values()])

    def __len__(self) -> int:
        return len(self._running)

    def keep(self, request: Request, fingerprints: list[bytes]) -> None:
        """Note that `request` waits in the memory queue. Cost: one step for each
        request in progress."""
        job = self._jobs.setdefault(id(request), Job(request))
        job.queued += 1
        job.fingerprints += fingerprints
        for parent in self._running.values():
            if parent is not job:
                _wait(parent, job)

    def start(self, request: Request, row: int | None = None) -> None:
        """Note that the engine gets `request`, from its row or from the memory queue."""
        job = self._jobs.setdefault(id(request), Job(request, row))
        job.queued = max(job.queued - 1, 0)
        self._running[id(request)] = job

    def finish(self, request: Request) -> list[Job]:
        """Note that the engine is done with `request`; return the jobs that may be
        acknowledged now, itself and others that waited for it."""
        job = self._running.get(id(request))
        if job is None or job.queued:
            return []
        del self._running[id(request)], self._jobs[id(request)]
        ready = [] if job.waits_for else [job]
        for parent in job.awaited_by:
            parent.waits_for.discard(job)
            # whoever waited for it waits for what came out of it
            for child in job.waits_for - {parent}:
                _wait(parent, child)
            if not parent.waits_for and self._jobs.get(id(parent.request)) is not parent:
                ready.append(parent)
        job.awaited_by.clear()
        return ready


def _wait(parent: Job, child: Job) -> None:
    parent.waits_for.add(child)
    child.awaited_by.add(parent)
