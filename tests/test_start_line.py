"""The lines at the start: what is on, and a warning for what is not, with the way out."""

import re

import pytest

from tests.test_refused_start import run

DUPEFILTER = "scrapy.dupefilters.RFPDupeFilter"
SCHEDULER = "scrapy.core.scheduler.Scheduler"
FEED = ("-o", "items.jsonl")
FILTER = "INFO filter: job/bloom, which knows 0 requests"
ON = [FILTER, "INFO requests: job/requests.sqlite, 0 requests pending"]
NO_JOB = [f"INFO {part}: in memory (there is no JOBDIR)" for part in ("filter", "requests")]
NOT_DURABLE = "requests: not durable,"
LOST = "items: not durable in"
REMOVE_IT = f"SCHEDULER is {SCHEDULER}; remove SCHEDULER"
NO_FILTER = "without scrapy-bloom's filter; remove DUPEFILTER_CLASS"
LINES = {
    "feeds": ({}, FEED, [*ON, "INFO items: 1 feed with each item once"]),
    "exact": ({"BLOOM_EXACT": "1"}, (), [FILTER.replace("filter: ", "filter: exact, "), *ON[1:]]),
    "memory": ({"JOBDIR": ""}, FEED, NO_JOB),
    "memory alone": ({"JOBDIR": ""}, (), NO_JOB),
    "another scheduler": (
        {"SCHEDULER": SCHEDULER},
        FEED,
        [FILTER, f"WARNING {NOT_DURABLE} {REMOVE_IT}", f"WARNING {LOST} items.jsonl: {REMOVE_IT}"],
    ),
    "not durable": (
        {"BLOOM_DURABLE": "0"},
        FEED,
        [FILTER, f"INFO {NOT_DURABLE} BLOOM_DURABLE is False"],
    ),
    "feeds not durable": (
        {"BLOOM_DURABLE_FEEDS": "0"},
        FEED,
        [*ON, f"INFO {LOST} items.jsonl: BLOOM_DURABLE_FEEDS is False"],
    ),
    "no file": (
        {},
        ("-o", "-:jsonlines"),
        [*ON, f"WARNING {LOST} stdout:; write to a file of its own"],
    ),
    "another dupefilter": (
        {"DUPEFILTER_CLASS": DUPEFILTER},
        FEED,
        [
            f"WARNING filter: off, DUPEFILTER_CLASS is {DUPEFILTER}; remove DUPEFILTER_CLASS",
            f"WARNING {NOT_DURABLE} {NO_FILTER}",
            f"WARNING {LOST} items.jsonl: {NO_FILTER}",
        ],
    ),
    "by hand": (
        {"ADDONS": "{}", "DUPEFILTER_CLASS": "scrapy_bloom.BloomDupeFilter"},
        FEED,
        [
            FILTER,
            f"INFO {NOT_DURABLE} a kill -9 may lose the pages in flight: ADDONS ="
            " {'scrapy_bloom.Addon': 300} keeps them",
        ],
    ),
}


@pytest.mark.parametrize(("settings", "arguments", "expected"), LINES.values(), ids=LINES)
def test_a_line_a_part_says_what_is_on(tmp_path, settings, arguments, expected):
    """And what is off: a warning with the way out where a user would believe it protected, unless
    one of our own settings says so. No part is told of twice."""
    status, log = run(tmp_path, "-a", "last=3", *arguments, **settings)
    assert status == 0, log
    told = re.findall(r"\[scrapy_bloom\.startup\] ([A-Z]+): (([a-z ]+:) +)(.*)", log)
    shown = [f"{level} {part} {how}" for level, _, part, how in told]
    assert [line for line in shown if "INFO duplicates" not in line] == expected
    assert {len(padded) for _, padded, *_ in told} == {max(len(each[2]) for each in told) + 1}
    others = re.findall(r"\[(scrapy_bloom\.\S+)\] WARNING", log)
    assert set(others) <= {"scrapy_bloom.startup"}


def test_a_misspelt_setting_is_told_with_the_nearest_name(tmp_path):
    """What begins with BLOOM_ and is none of ours; those of others are theirs."""
    settings = {"BLOOM_CAPACTY": "5", "BLOOM_LATER_WAITS": "5", "BLOOMFILTER_BIT": "30"}
    status, log = run(tmp_path, "-a", "last=3", **settings)
    assert status == 0, log
    assert sorted(re.findall(r"WARNING: (BLOOM\S+) is no setting.* mean (\S+)\?", log)) == [
        ("BLOOM_CAPACTY", "BLOOM_CAPACITY"),
        ("BLOOM_LATER_WAITS", "BLOOM_DELAY_WAIT"),
    ]
    assert log.count("is no setting of") == 2
