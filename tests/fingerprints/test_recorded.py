"""Whose fingerprints a job holds: what may change between two runs of it, and what may not."""

import json
from hashlib import sha1

import pytest
from scrapy import Request
from scrapy.utils.request import RequestFingerprinter

from scrapy_bloom import (
    FastRequestFingerprinter,
    IncompatibleFilterError,
    ScalableBloomFilter,
    ScrapyRedisFingerprinter,
)
from scrapy_bloom.fingerprints import FingerprinterIdentity
from scrapy_bloom.fingerprints.recorded import fingerprinter_in
from tests.fakes import raising

REMEDY = ".*REQUEST_FINGERPRINTER_CLASS"
SCRAPYS = RequestFingerprinter()


def of_name(name, function=SCRAPYS.fingerprint, **attributes):
    """Return a class of fingerprinters."""
    attributes["fingerprint"] = lambda self, request: function(request)
    return type(name, (RequestFingerprinter,), attributes)


def with_identity(text):
    """Return a class of fingerprinters that names its settings."""
    return of_name("Named", identity=text)


FAILS_ALWAYS = of_name("FailsAlways", raising(LookupError))
NOT_BYTES = of_name("NotBytes", lambda request: SCRAPYS.fingerprint(request).hex())
ONLY_URL = of_name("OnlyUrl", lambda request: sha1(request.url.encode()).digest())
WITHOUT_BODIES = of_name(
    "WithoutBodies", lambda request: SCRAPYS.fingerprint(request.replace(body=b""))
)


@pytest.fixture
def run(make_dupefilter, tmp_path):
    """Return a function that opens the job, and answers whether it has seen a page."""

    def run(fingerprinter=RequestFingerprinter):
        dupefilter = make_dupefilter(JOBDIR=tmp_path, REQUEST_FINGERPRINTER_CLASS=fingerprinter)
        seen = dupefilter.request_seen(Request("http://example.com/page"))
        dupefilter.close("finished")
        return seen

    return run


@pytest.mark.parametrize(
    ("first", "second", "match"),
    [
        (RequestFingerprinter, ONLY_URL, f"RequestFingerprinter.*OnlyUrl{REMEDY}"),
        (RequestFingerprinter, WITHOUT_BODIES, f"RequestFingerprinter.*WithoutBodies{REMEDY}"),
        (FAILS_ALWAYS, RequestFingerprinter, f"FailsAlways.*RequestFingerprinter{REMEDY}"),
        (NOT_BYTES, RequestFingerprinter, f"NotBytes.*RequestFingerprinter{REMEDY}"),
        (with_identity("drop: utm"), with_identity("drop: ref"), "'drop: utm'.*'drop: ref'"),
        (with_identity("drop: utm"), RequestFingerprinter, "identity"),
        (with_identity(""), with_identity(("a", "tuple")), "identity"),
        (with_identity(("a", "b")), with_identity(("a", "c")), r"\('a', 'b'\).*\('a', 'c'\)"),
        (with_identity("x" * 100_000 + "y"), with_identity("x" * 100_000 + "z"), "identity"),
    ],
)
def test_other_fingerprints_are_refused(run, tmp_path, first, second, match):
    """With both classes, or an `identity` that differs even where the fixed requests agree, the
    setting and the remedy; the job goes on with the old ones."""
    run(first)
    with pytest.raises(IncompatibleFilterError, match=match) as refused:
        run(second)
    assert "new JOBDIR" in str(refused.value)
    assert str(tmp_path) in str(refused.value)
    assert run(first) is True


TEXTS = ["x" * 1_000_000, "\U0001f577" * 999, "\"\\'" * 333, "\n\0\x7f" * 333, "\ud800" * 2_000]
LONG_NAME = of_name("\u00e9" * 2_000)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        *((each, each) for each in (RequestFingerprinter, LONG_NAME)),
        *((each, each) for each in map(with_identity, [*TEXTS, ("a", "tuple"), None])),
        (with_identity(object()), with_identity(object())),
        (with_identity({"a", "b"}), with_identity({"b", "a"})),
        (RequestFingerprinter, of_name("Renamed")),
        (of_name("Renamed"), RequestFingerprinter),
        (RequestFingerprinter, FastRequestFingerprinter),
    ],
    ids=range(14),
)
def test_equal_fingerprints_resume_silently(run, told, first, second):
    """The fingerprints and the `identity`, of any length and characters, count, not their class."""
    assert [run(first), run(second)] == [False, True]
    assert told() == []


def test_a_filter_tells_of_its_fingerprinter(make_dupefilter, tmp_path):
    """By name, and with its own identity; a text that is no record is shown as it is. A filter made
    without Scrapy's fingerprinter in mind is refused, not guessed at."""
    recorded = FingerprinterIdentity.of(with_identity("drop: utm")())._asdict()
    name, identity = fingerprinter_in(json.dumps({**recorded, "of a later release": []}))
    assert name.endswith("Named")
    assert identity == "drop: utm"
    assert fingerprinter_in("[1]") == (None, "[1]")
    assert fingerprinter_in("") == (None, None)
    (tmp_path / "job").mkdir()
    ScalableBloomFilter(100, 1e-6, tmp_path / "job" / "bloom", identity="[1]").close()
    with pytest.raises(ValueError, match="describe"):
        make_dupefilter(JOBDIR=tmp_path / "job")


def test_fingerprints_of_scrapy_redis_are_its_own():
    """They equal those of the real package where it is installed, and are not Scrapy's."""
    request = Request("http://example.com/?b=1&a=2#x", method="POST", body=b"\xff")
    ours = ScrapyRedisFingerprinter().fingerprint(request)
    text = json.dumps({"body": "ff", "method": "POST", "url": "http://example.com/?a=2&b=1"})
    assert ours == sha1(text.encode()).digest() != SCRAPYS.fingerprint(request)
    dupefilter = pytest.importorskip("scrapy_redis.dupefilter").RFPDupeFilter(None, "key")
    assert dupefilter.request_fingerprint(request) == ours.hex()
