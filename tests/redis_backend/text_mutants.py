"""Ways to break the text of what is in Redis, which the tests of their suite must notice, by file.

    python -m tests.redis_backend.text_mutants SUITE [NAME …]

See `tests/text_mutants.py`. The model has the rules of the protocol; these are in the code.
"""

import sys

from tests.text_mutants import ROOT, run

HERE = "scrapy_bloom/redis_backend/"


def later(line, condition):
    """Return the change by which a commit does what `line` says after the bits are set."""
    text = (ROOT / HERE / "lua/commit.lua").read_text()
    seen = "    adds = adds + 1\n  end\n"
    old = text[text.index(line) : text.index(seen) + len(seen)]
    return old, f"{old.removeprefix(line)}  if {condition} then\n{line}  end\n"


def swapped(first, second):
    """Return the change by which two steps are taken the other way round."""
    return first + second, second + first


BUDGETS = {
    "lua/commit.lua": {
        "counted_after_it_was_pushed": later(
            "      count(ARGV[at + 6])\n",
            "answer == 0 and counting and kind ~= '' and kind < '2' or kind == '4'",
        ),
        "kept_after_it_was_seen": later(
            "        cap(ARGV[at + 5], ARGV[at + 6], ARGV[at + 7])\n", "answer == 5 and kind ~= '4'"
        ),
        "one_more": ("if room_of(ARGV[at + 6]) > 0 then", "if room_of(ARGV[at + 6]) >= 0 then"),
        "seen_ones_are_counted": ("elseif answer == 0 and counting and", "elseif counting and"),
        "all_unfiltered_again": ("and #answers < pushed then", "and false then"),
        "start_requests_again": (" (answer == 0 or answer == 5) and mark", " answer == 0 and mark"),
        "the_last_round_is_never_forgotten": (
            "        redis.call('HSET', key('crawl'), 'counts', counts)\n",
            "",
        ),
    },
    "lua/include/budget.lua": {
        "never_counted_durably": ("  redis.call('HSET', counting, slot, counted[slot])\n", ""),
        "others_have_no_limit": ("tonumber(own or others or '')", "tonumber(own or '')"),
        "others_limit_all": ("tonumber(own or others or '')", "tonumber(others or '')"),
        "slots_without_a_limit_are_not_counted": (
            "then return end",
            "or limits[slot] == math.huge then return end",
        ),
        "slots_are_not_named": ("if redis.call('EXISTS', list) == 0 then", "if false then"),
        "the_last_round_is_forgotten": ("if counting and counts:find('f') then", "if false then"),
    },
    "call.py": {"retries_are_counted": ("str(has_key + 2 * (not self.counted", "str(int(has_key")},
    "request_store.py": {
        "redirects_are_not_counted": (
            "packed.slot not in map(self._codec.slot_of, sources)",
            "not sources",
        )
    },
    "scheduler.py": {
        "pages_in_memory_are_not_counted": ("if not self._has_budget or", "if True or"),
        "pages_in_memory_stay": (
            "            self._ledger.dispatch(request)  # and so it is done\n",
            "",
        ),
    },
    "lua/open_crawl.lua": {
        "no_new_round": ("      counts = 1 - counts:sub(1, 1)", "      if true then return end"),
        "another_budget_while_workers_live": (
            "found[1] == id and found[7] > 0 and has_other_budget",
            "false",
        ),
        "old_counts_stay": ("', key('limits'), key('counted:0'), key('counted:1", "', key('limits"),
        "old_limits_stay": ("  redis.call('UNLINK', key('limits'))\n", ""),
        "new_budget_and_old_failures": ("'counts', 0, 'carried', last_claim())", "'counts', 0)"),
    },
    "budget.py": {
        "no_budget_is_refused": ("    if state.budget != text:\n", "    if False:\n"),
        "a_new_budget_counts_nothing": ("RedisDesk(client, key).unfinished()", "{}"),
    },
    "desk.py": {
        "what_is_claimed_is_not_counted": ("found.update(each.slot for each in ", "(0 for _ in "),
        "orders_are_forgotten": (
            'self._client.call("hset", f"{self._key}:crawl", "retried", json.dumps(told))\n',
            "pass\n",
        ),
        "orders_hold_for_ever": (
            'self._client.call("hdel", f"{self._key}:crawl", "retried")',
            "pass",
        ),
        "none_is_asked_at_once": ("is_now=self._starts or is_at_work", "is_now=self._starts"),
    },
    "lua/change.lua": {
        "failed_ones_are_free": ("    or counting and (tonumber(record[9] ", "    or false and (("),
        "all_failed_ones_count": ("(tonumber(record[9] or element) or 0) <= carried", "true"),
        "asked_without_room": ("or room_for_retry(slot) > 0", "or true"),
        "asked_uncounted": ("    if counts_now then count(slot) end\n", ""),
        "asked_after_it_went": (
            "    put('RPUSH', priority, slot, '0' .. entry:sub(2))\n",
            "    remove(element)\n    put('RPUSH', priority, slot, '0' .. entry:sub(2))\n"
            "    if kind == 'capped' then redis.call('LPUSH', list, '') end\n",
        ),
        "the_crawl_stays_over": ("    redis.call('HSET', key('crawl'), 'over', '')\n", ""),
        "dropped_ones_stay_named": ("redis.call('ZREM', key('capped'), rest) end", "end"),
        "not_chosen_ones_go": ("      redis.call('RPUSH', list, element)\n", ""),
    },
    "lua/remove_queue.lua": {
        "removed_without_the_capped": (
            "return redis.call('UNLINK', key('capped:' .. slot))",
            "return 0",
        ),
        "removed_without_the_counts": ("('limits'), key('counted:0'), key('counted:1", "('limits"),
    },
}
SCRIPTS = {
    "lua/change.lua": {
        "lists_are_not_counted_less": ("      count_less(count, ", "      local _ = (count or "),
        "the_mark_counts": ("if redis.call('LINDEX', list, -1) == '' then", "if false then"),
        "the_older_list_stays": ("ipairs({named .. '\\0', named})", "ipairs({named})"),
        "lists_go_after_their_name": (
            "      redis.call('UNLINK', list)\n      forget_list(each)\n",
            "      redis.call('LREM', key('slots:' .. list_priority), 1, each)\n"
            "      redis.call('ZREM', key('parked'), list_priority .. ':' .. each)\n"
            "      redis.call('UNLINK', list)\n",
        ),
        "names_of_what_is_gone_stay": ("redis.call('LREM'", "local _ = ('LREM'"),
        "others_are_changed_unseen": (
            "'1' or verdicts[element])",
            "'1' or verdicts[element] or '1')",
        ),
        "popped_before_it_is_pushed": swapped(
            "      redis.call('RPUSH', list, element)\n", "      redis.call('LPOP', list)\n"
        ),
        "a_mark_is_lost": ("if has_list(priority, slot) then", "if false then"),
        "counters_of_the_lobby_stay": ("count_few(priority, slot, -1)", "return 'd'"),
        "all_delayed_ones_go": (
            "elseif verdict == '' then",
            "elseif verdict == '' and not packed then",
        ),
        "refused_after_a_write": ("if action == 'retry' then\n  redis", "if false then\n  redis"),
        "drops_are_refused": ("if action == 'retry' then\n  redis", "if true then\n  redis"),
    },
    "lua/commit.lua": {
        "never_asks": ("if #lacking > 0 then", "if false then"),
        "asked_one_not_kept": ("id] and (known[id] == 'named' or is_first) ", "id] and is_first "),
        "any_proposal": (" not kept[id] and (known[id] == 'named' or is_first) ", " not kept[id] "),
        "proposals_without_end": ("not full and #kept < 8", "not full"),
        "proposal_while_full": ("not full and #kept < 8", "#kept < 8"),
        "the_first_does_not_win": ("is_first and known[id] == 'named'", "is_first"),
        "workers_are_not_told": (" known[id] ~= 'named' then\n    news", " false then\n    news"),
        "offered_ones_are_not_told": ("if known[id] ~= 'named' then\n", "if not known[id] then\n"),
        "popped_before_claimed": swapped(
            "  redis.call('HSET', mine, number, "
            "cmsgpack.pack({priority, slot, entry, quarantined, now}))\n",
            "  redis.call(command, list)\n",
        ),
        "moved_after_it_was_popped": swapped(
            "      redis.call(command, list_of(priority, slot .. suffix), entry)\n",
            "      if entry ~= '' then count_few(priority, slot, -1) end\n"
            "      redis.call(pop, lobby)\n",
        ),
        "end_without_the_lobby": ("redis.call('EXISTS', ring, lobby", "redis.call('EXISTS', ring"),
        "claimed_past_its_own_list": ("elseif has_own or is_held", "elseif is_held"),
        "older_list_is_not_first": (
            "oldest_first and has_many and has_list(priority, slot .. '\\0') ",
            "false ",
        ),
        "a_resend_is_another": ("number .. ':' .. #answers", "now .. ':' .. #answers"),
        "end_without_the_delayed": (
            "(first_of('later') or first_of('parked'))",
            "first_of('parked')",
        ),
        "end_without_the_parked": (
            "(first_of('later') or first_of('parked'))",
            "first_of('later')",
        ),
        "left_the_ring_before_it_was_parked": swapped(
            "        park(priority, named, slot, hold)\n",
            "        redis.call('LREM', ring, 1, named)\n",
        ),
        "stays_in_the_ring": ("redis.call('LREM', ring, 1, named)\n        room", "room"),
        "held_by_the_lobby": ("has_own or is_held or", "has_own or"),
        "all_at_the_end_of_a_hold": ("          probe_slot(slot, hold)\n        ", "        "),
        "all_in_the_lobby_at_the_end": ("      if hold then probe_slot(slot, hold) end\n", ""),
        "two_at_the_end": ("if named ~= slot or hold then", "if named ~= slot then"),
        "returned_is_a_loss": ("worker, returned, record, false", "worker, returned, record, true"),
        "quarantined_of_held_slots": ("if not hold or hold[1] <= now then", "if true then"),
        "the_quarantined_wait_for_each_other": (
            "    redis.call('RPOPLPUSH', key('quarantined'), key('quarantined'))\n",
            "",
        ),
        "holds_of_new_claims_are_not_told": (" slot in pairs(of_slot) do", " slot in pairs({}) do"),
        "owners_stay": ("HLEN', key('owners')) > 1000", "HLEN', key('owners')) < 0"),
    },
    "lua/include/put.lua": {
        "lobby_without_priority": ("    if shares[priority] then redis", "    if false then redis"),
        "no_mark_for_an_own_list": (
            "      redis.call('RPUSH', lobby, slot .. '\\0')\n      is_new = false\n",
            "",
        ),
    },
    "lua/include/later.lua": {
        "due_ones_leave_first": (
            "    -- it has been counted",
            "    redis.call('ZREM', key('later'), member)",
        ),
        "a_resend_is_sooner": ("math.max(now + back + delay, ", "(now + back + delay or "),
        "counted_twice": ("    added, added_bytes = added - 1, added_bytes - #entry\n", ""),
        "asked_early": (
            "> now then return ipairs({}) end\n"
            "    local till = name == 'later' and now + back or now",
            "> now + 100 then return ipairs({}) end\n"
            "    local till = name == 'later' and now + back + 100 or now + 100",
        ),
        "all_at_once": ("'LIMIT', 0, 100", "'LIMIT', 0, 1000"),
        "the_last_hold_counts": ("if now + pause > hold[1] then", "if true then"),
        "holds_in_a_row_are_forgotten": ("math.max(hold[2], times)", "times"),
        "left_the_parked_before_it_joined": swapped(
            "  if named and has_list(priority, named) then join_ring(priority, named) end\n",
            "  redis.call('ZREM', key('parked'), member)\n",
        ),
        "what_is_parked_is_not_the_first": ("named)\n  firsts.parked = nil\n", "named)\n"),
        "what_has_joined_is_the_first": ("'), member)\n  firsts.parked = nil\n", "'), member)\n"),
        "long_probes": ("math.min(hold[3], most_probe)", "hold[3]"),
        "one_priority_is_released": ("if not hold[4][priority] then", "if not next(hold[4]) then"),
        "release_without_the_older": ("ipairs({slot, slot .. '\\0'})", "ipairs({slot})"),
        "by_a_clock_that_was_ahead": ("if hold[1] > now + hold[3] then", "if false then"),
        "parked_without_holds": ("    wake_parked()  --", "    --"),
    },
    "lua/include/enter.lua": {
        "parked_by_a_clock_that_was_ahead": ("if gap < -1000 then", "if false then")
    },
    "lua/remove_queue.lua": {
        "removed_without_the_parked": (
            "return priority and unlink_lists(priority, named) or 0",
            "return 0",
        )
    },
}
SUITES = {
    "budgets": (BUDGETS, ["budget"]),
    "scripts": (SCRIPTS, ["later", "dictionaries", "lobby", "commit", "desk"]),
}
"""Each with the tests that must notice it."""


def mutants(suite):
    """Return those of a suite by name, as `run` takes them."""
    return {
        name: (HERE + file, *change)
        for file, changes in suite.items()
        for name, change in changes.items()
    }


if __name__ == "__main__":
    table, tests = SUITES[sys.argv.pop(1)]
    sys.exit(run(mutants(table), [f"tests/redis_backend/test_{name}.py" for name in tests]))
