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
    "each_refusal_is_a_hold": (
        HOLDS,
        "if hold is not None and not scheduler.is_probe(request, slot):",
        "if hold is None and False:",
    ),
    "an_older_answer_ends_the_hold": (
        HOLDS,
        "if scheduler.is_probe(request, slot):\n                logger.debug",
        "if slot in scheduler.holds:\n                logger.debug",
    ),
    "refusals_are_cached": (HOLDS, 'meta["dont_cache"] = True', "pass"),
    "the_own_meta_is_lost": (HOLDS, "request.meta.update(own_meta)", "pass"),
    "media_go_to_the_scheduler": (
        HOLDS,
        "or not scheduler.has_dispatched(request)\n",
        "or False\n",
    ),
    "no_end_of_holds_in_a_row": (HOLDS, "if times >= settings.times:", "if False:"),
    "a_bad_page_holds_for_ever": (
        HOLDS,
        "        if _times_held(request) >= settings.times:\n            return\n",
        "",
    ),
    "all_go_at_the_end": (HOLDS, "if probe > 0:", "if False:"),
    "until_is_the_last": (
        HOLDS,
        "Hold(max(self.until, until)",
        "Hold(until",
    ),
    "what_waits_in_the_downloader_is_sent": (
        SCHEDULER,
        "        answer_unsent(self.crawler, slot, self._answer_unsent)\n",
        "        pass\n",
    ),
    "a_hold_by_hand_that_is_over_counts": (SCHEDULER, "hold.times or -1", "hold.times"),
    "the_host_has_a_hold_by_hand_end": (
        HOLDS,
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
    sys.exit(run(MUTANTS, ["tests/job/test_holds.py"]))
