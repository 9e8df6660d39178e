"""Requests that have failed: from the mark to the record, and back among the pending ones."""

import pytest
from scrapy import exceptions
from scrapy.http import Response
from twisted.internet import defer, error
from twisted.python.failure import Failure
from twisted.web.client import ResponseFailed

import scrapy_bloom
from scrapy_bloom.crawl.failed_request import ATTEMPTS_KEY, FailedRequest, download_reason
from tests.crawl.engine import name_of, request
from tests.crawl.engine import unfiltered as start
from tests.crawl.test_rounds import phases
from tests.failures import Failed, SpeechlessError, fail_download
from tests.fakes import raising
from tests.stored import stored

pytestmark = pytest.mark.usefixtures("few_shards")


def crawl_and_fail(place, *names):
    """Crawl a round whose pages of these names fail, and whose start page does not."""
    job = place.open().started("start", *names)
    while (popped := job.pop()) is not None:
        if name_of(popped) in names:
            fail_download(job, popped)
        else:
            job.done(popped)
    job.close()


REASONS = [
    *((defer.TimeoutError(), "timeout"), (error.DNSLookupError("no such name"), "dns")),
    (ConnectionRefusedError(), "refused"),
    (ResponseFailed([Failure(error.ConnectionDone())]), "connection"),
    *((OSError("an empty gzip"), "connection"), (defer.CancelledError(), "cancelled")),
    (exceptions.NotSupported("no handler"), "unsupported"),
    (ValueError("a middleware's own"), "other"),
]
SCRAPYS = [  # since 2.15, with the names of Twisted's before
    ("DownloadTimeoutError", "timeout"),
    ("CannotResolveHostError", "dns"),
    ("DownloadConnectionRefusedError", "refused"),
    ("DownloadFailedError", "connection"),
    ("ResponseDataLossError", "data_loss"),
    ("DownloadCancelledError", "cancelled"),
    ("UnsupportedURLSchemeError", "unsupported"),
]


def test_reasons_are_names_of_ours():
    """Whichever class an exception has in a release of Scrapy."""
    scrapys = [(getattr(exceptions, name, None), reason) for name, reason in SCRAPYS]
    for exception, name in REASONS + [(each("x"), name) for each, name in scrapys if each]:
        assert download_reason(exception) == f"download/{name}"


def test_a_request_fails_in_one_commit(place):
    """A kill leaves it pending before that, and failed behind it."""
    job = place.open().started("a")
    job.commit()
    fail_download(job, job.pop(), error.DNSLookupError("no such name"))
    job.drop()
    assert place.failed.names() == []
    job = place.open().started("a")
    popped = job.pop()
    fail_download(job, popped, error.DNSLookupError("no such name"))
    job.commit()
    job.drop()
    assert place.open().names() == []
    (found,) = place.failed.requests()
    assert found.reason == "download/dns"
    assert (found.method, found.status, found.attempts, found.referer) == ("GET", None, 1, None)
    assert found.exception.startswith("DNSLookupError: ")
    assert found.time > 1e9


def test_what_is_known_of_a_failure(place):
    """The reason is the first one: what the spider says itself; referer, method, status, and how
    often it was sent, which a retry goes on with. A link to it is known, as before."""
    job = place.open()
    referer, meta = "http://example.com/list", {"retry_times": 2, ATTEMPTS_KEY: 3, "own": 1}
    job.push("a", method="POST", headers={"Referer": referer}, meta=meta, priority=3)
    popped = job.pop()
    scrapy_bloom.fail(Response(popped.url, status=200, request=popped), "login\npage")
    fail_download(job, popped)
    job.close()
    (found,) = place.failed.requests()
    assert found[:6] == ("http://example.com/a", "POST", "login page", 200, None, 6)
    assert found.referer == referer
    assert place.failed.retry() == 1
    assert place.failed.names() == []
    job = place.open()
    job.push("a", method="POST")
    popped = job.pop()
    assert job.pop() is None
    assert (popped.method, popped.priority) == ("POST", 3)
    assert [popped.meta.get(key) for key in ("retry_times", "own", ATTEMPTS_KEY)] == [None, 1, 6]
    fail_download(job, popped)
    job.close()
    assert place.failed.requests()[0].attempts == 7


