"""The lines at the start: what is on, and a warning for what is not, with the way out."""

import re

import pytest

from tests.test_refused_start import run

DUPEFILTER = "scrapy.dupefilters.RFPDupeFilter"
SCHEDULER = "scrapy.core.scheduler.Scheduler"
FEED = ("-o", "items.jsonl")
PIPE = ("-o", "-:jsonlines")
FILTER = "INFO filter: job/bloom, which knows 0 requests"
REMOVE_IT = f"SCHEDULER is {SCHEDULER}; remove SCHEDULER"
NO_FILTER = "without scrapy-bloom's filter; remove DUPEFILTER_CLASS"


@pytest.mark.parametrize(
    ("settings", "arguments", "expected"),
    [
        ({}, (), [FILTER, "INFO requests: job/requests.sqlite, 0 requests pending"]),
        (
            {},
            FEED,
            [
                FILTER,
                "INFO requests: job/requests.sqlite, 0 requests pending",
                "INFO items: 1 feed with each item once",
            ],
        ),
        (
            {"JOBDIR": ""},
            FEED,
            [
                "INFO filter: in memory (there is no JOBDIR)",
                "INFO requests: in memory (there is no JOBDIR)",
            ],
        ),
        (
            {"SCHEDULER": SCHEDULER},
            FEED,
            [
                FILTER,
                f"WARNING requests: not durable, {REMOVE_IT}",
                f"WARNING items: not durable in items.jsonl: {REMOVE_IT}",
            ],
        ),
        (
            {"SCHEDULER": SCHEDULER, "JOBDIR": ""},
            FEED,
            [
                "INFO filter: in memory (there is no JOBDIR)",
                f"INFO requests: not durable, SCHEDULER is {SCHEDULER}",
            ],
        ),
        (
            {"BLOOM_DURABLE": "0"},
            FEED,
            [FILTER, "INFO requests: not durable, BLOOM_DURABLE is False"],
        ),
        (
            {"BLOOM_DURABLE_FEEDS": "0"},
            FEED,
            [
                FILTER,
                "INFO requests: job/requests.sqlite, 0 requests pending",
                "INFO items: not durable in items.jsonl: BLOOM_DURABLE_FEEDS is False",
            ],
        ),
        (
            {},
            PIPE,
            [
                FILTER,
                "INFO requests: job/requests.sqlite, 0 requests pending",
                "WARNING items: not durable in stdout:; write to a file of its own",
            ],
        ),
        (
            {"DUPEFILTER_CLASS": DUPEFILTER},
            FEED,
            [
                f"WARNING filter: off, DUPEFILTER_CLASS is {DUPEFILTER}; remove DUPEFILTER_CLASS",
                f"WARNING requests: not durable, {NO_FILTER}",
                f"WARNING items: not durable in items.jsonl: {NO_FILTER}",
            ],
        ),
        (
            {"ADDONS": "{}", "DUPEFILTER_CLASS": "scrapy_bloom.BloomDupeFilter"},
            FEED,
            [
                FILTER,
                "INFO requests: not durable, a kill -9 may lose the pages in flight: ADDONS ="
                " {'scrapy_bloom.Addon': 300} keeps them",
            ],
        ),
    ],
    ids=[
        "on", "feeds", "memory", "another scheduler", "and no job", "not durable",
        "feeds not durable", "no file", "another dupefilter", "by hand",
    ],
)  # fmt: skip
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
