"""`scrapy bloom` and filters in Redis, on a real server."""

import os
from hashlib import sha1

import pytest
from scrapy import Request
from scrapy.utils.request import fingerprint

from scrapy_bloom import ScalableBloomFilter, ScrapyRedisFingerprinter
from scrapy_bloom.crawl.codec import Codec
from scrapy_bloom.crawl.failed_request import FailedRequest
from scrapy_bloom.redis.client import RedisClient
from scrapy_bloom.redis.filter import RedisBloomFilter
from scrapy_bloom.redis.layout import in_one_slot
from scrapy_bloom.redis.status import FilterView
from tests.redis.server import missing
from tests.stored import stored

pytest_plugins = ["tests.redis.fixtures"]
pytestmark = [
    pytest.mark.skipif(os.name != "posix", reason="filter files need Linux or macOS"),
    pytest.mark.skipif(missing() is not None, reason=str(missing())),
]

URL = "http://example.com/page?x=1"
THEIRS = ["-s", "SPIDER_MODULES=tests.small_spider"]
OTHER_FINGERPRINTER = "REQUEST_FINGERPRINTER_CLASS=scrapy_bloom.ScrapyRedisFingerprinter"


@pytest.fixture
def job(tmp_path):
    """A job of two layers that knows URL."""
    (tmp_path / "job").mkdir()
    with ScalableBloomFilter(2000, 1e-4, tmp_path / "job" / "bloom") as bloom_filter:
        bloom_filter.add(fingerprint(Request(URL)))
        bloom_filter.update(str(n) for n in range(3000))
        assert len(bloom_filter.layers) == 2
    return tmp_path / "job"


def test_filter_moves_there_and_back(run, job, redis_server, key):
    """Loaded, looked at, asked, verified, exported and cleared: the keys stay what they are."""
    folder, url = job.parent, redis_server.url
    result = run(folder, "load", "job", url, "--key", key)
    assert result.status == 0, result.error
    assert f"to {url} {key}" in result.out
    assert "is there already" in run(folder, "load", "job", url, "--key", key).refusal
    info = run(folder, "info", url, "--key", key, "--json").json
    local = run(folder, "info", "job", "--json").json
    assert (info["capacity"], info["error_rate_bound"]) == (6000, 1e-4)
    assert info["items"] == local["items"]
    assert info["error_rate"] == pytest.approx(local["error_rate"], rel=0.5)
    assert len(info["layers"]) == 2
    assert run(folder, "check", url, URL, "--key", key).status == 0
    assert run(folder, "check", url, URL + "0", "--key", key).status == 1
    assert run(folder, "verify", url, "--key", key).status == 0
    assert run(folder, "export", url, "new", "--key", key).status == 0
    assert run(folder, "check", "new", URL).status == 0
    assert run(folder, "verify", "new").status == 0
    assert "is there already" in run(folder, "export", url, "new", "--key", key).refusal
    assert "--yes" in run(folder, "clear", url, "--key", key).refusal
    assert run(folder, "clear", url, "--key", key, "--yes").status == 0
    assert "no filter" in run(folder, "info", url, "--key", key).refusal
    assert "is no filter" in run(folder, "clear", url, "--key", key, "--yes").refusal


@pytest.mark.parametrize("lost", ["header", "strings"])
def test_what_is_left_of_a_filter_is_cleared(run, job, redis_server, key, lost):
    """Although the key that it is named by was deleted, or a part of it evicted."""
    folder, url = job.parent, redis_server.url
    assert run(folder, "load", "job", url, "--key", key).status == 0
    strings = [name for name in redis_server.names(key) if name.endswith(":0")]
    redis_server.command("DEL", *([key] if lost == "header" else strings))
    assert run(folder, "clear", url, "--key", key, "--yes").status == 0
    assert redis_server.names(key) == []


def test_nothing_is_cleared_beside_what_is_none_of_ours(run, tmp_path, redis_server, key):
    """A crawl's filter stays, too, where a value that is no filter has its key without braces."""
    with RedisClient(redis_server.url) as client:
        RedisBloomFilter(client, in_one_slot(key), 500, 1e-3).add(b"k" * 20)
    redis_server.command("SET", key, "theirs")
    before = redis_server.names(key)
    refusal = run(tmp_path, "clear", redis_server.url, "--key", key, "--yes").refusal
    assert "no filter" in refusal
    assert redis_server.names(key) == before


def test_places_in_redis_are_asked_right(redis_server, key):
    """Every key is found and others are not, in a filter that has grown."""
    with RedisClient(redis_server.url) as client:
        shared = RedisBloomFilter(client, key, 500, 1e-3)
        for n in range(3000):
            shared.add(sha1(str(n).encode()).digest())
        place = FilterView(client, key)
        assert all(sha1(str(n).encode()).digest() in place.filter for n in range(0, 3000, 7))
        found = sum(sha1(b"x%d" % n).digest() in place.filter for n in range(500))
        assert found <= 5
        description = place.describe()
        assert description.items == len(shared) == sum(each.items for each in description.layers)
        assert description.bytes * 8 == description.bits == sum(e.bits for e in description.layers)
        assert description.error_rate == pytest.approx(
            sum(layer.error_rate for layer in description.layers), rel=0.1
        )
        assert place.verify().sound
        place.filter.delete()


