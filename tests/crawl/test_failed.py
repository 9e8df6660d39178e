"""Requests that have failed: from the mark to the row, and back among the pending ones."""

import os

import pytest
from scrapy import exceptions
from scrapy.http import Response
from scrapy.settings import Settings
from twisted.internet import defer, error
from twisted.python.failure import Failure
from twisted.web.client import ResponseFailed, ResponseNeverReceived

import scrapy_bloom
from scrapy_bloom.crawl.failed_request import ATTEMPTS_KEY, FailedRequest, download_reason
from scrapy_bloom.crawl.settings import FAILED_KINDS
from tests.crawl.engine import name_of, request
from tests.crawl.test_rounds import phases, start
from tests.failures import Failed
from tests.stored import stored

pytestmark = pytest.mark.skipif(os.name != "posix", reason="JOBDIR needs Linux or macOS")


def fail_download(job, popped, reason=None):
    """Let the engine say that a download has failed, and be done with it."""
    failure = Failure(reason or error.TimeoutError("too slow"))
    job.crawler.logformatter.download_error(failure, popped, job.spider)
    job.done(popped)


def urls(folder):
    """Return the names of the pages of a job that have failed."""
    return [each.url.rpartition("/")[2] for each in Failed(folder).requests()]


def failed_job(make_round, *names, **options):
    """Crawl a round whose pages of these names fail, and whose others do not."""
    job = make_round(**options)
    job.start(*(start(name) for name in ["start", *names]))
    while (popped := job.pop()) is not None:
        if popped.url.rpartition("/")[2] in names:
            fail_download(job, popped)
        else:
            job.done(popped)
    job.close()
    return job


@pytest.mark.parametrize(
    ("exception", "name"),
    [
        (error.TimeoutError("User timeout"), "timeout"),
        (error.TCPTimedOutError(), "timeout"),
        (defer.TimeoutError(), "timeout"),
        (TimeoutError(), "timeout"),
        (error.DNSLookupError("no such name"), "dns"),
        (error.ConnectionRefusedError(), "refused"),
        (ConnectionRefusedError(), "refused"),
        (error.ConnectionLost(), "connection"),
        (error.SSLError(), "connection"),
        (ResponseNeverReceived([Failure(error.ConnectionDone())]), "connection"),
        (ResponseFailed([Failure(type("_DataLoss", (Exception,), {})())]), "data_loss"),
        (OSError("an empty gzip"), "connection"),
        (defer.CancelledError(), "cancelled"),
        (exceptions.NotSupported("no handler"), "unsupported"),
        (ValueError("a middleware's own"), "other"),
    ],
)
def test_reasons_are_names_of_ours(exception, name):
    """Whichever class an exception has in a release of Scrapy."""
    assert download_reason(exception) == f"download/{name}"


@pytest.mark.skipif(not hasattr(exceptions, "DownloadFailedError"), reason="since Scrapy 2.15")
def test_reasons_stay_the_same_with_scrapys_own_exceptions():
    """Those of 2.15 and later have the names of Twisted's before."""
    for name, reason in (
        ("DownloadTimeoutError", "timeout"),
        ("CannotResolveHostError", "dns"),
        ("DownloadConnectionRefusedError", "refused"),
        ("DownloadFailedError", "connection"),
        ("ResponseDataLossError", "data_loss"),
        ("DownloadCancelledError", "cancelled"),
        ("UnsupportedURLSchemeError", "unsupported"),
    ):
        assert download_reason(getattr(exceptions, name)("x")) == f"download/{reason}"


def test_a_failed_row_replaces_the_requests_row_in_one_commit(make_round, crash_round, tmp_path):
    """A crash leaves the request pending before it, and failed after it."""
    job = make_round().started("a", "b")
    popped = job.pop()
    job.commit()
    fail_download(job, popped, error.DNSLookupError("no such name"))
    assert sorted(crash_round().names()) == ["a", "b"]
    assert urls(tmp_path / "job") == []
    job.commit()
    assert crash_round().names() == [{"a": "b", "b": "a"}[name_of(popped)]]
    (found,) = Failed(tmp_path / "job").requests()
    assert found.reason == "download/dns"
    assert (found.method, found.status, found.attempts, found.referer) == ("GET", None, 1, None)
    assert found.exception.startswith("DNSLookupError: ")


