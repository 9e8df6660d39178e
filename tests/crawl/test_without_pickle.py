"""BLOOM_PICKLE = False: no stored request is pickled or unpickled."""

import logging
import pickle
import sqlite3
from contextlib import closing

import pytest
from scrapy import FormRequest
from scrapy.settings import Settings

from scrapy_bloom import JobDirectoryError, RequestFileError
from scrapy_bloom.crawl import codec as codecs
from scrapy_bloom.crawl.codec import Codec, Stored, stored_fields
from scrapy_bloom.crawl.failed_request import ATTEMPTS_KEY, FailedRequest
from scrapy_bloom.crawl.request_text import OBJECTS, checksum, pack
from scrapy_bloom.redis.codec import RedisCodec
from scrapy_bloom.sqlite.listing import stopped_job
from tests.crawl.engine import STOCK
from tests.failures import Failed
from tests.fakes import Evil
from tests.test_refused_start import contents

SLOT = "a.example"
URL = "http://a.example/"


@pytest.fixture
def no_pickle(monkeypatch):
    """Let any use of pickle for a stored request fail."""
    monkeypatch.setattr(codecs, "pickle", None)


def with_fields(**fields):
    """Return the payload of a request with such fields."""
    text = pack({"url": URL, **fields}, SLOT)
    return b"\1" + checksum(text, SLOT) + text


def test_what_is_not_plain_waits_in_memory(make, no_pickle, told):
    """As what cannot be serialized does: with its stat and its line in the log. The others need no
    pickle, with the setting as the command line gives it."""
    job = make(BLOOM_PICKLE="False").pushed("plain", meta={"a": [1]})
    job.push("object", meta={"a": {1: object}})
    assert job.stat("scheduler/unserializable") == job.stat("scheduler/enqueued/memory") == 1
    assert job.stat("scheduler/enqueued/disk") == 1
    (line,) = told()
    assert "values that are not plain, and BLOOM_PICKLE is False" in line
    assert job.names() == ["object", "plain"]
    assert job.stat("scheduler/pickled") is None


def test_a_job_of_pickles(make, tmp_path, caplog, told):
    """They are counted; without pickle all fail, with one line, until they may be read."""
    value = Evil(tmp_path / "evil", often=True)
    job = make().pushed("plain").pushed("one", "two", cb_kwargs={"value": value})
    assert job.stat("scheduler/pickled") == 2
    job.close("shutdown")
    for names in (["plain"], []):
        caplog.clear()
        assert make(BLOOM_PICKLE=False).finish("shutdown") == names
        (line,) = told(logging.ERROR)
        assert "BLOOM_PICKLE is False" in line
        assert "2 unreadable" in caplog.text
        for found in Failed(tmp_path / "job").requests():
            assert found.reason == "unreadable"
            assert found.exception.endswith("BLOOM_PICKLE is False")
        assert not (tmp_path / "evil").exists()
    assert sorted(make().names()) == ["one", "two"]


def put_in(job, *payloads):
    """Put requests with these payloads into the file of a stopped job, as a stranger does."""
    with closing(sqlite3.connect(job / "requests.sqlite")) as connection, connection:
        connection.execute("INSERT INTO slot (id, name) VALUES (9, ?)", (SLOT,))
        for payload in payloads:
            connection.execute(
                "INSERT INTO request (slot, rank, place, state, payload) VALUES (9, 0, 9, 0, ?)",
                (payload,),
            )


def test_what_a_stranger_has_put_into_a_job(make, tmp_path, no_pickle):
    """Runs no code: a pickle, a deflated one, or rubbish."""
    make().pushed("plain").close()
    evil = pickle.dumps({"url": URL, "meta": Evil(tmp_path / "evil")})
    payloads = [evil, b"\3" + evil, b"\2" + evil, b"\1" + evil, b"{rubbish", b"", b"\1"]
    put_in(tmp_path / "job", *payloads, with_fields(**{OBJECTS: evil}))
    assert make(BLOOM_PICKLE=False).finish() == ["plain"]
    assert len(Failed(tmp_path / "job").requests()) == len(payloads) + 1
    assert not (tmp_path / "evil").exists()


HUGE = 10**5000


