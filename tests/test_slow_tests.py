"""Which of the slow tests run on which day."""

from types import SimpleNamespace

import pytest

from tests.conftest import SLOW_DAY, pytest_collection_modifyitems

SLOW = SimpleNamespace(name="slow")


class Item:
    """A test of a module, as pytest has it; either may be marked as slow."""

    def __init__(self, module, name, *marks):
        self.nodeid = f"{module.nodeid}::{name}"
        self.getparent = lambda _: module
        self.get_closest_marker = lambda _: marks or module.own_markers


@pytest.fixture
def run_on(monkeypatch):
    """Return a function that says which of twelve slow tests and a fast one run on a day."""

    def run_on(day, *names):
        free = SimpleNamespace(nodeid="free.py", own_markers=[])
        marked = SimpleNamespace(nodeid="marked.py", own_markers=[SLOW])
        items = [Item(free, f"test_{number:02}", SLOW) for number in range(9)]
        items += [Item(marked, f"test_{number}") for number in range(3)]
        items.append(Item(free, "fast"))
        left = []
        hook = SimpleNamespace(pytest_deselected=lambda items: left.extend(items))
        monkeypatch.setenv(SLOW_DAY, str(day))
        pytest_collection_modifyitems(SimpleNamespace(args=names, hook=hook), items)
        assert len(items) + len(left) == 13
        return {item.nodeid for item in items}

    return run_on


def test_each_runs_once_in_any_five_days_in_a_row(run_on):
    """A module that is marked is run as a whole, what is not slow each day, as what is named."""
    days = [run_on(day) for day in range(739_998, 740_003)]
    assert set.union(*days) == run_on("all") == run_on(0, "free.py::test_03")
    assert sum(map(len, days)) == 12 + 5
    assert set.intersection(*days) == {"free.py::fast"}
    assert [sum(name.startswith("marked") for name in day) for day in days].count(3) == 1
