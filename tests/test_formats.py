"""What is of another format: refused in one line, and left as it is."""

import os
import re
import shutil
import sqlite3
from contextlib import closing
from hashlib import sha256

import pytest

from scrapy_bloom.bloom.header import PAGE
from tests.test_refused_start import run

pytest_plugins = ["tests.redis_backend.fixtures"]
pytestmark = pytest.mark.skipif(os.name != "posix", reason="JOBDIR needs Linux or macOS")


def crawl(folder, url, settings_of, status=0):
    """Run a crawl of ten pages in `folder`; return its errors."""
    arguments, settings = settings_of(folder, url)
    common = {"CLOSESPIDER_PAGECOUNT": 10, "BLOOM_CAPACITY": 1000, "LOG_LEVEL": "WARNING"}
    found, log = run(folder, *arguments, **common, **settings)
    assert found == status, log
    return [line for line in log.splitlines() if "ERROR" in line or "Traceback" in line]


def job(folder, _url):
    return [], {"BLOOM_DELTA": "success", "BLOOM_DELTA_DIR": folder / "delta"}


def worker(_folder, url):
    return ["-oitems.json"], {
        "JOBDIR": "worker",
        "BLOOM_REDIS_URL": url,
        "BLOOM_REDIS_KEY": "formats",
    }


@pytest.fixture(scope="module")
def made(tmp_path_factory, redis_server):
    """A folder with an unfinished job, a delta store, and the JOBDIR of a worker."""
    folder = tmp_path_factory.mktemp("made")
    for settings in (job, worker):
        assert crawl(folder, redis_server.url, settings) == []
    return folder


def in_page_0(path, _server):
    content = path.read_bytes()
    page = content[: PAGE - 32].replace(b'"format": 1', b'"format": 9')
    path.write_bytes(page + sha256(page).digest() + content[PAGE:])


def by_sql(statement):
    def change(path, _server):
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute(statement)

    return change


def in_hash(name, before, after):
    """Change a field of a hash in Redis."""

    def change(_path, server):
        for field, value in server.client().hgetall(name).items():
            server.command("HSET", name, field, value.replace(before, after))

    return change


VERSION = by_sql("PRAGMA user_version = 9")
FORMATS = {
    "filter": (job, "job/bloom/0.bloom", in_page_0, "has format 9, .* reads 1; open it with the"),
    "requests": (job, "job/requests.sqlite", VERSION, "version 9, .* reads version 1; .* or a new"),
    "delta": (
        job,
        "delta/delta.sqlite",
        by_sql("UPDATE meta SET version = 9"),
        "version 9, .* BLOOM_DELTA_RESET",
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
        in_hash("{formats}", b'"format": 1', b'"format": 9'),
        "has format 9, .* reads 1; use the version that made it .* or another BLOOM_REDIS_KEY",
    ),
    "redis_crawl": (
        worker,
        "'{formats}'",
        in_hash("{formats}:crawl", b"1:", b"9:"),
        "has format 9, .* reads 1: use the version that has made it, or another BLOOM_REDIS_KEY",
    ),
}


@pytest.mark.parametrize("kind", FORMATS)
def test_another_format_is_refused(made, tmp_path, redis_server, kind):
    """With what was found, what is read, and a remedy; not a byte changes."""
    settings, name, change, message = FORMATS[kind]
    folder = shutil.copytree(made, tmp_path / "copy")
    client = redis_server.client()
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

    change(folder / name, redis_server)
    before = state()
    try:
        (line,) = crawl(folder, redis_server.url, settings, status=1)
        assert re.search(f"{re.escape(name)}.* {message}", line)
        assert state() == before
    finally:
        for key, value in kept.items():
            client.restore(key, 0, value, replace=True)
