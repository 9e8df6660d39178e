"""What breaks digests and their verdicts, which tests must notice: `python -m
tests.delta.digest_mutants [NAME ...]`. What real crawls notice is in `delta_mutants`."""

import sys

from tests import text_mutants

DIGESTS = "scrapy_bloom/delta/digests.py"
MARKS = "scrapy_bloom/delta/marks.py"
STORE = "scrapy_bloom/delta/file_store.py"
REDIS = "scrapy_bloom/delta/redis_store.py"
TESTS = (
    "tests/delta/test_digests.py",
    "tests/delta/test_file_store.py",
    "tests/delta/test_redis_store.py",
    "--deselect=tests/delta/test_redis_store.py::test_a_crawl_skips_what_another_has_done",
    "--deselect=tests/delta/test_redis_store.py::test_a_crawl_compares_with_what_another_has_found",
)

MUTANTS = {
    "no_field_is_left_out": (DIGESTS, " if k not in self._without", ""),
    "the_order_of_fields_counts": (DIGESTS, "sort_keys=True, ", ""),
    "what_is_unstable_equals_itself": (DIGESTS, "os.urandom(BYTES)", 'b"unstable"'),
    "bytes_are_text": (DIGESTS, "return {type(value).__name__: form}", "return form"),
    "nested_items_have_no_form": (DIGESTS, "ItemAdapter.is_item(value) or ", ""),
    "the_answered_key_comes_first": (DIGESTS, "in reversed(keys)", "in keys"),
    "the_last_verdict_counts": (DIGESTS, "if earlier not in (None, UNCHANGED)", "if False"),
    "rounds_forget_their_digests": (DIGESTS, "previous or of_round or", "previous or"),
    "a_failing_store_has_no_digests": (
        DIGESTS,
        "        if self._is_off:\n",
        "        if False:\n",
    ),
    "late_digests_win": (
        STORE,
        '" THEN digest ELSE COALESCE(excluded.digest, digest) END,"\n    " time = CASE WHEN time >',
        '" THEN excluded.digest ELSE COALESCE(excluded.digest, digest) END,"\n'
        '    " time = CASE WHEN time >',
    ),
    "a_digest_takes_the_time_away": (
        STORE,
        "COALESCE(excluded.time, time) END",
        "excluded.time END",
    ),
    "digests_expire": (STORE, ", keep_digests=True", ""),
    "digests_are_no_rows_of_a_merge": (STORE, "if not self.total", "if not self.count"),
    "digests_have_no_fingerprinter": (STORE, "not store.total", "not store.count"),
    "a_resumed_round_counts_anew": (
        MARKS,
        'WHERE verdict IS NOT NULL"\n                    " GROUP',
        'WHERE 0"\n                    " GROUP',
    ),
    "each_fetch_counts": (MARKS, "[earlier] if earlier else []", "[]"),
    "forgotten_pages_keep_digests": (REDIS, '"hdel"', '"hexists"'),
    "cleared_stores_keep_digests": (REDIS, "(*names, self._digests,", "(*names,"),
    "digests_without_marks_are_not_listed": (REDIS, "None if before is None else 0", "0"),
}

if __name__ == "__main__":
    sys.exit(text_mutants.run(MUTANTS, TESTS))