def test_what_is_known_of_a_failure(make_round, tmp_path):
    """With its referer, its method, its attempts, and the status of the response."""
    job = make_round()
    page = request(
        "a",
        method="POST",
        headers={"Referer": "http://example.com/list"},
        meta={"retry_times": 2, ATTEMPTS_KEY: 3},
    )
    job.scheduler.enqueue_request(page)
    popped = job.pop()
    response = Response(popped.url, status=200, request=popped)
    scrapy_bloom.fail(response, "login\npage")
    job.done(popped)
    job.close()
    (found,) = Failed(tmp_path / "job").requests()
    assert found[:6] == ("http://example.com/a", "POST", "login page", 200, None, 6)
    assert found.referer == "http://example.com/list"


def test_the_first_reason_stands(make_round, tmp_path):
    """What the spider says itself is not replaced by what comes of it."""
    job = make_round().pushed("a")
    popped = job.pop()
    failure = Failure(error.TimeoutError())
    failure.request = popped
    scrapy_bloom.fail(failure, "give up")
    fail_download(job, popped)
    job.close()
    assert [each.reason for each in Failed(tmp_path / "job").requests()] == ["give up"]


class SpeechlessError(Exception):
    """Raises whatever it is asked."""

    reasons = 7

    def __str__(self):
        raise LookupError("no message")

    @property
    def response(self):
        raise LookupError("no response")


class UnpicklesOnce:
    """Pickles, and unpickles once."""

    was_unpickled = False

    def __getstate__(self):
        return {"x": 1}

    def __setstate__(self, _state):
        if UnpicklesOnce.was_unpickled:
            raise LookupError("twice")
        UnpicklesOnce.was_unpickled = True


@pytest.mark.parametrize(
    ("meta", "attempts"),
    [
        ({ATTEMPTS_KEY: "twice", "retry_times": None}, 1),
        ({ATTEMPTS_KEY: 10**30, "retry_times": -4}, 1),
        ({ATTEMPTS_KEY: [], "retry_times": 2}, 3),
    ],
)
def test_a_failure_whose_telling_fails_is_kept_all_the_same(make_round, tmp_path, meta, attempts):
    """Whatever raises in its exception, and whatever others have put into the meta."""
    job = make_round().pushed("a", meta=meta, method="\ud800").pushed("b", meta=meta)
    failure = Failure(SpeechlessError())
    failure.request = job.pop()
    scrapy_bloom.fail(failure, "\ud800")
    job.done(failure.request)
    fail_download(job, job.pop(), SpeechlessError())
    job.commit()
    assert not job.scheduler.ledger.stopped
    for found, reason in zip(
        Failed(tmp_path / "job").requests(), ("\\ud800", "download/other"), strict=True
    ):
        assert (found.reason, found.exception) == (reason, "SpeechlessError")
        assert (found.status, found.attempts) == (None, attempts)


def test_a_request_that_unpickles_only_once_is_kept_as_it_is(make_round, tmp_path):
    """It cannot be made one that is asked once more."""
    UnpicklesOnce.was_unpickled = False
    job = make_round().pushed("a", cb_kwargs={"object": UnpicklesOnce()})
    fail_download(job, job.pop())
    job.close()
    assert urls(tmp_path / "job") == ["a"]


def test_the_spiders_own_word_counts_when_nothing_else_does(make_round, tmp_path):
    """With BLOOM_FAILED_KINDS = [], as `fail()` and its page have it."""
    job = make_round(BLOOM_FAILED_KINDS=[]).pushed("a", "b")
    fail_download(job, job.pop())
    popped = job.pop()
    scrapy_bloom.fail(Response(popped.url, request=popped), "login page")
    job.done(popped)
    job.close()
    (found,) = Failed(tmp_path / "job").requests()
    assert found.reason == "login page"


def test_fail_does_nothing_for_what_is_in_no_job(make_round, tmp_path):
    """So a spider runs with other schedulers too; but what is no response is an error."""
    job = make_round().pushed("a")
    scrapy_bloom.fail(Response("http://example.com/a", request=request("a")), "x")
    scrapy_bloom.fail(Response("http://example.com/a"), "x")
    job.close()
    assert urls(tmp_path / "job") == []
    with pytest.raises(TypeError, match="takes the response"):
        scrapy_bloom.fail(request("a"), "x")
    with pytest.raises(ValueError, match="must be text"):
        scrapy_bloom.fail(Response("http://example.com/a"), "")


