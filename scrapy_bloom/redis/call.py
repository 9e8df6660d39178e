"""The arguments of a group commit, and its reply."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from math import ceil, isinf
from time import monotonic
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from ..crawl.delays import Hold
from ..crawl.dictionaries import Dictionaries, id_of
from ..crawl.stats import COUNTED
from .scripts import CAPPED, CAPPED_BY_PATTERN, GROWN

if TYPE_CHECKING:
    from ..crawl.budget import Name
    from .filter import RedisBloomFilter
    from .layout import Shard

Argument = str | bytes | int
Full = Callable[["Name | None"], None]

FENCED, GONE, DICTIONARY, DONE = b"fenced", b"gone", b"dictionary", b"done"
"""The first part of a reply: the lease was lost, or Redis went back in time; there is no crawl, or
another one; the crawl lacks dictionaries that were named; all went well."""

_NOTHING_DONE = (b"", b"", b"", (), 0, 0, 0, 0, 0, 0, b"", 0, (), ())

LEAVE, OVER = "leave", "over"
"""The action of a worker's last call: leave the crawl, or end it."""


class Packed(NamedTuple):
    """A request as it is stored: in the list of `priority` (lower first) and `slot`."""

    priority: str
    slot: str
    payload: bytes


@dataclass(eq=False, slots=True)
class Entry:
    """A request to push, with its fingerprint unless it bypasses the filter; or a fingerprint or a
    mark alone. A start request has a mark."""

    number: int
    packed: Packed | None = None
    fingerprint: bytes | None = None
    mark: bytes = b""
    due: float | None = None
    """When the request may be asked, by `monotonic`; at once if that is over, or None."""
    names: Sequence[Name] = ()
    """The names under which a budget counts the request."""
    kind: Literal["push", "count"] = "push"
    """A request in memory is only counted, …"""
    when_counted: Full = lambda _: None
    """… and this is told the name that has no room, None if all have."""

    def encode(self, bloom_filter: RedisBloomFilter) -> tuple[list[Argument], Shard | None]:
        """Return the script's arguments for it, and the shard of its fingerprint."""
        shard: Shard | None = None
        probes: list[Argument] = ["", "", "", ""]
        if self.fingerprint is not None:
            shard, *rest = bloom_filter.locate(self.fingerprint)
            probes = [shard.number, *rest]
        kind, stored = (self.kind, self.packed) if self.packed else ("", ("", "", b""))
        left = 0.0 if self.due is None else self.due - monotonic()
        # a millisecond more: the script's clock has whole ones
        delay = ceil(1000 * left) + 1 if left > 0 else ""
        pattern = b"".join(name for name in self.names if isinstance(name, bytes))
        counts = b"%d%b" % (any(isinstance(name, str) for name in self.names), pattern)
        return [kind, *probes, *stored, self.mark, delay, counts], shard

    def full_by(self, answer: int) -> Name | None:
        """Return the name that has no room for it by the server's answer, None if all have."""
        kind = {CAPPED: str, CAPPED_BY_PATTERN: bytes}.get(answer)
        return next((name for name in self.names if kind and isinstance(name, kind)), None)


class Claim(NamedTuple):
    """A request that this worker has claimed; `number` is unique in the crawl."""

    number: str
    priority: int
    slot: str
    payload: bytes
    quarantined: bool
    held_until: float | None = None
    """By the server's clock (ms): until then its slot is held for this request alone."""


class Holding(NamedTuple):
    """Holds `slot` for so many seconds, which may be infinite, for the `times`-th time in a row, 0
    by hand; without a number of seconds releases a hold of so many `times`."""

    slot: str
    seconds: float | None = None
    times: int = 0

    def told(self) -> str:
        """Return it as scripts take it, with its seconds as ms, `inf` or nothing."""
        left = self.seconds
        pause = "" if left is None else left if isinf(left) else ceil(1000 * left)
        return f"{self.slot}\0{pause}\0{self.times}\0"


class Failing(NamedTuple):
    """A claim whose request has failed: the key of its page, the reason, the number of attempts,
    details as JSON, and the payload of a retry, empty for the same."""

    claim: str
    page: str
    reason: str
    attempts: int
    details: str
    payload: bytes = b""


@dataclass(frozen=True)
class ClaimReport:
    """The part of a call about claims, by their numbers: `acknowledged`; `dispatched` from
    now on; all that the worker keeps; the failed ones; and those
    that it returns unasked, the last one first."""

    acknowledged: Sequence[str] = ()
    dispatched: Sequence[str] = ()
    owned: Sequence[str] = ()
    failed: Sequence[Failing] = ()
    returned: Sequence[str] = ()


@dataclass(frozen=True)
class Policy:
    """The part of a call that never changes."""

    lease: int
    claims_per_slot: int
    newest_first: tuple[bool, bool | None]
    keeps_slot: int
    """Milliseconds for which a worker owns a slot, 0 for not at all."""
    max_attempts: int
    longest_probe: int = 180_000
    """Milliseconds for which a hold goes on, at most, while one request asks if it may end."""


