"""Sessions that do less than they should, to see that the tests notice.

`DURABLE_MUTANT=<name> pytest tests/job/test_session.py` runs tests with one of them. Which tests
notice it:

- `released_before_the_store_is_closed`: test_a_job_closes_in_one_order, and
  test_a_job_with_feeds_is_free_when_they_are_stored
- `a_refused_start_closes`: test_a_refused_start_leaves_nothing, and
  test_a_start_that_is_refused_when_feeds_have_attached
- `the_store_closes_first`: test_a_job_closes_in_one_order
- `the_first_part_closes`: both of the first, and
  test_an_exporter_that_overrides_the_close_does_not_keep_the_job
"""

from scrapy_bloom.job.session import Session

MUTANTS = {}


def mutant(function):
    """Make a function that breaks something a mutant of its name."""
    MUTANTS[function.__name__] = function
    return function


@mutant
def released_before_the_store_is_closed():
    """Another process can open a store that this one is closing."""
    end = Session.end

    def release_and_end(self, part):
        if self._parts == [part]:
            self._lock.close()
        end(self, part)

    Session.end = release_and_end


@mutant
def a_refused_start_closes():
    """What a crawl does at its end is done where none has begun."""
    abandon = Session.abandon

    def close_and_abandon(self):
        for part in [*self._parts]:
            self.end(part)
        abandon(self)

    Session.abandon = close_and_abandon


@mutant
def the_store_closes_first():
    """It closes before those that write to it."""
    Session.put_last = Session.at_close


@mutant
def the_first_part_closes():
    """The job is free although feeds are not stored."""
    end = Session.end

    def end_all(self, part):
        for each in [*self._parts]:
            end(self, each)

    Session.end = end_all
