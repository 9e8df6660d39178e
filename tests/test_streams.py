"""Real streams of requests, replayed: Scrapy's verdict on every line."""

import ast
import gzip
import os
import random
import re
from pathlib import Path

import pytest
from scrapy import Request

from tests.crawl.engine import Job
from tests.seeded import seed_of

OWN = Path(__file__).resolve().parent / "data"
ALL = Path(os.environ.get("SCRAPY_BLOOM_DATA", OWN))
RECIPES = OWN.parent.parent / "docs" / "recipes.md"
STREAMS = sorted(ALL.glob("stream_*.txt.gz"))
assert STREAMS


@pytest.fixture(scope="module", params=STREAMS, ids=lambda path: path.name.partition(".")[0])
def stream(request):
    """The URLs of a stream, and for each whether Scrapy's dupefilter had seen it."""
    urls = gzip.decompress(request.param.read_bytes()).decode().split("\n")
    verdicts = request.param.with_name(request.param.name.replace(".txt.", ".verdict."))
    seen = [verdict == ord("1") for verdict in gzip.decompress(verdicts.read_bytes())]
    assert urls.pop() == ""
    assert len(urls) == len(seen)
    return urls, seen


def test_the_budget_of_the_recipe_loses_nothing_of_a_stream(tmp_path, stream):
    """Each new URL of a documentation site is scheduled."""
    urls, seen = stream
    (budget,) = re.findall(r"^BLOOM_BUDGET = (.*)$", RECIPES.read_text(), re.MULTILINE)
    job = Job(tmp_path / "job", BLOOM_BUDGET=ast.literal_eval(budget)).open()
    try:
        assert [job.scheduler.enqueue_request(Request(url)) for url in urls] == [
            not each for each in seen
        ]
        assert len(job.scheduler) == seen.count(False)
        assert job.stat("scheduler/capped") is None
    finally:
        job.drop()


EXACT = {"BLOOM_EXACT": True, "BLOOM_ERROR_RATE": 0.5, "BLOOM_CAPACITY": 1000}


@pytest.mark.parametrize(
    "settings", [{}, {"BLOOM_CAPACITY": 100}, EXACT], ids=["default", "growing", "exact"]
)
def test_stream_gets_scrapys_verdicts_over_stops(make_dupefilter, tmp_path, stream, settings):
    """Stopped and resumed at any lines, from one stop right after another to none for long,
    the job gives the same verdicts, with a filter that grows as well, and with an exact one
    that takes many new URLs for known before it looks into its table."""
    urls, seen = stream
    seed = seed_of("SEED")
    print("seed", seed)
    chance = random.Random(seed)
    stops = sorted({0, 1, *(chance.randrange(len(urls)) for _ in range(20)), len(urls)})
    for start, stop in zip([0, *stops], stops, strict=False):
        tested = make_dupefilter(JOBDIR=tmp_path, **settings)
        verdicts = [tested.request_seen(Request(url)) for url in urls[start:stop]]
        assert verdicts == seen[start:stop]
        tested.close("shutdown")
    tested = make_dupefilter(JOBDIR=tmp_path, **settings)
    assert all(tested.request_seen(Request(url)) for url in chance.sample(urls, 1_000))
