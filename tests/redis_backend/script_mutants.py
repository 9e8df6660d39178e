"""Ways to break the scripts of a crawl in Redis, each of which the tests below must notice.

    python -m tests.redis_backend.script_mutants [name …]

See `tests/text_mutants.py`. The model has the rules of the protocol; these are in the scripts.
"""

import sys

from tests.text_mutants import run

COMMIT, PUT, LATER, ENTER, REMOVE, LISTS, SIEVE, LESS = (
    f"scrapy_bloom/redis_backend/lua/{name}.lua"
    for name in (
        "commit",
        "include/put",
        "include/later",
        "include/enter",
        "remove_queue",
        "drop_lists",
        "sieve",
        "include/count_less",
    )
)
TESTS = [
    f"tests/redis_backend/test_{name}.py"
    for name in ("later", "dictionaries", "lobby", "commit", "sieve")
]

POP_FROM_LIST = "  redis.call(command, list)\n"
CLAIMED = "  redis.call('HSET', mine, number, cmsgpack.pack({priority, slot, entry, alone, now}))\n"
KEPT = "if not kept[id] and (known[id] == 'named' or is_first) then"
MOVED = "      redis.call(command, list_of(priority, slot .. suffix), entry)\n"
COUNTED = "      if entry ~= '' then count_few(priority, slot, -1) end\n"
LEFT = "      redis.call(pop, lobby)\n    else\n"

COUNTED_ONCE = "    -- it has been counted\n"
NOT_DELAYED = "    redis.call('ZREM', key('later'), member)\n"
JOINED = "  if named and has_list(priority, named) then join_ring(priority, named) end\n"
FIRST = (
    "(first_of(name) or math.huge) > now then return ipairs({}) end\n"
    "    local till = name == 'later' and now + back or now\n"
)
PARKED = "  redis.call('ZADD', key('parked'), hold[1], priority .. ':' .. named)\n"
NOT_PARKED = "  redis.call('ZREM', key('parked'), member)\n"

