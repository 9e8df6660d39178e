"""Failed requests of a crawl in Redis: kept in the call that acknowledges, found, asked again."""

import json
from hashlib import sha1

import msgpack
import pytest
from scrapy import Request

from scrapy_bloom.crawl.codec import Codec
from scrapy_bloom.crawl.failed_request import FailedRequest
from scrapy_bloom.redis.status import CrawlReader
from tests.contracts.places import SharedJob, send_again
from tests.crawl.engine import name_of
from tests.failures import Failed, fail_download
from tests.redis.workers import StoreWorker, talk

pytestmark = pytest.mark.usefixtures("few_shards")


def fail(worker, request, reason="callback"):
    return worker.fail(request, reason, exception=LookupError("x"))


def test_it_waits_for_what_came_of_it(worker):
    """All that the callback gave is there before the page counts as failed."""
    worker.enqueue("page")
    request = worker.next()
    worker.enqueue_all(f"child{number}" for number in range(60))
    assert fail(worker, request)
    assert not fail(worker, request)
    worker.store.commit(())
    while worker.store.unsent:
        assert worker.failed.names() == []
        if worker.sender.wait(1):
            worker.store.flush()
    worker.exchange()
    (found,) = worker.failed.requests()
    assert (found.reason, found.exception, found.attempts) == ("callback", "LookupError: x", 1)
    assert found.url == "http://example.com/page"
    assert worker.store.failed == 1
    dispatched = f"{worker.key}:dispatched:{worker.store.worker}"
    assert b"1" not in worker.client.call("smembers", dispatched)
    assert {claim.payload for claim in worker.store.claims.all.values()} != set()


def test_what_a_sleeper_has_lost_fails_with_another(worker):
    """Its own failure is no request in memory that cannot be kept."""
    worker.enqueue("page")
    request = worker.next()
    worker.die()
    worker.exchange()
    assert worker.fences == 1
    assert fail(worker, request)
    assert not fail(worker, Request("http://example.com/in-memory"))
    worker.exchange()
    assert worker.failed.names() == []


def test_what_failed_without_a_word_of_the_spider_is_told_in_the_same_way(join):
    """Pages that killed their workers, and requests that cannot be read."""
    first = join(BLOOM_REDIS_MAX_ATTEMPTS=1)
    first.enqueue("poison")
    first.leave()
    while (worker := join(BLOOM_REDIS_MAX_ATTEMPTS=1)).next() is not None:
        worker.die()
        last = worker.store.worker
    (found,) = worker.failed.requests()
    assert found[:3] == ("http://example.com/poison", "GET", "worker_died")
    assert (found.exception, found.attempts) == (f"the last was {last}", 3)
    assert found.time > 1e9
    worker.enqueue("strange")
    worker.store._codec.load = lambda _: 1 / 0
    assert worker.next() is None
    worker.exchange()
    (strange,) = worker.failed.requests(reasons=["unreadable"])
    assert (name_of(strange), strange.exception[:17]) == ("strange", "ZeroDivisionError")


def test_a_record_of_a_later_version_is_read(worker, redis_server):
    """What this one does not know is left out."""
    url = "http://example.com/old"
    payload = b"0" + Codec(None, 999).dump({"url": url}, "a").payload
    details = json.dumps({"url": url, "colour": "red", "method": "GET"})
    record = ["0", "a", payload, "strange", 5, "host:1", 9000, details, "77", "what comes after"]
    packed = msgpack.packb(record, use_bin_type=False)
    redis_server.command("HSET", f"{worker.key}:failed", "a page", packed)
    (found,) = worker.failed.requests()
    assert found == FailedRequest(url, "GET", "strange", None, None, 5, 9.0, None)
    assert worker.failed.by_reason() == {"strange": 1}
    assert worker.failed.retry() == 1
    found = worker.client.call("hmget", f"{worker.key}:crawl", "waiting", "waiting_bytes")
    assert found == [b"1", b"%d" % len(payload)]


WHOLE = ["0", "a", "0x", "strange", 5, "host:1", 9000, "{}"]
BAD = [(0, "x"), (0, "9" * 400), (3, 7), (4, "5"), (5, None), (6, "now"), (7, 1)]
DAMAGED = [b"junk", WHOLE[:3], *([*WHOLE[:at], bad, *WHOLE[at + 1 :]] for at, bad in BAD)]
DETAILS = ("1", "[]", "{", "[" * 100_000, json.dumps({"url": 7, "status": "1"}))
ODD = [["0", "ODD", "0x", "ODD", 5, "ODD", 9000, ""], *([*WHOLE[:6], 1e300, x] for x in DETAILS)]


