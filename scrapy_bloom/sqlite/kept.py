"""What a round has kept, failed or over a budget: a start or an order has it pending again."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ..crawl.codec import Codec, Stored
from ..crawl.failed_request import ASKING_CAPPED, RETRYING
from ..crawl.settings import RETRY_FAILED
from .job_file import MAX_BYTES
from .rounds import KEPT

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from scrapy import Request
    from scrapy.crawler import Crawler

    from ..crawl.failure_hooks import Failures
    from ..crawl.queue_order import QueueSettings
    from .budget import JobBudget
    from .job_file import RequestFile
    from .records import SqliteRecords

COMING_BACK = (
    # what a start makes pending: what is stored, unreadable or retried, by setting all that is
    # kept; what waits for dead hosts is asked in any round. And whether a budget has to count it
    "SELECT name, payload, state > 3 OR state = 3 AND reason != 'unreadable'"
    " AND round < (SELECT number FROM rounds) FROM request JOIN slot ON slot.id = slot"
    " WHERE state < 3 AND (?1 OR slot NOT IN dead) OR state = 3 AND reason = 'unreadable'"
    " OR payload != x'' AND (state = 5 OR ?1 AND state > 2)"
)
SELECTED = (
    "SELECT request.id, name, rank, CASE WHEN state > 3 THEN due END AS due"
    " FROM request JOIN slot ON slot.id = slot WHERE {} AND payload != x'' ORDER BY request.id"
)
# by their numbers, not by their states
_CHOSEN = "state IN (3, 4) AND request.id IN (SELECT value FROM json_each(?))"


def goes_on(
    crawler: Crawler, file: RequestFile, queues: QueueSettings, budget: JobBudget | None
) -> bool:
    """Return True if a last round that was over but for kept requests goes on: one of these is
    pending again at this start, and can be read; the others fail again when they are popped. Cost:
    reads the requests of such a round, up to the first one."""
    if not file.query("SELECT 1 FROM rounds WHERE phase = ?", (KEPT,)):
        return False
    codec = Codec(crawler.spider, MAX_BYTES, pickles=queues.pickles)
    rows: Iterable[tuple[Any, ...]]
    rows = file.execute(COMING_BACK, (RETRY_FAILED.read(crawler.settings),))
    if budget is not None:
        rows = budget.with_room(rows)
    return next(readable(codec, (row[:2] for row in rows)), None) is not None


def readable(codec: Codec, rows: Iterable[tuple[Any, ...]]) -> Iterator[Request]:
    """Yield the requests of these slots and payloads that can be loaded."""
    for row in rows:
        with suppress(Exception):  # of any class, by its own code
            yield codec.load(Stored(*row))


def retry(records: SqliteRecords, failures: Failures, budget: JobBudget | None) -> bool:
    """Make pending what BLOOM_RETRY_FAILED or an operator retries at a start. Return True if a kill
    must not leave the choice to another start."""
    retries = failures.retries
    failed = _wake(records, "state > 0 AND state = 3") if retries else 0
    failures.tell(RETRYING, failed)
    asked = _wake(records, f"state > 0 AND state IN ({'4, 5' if retries else '5'})")
    failures.tell(ASKING_CAPPED, asked)
    return bool(asked or (failed and budget is not None))


def wake(records: SqliteRecords, ids: Sequence[int]) -> int:
    """Make kept records with these ids pending, or delayed until they are due, as far as there is
    room for them. Return how many."""
    return _wake(records, _CHOSEN, json.dumps(ids))


def _wake(records: SqliteRecords, where: str, *values: object) -> int:
    rows = records.file.query(SELECTED.format(where), values)
    refused = records.refuses([row[0] for row in rows])
    found = [row for row in rows if row[0] not in refused]
    now = time.time()
    records.wake([row[:3] for row in found if row[3] is None or row[3] <= now])
    for id_, *_, due in found:
        if due is not None and due > now:
            records.put_off(id_, due)
    records.dropped({})
    return len(found)
