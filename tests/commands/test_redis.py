"""`scrapy bloom` on filters and crawls in Redis, on a real server."""

import json
import re

import pytest
from scrapy import Request
from scrapy.utils.request import fingerprint

from scrapy_bloom import ScalableBloomFilter, ScrapyRedisFingerprinter
from scrapy_bloom.crawl.codec import Codec
from scrapy_bloom.crawl.failed_request import FailedRequest
from scrapy_bloom.redis.client import RedisClient
from scrapy_bloom.redis.filter import RedisBloomFilter
from scrapy_bloom.redis.layout import in_one_slot
from tests.stored import stored

URL = "http://example.com/page?x=1"
THEIRS = ["-s", "SPIDER_MODULES=tests.small_spider"]
OURS = ["-s", "REQUEST_FINGERPRINTER_CLASS=scrapy_bloom.ScrapyRedisFingerprinter"]


@pytest.fixture
def job(tmp_path):
    """A job of two layers that knows URL."""
    (tmp_path / "job").mkdir()
    with ScalableBloomFilter(2000, 1e-4, tmp_path / "job" / "bloom") as bloom_filter:
        bloom_filter.add(fingerprint(Request(URL)))
        bloom_filter.update(str(n) for n in range(3000))
        assert len(bloom_filter.layers) == 2
    return tmp_path / "job"


def test_filter_moves_there_and_back(run, there, job, redis_server, key):
    """Loaded, looked at, asked, verified, exported and cleared: the keys stay what they are."""
    folder, url = job.parent, redis_server.url
    load = ["load", "job", url, "--key", key]
    result = run(folder, *load)
    assert result.status == 0, result.error
    assert f"to {url} {key}" in result.out
    assert "is there already" in run(folder, *load).refusal
    info, local = there("info", "--json").json, run(folder, "info", "job", "--json").json
    assert (info["capacity"], info["error_rate_bound"]) == (6000, 1e-4)
    assert info["items"] == local["items"]
    assert info["error_rate"] == pytest.approx(local["error_rate"], rel=0.5)
    layers = info["layers"]
    assert info["items"] == sum(each["items"] for each in layers)
    assert info["bytes"] * 8 == info["bits"] == sum(each["bits"] for each in layers)
    rates = sum(each["error_rate"] for each in layers)
    assert (len(layers), info["error_rate"]) == (2, pytest.approx(rates, rel=0.1))
    text = there("info")
    assert (text.lines[0], text.width <= 80) == (f"{url} {key}", True)
    assert {"requests", "memory", "made"} <= text.fields.keys()
    assert not {"file size", "closed"} & text.fields.keys()
    assert there("check", URL).status == 0
    absent = [f"http://absent.example/{n}" for n in range(100)]
    assert sum(line.startswith("seen") for line in there("check", *absent).lines) < 3
    assert there("verify").status == there("export", "new").status == 0
    assert run(folder, "check", "new", URL).status == run(folder, "verify", "new").status == 0
    assert "is there already" in there("export", "new").refusal
    (folder / "old").mkdir()
    (folder / "old" / "requests.seen").write_bytes(b"\0\x14" + b"x" * 20)
    refusal = there("export", "old").refusal  # with a filter, no crawl would import that
    assert "old holds a requests.seen, which a crawl imports only while" in refusal
    assert [each.name for each in (folder / "old").iterdir()] == ["requests.seen"]
    assert "--yes" in there("clear").refusal
    redis_server.command("DEL", key)  # what is left of it is cleared, too
    assert there("clear", "--yes").status == 0
    assert redis_server.names(key) == []
    assert "no filter" in there("info").refusal
    assert "is no filter" in there("clear", "--yes").refusal


def test_nothing_is_cleared_beside_what_is_none_of_ours(there, redis_server, key):
    """A crawl's filter stays, too, where a value that is no filter has its key without braces."""
    with RedisClient(redis_server.url) as client:
        RedisBloomFilter(client, in_one_slot(key), 500, 1e-3).add(b"k" * 20)
    redis_server.command("SET", key, "theirs")
    before = redis_server.names(key)
    assert "no filter" in there("clear", "--yes").refusal
    assert redis_server.names(key) == before


