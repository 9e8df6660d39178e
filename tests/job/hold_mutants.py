"""Holds that are not quite right, to see that the tests notice.

    python -m tests.job.hold_mutants [name …]

See `tests/text_mutants.py`.
"""

import sys

from tests.text_mutants import run

HOLDS = "scrapy_bloom/job/holds.py"
SCHEDULER = "scrapy_bloom/job/ledger_scheduler.py"
STORE = "scrapy_bloom/sqlite_backend/request_store.py"
MUTANTS = {
    "each_refusal_is_a_hold": (HOLDS, "if refusal.is_in_flight:", "if False:"),
    "a_suspect_holds": (HOLDS, "if refusal.is_suspect and times", "if False and times"),
    "two_refusals_hold": (HOLDS, "if times > 2 * FRESH:", "if times > FRESH:"),
    "workers_do_not_add_up": (HOLDS, "times > 3 * FRESH:  #", "True:  #"),
    "no_probe_uses_a_try": (HOLDS, "used_up = used_up or refusal.is_suspect", "pass"),
    "an_answer_takes_away_none": (HOLDS, "else -FRESH", "else 0"),
    "at_full_speed_at_once": (
        HOLDS,
        "scheduler.hold(slot, -inf, -recovery(self._rows[slot]))",
        "pass",
    ),
    "what_was_refused_stays_in_front": (HOLDS, "again.priority -= 1", "pass"),
    "the_first_in_line_asks": (HOLDS, "hold.times % 2 == 1", "False"),
    "a_kill_forgets_the_row": (STORE, "elif times or end > now:", "elif end > now:"),
    "a_kill_forgets_the_recovery": (STORE, "if times < 0:", "if False:"),
    "an_older_answer_ends_the_hold": (
        HOLDS,
        "if scheduler.is_probe(request, slot):\n            logger.debug",
        "if slot in scheduler.holds:\n            logger.debug",
    ),
    "refusals_are_cached": (HOLDS, 'meta["dont_cache"] = True', "pass"),
    "the_own_meta_is_lost": (HOLDS, "request.meta.update(own_meta)", "pass"),
    "media_go_to_the_scheduler": (
        HOLDS,
        "if not goes_back or not scheduler.has_dispatched(request):",
        "if not goes_back:",
    ),
    "no_end_of_holds_in_a_row": (HOLDS, "if times >= most:", "if False:"),
    "a_bad_page_holds_for_ever": (HOLDS, "refusal.returns > most", "False"),
    "all_go_at_the_end": (HOLDS, "if probe > 0:", "if False:"),
    "until_is_the_last": (
        "scrapy_bloom/job/later.py",
        "Hold(max(self.until, until)",
        "Hold(until",
    ),
    "what_waits_in_the_downloader_is_sent": (
        SCHEDULER,
        "        answer_unsent(self.crawler, slot, self.sent_back)\n",
        "        pass\n",
    ),
    "a_hold_by_hand_that_is_over_counts": (
        SCHEDULER,
        "hold.times if hold.times > 0 else -1",
        "hold.times",
    ),
    "the_host_has_a_hold_by_hand_end": (
        "scrapy_bloom/job/later.py",
        "(not self.times and self.until > monotonic())",
        "False",
    ),
    "one_request_goes_first_after_a_hold_by_hand": (HOLDS, "if not hold.times:", "if False:"),
    "a_clock_makes_it_longer": (STORE, "min(until, now + pause)", "until"),
    "a_release_leaves_what_was_put_off": (
        STORE,
        "if before is not None and not isinstance(self.pending, SlotQueue):",
        "if False:",
    ),
}

if __name__ == "__main__":
    sys.exit(run(MUTANTS, ["tests/job/test_holds.py", "tests/job/test_hold_rules.py"]))
