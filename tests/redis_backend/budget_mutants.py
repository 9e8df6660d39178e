"""Ways to break budgets in Redis, each of which the tests below must notice.

    python -m tests.redis_backend.budget_mutants [name …]

See `tests/text_mutants.py`. The model has the rules of the protocol; these are in the code.
"""

import sys

from tests.text_mutants import ROOT, run

HERE = "scrapy_bloom/redis_backend/"
COMMIT, COUNTING, OPEN, TAKE, RETRY, REMOVE, PENDING = (
    f"{HERE}lua/{name}.lua"
    for name in (
        "commit",
        "include/budget",
        "open_crawl",
        "take_capped",
        "retry_failed",
        "remove_queue",
        "count_pending",
    )
)
TESTS = ["tests/redis_backend/test_budget.py"]

COUNTED = "      count(ARGV[at + 6])\n"
CAPPED = "        cap(ARGV[at + 5], ARGV[at + 6], ARGV[at + 7])\n"
SEEN = "    adds = adds + 1\n  end\n"


def later(line, condition):
    """Return the mutant whose commit does what `line` says after the bits are set."""
    text = (ROOT / COMMIT).read_text()
    old = text[text.index(line) : text.index(SEEN) + len(SEEN)]
    return COMMIT, old, f"{old.removeprefix(line)}  if {condition} then\n{line}  end\n"


MUTANTS = {
    "counted_after_it_was_pushed": later(
        COUNTED, "answer == 0 and counting and kind ~= '' and kind < '2' or kind == '4'"
    ),
    "kept_after_it_was_seen": later(CAPPED, "answer == 5 and kind ~= '4'"),
    "never_counted_durably": (
        COUNTING,
        "  redis.call('HSET', counting, slot, counted[slot])\n",
        "",
    ),
    "one_more": (COMMIT, "if room_of(ARGV[at + 6]) > 0 then", "if room_of(ARGV[at + 6]) >= 0 then"),
    "others_have_no_limit": (COUNTING, "tonumber(own or others or '')", "tonumber(own or '')"),
    "others_limit_all": (COUNTING, "tonumber(own or others or '')", "tonumber(others or '')"),
    "slots_without_a_limit_are_not_counted": (
        COUNTING,
        "  if not counting then return end\n",
        "  if not counting or limits[slot] == math.huge then return end\n",
    ),
    "seen_ones_are_counted": (COMMIT, "elseif answer == 0 and counting and", "elseif counting and"),
    "retries_are_counted": (
        f"{HERE}protocol.py",
        "str(has_key + 2 * (not self.counted))",
        "str(int(has_key))",
    ),
    "redirects_are_not_counted": (
        f"{HERE}request_store.py",
        "counted = packed.slot not in map(self._codec.slot_of, sources)",
        "counted = not sources",
    ),
    "pages_in_memory_are_not_counted": (
        f"{HERE}scheduler.py",
        "if not self._has_budget or",
        "if True or",
    ),
    "pages_in_memory_stay": (
        f"{HERE}scheduler.py",
        "            self._ledger.dispatch(request)  # and so it is done\n",
        "",
    ),
    "all_unfiltered_again": (COMMIT, "and #answers < pushed then", "and false then"),
    "start_requests_again": (
        COMMIT,
        "if (answer == 0 or answer == 5) and mark",
        "if answer == 0 and mark",
    ),
    "slots_are_not_named": (COUNTING, "if redis.call('EXISTS', list) == 0 then", "if false then"),
    "no_new_round": (
        OPEN,
        "      counts = 1 - counts:sub(1, 1)\n",
        "      if true then return end\n",
    ),
    "the_last_round_is_forgotten": (
        COUNTING,
        "if counting and counts:find('f') then",
        "if false then",
    ),
    "the_last_round_is_never_forgotten": (
        COMMIT,
        "        redis.call('HSET', key('crawl'), 'counts', counts)\n",
        "",
    ),
    "another_budget_while_workers_live": (
        OPEN,
        "if found[1] == id and found[7] > 0 and has_other_budget then",
        "if false then",
    ),
    "no_budget_is_refused": (
        f"{HERE}budget.py",
        "    if state.budget != text:\n",
        "    if False:\n",
    ),
    "a_new_budget_counts_nothing": (
        f"{HERE}budget.py",
        "        client.run(COUNT_PENDING, ",
        "        (COUNT_PENDING, ",
    ),
    "what_is_claimed_is_not_counted": (
        f"{HERE}pending_store.py",
        "requests = (*self._claimed(), *self._apart())",
        "requests = (*self._apart(),)",
    ),
    "old_counts_stay": (
        OPEN,
        "    redis.call('UNLINK', key('limits'), key('counted:0'), key('counted:1'))\n",
        "    redis.call('UNLINK', key('limits'))\n",
    ),
    "old_limits_stay": (OPEN, "  redis.call('UNLINK', key('limits'))\n", ""),
    "failed_ones_are_free": (
        RETRY,
        "local is_carried = record and counting\n",
        "local is_carried = false\n",
    ),
    "all_failed_ones_count": (
        RETRY,
        "(tonumber(record[9] or field) or 0) <= tonumber(carried or 0)",
        "true",
    ),
    "new_budget_and_old_failures": (OPEN, "'counts', 0, 'carried', last_claim())", "'counts', 0)"),
    "asked_without_room": (TAKE, "or room_for_retry(slot) <= 0 then", "then"),
    "retried_without_room": (
        RETRY,
        "if is_carried and room_for_retry(slot) <= 0 then",
        "if false then",
    ),
    "asked_uncounted": (TAKE, "    count(slot)\n", ""),
    "asked_after_it_went": (
        TAKE,
        "    put('RPUSH', priority, slot, '0' .. payload)\n",
        "    redis.call('LPOP', list)\n    put('RPUSH', priority, slot, '0' .. payload)\n"
        "    redis.call('LPUSH', list, '')\n",
    ),
    "the_crawl_stays_over": (TAKE, "    redis.call('HSET', key('crawl'), 'over', '')\n", ""),
    "dropped_ones_stay_named": (TAKE, "redis.call('ZREM', key('capped'), slot) end", "end"),
    "not_chosen_ones_go": (TAKE, "    redis.call('RPUSH', list, element)\n", ""),
    "removed_without_the_capped": (
        REMOVE,
        "return redis.call('UNLINK', key('capped:' .. slot))",
        "return 0",
    ),
    "removed_without_the_counts": (
        REMOVE,
        "key('limits'), key('counted:0'), key('counted:1'))",
        "key('limits'))",
    ),
    "orders_are_forgotten": (
        f"{HERE}failed_store.py",
        '            self._client.call("hset", f"{self._key}:crawl", "retried", orders)\n',
        "            pass\n",
    ),
    "orders_hold_for_ever": (
        f"{HERE}failed_store.py",
        '            self._client.call("hdel", f"{self._key}:crawl", "retried")\n',
        "            pass\n",
    ),
    "none_is_asked_at_once": (
        f"{HERE}failed_store.py",
        "self._starts or _is_at_work(self._client, self._key)",
        "self._starts",
    ),
}


if __name__ == "__main__":
    sys.exit(run(MUTANTS, TESTS))