@pytest.mark.parametrize("how", ["redis://:hush@{}/0", "redis://{}/0?password=hush"])
def test_no_password_is_printed(run, tmp_path, locked_server, how):
    """Whatever a command has to say of a server, an error included, wherever in the URL it is."""
    (tmp_path / "urls.txt").write_text(f"{URL}\n")
    assert run(tmp_path, "add", "job", "urls.txt").status == 0
    url, wrong = how.format(f"127.0.0.1:{locked_server.port}"), how.format("127.0.0.1:1")
    by_spider = ["--spider", "small", *THEIRS]
    for *words, status in (
        *(("load", "job", url, 0), ("load", url, url, 2)),
        *(("load", place, url, *by_spider, 2) for place in (url, wrong)),
        *(("export", url, "new", 0), ("export", url, "new", 2), ("info", url, 0)),
        *(("verify", url, 0), ("check", url, URL, 0), ("check", url, URL, *OURS, 2)),
        *(("clear", url, 2), ("clear", url, "--yes", 0), ("info", url, 2)),
        ("add", "job", url, *OURS, 2),
        *((*words, wrong, 2) for words in (["load", "job"], ["add", "job"], ["info"], ["failed"])),
        ("export", wrong, "new2", 2),
        ("load", "job", url.replace("//", "/"), 2),
        ("info", "job", url, 2),
    ):
        result = run(tmp_path, *words, "--key", "k")
        assert result.status == status, (words, result.out, result.error)
        assert status == 0 or result.refusal
        assert "hush" not in result.out + result.error
        assert wrong not in words or "127.0.0.1:1" in result.error


def test_set_of_scrapy_redis_is_imported(run, redis_server, key, tmp_path):
    """Its fingerprints come into a filter that the project's fingerprinter knows."""
    with RedisClient(redis_server.url) as client:
        client.call("sadd", key, ScrapyRedisFingerprinter().fingerprint(Request(URL)).hex())
    add = ["add", "job", redis_server.url]
    assert "needs --key" in run(tmp_path, *add, *OURS).refusal
    assert "has fingerprints of its own" in run(tmp_path, *add, "--key", key).refusal
    assert not (tmp_path / "job").exists()
    result = run(tmp_path, *add, "--key", key, *OURS)
    assert f"{redis_server.url} {key}: 1 added, 0 were known" in result.out
    assert run(tmp_path, "check", "job", URL, *OURS).status == 0


def test_what_is_no_fingerprint_of_scrapy_redis_is_told(run, redis_server, key, tmp_path):
    """By load as by add: so many members are not in the filter."""
    by = ["--spider", "small", *THEIRS, *OURS, "-s", f"SCHEDULER_DUPEFILTER_KEY={key}:seen"]
    with RedisClient(redis_server.url) as client:
        client.call("sadd", f"{key}:seen", "ab" * 20, "zz")
    result = run(tmp_path, "load", *[redis_server.url] * 2, "--key", key, *by)
    assert result.lines[0].startswith("copied 1 item and 0 pending requests")
    assert result.lines[1:] == [
        "  1 member of the set skipped, the first is b'zz': not hexadecimal"
    ]


@pytest.mark.parametrize("key", ["{x}", "x}", "%(spider)s:bloom"])
def test_key_that_no_crawl_has_gets_no_filter(run, job, redis_server, key):
    """A filter is not copied to where nobody would look for it."""
    for named in (["--key", key], ["-s", f"BLOOM_REDIS_KEY={key}"]):
        assert "--key" in run(job.parent, "load", "job", redis_server.url, *named).refusal
    assert redis_server.names(key) == []


def test_pending_requests_are_loaded_or_spoken_of(run, job, redis_server, key):
    """Only RedisDurableScheduler takes more than the filter; a line says what stays in the job."""
    folder, url = job.parent, redis_server.url
    fields = Request(URL, meta={"n": 1}).to_dict()
    payload = Codec(None, 9999).dump(fields, "example.com").payload
    with stored(job / "requests.sqlite") as found:
        for _ in range(2):
            found.put(payload, "example.com")
        found.fail(FailedRequest(URL, "GET", "capped"), payload)
        found.file.execute("INSERT INTO items VALUES (NULL, 1, NULL, x'00')")
    alone = run(folder, "load", "job", url, "--key", key).error
    assert "has 2 pending requests, which only RedisDurableScheduler" in alone
    durable = ["-s", "SCHEDULER=scrapy_bloom.RedisDurableScheduler"]
    loaded = run(folder, "load", "job", url, "--key", key, *durable).lines
    assert "and 2 pending requests from job to" in loaded[0]
    assert "keeps 1 failed request" in loaded[1]
    assert "keeps 1 item that no feed has got yet: start it once more" in loaded[2]
    (folder / "alone").mkdir()
    (job / "bloom").rename(folder / "alone" / "filter")
    load = ["load", folder / "alone" / "filter", url, "--key", f"{key}x", *durable]
    assert "is a filter alone" in run(folder, *load).refusal
    assert "needs --spider" in run(folder, "load", url, url, "--key", f"{key}y").refusal


@pytest.fixture
def worker(join):
    """A worker that has pushed nine requests, and has claimed some of them."""
    worker = join(capacity=2, BLOOM_BUDGET={"example.com": 1})
    worker.store._counted = lambda: (12, 7, 3, 0)
    for number in range(9):
        worker.enqueue(str(number), priority=number % 2, slot="shop")
    worker.exchange(2)
    worker.next()
    worker.next()
    worker.store.done(worker.next())
    return worker


