"""A job of Scrapy's own scheduler and RFPDupeFilter goes on with a filter, if it was stopped
cleanly.

That matters since `requests.seen` also holds the requests that were pending; after an unclean stop
these are in no queue any more. No file of such a job directory records it.

What a clean stop does, in Scrapy 2.14 to 2.19 (`Scheduler.close`): it closes all
queues, then writes `requests.queue/active.json`, which lists the priorities that have
a queue, then closes `requests.seen`. A run that resumes the job leaves `active.json` as
it is until its own clean stop, and whatever it pushes or uses up changes files or
directories next to it. So after a clean stop, and only then, nothing in
`requests.queue` is newer than `active.json`. Its directories are newer as soon as the
scheduler has opened, so this is tested before. In a copy that has other times each queue
still holds as many requests as it noted when it was closed. After a kill it seldom does.
"""

from __future__ import annotations

import json
import os
import re
from contextlib import closing
from hashlib import md5
from itertools import chain
from pathlib import Path

from ..amounts import counted
from ..bloom.removal import remove_filter
from ..errors import JobDirectoryError
from ..files import sync_directory
from ..jobdir import JobDirectory
from ..settings import BloomSettings
from .sources import SeenFile, import_into

SECONDS_TO_CLOSE = 1.0
"""How long `requests.seen` may take to close after `active.json` was written."""


def why_unclean(job: JobDirectory) -> str | None:
    """Return why the job does not count as stopped cleanly, or None if it does.

    In doubt it is unclean. A copy of a job directory that did not keep the times may count
    as either, as long as its queues have the size that they noted. Changes nothing and never
    raises. Cost: two calls for each pending request.
    """
    queue = job.scrapy_queue
    try:
        state_file = queue / "active.json"
        state = json.loads(state_file.read_bytes())
        written = state_file.stat().st_mtime_ns
        for path in (queue, *queue.rglob("*")):
            if path.stat().st_mtime_ns > written:
                return f"{path} is newer than {state_file}, which a clean stop writes last"
            if path.is_file() and _was_left_open(path):
                return f"{path} does not hold as many requests as a clean stop has noted"
        for name in _queues(state):
            # a queue, or one of start requests
            if not any(chain(queue.glob(name), queue.glob(f"{name}s"))):
                return f"{queue / name} is missing, which {state_file} lists"
        late = job.seen_file.stat().st_mtime_ns - written
    except FileNotFoundError as error:
        return f"there is no {error.filename}, which a clean stop writes"
    except (OSError, ValueError, TypeError, LookupError) as error:
        return f"{queue} cannot be read ({error})"
    if late > SECONDS_TO_CLOSE * 1e9:
        return f"{job.seen_file} was written to after {state_file}"
    return None


def import_job(job: JobDirectory, settings: BloomSettings, identity: str) -> str:
    """Make the filter of `job`, which is locked and has none, from its `requests.seen`, all of it
    or nothing; return a line about it. Raises JobDirectoryError if the job was not stopped
    cleanly, and what making a filter raises."""
    if (unclean := why_unclean(job)) is not None:
        raise not_imported(job, unclean)
    seen = SeenFile(job.seen_file)
    unfinished = job.path / "bloom.importing"
    for leftover in (unfinished, job.filter):
        if leftover.is_dir():
            remove_filter(leftover)
    with closing(settings.open_filter(unfinished, identity, seen.keys)) as bloom_filter:
        imported = import_into(bloom_filter, seen)
    unfinished.rename(job.filter)
    sync_directory(job.path)
    torn = f" ({counted(imported.skipped, 'torn record')} left out)" if imported.skipped else ""
    return (
        f"Imported {counted(imported.added, 'request')} from {seen.name}{torn}: the job goes on"
        f" with the filter in {job.filter}"
    )


def not_imported(job: JobDirectory, unclean: str) -> JobDirectoryError:
    """Return the error for a `job` that was not stopped cleanly, as `unclean` says."""
    return JobDirectoryError(
        f"{job.path} holds a requests.seen of Scrapy's RFPDupeFilter and no Bloom filter, and"
        f" the job was not stopped cleanly ({unclean}): requests.seen also holds what was"
        " pending then, which Scrapy has lost and which would never be fetched. Use a new"
        f" JOBDIR, or import it all the same: scrapy bloom add {job.path} {job.seen_file}"
    )


def _queues(state: object) -> list[str]:
    """Return globs of the queues that `state` lists: of each priority, or slot and priority."""
    if isinstance(state, dict):
        return [
            # as scrapy.pqueues names the directory of a slot
            f"*-{md5(slot.encode(), usedforsecurity=False).hexdigest()}/{int(priority)}"
            for slot, priorities in state.items()
            for priority in priorities
        ]
    if isinstance(state, list):
        return [str(int(priority)) for priority in state]
    raise ValueError(f"active.json holds {state!r}")


def _was_left_open(path: Path) -> bool:
    """Return True for a file of queuelib's disk queues that does not hold as many requests as its
    queue noted when it was closed: in its first bytes, or for the newest file of a FIFO, where what
    was popped stays, in info.json. A file of another kind, as one of SQLite, tells nothing."""
    with path.open("rb", buffering=0) as file:
        count = 0
        if re.fullmatch(r"q\d{5}", path.name):
            number, noted = json.loads(path.with_name("info.json").read_bytes())["head"]
            while length := file.read(4):
                file.seek(int.from_bytes(length, "big"), os.SEEK_CUR)
                count += 1
            newest = f"q{number:05d}"
            return path.name > newest or (path.name == newest and count != noted)
        if not re.fullmatch(r"-?\d+s?", path.name):
            return False
        at = size = file.seek(0, os.SEEK_END)
        while at > 7:
            file.seek(at - 4)
            at -= 4 + int.from_bytes(file.read(4), "big")
            count += 1
        file.seek(0)
        return size < 4 or (at == 4 and file.read(4) != count.to_bytes(4, "big"))