@pytest.mark.parametrize("record", DAMAGED + ODD, ids=range(len(DAMAGED + ODD)))
def test_a_damaged_record_is_in_nobodys_way(join, worker, redis_server, record):
    """It is listed, as unreadable or not, and dropped; the next start asks the others."""
    worker.enqueue("page")
    fail(worker, worker.next())
    worker.exchange()
    packed = record
    if record is not DAMAGED[0]:
        parts = [b"\xff" if part == "ODD" else part for part in record]
        packed = msgpack.packb(parts, use_bin_type=False)
    redis_server.command("HSET", f"{worker.key}:failed", "later:1f", packed, "7", packed)
    reason = "unreadable" if record in DAMAGED else record[3].replace("ODD", "\udcff")
    assert worker.failed.by_reason() == {"callback": 1, reason: 2}
    assert len(worker.failed.requests()) == 3
    assert len(worker.failed.requests(urls=["*page"])) == 1
    worker.leave()
    worker = join()
    assert worker.failed.retry(reasons=["callback"]) == 1
    assert worker.failed.drop() == 2
    assert worker.drain() == ["page"]


def test_a_damaged_record_is_not_left_to_the_next_start(worker, redis_server):
    """Which could not ask it either; it is still among the failed ones."""
    worker.leave(over=True)
    redis_server.command("HSET", f"{worker.key}:failed", "7", "junk")
    assert worker.failed.retry() == 0
    assert redis_server.command("HGET", f"{worker.key}:crawl", "retried") is None
    assert worker.failed.by_reason() == {"unreadable": 1}


@pytest.mark.parametrize("retries", [0, 1])
def test_a_page_whose_retries_a_kill_has_forked_counts_once(opened, redis_server, key, retries):
    """Its retry was stored, and the worker died before it acknowledged the page."""
    first, other = (opened(SharedJob(redis_server.url, key)) for _ in range(2))
    first.pushed("page", "other")
    pages = {name_of(each): each for each in (first.pop(), first.pop())}
    send_again(first, pages["page"], download_latency=0.1)
    first.scheduler.worker.store._take = lambda *_: None  # after it the page would be acknowledged
    first.scheduler.ledger.commit()
    assert first.scheduler.worker._transport.wait(30)
    first.drop()
    found = {}
    for _ in range(20):
        if (popped := other.pop()) is not None:
            found[name_of(popped), popped.meta.get("retry_times", 0)] = popped
    fail_download(other, found["other", 0])
    page = found["page", 0]
    for _ in range(retries):
        send_again(other, page, download_latency=0.2)
        other.done(page)
        other.commit()
        page = other.pop()
    fail_download(other, found["page", 1])
    other.commit()
    fail_download(other, page)
    other.commit()
    failed = Failed(other.scheduler.worker._desk)
    assert (sorted(failed.names()), other.stat("scheduler/reclaimed")) == (["other", "page"], 3)
    assert other.scheduler.worker.store.failed == failed.retry() == 2


def test_equal_requests_that_fail_are_as_many(join):
    """Each of three is asked again, and is the same one after a worker has died with it."""
    worker, other = join(), join()
    worker.enqueue_all(["page"] * 3, dont_filter=True)
    for _ in range(2):
        fail(worker, worker.next())
    worker.exchange()
    (died_with,) = worker.store.claims.all.values()
    worker.die()
    last = other.next()
    page_of, claims = other.codec.page_of, other.store.claims
    assert page_of(claims.dispatched[last]) == page_of(died_with)
    fail(other, last)
    other.exchange()
    assert other.failed.names() == ["page"] * 3
    assert other.failed.retry() == 3


class Numbered(Request):
    """A request of which a spider keeps which page of a list it is."""

    attributes = (*Request.attributes, "page")

    def __init__(self, *args, page=None, **kwargs):
        super().__init__(*args, **kwargs)
        self.page = page


