"""A thousand crawls that die in every way: `make torture` (an hour or less).

What it prints last are the totals; the last result stands in the README.
"""

from tests.durable.test_kills import torture


def test_a_thousand_random_kills():
    """SIGKILL at random moments, one to eight a crawl."""
    result = torture("--kills", 1000)
    assert result["kills"] >= 1000
    assert result["odd"] == []


def test_a_hundred_power_cuts():
    """At random moments, twice a crawl."""
    assert torture("--cuts", 100)["odd"] == []


def test_kill_points():
    """Before and after the first of each call, and four later ones."""
    assert torture("--points", 4)["odd"] == []


def test_failing_calls():
    """Five hundred calls that fail, once or for good."""
    result = torture("--faults", 500)
    assert result["odd"] == []
    assert result["killed"] == 0
