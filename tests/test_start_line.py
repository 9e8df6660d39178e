"""The INFO lines that say what is on, what is not, and why."""

import re

import pytest

from tests.test_refused_start import lines, run

DUPEFILTER = "scrapy.dupefilters.RFPDupeFilter"
SCHEDULER = "scrapy.core.scheduler.Scheduler"


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (
            {},
            "filter: job/bloom, which knows 0 requests\n"
            "requests: job/requests.sqlite, 0 requests pending",
        ),
        (
            {"JOBDIR": ""},
            "filter: in memory (there is no JOBDIR)\nrequests: in memory (there is no JOBDIR)",
        ),
        (
            {"SCHEDULER": SCHEDULER},
            "filter: job/bloom, which knows 0 requests\n"
            f"requests: not durable, SCHEDULER is {SCHEDULER}",
        ),
        (
            {"BLOOM_DURABLE": "0"},
            "filter: job/bloom, which knows 0 requests\n"
            "requests: not durable, BLOOM_DURABLE is False",
        ),
        (
            {"DUPEFILTER_CLASS": DUPEFILTER},
            f"filter: off, DUPEFILTER_CLASS is {DUPEFILTER}\n"
            "requests: not durable, without scrapy-bloom's filter",
        ),
        (
            {"ADDONS": "{}", "DUPEFILTER_CLASS": "scrapy_bloom.BloomDupeFilter"},
            "filter: job/bloom, which knows 0 requests",
        ),
    ],
    ids=["on", "memory", "another scheduler", "not durable", "another dupefilter", "by hand"],
)
def test_a_line_a_part_says_what_is_on(tmp_path, settings, expected):
    """And what a project's own settings have switched off."""
    status, log = run(tmp_path, "-a", "last=3", **settings)
    assert status == 0, log
    shown = [line for line in lines(log, "INFO") if "[scrapy_bloom.startup]" in line]
    parts = [re.fullmatch("(([a-z ]+:) +)(.*)", line.partition("INFO: ")[2]) for line in shown]
    assert "\n".join(f"{part[2]} {part[3]}" for part in parts).startswith(expected)
    assert {len(part[1]) for part in parts} == {max(len(part[2]) for part in parts) + 1}
