"""Ways to break exact tables, each of which `test_exact.py` must notice.

    python -m tests.bloom.exact_mutants [name …]

See `tests/text_mutants.py`.
"""

import sys

from tests.text_mutants import run

TABLE, LAYERS, FIXED = (
    f"scrapy_bloom/bloom/{name}.py" for name in ("exact_table", "layers", "fixed")
)
GROWING, SIZING = "scrapy_bloom/bloom/growing.py", "scrapy_bloom/bloom/sizing.py"

WRITES = """        memory[slot : slot + _SLOT] = remainder
        memory[start] = count
"""
BITS = "        bits[probes] = 1\n"
INTO_THE_TABLE = """        table = newest.table
        if table is not None:
            digest = self._new_digest()
            digest.update(key)
            table.add(selector, digest.digest())
            if avoided:
                self.false_positives_avoided += 1
"""

FEW_BITS = "        newest.bits[positions_of(lanes, salted, newest.blocks, newest.probes)] = 1\n"
FEW_INTO_THE_TABLE = """        if newest.table is not None:
            newest.table.add(lanes[0], self._remainder(key))
            if known is None:
                self.false_positives_avoided += 1
"""

MUTANTS = {
    # the number of keys counts a slot that is not written yet
    "count_before_slot": (TABLE, WRITES, "".join(reversed(WRITES.splitlines(keepends=True)))),
    # a key that SIGKILL has kept from being counted is there
    "slots_behind_the_count": (
        TABLE,
        "        end = start + _SLOT + _SLOT * count\n",
        "        end = start + _SLOT + _SLOT * self._slots\n",
    ),
    # the table has a key of which the filter says that it is new
    "bits_after_count": (LAYERS, BITS + INTO_THE_TABLE, INTO_THE_TABLE + BITS),
    "few_bits_after_count": (LAYERS, FEW_BITS + FEW_INTO_THE_TABLE, FEW_INTO_THE_TABLE + FEW_BITS),
    # keys that overflow are not looked for
    "chain_stops": (
        TABLE,
        "return count >= self._slots and self.holds(self._next(selector), remainder)",
        "return False",
    ),
    "chain_stops_at_the_second": (
        TABLE,
        "return count >= self._slots and self.holds(self._next(selector), remainder)",
        "return count >= self._slots and not vars(self).get('second') and (setattr(self, 'second',"
        " True), self.holds(self._next(selector), remainder), setattr(self, 'second', False))[1]",
    ),
    # keys of the last bucket overflow into nothing
    "no_wrap": (
        TABLE,
        "        return -(-(bucket % self.buckets << 32) // self.buckets)\n",
        "        return -(-(min(bucket, self.buckets - 1) << 32) // self.buckets)\n",
    ),
    "parts_of_two_slots": (TABLE, "        while at % _SLOT and at >= 0:", "        while False:"),
    "slot_too_low": (TABLE, "slot = start + _SLOT * count", "slot = start + _SLOT * (count - 1)"),
    "one_key_too_many": (
        TABLE,
        "        if count > self._slots:\n            self.add",
        "        if count > self._slots + 1:\n            self.add",
    ),
    # what MurmurHash3 takes for the same is the same
    "remainder_of_murmur": (
        LAYERS,
        "            digest = self._new_digest()\n            digest.update(key)\n"
        "            table.add(selector, digest.digest())",
        "            table.add(selector, bytes(8))",
    ),
    "no_secret": (TABLE, "blake2b(secret, digest_size=_SLOT)", "blake2b(digest_size=_SLOT)"),
    "table_not_asked": (
        LAYERS,
        "                    if layer.table is None:\n                        return True\n",
        "                    return True\n",
    ),
    "table_not_asked_by_in": (
        LAYERS,
        "                if bits[o : o + BLOCK_BITS][rest].all() and (\n"
        "                    layer.table is None",
        "                if bits[o : o + BLOCK_BITS][rest].all() and (\n"
        "                    layer.table is not None",
    ),
    "no_limit": (SIZING, "_TABLE_LIMIT = 0.95", "_TABLE_LIMIT = 1.05"),
    "room_not_required": (
        LAYERS,
        "            newest.require_room()\n        if newest is not",
        "        if newest is not",
    ),
    "few_room_not_required": (
        LAYERS,
        "                newest.require_room()\n        newest.bits",
        "                pass\n        newest.bits",
    ),
    "looks_are_counted": (
        LAYERS,
        "                    avoided = 1\n        newest",
        "                    avoided = 1\n                    self.false_positives_avoided += 1\n"
        "        newest",
    ),
    "recounted_by_bits": (
        FIXED,
        "        if store.table is not None:\n            store.count = sum",
        "        if False:\n            store.count = sum",
    ),
    "grows_without_tables": (
        GROWING,
        "            exact=self.exact,\n",
        "            exact=False,\n",
    ),
    "mode_not_kept": (
        GROWING,
        "bound, error_rate, secret, exact=exact)",
        "bound, error_rate, secret, exact=False)",
    ),
}


if __name__ == "__main__":
    sys.exit(run(MUTANTS, ["tests/bloom/test_exact.py"]))
