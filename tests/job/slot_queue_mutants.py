"""Queues by slots that are not Scrapy's, or dearer, to see that the tests notice.

`DURABLE_MUTANT=<name> pytest tests/job/test_slot_queue.py` runs tests with one of them. Which tests
notice it:

- `the_other_scrapys_order`, `the_first_busy_slot_is_next`, `an_idle_slot_counts_as_busy`,
  `the_turn_ends_with_the_slot` (where slots take turns): test_its_order_is_scrapys
- `a_failed_pop_counts_as_none`, `a_failed_push_counts`: the same
- `a_new_request_ends_the_hold`:
  test_a_job_whose_slots_are_on_hold_has_pending_requests_and_none_to_give
- `a_peek_is_a_turn` (where slots take turns): test_peek_shows_the_next_pop
- `the_length_is_a_sum`, `all_slots_are_asked`: test_no_cost_grows_with_the_number_of_slots
"""

from scrapy.pqueues import DownloaderAwarePriorityQueue

from scrapy_bloom.job.queue_settings import SlotQueue

MUTANTS = {}


def mutant(function):
    """Make a function that breaks something a mutant of its name."""
    MUTANTS[function.__name__] = function
    return function


def after(method, change):
    """Have `change` called with the queue after a method of it."""
    run = getattr(SlotQueue, method)

    def run_and_change(self, *arguments, **options):
        result = run(self, *arguments, **options)
        change(self, *arguments)
        return result

    setattr(SlotQueue, method, run_and_change)


@mutant
def the_other_scrapys_order():
    """Slots take turns where they should not, or do not where they should."""
    after("__init__", lambda self, *_: setattr(self, "_takes_turns", not self._takes_turns))


def see(function):
    """Have the load of each slot seen as `function(queue, slot, load)` makes it."""

    def change(self, *_):
        true = self._load
        self._load = lambda slot: function(self, slot, true(slot))

    after("__init__", change)


@mutant
def the_first_busy_slot_is_next():
    """One active download is as many as two."""
    see(lambda queue, slot, load: min(load, 1))


@mutant
def an_idle_slot_counts_as_busy():
    """A slot that the downloader still knows comes after the others."""
    see(lambda queue, slot, load: load + (slot in queue.crawler.engine.downloader.slots))


@mutant
def the_turn_ends_with_the_slot():
    """When the last slot has become empty, the first by name is next."""
    after("_remove", lambda self, _: setattr(self, "_last", None))


@mutant
def a_failed_pop_counts_as_none():
    """A request that cannot be read back counts as pending."""
    pop = SlotQueue.pop

    def pop_and_count(self):
        before = self._length
        try:
            return pop(self)
        except Exception:
            self._length = before
            raise

    SlotQueue.pop = pop_and_count


@mutant
def a_failed_push_counts():
    """A request that cannot be stored counts as pending."""

    def count_and_push(self, request):
        before = len(self)
        try:
            push(self, request)
        finally:
            self._length = before + 1

    push, SlotQueue.push = SlotQueue.push, count_and_push


@mutant
def a_new_request_ends_the_hold():
    """A slot on hold is popped when it gets one more."""
    after("push", lambda self, request: self.release(self._slot_of(request)))


@mutant
def a_peek_is_a_turn():
    """To look at a slot passes its turn on."""
    after("peek", lambda self: setattr(self, "_last", self._next()))


@mutant
def the_length_is_a_sum():
    """Each slot is asked how much it has."""
    SlotQueue.__len__ = DownloaderAwarePriorityQueue.__len__


@mutant
def all_slots_are_asked():
    """Each slot is asked for its active downloads."""

    next_ = SlotQueue._next

    def ask_and_next(self):
        [*map(self._load, self._names)]
        return next_(self)

    SlotQueue._next = ask_and_next