@dataclass(eq=False)
class Call:
    """One call. A repeated call has the same bytes, and one that is sent again with dictionaries
    has the same number. It names all `dictionaries` that this process knows, since any of its
    requests may need them."""

    number: int
    entries: Sequence[Entry]
    dictionaries: Dictionaries
    action: str = ""
    claims: ClaimReport = ClaimReport()
    round: str = ""
    starting: bool = False
    start_done: bool = False
    wanted: int = 0
    slots: dict[str, int] = field(default_factory=dict)
    counted: Sequence[int] = (0,) * len(COUNTED)
    """Counts since the worker's last call, in the order of COUNTED."""
    holds: Sequence[Holding] = ()

    def __post_init__(self) -> None:
        self._named = dict(self.dictionaries.texts)
        self._offered = {id_of(each): each for each in [self.dictionaries.proposal] if each}
        self.shards: list[Shard | None] = []

    def offer(self, ids: Iterable[str]) -> None:
        """Send these dictionaries along, for which the server has asked."""
        self._offered |= {each: self._named[each] for each in ids}

    def encode(self, worker: str, policy: Policy, bloom_filter: RedisBloomFilter) -> list[Argument]:
        """Return the arguments of the script."""
        claims = self.claims
        arguments: list[Argument] = [
            bloom_filter.generation,
            worker,
            policy.lease,
            self.number,
            "1" * self.starting,
            "1" * self.start_done,
            self.wanted,
            policy.claims_per_slot,
            "".join(f"{slot}\0{count}\0" for slot, count in self.slots.items()),
            "".join("1" if newest else "0" for newest in policy.newest_first),
            policy.keeps_slot,
            policy.max_attempts,
            " ".join(claims.acknowledged),
            " ".join(claims.dispatched),
            " ".join(claims.owned),
            len(claims.failed),
            self.action,
            " ".join(map(str, self.counted)),
            self.round,
            " ".join(self._named),
            len(self._offered),
            " ".join(claims.returned),
            "".join(each.told() for each in self.holds),
            policy.longest_probe,
        ]
        for id_and_text in self._offered.items():
            arguments += id_and_text
        for each in claims.failed:
            arguments += each
        self.shards = []
        for entry in self.entries:
            encoded, shard = entry.encode(bloom_filter)
            arguments += encoded
            self.shards.append(shard)
        return arguments


class Reply:
    """The answer to a batch, as `lua/commit.lua` returns it."""

    later: int
    """How many requests are not due."""

    def __init__(self, answer: Sequence[Any]) -> None:
        self.fenced = answer[0] == FENCED
        self.gone = answer[0] == GONE
        self.asked_for = [each.decode() for each in answer[1]] if answer[0] == DICTIONARY else []
        """Dictionaries with which the call is to be sent again: nothing was done."""
        told: Sequence[Any] = answer[1:] if answer[0] == DONE else _NOTHING_DONE
        answers, layers, counts, claimed, self.reclaimed, still, start_done, *told = told
        self.failed, self.waiting, self.waiting_bytes, round_, full, *told = told
        self._dictionaries, later = told
        self.answers = [*map(int, answers.decode())]
        self._heard = zip(map(int, layers.split()), map(int, counts.split()), strict=True)
        self.still, self.start_done, self.full = bool(still), bool(start_done), bool(full)
        self.round = round_.decode(errors="replace")
        self.later, due_in, only_later, holds, answered = later or (0, b"", 0, (), b"")
        self.answered = answered.decode(errors="replace").split("\0")[:-1]
        """Slots that do not answer this worker, and have answered others."""
        self.due_in = float(due_in) / 1000 if due_in != b"" else None
        """Seconds until the next of them is, or the next hold is over; infinite until a release."""
        self.only_later = bool(only_later)
        """True if nothing else is pending or claimed."""
        self.holds: dict[str, Hold] = {}
        """Those of the slots of which the worker has claims."""
        self.held_until: dict[str, float] = {}
        """Their ends by the server's clock (ms)."""
        for each in holds:
            slot, until, left, times = each.decode(errors="replace").split("\0")
            self.holds[slot] = Hold(monotonic() + float(left) / 1000, int(times))
            self.held_until[slot] = float(until)
        self.claimed: list[Claim] = []
        for each in claimed:
            number, priority, slot, quarantined, payload = each.split(b"\0", 4)
            slot = slot.decode(errors="replace")
            held = self.held_until.get(slot)
            self.claimed.append(
                Claim(number.decode(), int(priority), slot, payload, quarantined == b"1", held)
            )

    def teach(self, bloom_filter: RedisBloomFilter, batch: Call) -> None:
        """Tell the filter the layers and counts of the shards that the answer names, and the
        process the dictionaries that it did not know."""
        for each in self._dictionaries:
            batch.dictionaries.learn(each)
        for answer, shard, (layers, count) in zip(
            self.answers, batch.shards, self._heard, strict=True
        ):
            if shard is not None and layers and (answer == GROWN or layers >= len(shard.counts)):
                bloom_filter.learn(shard, layers, count)
