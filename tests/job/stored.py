"""Records of a job, without the requests that they are made of."""

from scrapy_bloom.job.failed_request import FailedRequest
from scrapy_bloom.job.records import New, rank_of
from scrapy_bloom.job.slots import OneLine, Slots
from scrapy_bloom.sqlite_backend.records import SqliteRecords

LIFO = (True, False)
"""Scrapy's order: the newest request first, and the oldest start request."""
FAILURE = FailedRequest("", "GET", "status/500", 500, None, 1, 1.0, None)
UNREADABLE = FailedRequest.unreadable("", "GET", "KeyError")


def records_in(file, order=LIFO, *, by_slot=True, budget=None, **options):
    """Return the records in a file."""
    slots = (Slots if by_slot else OneLine)(**options)
    return SqliteRecords(file, slots, order, budget)


def put(store, *names, slot="a", priority=0, start=False, due=None):
    """Add records with these payloads; return the id of the last."""
    for name in names:
        id_ = store.push(New(slot, rank_of(priority, start=start), name, due))
    return id_


def taken(store):
    """Claim all there is, and be done with it; return the payloads."""
    found = []
    while (claimed := store.next()) is not None:
        found.append(claimed.payload)
        store.done(claimed.id)
    return found
