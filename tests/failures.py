"""The failed requests of a job or a crawl, as an operator sees and changes them."""

from pathlib import Path

from twisted.internet import error
from twisted.python.failure import Failure

from scrapy_bloom.crawl.choice import Filter
from scrapy_bloom.crawl.records import KEPT
from scrapy_bloom.sqlite.desk import SqliteDesk
from tests.crawl.engine import name_of


class Failed:
    """Those of the job in a directory, or those that a Desk has; `chosen` as Filter has them."""

    def __init__(self, place):
        self.desk = SqliteDesk(place) if isinstance(place, Path) else place

    def requests(self, **chosen):
        """Return their records, the oldest first."""
        return [each.failed for each in self.desk.scan(Filter(KEPT, **chosen))]

    def names(self, **chosen):
        """Return the names of their pages."""
        return [name_of(each) for each in self.requests(**chosen)]

    def by_reason(self):
        """Return how many there are for each reason."""
        return dict(self.desk.count(Filter(KEPT), "reason").by)

    def retry(self, **chosen):
        """Make them pending; return how many."""
        return self.desk.change(Filter(KEPT, **chosen), "retry").states.total()

    def drop(self, **chosen):
        """Forget them; return how many."""
        return self.desk.change(Filter(KEPT, **chosen), "drop").states.total()


def fail_download(job, popped, reason=None):
    """Let the engine say that a download has failed, and be done with it."""
    failure = Failure(reason or error.TimeoutError("too slow"))
    job.crawler.logformatter.download_error(failure, popped, job.spider)
    job.done(popped)


class SpeechlessError(Exception):
    """Raises whatever it is asked."""

    reasons = 7

    def __str__(self):
        raise LookupError("no message")

    @property
    def response(self):
        raise LookupError("no response")
