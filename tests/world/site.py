"""What the local site knows of a request, and what it may answer."""

from typing import NamedTuple


class Asked(NamedTuple):
    """A request of a crawl: what the site knows when it answers."""

    crawl: str
    page: str
    times: int
    """How often this page was asked before."""
    state: str

    @property
    def kind(self):
        """What the site is to make of it."""
        return self.page.partition("/")[0]

    @property
    def number(self):
        """Which page of its kind it is."""
        return self.page.rpartition("/")[2]


class Answer(NamedTuple):
    """What the site has noted of an answer; the status is 0 if it hung up."""

    at: float
    status: int
    page: str

    @property
    def is_good(self):
        """True but for an error of the server."""
        return 0 < self.status < 500


class Reply(NamedTuple):
    """An answer of the site; without a status it hangs up, `after` so many seconds."""

    status: int | None = 200
    body: bytes = b""
    headers: dict = {}  # noqa: RUF012 - changed by nothing
    after: float = 0.0


def moved(crawl, page):
    """Return a redirect to another page of a crawl."""
    return Reply(302, headers={"Location": f"/{crawl}/{page}"})