def test_a_retried_request_is_asked_and_not_seen_against_itself(make_round, tmp_path):
    """With all its retries again; and a link to it is known, as before."""
    job = make_round().pushed("a", meta={"retry_times": 2, "own": 1})
    fail_download(job, job.pop())
    job.close()
    assert Failed(tmp_path / "job").retry() == 1
    assert urls(tmp_path / "job") == []
    job = make_round()
    assert not job.push("a")
    popped = job.pop()
    assert popped.url == "http://example.com/a"
    assert [popped.meta.get(key) for key in ("retry_times", "own", ATTEMPTS_KEY)] == [None, 1, 3]


@pytest.mark.parametrize("state", ["dropped", "kept", "unreadable"])
def test_without_a_retry_the_next_start_is_a_new_round(make_round, tmp_path, state):
    """Whether failed requests are forgotten or kept, or one that cannot be read comes back."""
    failed_job(make_round, *([] if state == "unreadable" else ["a"]))
    if state == "dropped":
        assert Failed(tmp_path / "job").drop() == 1
    elif state == "unreadable":
        with stored(tmp_path / "job" / "requests.sqlite") as job:
            job.put(b"no request", "example.com")
    for number in (2, 3):
        job = make_round()
        assert (job.round.number, job.round.is_resumed) == (number, False)
        assert job.start(start("start")) == ["start"]
        job.finish()
        kept = "over" if state == "dropped" else "over but for failed requests"
        assert phases(tmp_path / "job") == [(number, kept)]
    if state == "unreadable":
        assert Failed(tmp_path / "job").retry(reasons=["unreadable"]) == 1
        job = make_round()
        assert (job.round.number, job.round.is_resumed) == (3, True)
    else:
        assert urls(tmp_path / "job") == ([] if state == "dropped" else ["a"])


def test_a_start_that_did_not_open_leaves_the_round_as_it_was(make_round, tmp_path):
    """It can still be gone on with."""
    failed_job(make_round, "a")
    make_round().close("shutdown")
    Failed(tmp_path / "job").retry()
    job = make_round()
    assert (job.round.number, job.round.is_resumed) == (1, True)


def test_each_start_can_retry_all(make_round, tmp_path):
    """With BLOOM_RETRY_FAILED; those that fail again stay."""
    failed_job(make_round, "a", "b")
    job = make_round(BLOOM_RETRY_FAILED=True)
    assert job.start(start("start")) == []
    assert job.round.number == 1
    fail_download(job, job.pop())
    job.finish()
    (again,) = Failed(tmp_path / "job").requests()
    assert again.attempts == 2
    assert job.stat("scheduler/failed") == 1


def test_a_retry_that_is_killed_before_its_first_commit_is_not_lost(
    make_round, crash_round, tmp_path
):
    """With BLOOM_RETRY_FAILED they have failed until then, and then they are pending."""
    failed_job(make_round, "a")
    job = make_round(BLOOM_RETRY_FAILED=True)
    assert urls(tmp_path / "job") == ["a"]
    job.commit()
    assert crash_round().names() == ["a"]


def test_failed_requests_of_memory_are_counted_and_told(make_round, tmp_path, caplog):
    """They cannot be kept, so it is said."""
    job = make_round().pushed("a", meta={"function": lambda: None})
    fail_download(job, job.pop())
    job.close()
    assert urls(tmp_path / "job") == []
    assert job.stat("scheduler/failed_in_memory") == 1
    assert "1 request failed that cannot be serialized, and so cannot be kept" in caplog.text


@pytest.mark.parametrize("text", ["download, item", ["download", "item"]])
def test_what_counts_can_be_chosen(text):
    """In Python and on the command line."""
    assert FAILED_KINDS.read(Settings({"BLOOM_FAILED_KINDS": text})) == {"download", "item"}


def test_a_long_exception_is_cut():
    """A page in an error message does not fill the job."""
    found = FailedRequest.of(request("a"), "x", exception=ValueError("y" * 10_000))
    assert len(found.exception) == 500


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
    job = make_round()
    assert (job.round.number, job.start(start("a"))) == (4, ["a"])


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
    ],
)
def test_bad_settings_are_refused_by_name(make_round, tmp_path, name, value, rest):
    """In one line, and the job is as it was."""
    with pytest.raises(ValueError, match=f"{name} is .*{rest}"):
        make_round(**{name: value})
    assert [*(tmp_path / "job").iterdir()] == []
