"""Budgets that are not quite right, to see that the tests notice.

    python -m tests.job.budget_mutants [name …]

See `tests/text_mutants.py`.
"""

import sys

from tests.text_mutants import run

BUDGET = "scrapy_bloom/sqlite_backend/budget.py"
FAILED = "scrapy_bloom/sqlite_backend/failed_store.py"
LEDGER = "scrapy_bloom/job/ledger.py"
ROUNDS = "scrapy_bloom/sqlite_backend/rounds.py"
LOCAL = "scrapy_bloom/sqlite_backend/scheduler.py"
SCHEDULER = "scrapy_bloom/job/ledger_scheduler.py"
SCHEMA = "scrapy_bloom/sqlite_backend/schema.py"
STORE = "scrapy_bloom/sqlite_backend/request_store.py"
MUTANTS = {
    "put_before_it_is_counted": (
        SCHEDULER,
        "self._budget is not None and self._is_over(self._budget, request):",
        "self._budget and self._push_to_store(request, delay) and"
        " self._is_over(self._budget, request):",
    ),
    "one_more": (BUDGET, "WHERE pushed < ?", "WHERE pushed <= ?"),
    "a_star_is_no_limit": (BUDGET, 'self._limits.get("*", _UNLIMITED)', "_UNLIMITED"),
    "slots_without_a_limit_are_not_counted": (
        BUDGET,
        "        if not limit or self._file",
        "        if limit == _UNLIMITED:\n            return True\n        if not limit or self._file",  # noqa: E501
    ),
    "retries_count": (SCHEDULER, "return not self._is_again(request) and not", "return not"),
    "redirects_of_another_slot_do_not_count": (
        SCHEDULER,
        "return bool(again) and self._slot_of(request) in again",
        "return bool(again)",
    ),
    "a_new_round_goes_on_counting": (
        BUDGET,
        'pushed = 0")\n        self._file.execute(_COUNT_STORED)',
        'pushed = pushed")\n        self._file.execute(_COUNT_STORED)',
    ),
    "a_round_after_lost_feeds_goes_on_counting": (
        LOCAL,
        "self.round.at_begin.append(budget.begin_round)",
        "pass",
    ),
    "each_start_begins_to_count": (
        ROUNDS,
        "if not self.is_resumed:\n            for function",
        "if True:\n            for function",
    ),
    "what_is_pending_is_not_counted": (BUDGET, "        self._file.execute(_COUNT_STORED)\n", ""),
    "what_is_taken_over_is_not_counted": (STORE, "self.admits(self._slot_of(request))", "pass"),
    "a_start_without_limits_keeps_the_counts": (
        BUDGET,
        'if not self._limits:\n            self._file.execute("UPDATE budget SET pushed = 0")',
        "if not self._limits:\n            pass",
    ),
    "retried_ones_are_not_counted": (
        BUDGET,
        "SET pushed = pushed + excluded.pushed",
        "SET pushed = pushed",
    ),
    "all_retried_ones_are_asked": (BUDGET, "WHERE place <= most", "WHERE place"),
    "retried_ones_stay_capped": (
        BUDGET,
        "DELETE FROM capped WHERE retried = 2",
        "UPDATE capped SET retried = 0 WHERE retried = 2",
    ),
    "what_was_retried_once_is_asked_again": (
        BUDGET,
        "SET retried = 0 WHERE",
        "SET retried = 1 WHERE",
    ),
    "failed_ones_of_earlier_rounds_do_not_count": (
        BUDGET,
        "INSERT OR IGNORE INTO carried SELECT id FROM failed",
        "DELETE FROM carried",
    ),
    "a_number_of_an_earlier_round_counts_for_another": (
        SCHEMA,
        " DELETE FROM carried WHERE id = OLD.id; END",
        " END",
    ),
    "one_queue_for_all_has_no_slots": (
        STORE,
        "if self.budget is not None and not self._settings.by_slot:",
        "if False:",
    ),
    "retried_ones_are_told_twice": (
        FAILED,
        "_take_capped(connection, choice, before) + _take(connection, choice, before)",
        "_take(connection, choice, before) + _take_capped(connection, choice, before)",
    ),
    "capped_ones_are_not_seen": (
        LEDGER,
        'its sources are done."""\n        self._unreleased += self._fingerprints(request)',
        'its sources are done."""',
    ),
    "a_page_whose_redirect_is_capped_stays": (
        LEDGER,
        "        self._sent_again.update(self.sources_of(request))\n",
        "",
    ),
    "capped_start_requests_are_kept_twice": (
        SCHEDULER,
        "            self._start_requests.mark_stored()\n        if is_kept and",
        "            pass\n        if is_kept and",
    ),
    "capped_children_are_kept_twice": (SCHEDULER, "self._note_stored(request, ())", "pass"),
    "capped_ones_are_warned_of": (
        "scrapy_bloom/job/failures.py",
        "reasons.pop(CAPPED, None)",
        "pass",
    ),
    "a_round_does_not_wait_for_capped_ones": (ROUNDS, " UNION ALL SELECT 1 FROM capped", ""),
    "a_round_goes_on_with_nothing": (
        "scrapy_bloom/job/codec.py",
        "                self.load(Stored(*row))\n",
        "",
    ),
    "a_round_begins_with_the_first_commit_of_its_pages": (
        LOCAL,
        "budget is not None and budget.begins_now:",
        "False:",
    ),
    "a_round_begins_when_it_is_opened": (
        BUDGET,
        "            # the start before had no budget\n",
        "            pass\n        if limits:\n",
    ),
    "what_comes_before_start_is_of_the_last_round": (LOCAL, "            self.round.begin()", "#"),
    "lost_ones_are_retried": (FAILED, " WHERE request != x''", ""),
    "lost_ones_are_not_kept": (STORE, "self._failed.add_lost(slot, lost(request, slot))", "pass"),
    "what_is_dispatched_is_not_noted": (BUDGET, "self._notes.add(fingerprint, slot)", "pass"),
    "notes_of_what_is_committed_count": (BUDGET, "if commits == self._file.commits:", "if True:"),
    "notes_stay": (BUDGET, "self._path.unlink(missing_ok=True)", "pass"),
    "what_was_noted_is_not_admitted": (BUDGET, "if self._asked[self.offered]:", "if False:"),
    "what_was_noted_is_admitted_for_ever": (
        BUDGET,
        "DELETE FROM asked WHERE id =",
        "DELETE FROM asked WHERE 0 AND id =",
    ),
    "what_was_noted_is_admitted_in_the_next_round": (
        BUDGET,
        '"DELETE FROM asked")\n        self._asked.clear()',
        '"SELECT 1")',
    ),
    "a_kill_forgets_what_a_retry_asks": (
        LOCAL,
        "            if asked:\n",
        "            if False:\n",
    ),
    "a_retry_has_the_room_of_what_was_noted": (
        BUDGET,
        "            self._file.execute(_COUNT, (slot, _UNLIMITED))\n",
        "",
    ),
}

if __name__ == "__main__":
    sys.exit(run(MUTANTS, ["tests/job/test_budget.py", "tests/job/test_failed.py"]))