def test_a_crawl_has_the_same_figures_everywhere(there, redis_server, worker):
    """In top, workers and info: what the workers have counted, and each of them. What was lost with
    two workers waits as others do, in a list of its own. The help of workers has each column."""
    record = "cmsgpack.pack({'0', 'shop', '2x', 0})"
    lost = f"redis.call('RPUSH', KEYS[1], {record})"
    redis_server.command("EVAL", lost, 1, f"{worker.key}:quarantined")
    redis_server.command("HINCRBY", f"{worker.key}:crawl", "waiting", 1)
    (line,) = there("top", "--json").lines
    figures, described = json.loads(line), there("info", "--json").json
    info = described["queue"]
    names = {"name", "in_flight", "oldest_seconds", "dispatched", "lease_seconds", "in_start"}
    for (each,) in (figures["workers"], there("workers", "--json").json, info["workers"]):
        assert each.keys() == names
        assert each["in_flight"] == 4
        assert min(each["dispatched"], each["lease_seconds"]) > 0
    for name in ("pages", "items", "duplicates", "retries", "pending_count", "in_flight"):
        assert figures[name] == info[name]
    assert (figures["pages"], figures["items"], info["quarantined"]) == (12, 7, 1)
    assert figures["pending"] + figures["in_flight"] == 9 + 1
    assert figures["pending_by_slot"] == {"shop": figures["pending"] - 1}
    assert figures["filter_items"] == 9
    assert figures["filter_capacity"] == described["capacity"] == 1000
    assert figures["memory_bytes"] > figures["filter_bytes"]
    text = there("top", "--once")
    assert re.match(rf"running, for \S+ s  {redis_server.url} {worker.key[1:-1]}$", text.lines[0])
    assert "in flight by worker" in text.out
    workers, helped = there("workers"), there("workers", "--help")
    for shown in (text, there("info"), workers):
        assert worker.store.worker in shown.out
    for head in re.split(r"\s{2,}", workers.lines[0])[1:]:
        assert re.search(rf"^  {re.escape(head)}  ", helped.out, re.MULTILINE)


def test_push_adds_what_is_new(there, worker):
    """From arguments and standard input, with a priority and a callback, what the filter lacks and
    the crawl's budget has room for; nothing under a fingerprint that no worker asks for."""
    assert "run it in the job's project" in there("push", URL, *OURS).refusal
    words = ["http://example.com/1", "-", "--priority", 9, "--callback", "parse"]
    pushed = there("push", *words, stdin="http://example.com/seed\nhttp://example.com/more\n")
    assert pushed.out == "pushed 1 request, 1 were seen before, 1 are over the budget\n"
    found = [(each.url, each.priority, bool(each.callback)) for each in iter(worker.next, None)]
    assert ("http://example.com/seed", 9, True) in found


@pytest.mark.parametrize("line", [r"broken line", r"http://e.com/\xff"])
def test_push_stops_at_a_line_that_is_no_url(there, worker, line):
    """The error shows it, what was pushed before it is told, and no worker stays."""
    urls = "".join(f"http://a.example/{number}\n" for number in range(120))
    bad = line.encode().replace(rb"\xff", b"\xff")
    result = there("push", "-", stdin=urls.encode() + bad + b"\nhttp://a.example/after\n")
    assert f"'{line}' has no fingerprint" in result.refusal
    assert result.out == "pushed 120 requests, 0 were seen before\n"
    assert "push:" not in there("workers").out


def test_info_tells_how_far_the_crawl_is(there, worker):
    """Its state, what is in flight and how long, its speed, its memory, and what has failed."""
    request = worker.next()
    worker.store.fail(request, FailedRequest.of(request, "download/timeout"))
    worker.exchange()
    info, claimed = there("info"), len(worker.store.claims.all)
    for expected in (
        "crawl      running, start() is through",
        "failed     1 requests: 1 download/timeout",
        f"{claimed} with 1 worker",
        f"priority 0: shop {7 - claimed}",
        "kB beside the filter",
        "oldest",
    ):
        assert expected in info.out
    queue = there("info", "--json").json["queue"]
    assert queue["pending"] == {"0": {"shop": 7 - claimed}}
    assert queue["failed_by_reason"] == {"download/timeout": 1}
    assert queue["bytes"] > 1000
    assert 0 <= queue["workers"][0]["oldest_seconds"] < 60
    assert queue["pending_count"] + queue["in_flight"] + queue["failed"] + queue["done"] == 9


def test_verify_knows_the_queue(there, redis_server, worker):
    """While workers are at work, and what is wrong."""
    result = there("verify")
    assert (result.status, "each of 4 claimed ones has a worker" in result.out) == (0, True)
    redis_server.command("SADD", f"{worker.key}:busy", "ghost")
    result = there("verify")
    (line,) = [line for line in result.lines if line.startswith("BAD")]
    assert result.status == 2
    assert f"{redis_server.url} {worker.key}:crawl: 1 worker at work without a lease" in line
