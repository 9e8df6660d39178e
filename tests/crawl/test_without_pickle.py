"""BLOOM_PICKLE = False: no stored request is pickled or unpickled."""

import os
import pickle
import sqlite3
import tracemalloc
from contextlib import closing

import pytest
from msgpack import ExtType
from scrapy import FormRequest
from scrapy.settings import Settings

from scrapy_bloom import BloomError, JobDirectoryError, RequestFileError
from scrapy_bloom.crawl import codec as codecs
from scrapy_bloom.crawl.codec import Codec, Stored, stored_fields
from scrapy_bloom.crawl.failed_request import ATTEMPTS_KEY, FailedRequest
from scrapy_bloom.crawl.request_text import MARSHALLED, OBJECTS, PICKLED, checksum, pack
from scrapy_bloom.migration.scrapy_redis import _loads
from scrapy_bloom.redis.codec import RedisCodec
from scrapy_bloom.redis.desk import RedisDesk
from scrapy_bloom.sqlite.listing import stopped_job
from tests.crawl.engine import STOCK
from tests.failures import Failed
from tests.test_refused_start import contents
from tests.test_refused_start import run as start

pytestmark = pytest.mark.skipif(os.name != "posix", reason="JOBDIR needs Linux or macOS")

MARSHAL = "scrapy.squeues.MarshalLifoDiskQueue"
INSERT = "INSERT INTO request (id, slot, rank, place, state, payload)"


