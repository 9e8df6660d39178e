"""Mutants break what is there, and the tests that notice them are there."""

from pathlib import Path

import pytest

from tests import early_mutants
from tests.bloom import exact_mutants
from tests.delta import digest_mutants
from tests.job.mutants import MUTANTS
from tests.job.text_mutants import SUITES, mutants_of
from tests.redis_backend import text_mutants as redis_mutants
from tests.text_mutants import ROOT

LISTS = (
    *map(mutants_of, SUITES),
    early_mutants.MUTANTS,
    exact_mutants.MUTANTS,
    digest_mutants.MUTANTS,
    *(redis_mutants.mutants(suite) for suite, _ in redis_mutants.SUITES.values()),
)


@pytest.mark.parametrize("mutants", LISTS)
def test_each_text_to_change_stands_in_one_place(mutants):
    """Where code has moved, its mutant goes with it."""
    found = {name: (ROOT / path).read_text().count(old) for name, (path, old, _) in mutants.items()}
    assert found == dict.fromkeys(mutants, 1)


def test_what_notices_a_mutant_is_there():
    """By its name."""
    tests = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    named = {name for mutant in MUTANTS.values() for name in mutant.noticing}
    assert {name for name in named if f"def {name}(" not in tests} == set()
