"""What is of another format: refused in one line, and left as it is."""

import os
import re
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from hashlib import sha256

import pytest

from scrapy_bloom.bloom.header import PAGE

pytest_plugins = ["tests.redis_backend.fixtures"]
pytestmark = pytest.mark.skipif(os.name != "posix", reason="JOBDIR needs Linux or macOS")

SPIDER = """
import scrapy


class Answer:
    def process_request(self, request, spider=None):
        return scrapy.http.HtmlResponse(request.url, body=b"<p>page</p>", request=request)


class Small(scrapy.Spider):
    name = "small"
    start_urls = [f"http://site.example/{number}" for number in range(20)]
    custom_settings = {
        "ADDONS": {"scrapy_bloom.Addon": 300},
        "DOWNLOADER_MIDDLEWARES": {Answer: 1},
        "CONCURRENT_REQUESTS": 1,
        "BLOOM_CAPACITY": 1000,
        "BLOOM_REDIS_KEY": "formats",
        "LOG_LEVEL": "WARNING",
    }

    def parse(self, response):
        yield {"url": response.url}
"""


def crawl(folder, *words, status=0):
    """Run a crawl of ten pages in `folder`; return its errors."""
    options = ["-sCLOSESPIDER_PAGECOUNT=10", *words]
    command = [sys.executable, "-m", "scrapy", "runspider", "spider.py"]
    run = subprocess.run(
        [*command, *options], cwd=folder, capture_output=True, text=True, check=False
    )
    assert run.returncode == status, run.stderr
    return [line for line in run.stderr.splitlines() if "ERROR" in line or "Traceback" in line]


def job(folder, _url):
    return (
        f"-sJOBDIR={folder}/job",
        "-sBLOOM_DELTA=success",
        f"-sBLOOM_DELTA_DIR={folder}/delta",
    )


def worker(folder, url):
    return f"-sJOBDIR={folder}/worker", f"-sBLOOM_REDIS_URL={url}", "-oitems.json"


@pytest.fixture(scope="module")
def made(tmp_path_factory, redis_server):
    """A folder with an unfinished job, a delta store, and the JOBDIR of a worker."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "spider.py").write_text(SPIDER)
    for settings in (job, worker):
        assert crawl(folder, *settings(folder, redis_server.url)) == []
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
        found = {key: client.dump(key) for key in client.keys("{formats}*")}
        return {
            path: each for path, each in files.items() if "__pycache__" not in path.parts
        }, found

    change(folder / name, redis_server)
    before = state()
    try:
        (line,) = crawl(folder, *settings(folder, redis_server.url), status=1)
        assert re.search(f"{re.escape(name)}.* {message}", line)
        assert state() == before
    finally:
        for key, value in kept.items():
            client.restore(key, 0, value, replace=True)
