"""What `add` imports, by its name."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from ..amounts import counted
from ..errors import BloomError
from ..jobdir import JobDirectory
from ..migration.scrapy_job import why_unclean
from ..migration.scrapy_redis import RedisSet
from ..migration.sources import Source, source_in
from ..redis.client import REDIS_SCHEMES, RedisClient
from .context import Context
from .crawls import PATIENCE


def source_called(session: Context, name: str, stack: ExitStack) -> Source:
    """Return the source called `name`; its connection, if it has one, lives in `stack`."""
    if not name.startswith(REDIS_SCHEMES):
        return source_in(Path(name), session.fingerprinter)
    if not session.options.key:
        raise BloomError(
            "a set in Redis needs --key, its name (in scrapy-redis that of the spider and"
            " ':dupefilter')"
        )
    client = stack.enter_context(RedisClient(name, PATIENCE))
    return RedisSet(client, session.options.key, session.fingerprinter)


def warn_of_pending(names: list[str]) -> None:
    """Warn of a requests.seen with requests that were lost while they were pending."""
    for path in map(Path, names):
        job = JobDirectory(path.parent)
        if path == job.seen_file and (reason := why_unclean(job)):
            sys.stderr.write(
                f"{job.path} was not stopped cleanly ({reason}): {path} also holds what was"
                " pending then, and that will not be fetched\n"
            )


def told_skipped(source: Source) -> Iterator[str]:
    """Yield a line about what was skipped in `source`, if there was any."""
    if source.skipped:
        skipped = counted(source.skipped, source.noun)
        yield f"  {skipped} skipped, the first is {source.first_skipped}"
