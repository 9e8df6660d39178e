"""The failed requests of a crawl, in Redis; a worker writes them in the call that would have
acknowledged them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ..job.codec import Stored, url_and_method
from ..job.dictionaries import Dictionaries
from ..job.failed_request import ALL, CAPPED, Choice, FailedRequest, class_and_message
from .call import Failing
from .capped import AT_ONCE, CappedRequests
from .codec import known_dictionaries
from .layout import ODD_BYTES
from .lifecycle import run_in_crawl
from .scripts import CRAWL_STATUS, RETRY_FAILED, SCAN_FAILED

if TYPE_CHECKING:
    from .call import Claim
    from .client import RedisClient
    from .codec import RedisCodec


class RedisFailedStore:
    """The FailedStore of the crawl beside the filter at `key`.

    `by_reason` looks at the first `most` of its requests, at all by default. `starts` is True for a
    worker that joins the crawl. Any method may raise SharedFilterError. Cost: a call for a hundred
    requests.
    """

    def __init__(
        self,
        client: RedisClient,
        key: str,
        most: int | None = None,
        *,
        starts: bool = False,
    ) -> None:
        self._client = client
        self._key = key
        self._most = most
        self._starts = starts
        self.capped = CappedRequests(client, key)
        self._dictionaries = Dictionaries()

    def by_reason(self) -> dict[str, int]:
        """Return how many there are for each reason, most first; what was not looked at
        comes as `others`."""
        seen: dict[bytes, str] = {}
        others = 0
        for field, _, reason in self._scan(brief=True):
            seen[field] = reason.decode(errors=ODD_BYTES)
            if len(seen) == self._most:
                others = self._client.call("hlen", f"{self._key}:failed") - len(seen)
                break
        counts = Counter(seen.values()) + Counter({CAPPED: self.capped.count()})
        reasons = dict(counts.most_common())
        return {**reasons, "others": others} if others > 0 else reasons

    def requests(self, choice: Choice = ALL) -> list[FailedRequest]:
        """Return the chosen ones, oldest first."""
        return [*(failed for _, failed in self._chosen(choice)), *self.capped.requests(choice)]

    def retry(self, choice: Choice = ALL) -> int:
        """Make the chosen ones pending again, also of a crawl that is over, which goes on; return
        how many. Capped ones, and with a budget those of earlier rounds, are so as far as the
        budget has room: at once while workers are at work, else at the next start."""
        is_now = self._starts or _is_at_work(self._client, self._key)
        # first, since it may get some of the others
        count = self.capped.ask(choice) if is_now else 0
        left = 0
        for fields in self._groups(choice):
            moved = run_in_crawl(self._client, RETRY_FAILED, self._key, "1" * is_now, *fields)
            count, left = count + moved[0], left + moved[1]
        if is_now:
            return count
        left += self.capped.count(choice)
        if left:
            orders = json.dumps([*self._orders(), choice])
            self._client.call("hset", f"{self._key}:crawl", "retried", orders)
        return count + left

    def retry_ordered(self) -> int:
        """Make pending what `retry` has left to the next start; return how many. What the budget
        has no room for is not asked by a later start."""
        orders = self._orders()
        count = sum(self.retry(Choice(*each)) for each in orders)
        if orders:
            self._client.call("hdel", f"{self._key}:crawl", "retried")
        return count

    def _orders(self) -> list[Sequence[Sequence[str]]]:
        found = self._client.call("hget", f"{self._key}:crawl", "retried")
        return [*json.loads(found)] if found else []

    def drop(self, choice: Choice = ALL) -> int:
        """Forget the chosen ones; return how many."""
        name = f"{self._key}:failed"
        groups = self._groups(choice)
        dropped: int = sum(self._client.call("hdel", name, *fields) for fields in groups)
        return dropped + self.capped.drop(choice)

    def _groups(self, choice: Choice) -> Iterator[Sequence[bytes]]:
        if choice == ALL:
            claims = {field: claim for field, claim, _ in self._scan(brief=True)}
            fields = sorted(claims, key=claims.__getitem__)
        else:
            fields = [field for field, _ in self._chosen(choice)]
        for first in range(0, len(fields), AT_ONCE):
            yield fields[first : first + AT_ONCE]

    def _chosen(self, choice: Choice) -> list[tuple[bytes, FailedRequest]]:
        self._dictionaries = known_dictionaries(self._client, self._key)
        found = {
            field: (claim, self._failed_request(*rest)) for field, claim, *rest in self._scan()
        }
        return [
            (field, failed)
            for field, (_, failed) in sorted(found.items(), key=lambda item: item[1][0])
            if choice.includes(failed.reason, failed.url)
        ]

    def _failed_request(
        self,
        reason: bytes,
        attempts: int,
        worker: bytes,
        when: int,
        details: bytes,
        slot: bytes,
        payload: bytes,
    ) -> FailedRequest:
        known: dict[str, Any] = {"url": "", "method": "GET"}
        known |= {"status": None, "exception": None, "referer": None}
        if details:
            with suppress(ValueError, RecursionError):  # damaged
                told = json.loads(details)
                # a later version may know more
                for name in known.keys() & told if isinstance(told, dict) else ():
                    if isinstance(told[name], int if name == "status" else str):
                        known[name] = told[name]
        else:
            stored = Stored(slot.decode(errors=ODD_BYTES), payload)
            known["url"], known["method"] = url_and_method(stored, self._dictionaries)
            known["exception"] = f"the last was {worker.decode(errors=ODD_BYTES)}"
        known["reason"] = reason.decode(errors=ODD_BYTES)
        return FailedRequest(attempts=attempts, time=when / 1000, **known)

    def _scan(self, *, brief: bool = False) -> Iterator[Any]:
        flag = "1" if brief else ""
        for found in self._client.scan(SCAN_FAILED, self._key, None, AT_ONCE, flag):
            yield from found


def _is_at_work(client: RedisClient, key: str) -> bool:
    _, now, workers, *_ = client.run(CRAWL_STATUS, [key])
    return any(float(until) >= now for until in workers[1::2])


def failing_of(
    claim: Claim, failed: FailedRequest, codec: RedisCodec, *, is_readable: bool = True
) -> Failing:
    """Return what the server is told of `claim`, whose request has failed."""
    return Failing(
        claim=claim.number,
        page=codec.page_of(claim),
        reason=failed.reason,
        attempts=failed.attempts,
        details=details_of(failed),
        payload=codec.again(claim, failed) if is_readable else b"",
    )


def unreadable(claim: Claim, error: Exception, codec: RedisCodec) -> Failing:
    """Return what the server is told of `claim`, which cannot be made a request again."""
    failed = FailedRequest.unreadable(*codec.url_and_method(claim), class_and_message(error))
    return failing_of(claim, failed, codec, is_readable=False)


def details_of(failed: FailedRequest) -> str:
    """Return what the server is told of a failed request beside its reason and attempts."""
    details = failed._asdict()
    del details["reason"], details["attempts"], details["time"]  # which is by its own clock
    return json.dumps(details)