@pytest.mark.parametrize("how", ["redis://:hush@{}/0", "redis://{}/0?password=hush"])
def test_no_password_is_printed(run, tmp_path, locked_server, how):
    """Whatever a command has to say of a server, an error included, wherever in the URL it is."""
    (tmp_path / "urls.txt").write_text(f"{URL}\n")
    assert run(tmp_path, "add", "job", "urls.txt").status == 0
    url, wrong = how.format(f"127.0.0.1:{locked_server.port}"), how.format("127.0.0.1:1")
    arguments = [
        (["load", "job", url], 0),
        (["load", "job", url], 2),
        (["load", url, url], 2),
        (["load", url, url, "--spider", "small", *THEIRS], 2),
        (["load", wrong, url, "--spider", "small", *THEIRS], 2),
        (["load", url, wrong, "--spider", "small", *THEIRS], 2),
        (["export", url, "new"], 0),
        (["export", url, "new"], 2),
        (["info", url], 0),
        (["verify", url], 0),
        (["check", url, URL], 0),
        (["check", url, URL, "-s", OTHER_FINGERPRINTER], 2),
        (["clear", url], 2),
        (["clear", url, "--yes"], 0),
        (["info", url], 2),
        (["add", "job", url], 2),
        (["add", "job", url, "-s", OTHER_FINGERPRINTER], 2),
        (["add", "new3", url, "-s", OTHER_FINGERPRINTER], 2),
        *(([*words, wrong], 2) for words in (["load", "job"], ["add", "job"], ["info"])),
        (["export", wrong, "new2"], 2),
        (["load", "job", url.replace("//", "/")], 2),
        (["info", "job", url], 2),
    ]
    for words, status in arguments:
        result = run(tmp_path, *words, "--key", "k")
        assert result.status == status, (words, result.out, result.error)
        assert status == 0 or result.refusal
        assert "hush" not in result.out + result.error


def test_set_of_scrapy_redis_is_imported(run, redis_server, key, tmp_path):
    """Its fingerprints come into a filter that the project's fingerprinter knows."""
    with RedisClient(redis_server.url) as client:
        client.call("sadd", key, ScrapyRedisFingerprinter().fingerprint(Request(URL)).hex())
    ours = ["-s", OTHER_FINGERPRINTER]
    assert "needs --key" in run(tmp_path, "add", "job", redis_server.url, *ours).refusal
    arguments = ["add", "job", redis_server.url, "--key", key]
    assert "has fingerprints of its own" in run(tmp_path, *arguments).refusal
    assert not (tmp_path / "job").exists()
    result = run(tmp_path, *arguments, *ours)
    assert f"{redis_server.url} {key}: 1 added, 0 were known" in result.out
    assert run(tmp_path, "check", "job", URL, *ours).status == 0


def test_filter_of_a_server_has_no_file(run, job, redis_server, key):
    """`info` says of it what there is to say, and a file is not made where one stands."""
    folder, url = job.parent, redis_server.url
    assert run(folder, "load", "job", url, "--key", key).status == 0
    info = run(folder, "info", url, "--key", key)
    assert info.lines[0] == f"{url} {key}"
    assert {"requests", "memory", "made"} <= info.fields.keys()
    assert not {"file size", "closed"} & info.fields.keys()
    assert info.width <= 80
    assert "is one file" in run(folder, "export", url, "x.bloom", "--key", key).refusal


@pytest.mark.parametrize("key", ["{x}", "x}", "%(spider)s:bloom"])
def test_key_that_no_crawl_has_gets_no_filter(run, job, redis_server, key):
    """A filter is not copied to where nobody would look for it."""
    arguments = ["load", "job", redis_server.url]
    assert "--key" in run(job.parent, *arguments, "--key", key).refusal
    assert "--key" in run(job.parent, *arguments, "-s", f"BLOOM_REDIS_KEY={key}").refusal
    assert redis_server.names(key) == []


def test_servers_that_do_not_answer_are_named(run, job):
    """Without the password, in one line."""
    url = "redis://:hush@127.0.0.1:1/0"
    for arguments in (["info", url], ["load", "job", url], ["export", url, "new"]):
        result = run(job.parent, *arguments, "--key", "x")
        assert "127.0.0.1:1" in result.refusal
        assert "hush" not in result.error
    assert "is no URL of Redis" in run(job.parent, "load", "job", "x", "--key", "x").refusal


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
    alone = run(folder, "load", "job", url, "--key", key)
    assert "has 2 pending requests" in alone.error
    assert "RedisDurableScheduler" in alone.error
    durable = ["-s", "SCHEDULER=scrapy_bloom.RedisDurableScheduler"]
    loaded = run(folder, "load", "job", url, "--key", key, *durable)
    assert "and 2 pending requests from job to" in loaded.lines[0]
    assert "keeps 1 failed request" in loaded.lines[1]
    assert "keeps 1 item that no feed has got yet: start it once more" in loaded.lines[2]
    queue = run(folder, "info", url, "--key", key, "--json")
    assert queue.status == 0
    (folder / "alone").mkdir()
    (job / "bloom").rename(folder / "alone" / "filter")
    arguments = ["load", folder / "alone" / "filter", url, "--key", f"{key}x", *durable]
    assert "is a filter alone" in run(folder, *arguments).refusal
    assert "needs --spider" in run(folder, "load", url, url, "--key", f"{key}y").refusal
