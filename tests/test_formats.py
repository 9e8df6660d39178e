"""What is of another format: refused in one line, and left as it is."""

import re
import shutil
from contextlib import contextmanager
from hashlib import sha256

import pytest

from scrapy_bloom.bloom.file import PAGE
from tests.crawl.engine import query
from tests.test_refused_start import contents
from tests.test_refused_start import run as start


def crawl(folder, url, settings_of, status=0):
    """Run a crawl of ten pages in `folder`; return its errors."""
    arguments, settings = settings_of(folder, url)
    common = {"CLOSESPIDER_PAGECOUNT": 10, "BLOOM_CAPACITY": 20, "LOG_LEVEL": "WARNING"}
    found, log = start(folder, *arguments, **common, BLOOM_DELTA="success", **settings)
    assert found == status, log
    return [line for line in log.splitlines() if "ERROR" in line or "Traceback" in line]


def job(folder, _url):
    return [], {"BLOOM_EXACT": True, "BLOOM_DELTA_DIR": folder / "delta"}


def worker(_folder, url):
    return ["-oitems.json"], {
        "JOBDIR": "worker",
        "BLOOM_REDIS_URL": url,
        "BLOOM_REDIS_KEY": "formats",
        "BLOOM_DELTA_DIR": "formats",
    }


@pytest.fixture(scope="module")
def made(tmp_path_factory, redis_server):
    """A folder with an unfinished job, a delta store, and the JOBDIR of a worker."""
    folder = tmp_path_factory.mktemp("made")
    for settings in (job, worker):
        assert crawl(folder, redis_server.url, settings) == []
    return folder


def in_page_0(text):
    """Change each 1 of a text."""

    def change(path, _server):
        content = path.read_bytes()
        page = content[: PAGE - 32].replace(text, text.replace(b"1", b"9"))
        assert page != content[: PAGE - 32]
        path.write_bytes(page + sha256(page).digest() + content[PAGE:])

    return change


def by_sql(statement):
    return lambda path, _server: query(path, statement)


def in_redis(name, text, after=None):
    """Do the same in a string, or the fields of a hash, or put `after` there."""
    after = text.replace(b"1", b"9") if after is None else after

    def change(_path, server):
        client, key = server.client(), f"{{formats}}{name}"
        if client.type(key) == b"string":
            client.set(key, client.get(key).replace(text, after))
            return
        for field, value in client.hgetall(key).items():
            client.hset(key, field, value.replace(text, after))

    return change


FILTER, REQUESTS = "job/bloom/0.bloom", "job/requests.sqlite"
DELTA, FEEDS, KEY = "delta/delta.sqlite", "worker/worker-feeds.sqlite", "'{formats}'"
FORMAT, VERSION = b'"format": 1', by_sql("PRAGMA user_version = 9")
OTHER_TABLE, OTHER_ID = map(by_sql, ("UPDATE meta SET version = 9", "PRAGMA application_id = 9"))
IDENTITY = in_redis(":delta:identity", b"1:")
JOBDIR = "version 9, .* reads version 1; .* or a new JOBDIR"
USE = "has format 9, .* reads 1[:;] .* the version that .*made it.*"
FORMATS = {
    "filter": (job, FILTER, in_page_0(FORMAT), USE),
    "hash": (
        job,
        FILTER,
        in_page_0(b"lanes-16/1"),
        "has scheme .*/9 .*, .* reads .*/1 .*; open it",
    ),
    "exact": (job, FILTER, in_page_0(b"bucket-63/1"), "has scheme .*/9', .* reads .*/1'"),
    "requests": (job, REQUESTS, VERSION, JOBDIR),
    "delta": (job, DELTA, OTHER_TABLE, "version 9, .* knows 1.* another BLOOM_DELTA_DIR"),
    "delta_magic": (job, DELTA, OTHER_ID, "another program's.* another BLOOM_DELTA_DIR"),
    "feeds": (worker, FEEDS, VERSION, JOBDIR),
    "redis_filter": (worker, KEY, in_redis("", FORMAT), f"{USE} BLOOM_REDIS_KEY"),
    "redis_crawl": (worker, KEY, in_redis(":crawl", b"1:"), f"{USE} BLOOM_REDIS_KEY"),
    "redis_crawl_before": (worker, KEY, in_redis(":crawl", b"1:", b""), USE.replace("9", "none")),
    "redis_delta": (worker, " formats", IDENTITY, f"{USE} BLOOM_DELTA_RESET"),
}


@contextmanager
def another(made, tmp_path, server, kind):
    """Give a copy with a thing of another format, which nothing may change."""
    _, name, change, _ = FORMATS[kind]
    folder = shutil.copytree(made, tmp_path / "copy")
    client = server.client()
    kept = {key: client.dump(key) for key in client.keys("{formats*")}

    def state():
        # a dump of a hash has its fields in any order
        look = {b"hash": client.hgetall}
        keys = client.keys("{formats*")
        return contents(folder), {key: look.get(client.type(key), client.dump)(key) for key in keys}

    change(folder / name, server)
    before = state()
    try:
        yield folder
        assert state() == before
    finally:
        for key, value in kept.items():
            client.restore(key, 0, value, replace=True)


@pytest.mark.parametrize("kind", FORMATS)
def test_another_format_is_refused(made, tmp_path, redis_server, kind):
    """With what was found, what is read, and a remedy; not a byte changes."""
    settings, name, _, message = FORMATS[kind]
    with another(made, tmp_path, redis_server, kind) as folder:
        (line,) = crawl(folder, redis_server.url, settings, status=1)
        assert re.search(f"{re.escape(name)}.* {message}", line)


QUEUE = "failed PLACE / retry PLACE / drop PLACE --yes / top PLACE --once / queue list PLACE"
COMMANDS = {
    "filter": "info job / check job http://a / verify job",
    "requests": f"info job / {QUEUE} / queue hold PLACE a.example",
    "delta": "info delta / delta count delta / delta list delta",
    "redis_filter": "info PLACE / verify PLACE / top PLACE --once / clear PLACE --yes",
    "redis_crawl": f"workers PLACE / {QUEUE} / queue hold PLACE a.example / push PLACE http://a",
    "redis_delta": "delta count PLACE / delta list PLACE / delta forget PLACE --older 1s",
}


@pytest.mark.parametrize("kind", COMMANDS)
def test_commands_refuse_another_format(made, tmp_path, redis_server, run, kind):
    """With the same message, whatever they would do."""
    settings = {"BLOOM_REDIS_KEY": "formats", "BLOOM_DELTA_DIR": "formats"}
    options = [f"--set={name}={value}" for name, value in settings.items()]
    with another(made, tmp_path, redis_server, kind) as folder:
        place = redis_server.url if "redis" in kind else "job"
        for command in COMMANDS[kind].replace("PLACE", place).split(" / "):
            found = run(folder, *command.split(), *options)
            assert re.search(FORMATS[kind][-1], found.out + found.refusal), command
