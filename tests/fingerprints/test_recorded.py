"""Whose fingerprints a job holds: what may change between two runs of it, and what may not."""

import logging
from hashlib import sha1

import pytest
from scrapy import Request
from scrapy.utils.request import RequestFingerprinter

from scrapy_bloom import IncompatibleFilterError, ScalableBloomFilter
from scrapy_bloom.fingerprints import FingerprinterIdentity, fingerprinter_in


class Renamed(RequestFingerprinter):
    """Scrapy's fingerprints from another class."""


class Upgraded(RequestFingerprinter):
    """Scrapy's, but for URLs with a semicolon in the query."""

    def fingerprint(self, request):
        fingerprint = super().fingerprint(request)
        return fingerprint[::-1] if ";" in request.url else fingerprint


class OnlyUrl:
    """Another fingerprinter, which tells neither methods nor bodies apart."""

    def fingerprint(self, request):
        return sha1(request.url.encode(), usedforsecurity=False).digest()


class WithoutBodies(RequestFingerprinter):
    """Scrapy's, but for requests with a body, which it takes for those without."""

    def fingerprint(self, request):
        return super().fingerprint(request.replace(body=b""))


class FailsOnEdge(RequestFingerprinter):
    """Fails where w3lib's releases disagree."""

    def fingerprint(self, request):
        if ";" in request.url or "\\" in request.url:
            raise LookupError(request.url)
        return super().fingerprint(request)


class FailsAlways:
    """Fails on every request."""

    def fingerprint(self, request):
        raise LookupError(request.url)


class NotBytes(RequestFingerprinter):
    """Answers with text, where Scrapy wants bytes."""

    def fingerprint(self, request):
        return super().fingerprint(request).hex()


def with_identity(text):
    """Return a class of fingerprinters that names its settings."""
    return type("Named", (RequestFingerprinter,), {"identity": text})


@pytest.fixture
def run(make_dupefilter, tmp_path):
    """Return a function that opens the job, and answers whether it has seen a page."""

    def run(fingerprinter=RequestFingerprinter):
        dupefilter = make_dupefilter(JOBDIR=tmp_path, REQUEST_FINGERPRINTER_CLASS=fingerprinter)
        seen = dupefilter.request_seen(Request("http://example.com/page"))
        dupefilter.close("finished")
        return seen

    return run


@pytest.fixture
def warnings(caplog):
    """Return a function that lists the warnings of the package so far."""
    return lambda: [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]


@pytest.mark.parametrize("other", [OnlyUrl, WithoutBodies])
def test_other_fingerprints_are_refused(run, tmp_path, other):
    """With both classes, the setting and the remedy; the job goes on with the old ones."""
    run()
    with pytest.raises(IncompatibleFilterError) as refused:
        run(other)
    message = str(refused.value)
    assert message.index("RequestFingerprinter") < message.index(other.__name__)
    assert "REQUEST_FINGERPRINTER_CLASS" in message
    assert "new JOBDIR" in message
    assert str(tmp_path) in message
    assert run() is True


@pytest.mark.parametrize(
    ("first", "second", "match"),
    [
        (with_identity("drop: utm"), with_identity("drop: ref"), "'drop: utm'.*'drop: ref'"),
        (with_identity("drop: utm"), RequestFingerprinter, "identity"),
        (RequestFingerprinter, with_identity("drop: utm"), "identity"),
        (with_identity(""), with_identity(("a", "tuple")), "identity"),
        (with_identity(("a", "b")), with_identity(("a", "c")), r"\('a', 'b'\).*\('a', 'c'\)"),
        (with_identity("x" * 100_000 + "y"), with_identity("x" * 100_000 + "z"), "identity"),
    ],
    ids=["changed", "gone", "new", "no text", "another tuple", "long"],
)
def test_other_identity_is_refused(run, first, second, match):
    """An `identity` that differs is refused, even where the fixed requests agree, with both."""
    run(first)
    with pytest.raises(IncompatibleFilterError, match=match):
        run(second)
    assert run(first) is True


TEXTS = ["x" * 1_000_000, "\U0001f577" * 999, "\"\\'" * 333, "\n\0\x7f" * 333, "\ud800" * 2_000]
IDENTITIES = [*TEXTS, ("a", "tuple"), None]
LONG_NAME = type("Long" * 2_000, (RequestFingerprinter,), {})
EQUAL = [
    *((each, each) for each in (RequestFingerprinter, FailsOnEdge)),
    *((each, each) for each in (LONG_NAME, *map(with_identity, IDENTITIES))),
    (RequestFingerprinter, Renamed),
    (Renamed, RequestFingerprinter),
]


@pytest.mark.parametrize(("first", "second"), EQUAL, ids=range(len(EQUAL)))
def test_equal_fingerprints_resume_silently(run, warnings, first, second):
    """What counts is the fingerprints and the `identity`, of any length and any characters, not the
    class that makes them."""
    assert [run(first), run(second)] == [False, True]
    assert warnings() == []


@pytest.mark.parametrize(
    ("first", "second"), [(RequestFingerprinter, Upgraded), (FailsOnEdge, RequestFingerprinter)]
)
def test_edge_cases_that_differ_are_warned_of(run, warnings, first, second):
    """As after an upgrade of w3lib: one line, and the crawl goes on."""
    run(first)
    assert warnings() == []
    assert run(second) is True
    (warning,) = warnings()
    assert "w3lib" in warning
    assert "fetched once more" in warning


@pytest.mark.parametrize("fingerprinter", [FailsAlways, NotBytes])
def test_fingerprinter_that_always_fails_is_one_of_its_own(run, fingerprinter):
    """It can resume its job, and no other can."""
    assert [run(fingerprinter), run(fingerprinter)] == [False, True]
    with pytest.raises(IncompatibleFilterError, match=fingerprinter.__name__):
        run()


def test_a_filter_tells_of_its_fingerprinter(make_dupefilter, tmp_path):
    """By name, and with its own identity; a text that is no record is shown as it is. A filter made
    without Scrapy's fingerprinter in mind is refused, not guessed at."""
    recorded = FingerprinterIdentity.of(with_identity("drop: utm")()).to_text()
    name, identity = fingerprinter_in(recorded)
    assert name.endswith("Named")
    assert identity == "drop: utm"
    assert fingerprinter_in("[1]") == (None, "[1]")
    assert fingerprinter_in("") == (None, None)
    (tmp_path / "job").mkdir()
    ScalableBloomFilter(100, 1e-6, tmp_path / "job" / "bloom", identity="[1]").close()
    with pytest.raises(ValueError, match="describe"):
        make_dupefilter(JOBDIR=tmp_path / "job")