class Evil:
    """Makes a directory where it is unpickled."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


@pytest.fixture
def no_pickle(monkeypatch):
    """Let any use of pickle or marshal for a stored request fail."""

    def fail(_):
        raise AssertionError("pickle was used")

    formats = {name: (code, fail) for name, (code, _) in codecs.FORMATS.items()}
    monkeypatch.setattr(codecs, "FORMATS", formats)
    monkeypatch.setattr(codecs, "_loaded", lambda code, raw: fail(raw))


def with_objects(code, raw, **fields):
    """Return a stored request with such bytes in the place of its objects."""
    fields = {"url": "http://a.example/", OBJECTS: ExtType(code, raw), **fields}
    text = pack(fields, "a.example")
    return Stored("a.example", b"\1" + checksum(text, "a.example") + text)


def test_a_crawl(tmp_path):
    """Plain requests need no pickle, with the setting as the command line gives it."""
    status, log = start(tmp_path, BLOOM_PICKLE="False")
    assert status == 0
    assert "'scheduler/enqueued/disk': 30" in log
    assert "'item_scraped_count': 30" in log
    assert "scheduler/pickled" not in log
    assert "scheduler/unserializable" not in log


def test_what_is_not_plain_waits_in_memory(make, no_pickle, caplog):
    """As what cannot be serialized does: with its stat and its line in the log."""
    job = make(BLOOM_PICKLE=False).pushed("plain", meta={"a": [1]})
    job.push("object", meta={"a": {1: object}})
    assert job.stat("scheduler/unserializable") == job.stat("scheduler/enqueued/memory") == 1
    assert job.stat("scheduler/enqueued/disk") == 1
    (line,) = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert "values that are not plain, and BLOOM_PICKLE is False" in line
    assert job.names() == ["object", "plain"]


def test_a_job_full_of_pickles_is_told_of_in_one_line(make, caplog):
    """And a count; all of them are there when they may be read."""
    job = make()
    for number in range(9):
        job.push(f"{number}", meta={"a": {1: object}})
    job.close()
    assert make(BLOOM_PICKLE=False).finish() == []
    (line,) = [r.getMessage() for r in caplog.records if r.levelname == "ERROR"]
    assert "BLOOM_PICKLE is False" in line
    assert "9 unreadable" in caplog.text
    assert len(make().names()) == 9


def test_pickles_are_counted(make):
    """By default they are stored, and a stat says how many."""
    job = make().pushed("plain").pushed("object", meta={"a": {1: object}})
    assert job.stat("scheduler/pickled") == 1
    assert job.names() == ["object", "plain"]


@pytest.mark.parametrize("queue", [None, MARSHAL])
def test_a_job_of_pickles(make, tmp_path, queue):
    """Each has failed as unreadable, is listed, and is read again with True."""
    options = {"SCHEDULER_DISK_QUEUE": queue} if queue else {}
    value = complex(1, 2) if queue else Evil(tmp_path / "evil")
    job = make(**options).pushed("plain").pushed("object", cb_kwargs={"value": value})
    job.close("shutdown")
    for names in (["plain"], []):
        assert make(BLOOM_PICKLE=False, **options).finish("shutdown") == names
        (found,) = Failed(tmp_path / "job").requests()
        assert found.reason == "unreadable"
        assert found.exception.endswith("BLOOM_PICKLE is False")
        assert not (tmp_path / "evil").exists()
    assert make(**options).names() == ["object"]


def test_what_a_stranger_has_put_into_a_job(make, tmp_path, no_pickle):
    """Runs no code: a pickle, a deflated one, marshal, or rubbish."""
    make().pushed("plain").close()
    evil = pickle.dumps({"url": "http://a.example/", "meta": Evil(tmp_path / "evil")})
    payloads = [evil, b"\3" + evil, b"\2" + evil, b"\1" + evil, b"{rubbish", b"", b"\1"]
    payloads += [with_objects(code, evil).payload for code in (PICKLED, MARSHALLED)]
    with closing(sqlite3.connect(tmp_path / "job" / "requests.sqlite")) as connection:
        connection.execute("INSERT INTO slot (id, name) VALUES (9, 'a.example')")
        for payload in payloads:
            connection.execute(f"{INSERT} VALUES (NULL, 9, 0, 9, 0, ?)", (payload,))
        connection.commit()
    assert make(BLOOM_PICKLE=False).finish() == ["plain"]
    assert len(Failed(tmp_path / "job").requests()) == len(payloads)
    assert not (tmp_path / "evil").exists()


@pytest.mark.usefixtures("few_shards")
def test_in_redis(join, tmp_path):
    """A worker without pickle fails what another has pickled; a retry gives it back to that one."""
    first = join()
    first.enqueue("object", meta={"value": Evil(tmp_path / "evil")})
    first.enqueue("plain")
    first.exchange()
    first.leave()
    strict = join(BLOOM_PICKLE=False)
    assert strict.next().url.endswith("/plain")
    assert strict.next() is None
    strict.exchange()
    store = Failed(RedisDesk(strict.client, strict.key))
    (found,) = store.requests()
    assert found.reason == "unreadable"
    assert found.url.endswith("/object")
    assert found.exception == "ValueError: it is stored by pickle, and BLOOM_PICKLE is False"
    assert not (tmp_path / "evil").exists()
    with pytest.raises(ValueError, match="not plain, and BLOOM_PICKLE is False"):
        strict.enqueue("another", meta={"value": Evil(tmp_path / "evil")})
    strict.leave()
    assert store.retry() == 1
    assert join().next().url.endswith("/object")


def test_a_class_is_taken_only_if_it_is_there():
    """No module is imported for it, and it is one of requests."""
    codec = Codec(None, 10_000, pickles=False)
    fields = codec.fields(FormRequest("http://a.example/", formdata={"a": "b"}))

    def load(path):
        return codec.load(codec.dump({**fields, "_class": path}, "a.example", "pickle"))

    assert type(load(fields["_class"])) is FormRequest
    for path in ("antigravity.Request", "os.path", "os.system", "scrapy.Spider", "", "Request"):
        with pytest.raises(ValueError, match="no Request of a loaded module"):
            load(path)


@pytest.mark.parametrize("code", [PICKLED, MARSHALLED])
def test_what_is_not_plain_is_asked_again_as_it_is(no_pickle, code):
    """It is asked once more, and its URL is read: no code of it runs."""
    codec = Codec(None, 10_000, pickles=False)
    stored = with_objects(code, b"rubbish", meta={"depth": 2})
    failed = FailedRequest("", "GET", "download", None, None, 7, 0.0, None)
    for each in (codec.again(stored, failed), stored):
        assert codecs.url_and_method(each) == ("http://a.example/", "GET")
        assert stored_fields(each)[OBJECTS] == ExtType(code, b"rubbish")
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
    """Those of a job, and those of scrapy-redis."""
    make().pushed("object", meta={"value": Evil(tmp_path / "evil")}).close()
    codec = RedisCodec(Settings({"BLOOM_PICKLE": False}))
    with (
        stopped_job(tmp_path / "job" / "requests.sqlite") as left,
        pytest.raises(RequestFileError, match="BLOOM_PICKLE is False"),
    ):
        list(left.requests(codec.dump_fields))
    for serializer in (None, "pickle", pickle):
        with pytest.raises(BloomError, match="stored by pickle, and BLOOM_PICKLE is False"):
            _loads(Settings({"BLOOM_PICKLE": False, "SCHEDULER_SERIALIZER": serializer}))
    assert _loads(Settings({"BLOOM_PICKLE": False, "SCHEDULER_SERIALIZER": "json"}))


HUGE = 10**5000
CRAFTED = {
    "url": HUGE,
    "method": HUGE,
    "meta": [1],
    "headers": 5,
    "callback": 5,
    "priority": 1 << 63,
    "cb_kwargs": (),
}


@pytest.mark.parametrize("name", CRAFTED)
@pytest.mark.parametrize("pickles", [True, False])
def test_a_field_of_another_type_is_damage(make, tmp_path, run, name, pickles):
    """It costs one line of each list, can be dropped and kept, and a page beside it is fetched."""
    make().pushed("healthy").close()
    place = tmp_path / "job" / "requests.sqlite"
    with closing(sqlite3.connect(place)) as connection, connection:
        number, slot = connection.execute("SELECT id, name FROM slot").fetchone()
        text = pack({"url": "http://a.example/", name: CRAFTED[name]}, slot)
        payload = b"\1" + checksum(text, slot) + text
        connection.execute(f"{INSERT} VALUES (9, ?, 0, 9, 0, ?)", (number, payload))
    option = ["-s", f"BLOOM_PICKLE={pickles}"]
    for command in (["queue", "list"], ["queue", "count"], ["failed"], ["retry"]):
        assert run(tmp_path, *command, "job", *option).status == 0
    listed = run(tmp_path, "queue", "list", "job", *option).out
    assert "a URL that cannot be read" in listed
    assert make(BLOOM_PICKLE=pickles).finish("shutdown") == ["healthy"]
    (found,) = Failed(tmp_path / "job").requests()
    assert (found.reason, found.url) == ("unreadable", "")
    assert run(tmp_path, "retry", "job", *option).status == 0
    drop = ["queue", "drop", "job", "--slot", "*", "--keep", "--yes", *option]
    assert run(tmp_path, *drop).status == 0
    assert "dropped" in run(tmp_path, "failed", "job", *option).out


@pytest.mark.parametrize(
    ("code", "raw"),
    [
        (PICKLED, pickle.dumps({}, 4)),
        (PICKLED, pickle.dumps([], 4)),
        (MARSHALLED, pickle.dumps([1], 4)),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_objects_take_no_more_than_their_length(code, raw):
    """Neither memory nor the stack, where they are unpickled: in a crawl."""
    stored = with_objects(code, raw, headers={b"X": codecs.Held(0)})
    tracemalloc.start()
    try:
        assert codecs.plain_fields(stored)["url"] == "http://a.example/"
        _, of_commands = tracemalloc.get_traced_memory()
        with pytest.raises((ValueError, EOFError, IndexError, pickle.UnpicklingError)):
            Codec(None, 10_000).load(stored)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert of_commands < 100_000 + 10 * len(raw)
    assert peak < 50_000_000
