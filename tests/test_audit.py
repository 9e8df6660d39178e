"""The record of the requests that are dropped."""

import json
import re
from pathlib import Path

import pytest

from scrapy_bloom import audit
from scrapy_bloom.crawl.overlay import Keeper
from scrapy_bloom.fingerprints.fast import META_KEY
from scrapy_bloom.speed.known import known_urls
from tests.crawl.engine import request

DOCUMENT = Path(__file__).parent.parent / "docs" / "monitoring.md"


def recorded(path):
    """Return what was recorded."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def reasons(path):
    """Return the page, the reason and the layer of each."""
    return [(r["url"].rpartition("/")[2], r["reason"], r["layer"]) for r in recorded(path)]


def test_each_dropped_request_is_recorded_with_why(make_dupefilter, tmp_path):
    """By its URL or by its fingerprint, in which layer; and none that is new. The line in the
    document has the same names; and what would not come to the dupefilter is not dropped early."""
    path = tmp_path / "dropped.jsonl"
    dupefilter = make_dupefilter(BLOOM_AUDIT=str(path), BLOOM_CAPACITY=3, BLOOM_URL_CACHE=10)
    assert known_urls(dupefilter).why_not_early() == "BLOOM_AUDIT is to record them"
    for number in range(5):
        assert not dupefilter.request_seen(request(str(number)))
    assert dupefilter.request_seen(request("0#x", headers={"Referer": "http://example.com/list"}))
    assert not dupefilter.request_seen(request("0", method="POST"))
    assert dupefilter.request_seen(request("0", method="POST"))
    assert dupefilter.request_seen(request("1", meta={META_KEY: b"no short way"}))
    dupefilter._recent.clear()
    assert dupefilter.request_seen(request("0"))
    assert dupefilter.request_seen(request("4"))
    assert reasons(path) == [
        ("0#x", "recent", None),
        ("0", "filter", 1),
        ("1", "filter", 0),
        ("0", "filter", 0),
        ("4", "filter", 1),
    ]
    first, second, *_ = recorded(path)
    assert (first["referer"], first["method"]) == ("http://example.com/list", "GET")
    assert (second["referer"], second["method"]) == (None, "POST")
    (line,) = re.findall(r"```json\n(.*?)\n```", DOCUMENT.read_text())
    assert first.keys() == json.loads(line).keys()


def test_what_is_held_back_is_told(make_dupefilter, tmp_path):
    """With the durable scheduler, whose rows come first; a resumed job appends."""
    path = tmp_path / "dropped.jsonl"
    for _ in range(2):
        dupefilter = make_dupefilter(BLOOM_AUDIT=path, JOBDIR=tmp_path / "job", BLOOM_URL_CACHE=0)
        Keeper(dupefilter, requests_survive=True)
        dupefilter.request_seen(request("a"))
        dupefilter.request_seen(request("a"))
        dupefilter.close("finished")
    assert reasons(path) == [("a", "held", None)] * 2


@pytest.mark.parametrize("holds_back", [False, True])
def test_what_an_exact_filter_avoids_is_recorded(make_dupefilter, tmp_path, holds_back):
    """Each one, whether the filter is asked at once or when rows are safe; they are new."""
    path = tmp_path / "dropped.jsonl"
    dupefilter = make_dupefilter(
        BLOOM_AUDIT=path,
        BLOOM_EXACT=True,
        BLOOM_ERROR_RATE=0.5,
        BLOOM_CAPACITY=10_000,
        BLOOM_URL_CACHE=0,
        JOBDIR=tmp_path / "job",
    )
    if holds_back:
        keeper = Keeper(dupefilter, requests_survive=True)
    for number in range(10_000):
        page = request(str(number))
        assert not dupefilter.request_seen(page)
        if holds_back:
            keeper.release([dupefilter.fingerprint(page)])
    avoided = dupefilter.filter.false_positives_avoided
    assert avoided > 10
    assert {line["reason"] for line in recorded(path)} == {"avoided"}
    assert len({line["url"] for line in recorded(path)}) == len(recorded(path)) == avoided
    assert dupefilter.request_seen(request("0"))
    assert reasons(path)[-1] == ("0", "exact", 0)


def test_files_are_rotated(make_dupefilter, tmp_path, monkeypatch, caplog):
    """The disk has an end. What cannot be written is left out, which is said once."""
    monkeypatch.setattr(audit, "FILE_BYTES", 1000)
    monkeypatch.setattr(audit, "FILES", 3)
    dupefilter = make_dupefilter(BLOOM_AUDIT=tmp_path / "dropped.jsonl")
    seen = [dupefilter.request_seen(request("a")) for _ in range(100)]
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["dropped.jsonl", "dropped.jsonl.1", "dropped.jsonl.2"]
    assert all(path.stat().st_size <= 1000 for path in tmp_path.iterdir())
    dupefilter._audit._handler.stream.close()
    seen += [dupefilter.request_seen(request("a")) for _ in range(2)]
    assert seen == [False, *[True] * 101]
    assert len([r for r in caplog.records if "BLOOM_AUDIT" in r.getMessage()]) == 1


def test_a_full_disk_costs_the_lines_alone(make_dupefilter, tmp_path):
    """The filter is closed, and the job can go on."""
    for seen in (False, True):
        dupefilter = make_dupefilter(BLOOM_AUDIT="/dev/full", JOBDIR=tmp_path)
        verdicts = [dupefilter.request_seen(request("a")) for _ in range(2)]
        assert verdicts == [seen, True]
        dupefilter.close("finished")


def test_a_file_that_cannot_be_made_is_refused_by_name(make_dupefilter, tmp_path):
    """At the start."""
    assert make_dupefilter(BLOOM_AUDIT="None")._audit is None
    with pytest.raises(ValueError, match=r"BLOOM_AUDIT is 'nowhere/dropped\.jsonl', which"):
        make_dupefilter(BLOOM_AUDIT="nowhere/dropped.jsonl", JOBDIR=tmp_path / "job")
    assert [*tmp_path.glob("job/*")] == []
