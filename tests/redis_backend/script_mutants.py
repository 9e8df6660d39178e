"""Ways to break the scripts of a crawl in Redis, each of which the tests below must notice.

    python -m tests.redis_backend.script_mutants [name …]

See `tests/text_mutants.py`. The model has the rules of the protocol; these are in the scripts.
"""

import sys

from tests.text_mutants import run

COMMIT, PUT = (f"scrapy_bloom/redis_backend/lua/{name}.lua" for name in ("commit", "include/put"))
TESTS = [f"tests/redis_backend/test_{name}.py" for name in ("dictionaries", "lobby", "commit")]

POP_FROM_LIST = "  redis.call(command, list)\n"
CLAIMED = "  redis.call('HSET', mine, number, cmsgpack.pack({priority, slot, entry, alone, now}))\n"
KEPT = "if not kept[id] and (known[id] == 'named' or is_first) then"
MOVED = "      redis.call(command, list_of(priority, slot .. suffix), entry)\n"
COUNTED = "      if entry ~= '' then count_few(priority, slot, 0) end\n"
LEFT = "      redis.call(pop, lobby)\n    else\n"

MUTANTS = {
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
    "claimed_past_its_own_list": (COMMIT, "elseif has_own or (of_slot", "elseif (of_slot"),
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
    # owners stay for ever
    "owners_stay": (COMMIT, "HLEN', key('owners')) > 1000", "HLEN', key('owners')) < 0"),
}


if __name__ == "__main__":
    sys.exit(run(MUTANTS, TESTS))
