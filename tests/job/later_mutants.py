"""What delayed requests would be without one of their rules; the tests notice each.

`python -m tests.job.later_mutants [NAME …]`
"""

import sys

from tests.text_mutants import run

FILE = "scrapy_bloom/sqlite_backend/request_file.py"
STORE = "scrapy_bloom/sqlite_backend/request_store.py"
SCHEDULER = "scrapy_bloom/job/ledger_scheduler.py"
LATER = "scrapy_bloom/job/later.py"

MUTANTS = {
    "due_ignored": (FILE, "WHERE due <= ? ORDER", "WHERE due <= ? + 1e9 ORDER"),
    "first_due_ignored": (STORE, "or due > (now := time.time()):", "or (now := 1e12) < due:"),
    "moved_without_delete": (FILE, '"DELETE FROM later WHERE id = ?"', '"SELECT ?"'),
    "meta_key_kept": (LATER, "request.meta.pop(NOT_BEFORE)", "request.meta[NOT_BEFORE]"),
    "not_counted_as_left": (FILE, "return not self.later and not", "return not"),
    "not_counted_as_pending": (
        SCHEDULER,
        "+ len(store.pending) + store.later",
        "+ len(store.pending)",
    ),
    "no_timer": (
        SCHEDULER,
        "            self._alarm.set(due if due > 0 else OVERDUE_SECONDS)",
        "            pass",
    ),
    "timer_left": (
        "scrapy_bloom/sqlite_backend/scheduler.py",
        "        self._alarm.cancel()\n",
        "",
    ),
    "timer_not_moved": (LATER, "        if at < self._at:\n", "        if self._at == math.inf:\n"),
    "no_more_groups": (
        SCHEDULER,
        "        self._alarm.set(0)\n        return True\n",
        "        return True\n",
    ),
    "sleeps_over_a_jump": (LATER, "min(seconds, MOST_SECONDS)", "seconds"),
    "closes_beside_a_page": (
        SCHEDULER,
        "due > self._later_wait and self._is_at_rest",
        "due > self._later_wait",
    ),
    "closes_for_a_slot_without_requests": (
        SCHEDULER,
        "is None or not self.has_pending_requests():",
        "is None:",
    ),
    "never_is_a_time": (
        "scrapy_bloom/sqlite_backend/status.py",
        "due is not None and due < inf",
        "due is not None",
    ),
    "not_sorted_by_time": (FILE, "ORDER BY due, id", "ORDER BY id"),
    "numbers_meet": (
        FILE,
        "self._last = max(self._last, self.recount_later())",
        "self.recount_later()",
    ),
    "children_left_behind": (STORE, "            self.renumbered(row)\n", ""),
    "slot_of_other_settings": (
        STORE,
        "        if group[0] and not self._settings.by_slot:",
        "        if False:",
    ),
    "stand_in_for_any_class": (
        STORE,
        "        if type(self.pending) in _OF_SCRAPY and (",
        "        if True or (",
    ),
    "kept_in_a_digest": (
        "scrapy_bloom/sqlite_backend/repeated_children.py",
        '"download_latency", NOT_BEFORE, *',
        '"download_latency", *',
    ),
    "memory_forgotten": (
        SCHEDULER,
        "            self._delayed.push(request, delay)\n",
        "            return\n",
    ),
    "naive_times": (LATER, "        if value.utcoffset() is None:\n            return None\n", ""),
}

if __name__ == "__main__":
    sys.exit(run(MUTANTS, ["tests/job/test_later.py", "-p", "no:cacheprovider"]))
