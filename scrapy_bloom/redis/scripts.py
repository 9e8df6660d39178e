"""The Lua scripts that Redis runs; each file in `lua/` says what its script takes and returns.

A script is atomic: no other command runs in between. A script that fails keeps what it has
written: a command may be forbidden, find a key of another type, or no memory. It is sent again
then, and also when its answer was lost. So the order of its writes is such that each prefix of
them is harmless: a request is pushed before its fingerprint's bits are set, which are one command;
a claim is written before its request leaves the list. Duplicates are possible, loss is not.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property, partial
from hashlib import sha1
from importlib.resources import files


class Script:
    """The Lua script `name`, which uses only the keys that it is given; or all in the hash slot of
    its one key (`in_slot`), whose names it makes itself.

    While a Cluster moves that slot, keys that are on the other node look absent. So a second key is
    declared, which never exists: a node that has only a part of the slot answers TRYAGAIN then.
    """

    def __init__(self, name: str, *, in_slot: bool = False) -> None:
        self._name = name
        self.in_slot = in_slot

    @cached_property
    def text(self) -> str:
        """The script, each line `-- include NAME` replaced by `include/NAME.lua`."""
        return _read(f"{self._name}.lua")

    @property
    def traced(self) -> str:
        """The script, whose errors begin with the key that it has asked for last."""
        return _read("include/traced.lua").replace("-- the script", self.text)

    @cached_property
    def digest(self) -> str:
        """The SHA-1 by which Redis knows the script."""
        return sha1(self.text.encode(), usedforsecurity=False).hexdigest()

    def keys(self, given: Sequence[str]) -> Sequence[str]:
        """Return the keys to declare."""
        return [*given, f"{given[0]}:never"] if self.in_slot else given


def _read(file: str) -> str:
    text = (files(__package__) / "lua" / file).read_text(encoding="utf-8")
    return re.sub(r"^-- include (\w+)$", lambda at: _read(f"include/{at[1]}.lua"), text, flags=re.M)


# the filter: each script on the keys of one shard
TEST_AND_SET = Script("test_and_set")
GROW, FILL, LOOK = "grow", "fill", "look"
"""What TEST_AND_SET may do with a new fingerprint: add it, to a new layer if the newest is full;
add it to the newest layer anyway; or nothing."""
NEW, SEEN, GROWN, GONE = range(4)
"""Its answers: new, and now added, unless it only was to LOOK; seen; the shard has more layers
than were named, and nothing was done; the shard is gone."""
CAPPED, CAPPED_BY_PATTERN = 5, 6
"""Answers of COMMIT for an entry that is over the budget of its slot, or of its pattern."""
MAKE_SHARD = Script("make_shard")
READ_SHARD = Script("read_shard")
DELETE = Script("delete")
MAKE_HEADER = Script("make_header")
LOADING, READY = "loading", "1"
"""The states of a filter in its header: during `load_into_redis`, or after that was killed; with
all shards."""

# the crawl beside it, in one hash slot
SlotScript = partial(Script, in_slot=True)
OPEN_CRAWL = SlotScript("open_crawl")
COMMIT = SlotScript("commit")
HEARTBEAT = SlotScript("heartbeat")
CRAWL_STATUS = SlotScript("crawl_status")
WORKER_STATUS = SlotScript("worker_status")
SCAN = SlotScript("scan")
CHANGE = SlotScript("change")
HOLD_SLOTS = SlotScript("hold_slots")
CRAWL_NAMES = SlotScript("crawl_names")
VERIFY_PLACE = SlotScript("verify_place")
VERIFY_BOOKS = SlotScript("verify_books")

# seeds, and the delta store
TAKE_START_URLS = Script("take_start_urls")
DELTA_KNOWS = Script("delta_knows")
DELTA_ADD = Script("delta_add")