def test_what_is_the_same_page(join):
    """A retry is, and keeps what the spider has given it; none with another slot, though a payload
    leaves out what its slot says, and none that has only a number in common with it."""
    codec, urls = join().codec, {}
    one, other = (codec.dump(Numbered(f"http://example.com/{name}", page="2")) for name in "ab")
    assert codec.page_of(one) != codec.page_of(other)
    again = codec.dump(codec.load(one), again=one)
    assert codec.page_of(again) == codec.page_of(one)
    assert codec.load(again).page == "2"
    codec.slot_of = lambda request: request.url.split("/")[2]
    for number in range(10_000):
        found = codec.dump(Request(f"http://{sha1(b'%d' % number).hexdigest()}.example/"))
        other = urls.setdefault(found.payload, found)
        if other is not found:
            break
    assert codec.page_of(other) != codec.page_of(found)


def test_each_start_asks_again_and_not_each_worker(build, worker):
    """With BLOOM_RETRY_FAILED: who finds nobody at work does it, also in a crawl that is over."""
    worker.enqueue("page")
    fail(worker, worker.next())
    worker.exchange()
    scheduler = build(BLOOM_RETRY_FAILED=True)
    talk(scheduler)
    assert worker.failed.names() == ["page"]
    scheduler.close("shutdown")
    worker.exchange()
    worker.store.leave(over=True, seconds=1)
    talk(build(BLOOM_RETRY_FAILED=True))
    assert worker.failed.names() == []
    assert not CrawlReader(worker.client, worker.key).look().over


def test_stats_that_can_be_alerted_on(build, locked_server, key, caplog):
    """Those of the crawl and of the worker; the last line has a command, and no password."""
    url = locked_server.url.replace("//", "//:hush@")
    other = StoreWorker(url, key)
    other.send("abcdef")
    fail(other, other.next())
    other.exchange()
    other.leave()
    scheduler = build(BLOOM_REDIS_URL=url)

    def stat(name):
        scheduler.worker._set_stats()
        return scheduler.stats.get_value(f"scheduler/{name}")

    talk(scheduler)
    assert [stat(name) for name in ("pending", "in_flight", "failed")] == [5, 0, 1]
    assert 0 < stat("commit_seconds_max") < 60
    scheduler.crawler.engine._slot.inprogress.add(scheduler.next_request())
    scheduler.worker.store.slowest_call = 50.0  # a commit waits for no answer
    assert (stat("in_flight"), stat("commit_seconds_max")) == (1, 50.0)
    scheduler.crawler.engine._slot.inprogress.clear()
    scheduler.close("shutdown")
    (line,) = [each for each in caplog.messages if "failed and stay" in each]
    assert f"'scrapy bloom retry {locked_server.url} --key {key}'" in line
    assert "1 request failed and stays in the crawl: 1 callback." in line
    assert "hush" not in caplog.text
    assert (stat("failed"), stat("bytes") > 10) == (1, True)


def test_the_rights_in_the_documents_are_enough(own_server):
    """For a worker of a crawl with all there is: a budget, failed requests, a dictionary."""
    url = own_server.user("workers.md", "key", commands=False)
    worker = StoreWorker(url, "key")
    for number in range(300):
        worker.enqueue(f"{number}", slot=f"shop-{number}")
        if number % 50 == 49:
            worker.exchange()
    worker.next()
    worker.close()  # killed: its claims count in a budget that is new
    own_server.command("ZADD", f"{worker.key}:workers", 1, worker.store.worker)
    worker = StoreWorker(url, "key", BLOOM_BUDGET={"*": 3, "shop-1": 1})
    worker.send(["over"], slot="shop-1")
    for urls in ((), ["*/over"]):
        assert worker.failed.retry(reasons=["capped"], urls=urls) == 0
    own_server.command("HDEL", f"{worker.key}:crawl", "dictionaries")
    worker.enqueue_all("abc")
    fail(worker, worker.next())
    worker.exchange(2)
    assert len(worker.codec.dictionaries.texts) == 1
    assert own_server.command("HGET", f"{worker.key}:crawl", "dictionaries")
    assert worker.failed.by_reason() == {"callback": 1, "capped": 1}
    worker.leave()


def test_of_very_many_the_reasons_of_the_first_are_told(join):
    """The rest is `others`."""
    worker = join(capacity=9)
    worker.send("abcde")
    assert all(fail(worker, request) for request in [*iter(worker.next, None)])
    worker.exchange()
    assert worker.desk.reasons(4) == {"callback": 4, "others": 1}
    assert worker.desk.reasons() == {"callback": 5}