@pytest.mark.parametrize("pickles", [True, False])
def test_a_field_of_another_type_is_damage(make, tmp_path, run, pickles):
    """It costs one line of each list, can be dropped and kept, and a page beside it is fetched."""
    crafted = {"url": HUGE, "method": HUGE, "meta": [1], "headers": 5, "callback": 5}
    crafted |= {"priority": "1", "cb_kwargs": ()}
    make().pushed("healthy").close()
    put_in(tmp_path / "job", *(with_fields(**{name: crafted[name]}) for name in crafted))
    option = ["-s", f"BLOOM_PICKLE={pickles}"]
    for command in (["queue", "list"], ["queue", "count"], ["failed"], ["retry"]):
        assert run(tmp_path, *command, "job", *option).status == 0
    listed = run(tmp_path, "queue", "list", "job", *option).out
    assert listed.count("a URL that cannot be read") == len(crafted)
    assert make(BLOOM_PICKLE=pickles).finish("shutdown") == ["healthy"]
    found = Failed(tmp_path / "job").requests()
    assert [(each.reason, each.url) for each in found] == [("unreadable", "")] * len(crafted)
    assert run(tmp_path, "retry", "job", *option).status == 0
    drop = ["queue", "drop", "job", "--slot", "*", "--keep", "--yes", *option]
    assert run(tmp_path, *drop).status == 0
    assert "dropped" in run(tmp_path, "failed", "job", *option).out


@pytest.mark.usefixtures("few_shards")
def test_in_redis(join, tmp_path):
    """A worker without pickle fails what another has pickled; a retry gives it back to that one."""
    first = join()
    first.send(["object"], meta={"value": Evil(tmp_path / "evil")})
    first.leave()
    strict = join(BLOOM_PICKLE=False)
    assert strict.next() is None
    strict.exchange()
    (found,) = strict.failed.requests()
    assert (found.reason, found.url) == ("unreadable", "http://example.com/object")
    assert found.exception == "ValueError: it is stored by pickle, and BLOOM_PICKLE is False"
    assert not (tmp_path / "evil").exists()
    with pytest.raises(ValueError, match="not plain, and BLOOM_PICKLE is False"):
        strict.enqueue("another", meta={"value": Evil(tmp_path / "evil")})
    assert strict.failed.retry() == 1
    strict.leave()
    assert join().next().url.endswith("/object")


def test_a_class_is_taken_only_if_it_is_there():
    """No module is imported for it, and it is one of requests."""
    codec = Codec(None, 10_000, pickles=False)
    fields = codec.fields(FormRequest(URL, formdata={"a": "b"}))

    def load(path):
        return codec.load(codec.dump({**fields, "_class": path}, SLOT))

    assert type(load(fields["_class"])) is FormRequest
    for path in ("antigravity.Request", "os.path", "os.system", "scrapy.Spider", "", "Request"):
        with pytest.raises(ValueError, match="no Request of a loaded module"):
            load(path)


def test_what_is_not_plain_is_asked_again_as_it_is(no_pickle):
    """It is asked once more, and its URL is read: no code of it runs; nor where it is damage."""
    codec = Codec(None, 10_000, pickles=False)
    objects = {OBJECTS: pickle.dumps({}, 4)}
    stored = Stored(SLOT, with_fields(meta={"depth": 2}, **objects))
    failed = FailedRequest("", "GET", "download", None, None, 7, 0.0, None)
    for each in (codec.again(stored, failed), stored):
        assert codecs.url_and_method(each) == (URL, "GET")
        assert stored_fields(each)[OBJECTS] == objects[OBJECTS]
        with pytest.raises(ValueError, match="BLOOM_PICKLE is False"):
            codec.load(each)
    assert stored_fields(codec.again(stored, failed))["meta"][ATTEMPTS_KEY] == 7


def test_scrapys_own_queue_is_refused(make, tmp_path):
    """It is full of pickles, and stays as it is."""
    make(scheduler=STOCK).pushed("a").close()
    before = contents(tmp_path / "job")
    with pytest.raises(JobDirectoryError, match="stored by pickle, and BLOOM_PICKLE is False"):
        make(BLOOM_PICKLE=False)
    assert contents(tmp_path / "job") == before
    assert make().names() == ["a"]


def test_load_refuses_pickles(make, tmp_path):
    """Those of a job; those of scrapy-redis are refused in test_load.py."""
    make().pushed("object", meta={"value": Evil(tmp_path / "evil")}).close()
    codec = RedisCodec(Settings({"BLOOM_PICKLE": False}))
    with (
        stopped_job(tmp_path / "job" / "requests.sqlite") as left,
        pytest.raises(RequestFileError, match="BLOOM_PICKLE is False"),
    ):
        list(left.requests(codec.dump_fields))


def test_objects_that_are_not_there_are_damage():
    """In a crawl, too, that unpickles."""
    for values in (1, []):
        payload = with_fields(**{OBJECTS: pickle.dumps(values)})
        with pytest.raises(AttributeError):
            Codec(None, 10_000).load(Stored(SLOT, payload))