MUTANTS = {
    # what an operator drops
    "lists_are_not_counted_less": (LISTS, "    count_less(count, ", "    local _ = (count or "),
    "the_mark_counts": (LISTS, "if redis.call('LINDEX', list, -1) == '' then", "if false then"),
    "the_older_list_stays": (LISTS, "ipairs({slot .. '\\0', slot})", "ipairs({slot})"),
    "lists_go_after_their_name": (
        LISTS,
        "    redis.call('UNLINK', list)\n    forget_list(priority, named)\n",
        "    redis.call('LREM', key('slots:' .. priority), 1, named)\n"
        "    redis.call('ZREM', key('parked'), priority .. ':' .. named)\n"
        "    redis.call('UNLINK', list)\n",
    ),
    "names_of_what_is_gone_stay": (LESS, "redis.call('LREM'", "local _ = ('LREM'"),
    "others_are_sieved_unseen": (SIEVE, "if not at then break end", "at = at or 2"),
    "popped_before_it_is_pushed": (
        SIEVE,
        "    redis.call('RPUSH', list, element)\n    redis.call('LPOP', list)\n",
        "    redis.call('LPOP', list)\n    redis.call('RPUSH', list, element)\n",
    ),
    "popped_before_it_has_failed": (
        SIEVE,
        "  if ARGV[at + 4] == '2' then let_fail(at) end\n  redis.call(command, list, ...)\n",
        "  redis.call(command, list, ...)\n  if ARGV[at + 4] == '2' then let_fail(at) end\n",
    ),
    "a_mark_is_lost": (SIEVE, "if has_list(priority, ARGV[at + 2]) then", "if false then"),
    "counters_of_the_lobby_stay": (SIEVE, "count_few(priority, ARGV[at + 2], -1)", "return"),
    "all_delayed_ones_go": (
        SIEVE,
        "if ARGV[at + 4] == '1' or ARGV[at + 4] == '2' then drop(at, 'ZREM', ARGV[at]) end",
        "drop(at, 'ZREM', ARGV[at])",
    ),
    # requests whose dictionary the crawl does not have
    "never_asks": (COMMIT, "if #lacking > 0 then", "if false then"),
    "asked_one_not_kept": (COMMIT, KEPT, "if not kept[id] and is_first then"),
    "any_proposal": (COMMIT, KEPT, "if not kept[id] then"),
    "proposals_without_end": (COMMIT, "not full and #kept < 8", "not full"),
    "proposal_while_full": (COMMIT, "not full and #kept < 8", "#kept < 8"),
    "the_first_does_not_win": (COMMIT, "is_first and known[id] == 'named'", "is_first"),
    "workers_are_not_told": (
        COMMIT,
        "if known[id] ~= 'named' then\n    news",
        "if false then\n    news",
    ),
    "offered_ones_are_not_told": (
        COMMIT,
        "if known[id] ~= 'named' then\n    news",
        "if not known[id] then\n    news",
    ),
    # an aborted call loses requests
    "popped_before_claimed": (COMMIT, CLAIMED + POP_FROM_LIST, POP_FROM_LIST + CLAIMED),
    "moved_after_it_was_popped": (
        COMMIT,
        MOVED + COUNTED + LEFT,
        COUNTED + "      redis.call(pop, lobby)\n" + MOVED + "    else\n",
    ),
    # requests in a lobby are not found
    "end_without_the_lobby": (
        COMMIT,
        "redis.call('EXISTS', ring, lobby)",
        "redis.call('EXISTS', ring)",
    ),
    "lobby_without_priority": (
        PUT,
        "    if shares[priority] then redis.call('ZADD'",
        "    if false then redis.call('ZADD'",
    ),
    # the order of a slot
    "claimed_past_its_own_list": (COMMIT, "elseif has_own or is_held", "elseif is_held"),
    "no_mark_for_an_own_list": (
        PUT,
        "      redis.call('RPUSH', lobby, slot .. '\\0')\n      is_new = false\n",
        "",
    ),
    "older_list_is_not_first": (
        COMMIT,
        "      elseif oldest_first and has_many and has_list(priority, slot .. '\\0') then\n",
        "      elseif false then\n",
    ),
    # delayed requests
    "due_ones_leave_first": (LATER, COUNTED_ONCE, NOT_DELAYED),
    "a_resend_is_another": (COMMIT, "number .. ':' .. #answers", "now .. ':' .. #answers"),
    "a_resend_is_sooner": (
        LATER,
        "math.max(now + back + delay, tonumber(",
        "(now + back + delay or tonumber(",
    ),
    "counted_twice": (LATER, "    added, added_bytes = added - 1, added_bytes - #entry\n", ""),
    "asked_early": (
        LATER,
        FIRST,
        FIRST.replace("> now", "> now + 100")
        .replace("or now", "or now + 100")
        .replace("+ back", "+ back + 100"),
    ),
    "all_at_once": (LATER, "'LIMIT', 0, 100", "'LIMIT', 0, 1000"),
    "end_without_the_delayed": (
        COMMIT,
        "(first_of('later') or first_of('parked'))\nlocal rests",
        "first_of('parked')\nlocal rests",
    ),
    # held slots
    "end_without_the_parked": (
        COMMIT,
        "(first_of('later') or first_of('parked'))\nlocal rests",
        "first_of('later')\nlocal rests",
    ),
    "the_last_hold_counts": (LATER, "if now + pause > hold[1] then", "if true then"),
    "holds_in_a_row_are_forgotten": (LATER, "math.max(hold[2], times)", "times"),
    "left_the_ring_before_it_was_parked": (
        COMMIT,
        "        park(priority, named, slot, hold)\n        redis.call('LREM', ring, 1, named)\n",
        "        redis.call('LREM', ring, 1, named)\n        park(priority, named, slot, hold)\n",
    ),
    "left_the_parked_before_it_joined": (LATER, JOINED + NOT_PARKED, NOT_PARKED + JOINED),
    "what_is_parked_is_not_the_first": (LATER, PARKED + "  firsts.parked = nil\n", PARKED),
    "what_has_joined_is_the_first": (LATER, NOT_PARKED + "  firsts.parked = nil\n", NOT_PARKED),
    "stays_in_the_ring": (
        COMMIT,
        "        redis.call('LREM', ring, 1, named)\n        room",
        "        room",
    ),
    "held_by_the_lobby": (COMMIT, "has_own or is_held or", "has_own or"),
    "all_at_the_end_of_a_hold": (
        COMMIT,
        "          probe_slot(slot, hold)\n        end\n        count_less",
        "        end\n        count_less",
    ),
    "all_in_the_lobby_at_the_end": (
        COMMIT,
        "      if hold then probe_slot(slot, hold) end\n      claim",
        "      claim",
    ),
    "two_at_the_end": (COMMIT, "if named ~= slot or hold then", "if named ~= slot then"),
    "long_probes": (LATER, "math.min(hold[3], most_probe)", "hold[3]"),
    "one_priority_is_released": (
        LATER,
        "  if not hold[4][priority] then",
        "  if not next(hold[4]) then",
    ),
    "release_without_the_older": (LATER, "ipairs({slot, slot .. '\\0'})", "ipairs({slot})"),
    "returned_is_a_loss": (
        COMMIT,
        "give_back(worker, returned, record, false)",
        "give_back(worker, returned, record, true)",
    ),
    "quarantined_of_held_slots": (COMMIT, "if not hold or hold[1] <= now then", "if true then"),
    "the_quarantined_wait_for_each_other": (
        COMMIT,
        "    redis.call('RPOPLPUSH', key('alone'), key('alone'))\n",
        "",
    ),
    "holds_of_new_claims_are_not_told": (
        COMMIT,
        "  for slot in pairs(of_slot) do\n",
        "  for slot in pairs({}) do\n",
    ),
    # clocks, and what was lost
    "by_a_clock_that_was_ahead": (LATER, "if hold[1] > now + hold[3] then", "if false then"),
    "parked_by_a_clock_that_was_ahead": (ENTER, "if gap < -1000 then", "if false then"),
    "parked_without_holds": (LATER, "    wake_parked()  --", "    --"),
    "removed_without_the_parked": (
        REMOVE,
        "return unlink_lists(member:match('^([^:]*):(.*)$'))",
        "return 0",
    ),
    # owners stay for ever
    "owners_stay": (COMMIT, "HLEN', key('owners')) > 1000", "HLEN', key('owners')) < 0"),
}


if __name__ == "__main__":
    sys.exit(run(MUTANTS, TESTS))
