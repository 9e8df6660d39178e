"""Mutants of what carries out an operator's orders: `python -m tests.job.order_mutants [name…]`
says which test notices each. What prints `SURVIVED` is a hole in the tests."""

import sys

from tests.text_mutants import run

ORDERS = "scrapy_bloom/sqlite_backend/orders.py"
STORE = "scrapy_bloom/sqlite_backend/request_store.py"
PENDING = "scrapy_bloom/sqlite_backend/pending_store.py"
REDIS = "scrapy_bloom/redis_backend/pending_store.py"
LATER = "scrapy_bloom/redis_backend/lua/include/later.lua"
TESTS = ("tests/job/test_orders.py", "tests/commands/test_pending.py")
MUTANTS = {
    "what_is_in_flight_is_dropped": (ORDERS, "(is_popped or row in self.popped)", "is_popped"),
    "what_the_file_marks_is_dropped": (
        ORDERS,
        "(is_popped or row in self.popped)",
        "row in self.popped",
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
        "                ledger.commit()\n        if ledger.stopped or state",
        "        if ledger.stopped or state",
    ),
    "orders_that_stand_are_passed_over": (
        ORDERS,
        'for path in sorted(job.orders.glob("*.json")):',
        "for path in []:",
    ),
    "only_pending_ones": (ORDERS, 'self._at("later", {})', 'self._at("requests", {})'),
    "an_order_for_all": (ORDERS, "if not any(selection) or", "if"),
    "a_bad_order_is_read_again": (ORDERS, "self._refused.add(path)", "pass"),
    "holds_from_when_they_are_carried_out": (
        ORDERS,
        "elif self.until > now:\n                holds",
        "elif True:\n                holds",
    ),
    "holds_are_answered_and_not_made": (
        ORDERS,
        "changed = order.apply(self._holds)",
        "changed = 1",
    ),
    "the_shorter_hold_counts": (ORDERS, "until = max(before, self.until)", "until = self.until"),
    "a_release_leaves_what_was_put_off": (
        ORDERS,
        '"UPDATE later SET due = ? WHERE due = ?"',
        '"SELECT ?, ?"',
    ),
    "a_worker_ends_a_hold_by_hand": (LATER, "hold[2] == 0 and not by_hand", "false"),
    "the_end_of_a_hold_by_hand_is_asked_for": (LATER, "hold[2] == 0 and hold[1] <= now", "false"),
    "a_host_takes_over_a_hold_by_hand": (
        LATER,
        "local is_by_hand = times == 0 or hold[2] == 0 and hold[1] > now",
        "local is_by_hand = false",
    ),
    "noted_rows_count_as_pending": (PENDING, "pending -= unmarked", "pass"),
    "parked_lists_are_passed_over": (
        REDIS,
        "yield from parked_in(self.client, self.key)",
        "yield from ()",
    ),
    "lists_behind_a_mark_are_passed_over": (
        REDIS,
        'element.endswith(b"\\0") and element.count(b"\\0") == 1',
        "False",
    ),
    "lists_behind_an_older_one_are_passed_over": (
        REDIS,
        'self.client.call("lindex", last, -1) == b""',
        "False",
    ),
}

if __name__ == "__main__":
    sys.exit(run(MUTANTS, TESTS))
