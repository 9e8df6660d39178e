"""What is of another format: refused in one line, and left as it is."""

import os
import re
import shutil
import sqlite3
from contextlib import closing, contextmanager
from hashlib import sha256

import pytest

from scrapy_bloom.bloom.header import PAGE
from tests.test_refused_start import run as start

pytest_plugins = ["tests.redis_backend.fixtures"]
pytestmark = pytest.mark.skipif(os.name != "posix", reason="JOBDIR needs Linux or macOS")


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


def in_page_0(before, after):
    def change(path, _server):
        content = path.read_bytes()
        page = content[: PAGE - 32].replace(before, after)
        assert page != content[: PAGE - 32]
        path.write_bytes(page + sha256(page).digest() + content[PAGE:])

    return change


def magic(path, _server):
    path.write_bytes(b"\x89OTHER\r\n" + path.read_bytes()[8:])


def by_sql(statement):
    def change(path, _server):
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute(statement)

    return change


def in_redis(name, before, after):
    """Change a string, or the fields of a hash."""

    def change(_path, server):
        client = server.client()
        if client.type(name) == b"string":
            client.set(name, client.get(name).replace(before, after))
            return
        for field, value in client.hgetall(name).items():
            client.hset(name, field, value.replace(before, after))

    return change


FORMAT = in_page_0(b'"format": 1', b'"format": 9')
VERSION = by_sql("PRAGMA user_version = 9")
APPLICATION = by_sql("PRAGMA application_id = 9")
FORMATS = {
    "filter": (job, "job/bloom/0.bloom", FORMAT, "has format 9, .* reads 1; open it with the"),
    "filter_magic": (job, "job/bloom/0.bloom", magic, "is not a filter file .*; move it away"),
    "layer": (job, "job/bloom/1.bloom", FORMAT, "has format 9, .* reads 1; open it with the"),
    "exact": (
        job,
        "job/bloom/0.bloom",
        in_page_0(b"bucket-63/1", b"bucket-63/9"),
        "has table_scheme .*/9', .* reads .*/1'; open it with the",
    ),
    "requests": (job, "job/requests.sqlite", VERSION, "version 9, .* reads version 1; .* or a new"),
    "requests_magic": (
        job,
        "job/requests.sqlite",
        APPLICATION,
        "another program's .* a new JOBDIR",
    ),
    "delta": (
        job,
        "delta/delta.sqlite",
        by_sql("UPDATE meta SET version = 9"),
        "version 9, .* BLOOM_DELTA_RESET",
    ),
    "delta_magic": (
        job,
        "delta/delta.sqlite",
        APPLICATION,
        "another program's.* BLOOM_DELTA_RESET",
    ),
    "feeds": (
        worker,
        "worker/worker-feeds.sqlite",
        VERSION,
        "version 9, .* reads version 1; .* or a new JOBDIR",
    ),
    "redis_filter": (
        worker,
        "'{formats}'",
        in_redis("{formats}", b'"format": 1', b'"format": 9'),
        "has format 9, .* reads 1; use the version that made it .* or another BLOOM_REDIS_KEY",
    ),
    "redis_crawl": (
        worker,
        "'{formats}'",
        in_redis("{formats}:crawl", b"1:", b"9:"),
        "has format 9, .* reads 1: use the version that has made it, or another BLOOM_REDIS_KEY",
    ),
    "redis_delta": (
        worker,
        " formats",
        in_redis("{formats}:delta:identity", b"1:", b"9:"),
        "has format 9, .* reads 1: use the version that has made it, .* BLOOM_DELTA_RESET",
    ),
}


@contextmanager
def another(made, tmp_path, server, kind):
    """Give a copy with a thing of another format, which nothing may change."""
    _, name, change, _ = FORMATS[kind]
    folder = shutil.copytree(made, tmp_path / "copy")
    client = server.client()
    kept = {key: client.dump(key) for key in client.keys("{formats}*")}

    def state():
        files = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        kinds = {key: client.type(key) for key in client.keys("{formats}*")}
        # a dump of a hash has its fields in any order
        found = {
            key: client.hgetall(key) if kind == b"hash" else client.dump(key)
            for key, kind in kinds.items()
        }
        return {
            path: each for path, each in files.items() if "__pycache__" not in path.parts
        }, found

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


QUEUE = "{0} list PLACE / {0} count PLACE / {0} drop PLACE --url * --yes / {0} hold PLACE a.example"
FAILED = "failed PLACE / retry PLACE / drop PLACE --yes / top PLACE --once / "
COMMANDS = {
    "filter": "info job / check job http://a / verify job",
    "requests": f"info job / {FAILED}{QUEUE}",
    "delta": "info delta / delta count delta / delta list delta",
    "redis_filter": "info PLACE / verify PLACE / top PLACE --once / clear PLACE --yes",
    "redis_crawl": f"workers PLACE / {FAILED}{QUEUE} / {{0}} release PLACE a.example",
    "redis_delta": "delta count PLACE / delta list PLACE / delta forget PLACE --older 1s",
}


@pytest.mark.parametrize("kind", COMMANDS)
def test_commands_refuse_another_format(made, tmp_path, redis_server, run, kind):
    """With the same message, whatever they would do."""
    settings = {"BLOOM_REDIS_KEY": "formats", "BLOOM_DELTA_DIR": "formats"}
    options = [f"--set={name}={value}" for name, value in settings.items()]
    with another(made, tmp_path, redis_server, kind) as folder:
        place = redis_server.url if "redis" in kind else "job"
        for command in COMMANDS[kind].format("queue").replace("PLACE", place).split(" / "):
            found = run(folder, *command.split(), *options)
            assert re.search(FORMATS[kind][-1], found.out + found.refusal), command