@pytest.mark.parametrize(
    ("meta", "attempts"),
    [
        ({ATTEMPTS_KEY: "twice", "retry_times": None}, 1),
        ({ATTEMPTS_KEY: 2**31, "retry_times": -4}, 1),
        ({ATTEMPTS_KEY: [], "retry_times": 2}, 3),
    ],
)
def test_a_failure_whose_telling_fails_is_kept_all_the_same(place, meta, attempts):
    """Whatever raises in its exception, and whatever others have put into the meta."""
    job = place.open().pushed("a", meta=meta, method="\ud800").pushed("b", meta=meta)
    failure = Failure(SpeechlessError())
    failure.request = job.pop()
    scrapy_bloom.fail(failure, "\ud800")
    job.done(failure.request)
    fail_download(job, job.pop(), SpeechlessError())
    job.commit()
    assert not job.scheduler.ledger.stopped
    found = place.failed.requests()
    assert [each.reason for each in found] == ["\\ud800", "download/other"]
    assert {each[3:6] for each in found} == {(None, "SpeechlessError", attempts)}


def test_nothing_is_kept_where_that_is_off(place):
    job = place.open(BLOOM_KEEP_FAILED=False).pushed("a")
    fail_download(job, job.pop())
    job.close()
    assert place.failed.names() == []


def test_only_the_spiders_own_word_counts(place):
    """With BLOOM_FAILED_KINDS = [], and where the page is in the crawl: a spider runs with other
    schedulers too; but what is no response is an error."""
    job = place.open(BLOOM_FAILED_KINDS=[]).pushed("a", "b")
    fail_download(job, job.pop())
    popped = job.pop()
    for page in (popped, request("c")):
        scrapy_bloom.fail(Response(page.url, request=page), "login page")
    scrapy_bloom.fail(Response(popped.url), "x")
    job.done(popped)
    job.close()
    assert [(name_of(each), each.reason) for each in place.failed.requests()] == [
        (name_of(popped), "login page")
    ]
    with pytest.raises(TypeError, match="takes the response"):
        scrapy_bloom.fail(request("a"), "x")
    with pytest.raises(ValueError, match="must be text"):
        scrapy_bloom.fail(Response("http://example.com/a"), "")


def test_each_start_can_retry_all(place):
    """With BLOOM_RETRY_FAILED, in the round in which they have failed; what fails again stays."""
    crawl_and_fail(place, "a", "b")
    job = place.open(BLOOM_RETRY_FAILED=True).started("start")
    fail_download(job, job.pop())
    assert len(job.names()) == 1
    job.close()
    (again,) = place.failed.requests()
    assert (again.attempts, job.stat("scheduler/failed")) == (2, 1)


@pytest.mark.parametrize("dropped", [True, False])
def test_without_a_retry_the_next_start_is_a_new_round(place, dropped):
    """Whether failed requests are forgotten or kept."""
    crawl_and_fail(place, "a")
    assert place.failed.drop() == 1 if dropped else True
    for _ in range(2):
        assert place.open().started("start").finish() == ["start"]
    assert place.failed.names() == ([] if dropped else ["a"])


def test_failed_requests_of_memory_are_counted_and_told(place, caplog):
    """They cannot be kept, so it is said."""
    job = place.open().pushed("a", meta={"function": lambda: None})
    fail_download(job, job.pop())
    job.close()
    assert place.failed.names() == []
    assert job.stat("scheduler/failed_in_memory") == 1
    assert "1 request failed that cannot be stored, and so cannot be kept" in caplog.text


