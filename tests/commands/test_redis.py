"""`scrapy bloom` and filters in Redis, on a real server."""

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
        ("load", "job", url, 0),
        ("load", "job", url, 2),
        ("load", url, url, 2),
        ("load", url, url, *by_spider, 2),
        ("load", wrong, url, *by_spider, 2),
        ("load", url, wrong, *by_spider, 2),
        ("export", url, "new", 0),
        ("export", url, "new", 2),
        ("info", url, 0),
        ("verify", url, 0),
        ("check", url, URL, 0),
        ("check", url, URL, *OURS, 2),
        ("clear", url, 2),
        ("clear", url, "--yes", 0),
        ("info", url, 2),
        ("add", "job", url, 2),
        ("add", "job", url, *OURS, 2),
        ("add", "new3", url, *OURS, 2),
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
    payload = Codec(None, 9999).dump(fields, "example.com", "pickle").payload
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
