"""Mutants of what carries out an operator's orders: `python -m tests.job.order_mutants [name…]`
says which test notices each. What prints `SURVIVED` is a hole in the tests, but for
`lists_behind_an_older_one_are_passed_over`, which a random test meets in every other run."""

import sys

from tests.text_mutants import run

ORDERS = "scrapy_bloom/sqlite_backend/orders.py"
STORE = "scrapy_bloom/sqlite_backend/request_store.py"
PENDING = "scrapy_bloom/sqlite_backend/pending_store.py"
REDIS = "scrapy_bloom/redis_backend/pending_store.py"
TESTS = ("tests/job/test_orders.py", "tests/commands/test_pending.py")
MUTANTS = {
    "what_is_in_flight_is_dropped": (ORDERS, "(is_popped or row in self._popped)", "is_popped"),
    "what_the_file_marks_is_dropped": (
        ORDERS,
        "(is_popped or row in self._popped)",
        "row in self._popped",
    ),
    "queues_count_what_is_gone": (STORE, "self._queues[group].dropped(number)", "pass"),
    "slots_count_what_is_gone": (STORE, "self.pending.recount()", "pass"),
    "delayed_ones_count_on": (
        STORE,
        "self._file.recount_later()\n        self._failed",
        "self._failed",
    ),
    "failed_ones_are_not_counted": (STORE, "self._failed.count += kept", "pass"),
    "pushed_rows_are_not_there_yet": (ORDERS, "file.write()", "pass"),
    "the_state_is_forgotten": (ORDERS, "return _State(*json.loads(text))", "pass"),
    "an_answer_before_the_commit": (
        ORDERS,
        "            self._ledger.commit()\n        return state",
        "        return state",
    ),
    "orders_that_stand_are_passed_over": (
        ORDERS,
        "for path in _standing(job.orders):",
        "for path in []:",
    ),
    "only_pending_ones": (ORDERS, 'self._at("later", {})', 'self._at("requests", {})'),
    "an_order_for_all": (ORDERS, "if not any(selection) or", "if"),
    "a_bad_order_is_read_again": (ORDERS, "self._refused.add(path)", "pass"),
    "noted_rows_count_as_pending": (PENDING, "pending -= unmarked", "pass"),
    "parked_lists_are_passed_over": (
        REDIS,
        "yield from parked_in(self._client, self._key)",
        "yield from ()",
    ),
    "lists_behind_a_mark_are_passed_over": (
        REDIS,
        'element.endswith(b"\\0") and element.count(b"\\0") == 1',
        "False",
    ),
    "lists_behind_an_older_one_are_passed_over": (
        REDIS,
        'self._client.call("lindex", last, -1) == b""',
        "False",
    ),
}

if __name__ == "__main__":
    sys.exit(run(MUTANTS, TESTS))