@pytest.mark.parametrize("error", [AttributeError, MemoryError])
def test_what_raises_while_it_is_scheduled_is_left_out(place, caplog, monkeypatch, error):
    """It is told, counted and not seen, and what has yielded it is done; what is no fault of its
    own keeps that pending."""
    job, is_its_own = place.open().started("page"), error is AttributeError
    job.commit()
    page = job.pop()
    for part, name in ((job.scheduler.ledger.store, "push"), (job.scheduler.df, "request_seen")):
        with monkeypatch.context() as patch:
            patch.setattr(part, name, raising(error("no idea")))
            assert not job.push("a")
    assert job.push("a") is is_its_own
    job.done(page)
    assert job.names() == ["a"] * is_its_own
    job.close("finished" if is_its_own else "bloom_error")
    assert ("Cannot schedule <GET http://example.com/a>, which" in caplog.text) is is_its_own
    assert ("2 requests failed that cannot be stored" in caplog.text) is is_its_own
    assert place.open().names() == ["page"] * (not is_its_own)


def test_a_long_exception_is_cut():
    """A page in an error message does not fill the job."""
    found = FailedRequest.of(request("a"), "x", exception=ValueError("y" * 10_000))
    assert len(found.exception) == 500


# of a job


def test_a_request_that_cannot_be_read_is_tried_again_at_each_start(make_round, tmp_path):
    """In a new round; it is the last one that goes on where an operator retries it."""
    make_round().started("start").finish()
    with stored(tmp_path / "job" / "requests.sqlite") as job:
        job.put(b"no request", "example.com")
    for number in (2, 3):
        job = make_round()
        assert job.start(start("start")) == ["start"]
        job.finish()
        assert phases(tmp_path / "job") == [(number, "over but for failed requests")]
    assert Failed(tmp_path / "job").retry(reasons=["unreadable"]) == 1
    job = make_round()
    assert (job.round.number, job.round.is_resumed) == (3, True)


@pytest.mark.parametrize("place", ["job"], indirect=True)
def test_a_start_that_did_not_open_leaves_the_round_as_it_was(place):
    """It can still be gone on with."""
    crawl_and_fail(place, "a")
    place.open(unopened=True).close("shutdown")
    place.failed.retry()
    job = place.open()
    assert (job.round.number, job.round.is_resumed) == (1, True)


@pytest.mark.parametrize("place", ["job"], indirect=True)
def test_a_retry_that_is_killed_before_its_first_commit_is_not_lost(place, crash_round):
    """With BLOOM_RETRY_FAILED they have failed until then, and then they are pending."""
    crawl_and_fail(place, "a")
    job = place.open(BLOOM_RETRY_FAILED=True)
    assert place.failed.names() == ["a"]
    job.commit()
    assert crash_round().names() == ["a"]


class Mark:
    """What can be stored as a pickle only."""


def test_a_round_goes_on_at_the_start_that_can_read_what_it_has_kept(make_round):
    """Each start that can read nothing of it begins a new one."""
    job = make_round().started("a")
    assert job.names() == ["a"]
    job.push("b", meta={"mark": Mark()})
    job.close("shutdown")
    for sent in ([], ["a"], ["a"]):
        job = make_round(BLOOM_PICKLE=False)
        assert job.start(start("a")) == sent
        assert job.finish() == sent
    job = make_round()
    assert (job.round.number, job.start(start("a")), job.finish()) == (3, [], ["b"])
    assert make_round().start(start("a")) == ["a"]


@pytest.mark.parametrize(
    ("name", "value", "rest"),
    [
        ("BLOOM_FAILED_KINDS", ["downloads"], "list of some of"),
        ("BLOOM_KEEP_FAILED", "perhaps", "True or False"),
        ("BLOOM_RETRY_FAILED", "always", "True or False"),
        ("BLOOM_REPEAT_START", "perhaps", "True or False"),
        ("BLOOM_PICKLE", "perhaps", "must be True or False"),
        ("BLOOM_ANY_SPIDER", "perhaps", "True or False"),
        *(("BLOOM_DELAY_WAIT", value, "") for value in (-1, "soon", True, "5 years")),
        ("BLOOM_BUDGET", {"*/a*": 1, "*/b*": 1}, "remove one"),
    ],
)
def test_bad_settings_are_refused_by_name(make_round, tmp_path, name, value, rest):
    """In one line, and the job is as it was."""
    with pytest.raises(ValueError, match=f"^{name} (is|has) .*{rest}"):
        make_round(**{name: value})
    assert [*(tmp_path / "job").iterdir()] == []
