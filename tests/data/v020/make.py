"""Makes the files beside it, with scrapy-bloom 0.2.0: `python -m tests.data.v020.make OUTDIR`
in a checkout of that version.

Later versions must open them. As in `v010`, from which this takes what is the same, nothing is
fetched. A job of a story is a folder with the JOBDIR `job`, the feeds in `feeds` and the memory
between crawls in `memory`; paths in `requests.sqlite` are absolute, and `relocate` changes them.

    python -m tests.data.v020.make --crawl HOW DAY FOLDER [REDIS_URL KEY]

crawls with what is in a folder, in any version, as on a day, and prints why the spider has
closed. To go on with a (copy of a) story HOW is "resume": every page is sound then. The folder
gets a line in `log` for each request, as in `v010`.
"""

import asyncio
import base64
import csv
import gzip
import io
import json
import os
import pickle
import shutil
import signal
import sqlite3
import subprocess
import sys
import tarfile
import tempfile
import time
import zlib
from collections import Counter
from contextlib import closing, redirect_stdout, suppress
from importlib.metadata import version
from pathlib import Path
from urllib.parse import urlsplit
from xml.etree import ElementTree

import scrapy
from scrapy.crawler import CrawlerProcess
from scrapy.extensions.feedexport import BlockingFeedStorage
from scrapy.http import HtmlResponse
from scrapy.utils.request import request_from_dict

from tests.data.v010.make import (
    SECRET,
    Site,
    fingerprint_of,
    made_with,
    read_log,
    text_of,
    write,
)

ROOT = Path(__file__).resolve().parents[3]
COMMAND = (sys.executable, "-m", "tests.data.v020.make", "--crawl")
DAY = 86_400
FIRST_DAY = 1_800_000_000
LISTS = 7
SITE = "http://site.example"
GZIP = "scrapy.extensions.postprocessing.GzipPlugin"
FEEDS = {
    "all.jl": {"format": "jsonlines"},
    "all.csv": {"format": "csv"},
    "all.json": {"format": "json"},
    "all.xml": {"format": "xml"},
    "all.pickle": {"format": "pickle"},
    "all.json.gz": {"format": "json", "postprocessing": [GZIP]},
    "over.json": {"format": "json", "overwrite": True},
    "late.jl": {"format": "jsonlines", "item_filter": "tests.data.v020.make.OnlyHanging"},
    "batch-%(batch_id)d.csv": {"format": "csv", "batch_item_count": 3},
    "over-%(batch_id)d.json": {"format": "json", "batch_item_count": 2, "overwrite": True},
    "shelf:all.json": {"format": "json", "overwrite": True},
    "shelf:batch-%(batch_id)d.jl": {"format": "jsonlines", "batch_item_count": 2},
}
PRIORITIES = {"status": 5, "deadly": -5, "item": -10, "gone": -30}
STORIES = {
    # name: (how, day) of each crawl, in which the last one leaves what is kept
    "stopped": (("finish", 0), ("until gone", 2), ("lacking", 2)),
    "killed": (("finish", 0), ("kill", 2)),
    "unstored": (("unstored", 0),),
    "failed": (("failing", 0),),
}
"""`until gone` is stopped when a request is stored whose callback the next spider lacks."""
LAST_DAY = 2
NO_ITEM = ("list", "later", "status", "raises", "form")
EXACT = ("killed",)
COMPLETE = ("finish_reason", "scheduler/failed")


def links(path, day):
    """Return what a page links to on a day."""
    kind, number = path.strip("/").split("/")
    if kind == "later":
        return [f"/again/1{number}"]
    if kind != "list":
        return []
    number = int(number)
    found = [f"/list/{n}" for n in (2 * number + 1, 2 * number + 2, 0) if n < LISTS]
    found += [f"/item/{each}{number}{n}" for each in range(day + 1) for n in range(3)]
    if number == 0:
        found += ["/form/1", "/again/1", f"/later/{day}", f"/slow/{day}", f"/hang/{day}"]
    if number == 1:
        found += [f"/{kind}/{day}" for kind in ("status", "raises", "gone", "deadly")]
    return found


class Spider020(scrapy.Spider):
    """Follows lists to pages of many kinds."""

    name = "v020"

    async def start(self):
        yield {"page": "start", "number": "0"}
        for number in (0, 0, 3):  # the same twice, and one that a list leads to
            yield self.request(f"/list/{number}", dont_filter=number == 0)

    def parse_list(self, response):
        self.state["lists"] = self.state.get("lists", 0) + 1
        for path in response.css("a::attr(href)").getall():
            yield self.request(path)

    def parse_item(self, response, tags=()):
        _, page, number = urlsplit(response.url).path.split("/")
        yield {"page": page, "number": f"{number}, \u00e9"}

    async def parse_later(self, response):
        page = response.url.removeprefix(f"{SITE}/")
        yield {"page": page, "number": "first"}
        for path in response.css("a::attr(href)").getall():
            yield self.request(path)
        # what came of the page is stored, and the page is not done
        await asyncio.sleep(60 if self.settings["FIXTURE_HOW"] in HANGING else 0)
        yield {"page": page, "number": "last"}

    def parse_raises(self, response):
        if self.settings["FIXTURE_HOW"] != "resume":
            raise ValueError("a page that the spider does not understand")
        yield from self.parse_item(response)

    def parse_gone(self, response):
        yield from self.parse_item(response)

    def parse_failed(self, failure):
        raise failure.value

    def request(self, path, **options):
        """Return a request as its path asks for it."""
        kind = path.strip("/").split("/")[0]
        options.setdefault(
            "priority", {"item": -10, "deadly": -5, "gone": -30, "status": 5}.get(kind, 0)
        )
        callback = self.parse_item
        if kind == "list":
            callback = self.parse_list
            options["meta"] = {"bloom_delta": True}
        elif kind in {"later", "raises", "gone"}:
            callback = getattr(self, f"parse_{kind}", None)
        elif kind == "form":
            options |= {"method": "POST", "body": "q=\u00e9", "cb_kwargs": {"tags": ["\u00e9"]}}
        elif kind == "again":
            options |= {"dont_filter": True, "errback": self.parse_failed}
        if kind in {"slow", "hang", "gone"}:
            options["meta"] = {"download_slot": kind, "raw": b"\x00\xff"}
        return scrapy.Request(SITE + path, callback, **options)


HANGING = ("kill", "work on")


class Site020(Site):
    """Answers, fails, hangs, and ends crawls."""

    def __init__(self, crawler):
        super().__init__(crawler)
        self._day = crawler.settings.getint("FIXTURE_DAY")
        self._answers = 0
        self._gone = False

    async def process_request(self, request):
        self._write("started", request)
        _, kind, _ = urlsplit(request.url).path.split("/")
        if self._how != "resume":
            if kind == "deadly" and self._how == "work":
                await asyncio.sleep(0.4)
                os.kill(os.getpid(), signal.SIGKILL)
            hangs = self._how in HANGING and kind == "hang"
            hangs = hangs or (self._how == "work on" and self._answers >= 4)
            await asyncio.sleep(60 if hangs else 0.15 if self._how == "work" else 0.02)
            if self._gone and self._how == "losing":
                self._how = "lost"
                lack()
        self._write("answered", request)
        self._answers += 1
        self._end_in_the_middle()
        if kind == "status" and self._how != "resume":
            return HtmlResponse(request.url, 503, request=request)
        body = "".join(
            f'<a href="{path}">x</a>' for path in links(urlsplit(request.url).path, self._day)
        )
        return HtmlResponse(request.url, body=body.encode(), encoding="utf-8", request=request)

    def _scheduled(self, request):
        super()._scheduled(request)
        self._gone = self._gone or "/gone/" in request.url
        if self._gone and self._how == "until gone":
            self._crawler.engine.pause()  # it is not asked any more
            self._stop()

    def _end_in_the_middle(self):
        if self._how == "lacking" and self._crawler.stats.get_value("scheduler/set_aside"):
            self._stop()

    def _stop(self):
        self._how = "stopping"
        os.kill(os.getpid(), signal.SIGINT)  # Ctrl-C


class OnlyHanging:
    """An item filter for pages that come last."""

    def __init__(self, feed_options):
        pass

    def accepts(self, item):
        return item["page"] == "hang"


class Shelf(BlockingFeedStorage):
    """A storage for `shelf:/path` of which nothing is known."""

    is_broken = False

    def __init__(self, uri, *, feed_options=None):
        self.path = Path(uri.removeprefix("shelf:"))
        self.mode = "wb" if (feed_options or {}).get("overwrite") else "ab"

    def _store_in_thread(self, file):
        if self.is_broken:
            raise OSError("this shelf is full")
        file.seek(0)
        with self.path.open(self.mode) as stored:
            stored.write(file.read())
        file.close()


def settings(how, day, folder, url=None, key=None):
    """Return the settings of a crawl."""
    found = {
        "ADDONS": {"scrapy_bloom.Addon": 300},
        "BLOOM_CAPACITY": 12,
        "BLOOM_ERROR_RATE": 1e-6,
        "BLOOM_DELTA": "item",
        "BLOOM_DELTA_DAYS": 8,
        "BLOOM_DELTA_DIR": str(folder / "memory"),
        "BLOOM_EXACT": folder.name in EXACT,
        "BLOOM_FAILED": ["download", "status", "callback"],
        "CONCURRENT_REQUESTS": 8,
        "DOWNLOADER_MIDDLEWARES": {Site020: 1},
        "FEEDS": {
            place_of(folder, name): dict(options)
            for name, options in FEEDS.items()
            if how != "finish" or name == "all.jl"  # not two documents in a file
        },
        "FEED_STORAGES": {"shelf": Shelf},
        "FIXTURE_DAY": day,
        "FIXTURE_HOW": how,
        "FIXTURE_LOG": str(folder / "log"),
        "JOBDIR": str(folder / "job"),
        "LOG_LEVEL": os.environ.get("FIXTURE_LOG_LEVEL", "CRITICAL"),
        "RETRY_ENABLED": False,
        "REDIRECT_ENABLED": False,
        "METAREFRESH_ENABLED": False,
        "REFERER_ENABLED": False,
        "TELNETCONSOLE_ENABLED": False,
    }
    if url:
        found |= {
            "BLOOM_DELTA": None,
            "BLOOM_EXACT": False,
            "BLOOM_REDIS_KEY": key,
            "BLOOM_REDIS_LEASE": 1.0,
            "BLOOM_REDIS_TIMEOUT": 10.0,
            "BLOOM_REDIS_URL": url,
            "DUPEFILTER_CLASS": "scrapy_bloom.RedisBloomDupeFilter",
            "SCHEDULER": "scrapy_bloom.RedisDurableScheduler",
        }
    return found


def crawl(how, day, folder, url=None, key=None):
    """Crawl, and print how it ended."""
    from scrapy_bloom.delta.middleware import DeltaMiddleware

    began = FIRST_DAY + day * DAY - time.monotonic()
    DeltaMiddleware.clock = staticmethod(lambda: began + time.monotonic())
    if how in HANGING:
        # as if more than 100 requests were in flight, and many items
        import scrapy_bloom.durable.feeds.feeds
        import scrapy_bloom.durable.request_file

        scrapy_bloom.durable.request_file.POPPED_IN_MEMORY = 2
        scrapy_bloom.durable.feeds.feeds.BYTES_IN_MEMORY = 0
    if how == "lacking":
        lack()
    if how == "kill":
        _die_after_a_commit()
    Shelf.is_broken = how == "unstored"
    process = CrawlerProcess(settings(how, day, folder, url, key))
    crawler = process.create_crawler(Spider020)
    process.crawl(crawler)
    process.start()
    stats = crawler.stats.get_stats()
    print(json.dumps({name: stats.get(name) for name in COMPLETE}))


def lack():
    """Let requests be there that the spider cannot make again."""
    del Spider020.parse_gone


def _die_after_a_commit():
    """Die when there are batches in every state, with items that are not in their files."""
    from scrapy_bloom.feeds.feeds import Feeds
    from scrapy_bloom.sqlite_backend.scheduler import DurableScheduler

    DurableScheduler.commit_operations = 8

    def dying(self):
        states = {state for (state,) in self.outbox._all("SELECT state FROM batches")}
        (done,) = self.outbox._all("SELECT COUNT(*) FROM delta_marks")
        (failed,) = self.outbox._all("SELECT COUNT(*) FROM failed")
        if len(states) == 4 and done[0] >= 6 and failed[0] >= 4 and self._final:
            os.kill(os.getpid(), signal.SIGKILL)
        after_commit(self)

    after_commit, Feeds.after_commit = Feeds.after_commit, dying


def run(how, day, folder, *redis):
    """Crawl in a process of its own; return what it prints, None if it was killed."""
    words = [*COMMAND, how, str(day), str(folder), *redis]
    child = subprocess.run(words, capture_output=True, text=True, check=False, cwd=ROOT)
    if child.returncode == -signal.SIGKILL:
        return None
    assert child.returncode == 0, child.stderr
    return json.loads(child.stdout)


# --- feeds


def place_of(folder, name):
    """Return the URI of a feed."""
    if name.startswith("shelf:"):
        return f"shelf:{folder}/feeds/shelf-{name.removeprefix('shelf:')}"
    return f"{folder}/feeds/{name}"


def items_of(folder):
    """Return the items of each feed, over all its batches, sorted."""
    found = {}
    for name in FEEDS:
        path = Path(place_of(folder, name).removeprefix("shelf:").replace("%(batch_id)d", "*"))
        items = Counter()
        for each in path.parent.glob(path.name):
            if "%" in name or each.name.partition("-")[0] != "batch":
                items.update(f"{item['page']}/{item['number']}" for item in _read(each))
        found[name] = sorted(items.elements())
    return found


def _read(path):
    """Return the items of a file. Raises if it is not well-formed."""
    data = path.read_bytes()
    if path.suffix == ".gz":
        data, path = gzip.decompress(data), path.with_suffix("")
    if path.suffix == ".jl":
        return [json.loads(line) for line in data.splitlines()]
    if path.suffix == ".csv":
        return [*csv.DictReader(io.StringIO(data.decode(), newline=""), strict=True)]
    if path.suffix == ".xml":
        return [{part.tag: part.text for part in item} for item in ElementTree.fromstring(data)]
    if path.suffix == ".json":
        return json.loads(data)
    file, items = io.BytesIO(data), []
    while file.tell() < len(data):
        items.append(pickle.load(file))
    return items


# --- jobs


def unpack(archive, folder):
    """Put a story into `folder`, with its paths; return that."""
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    for path in (folder / "job").glob("*.sqlite"):
        relocate(path, folder)
    return folder


def relocate(path, folder):
    """Change the paths in a database, below the folder in which its story was made, into those
    below `folder`; its log stays a log."""
    with tempfile.TemporaryDirectory() as scratch:
        names = [path.name, f"{path.name}-wal"]
        for name in names:
            with suppress(FileNotFoundError):
                shutil.copy(path.with_name(name), scratch)
        with closing(sqlite3.connect(Path(scratch) / path.name)) as database:
            has_log = Path(scratch, names[1]).exists()
            ((template,), *_) = database.execute(
                "SELECT template FROM feeds WHERE template GLOB '/*/feeds/*'"
            )
            old = Path(template).parent.parent
            for table, column in (
                ("feeds", "template"),
                ("feeds", "options"),
                ("batches", "uri"),
                ("batches", "path"),
                ("batches", "stored"),
            ):
                database.execute(
                    f"UPDATE {table} SET {column} = replace({column}, ?, ?)",
                    (str(old), str(folder)),
                )
            database.commit()
            for name in names if has_log else ():
                shutil.copy(Path(scratch) / name, path.with_name(name))
        if not has_log:
            shutil.copy(Path(scratch) / path.name, path)


def pack(folder, out):
    """Write a folder as an archive, without what is made anew."""
    for path in (folder / "job").glob("*-shm"):
        path.unlink()
    (folder / "log").unlink()
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as archive:
        for path in sorted(folder.rglob("*")):
            archive.add(path, path.relative_to(folder), recursive=False)
    out.write_bytes(gzip.compress(raw.getvalue(), 9, mtime=0))


def make_stories(out, base):
    """Make the jobs, each in a folder of its own below `base`; return what is to be known of
    them."""
    expected = {}
    for name, crawls in STORIES.items():
        folder = base / name
        (folder / "feeds").mkdir(parents=True)
        before = []
        for how, day in crawls:
            (folder / "log").write_text("")
            end = run(how, day, folder)
            before = before + read_log(folder / "log")["answered"] if day == crawls[-1][1] else []
            assert (end is None) == (how == "kill"), end
        pack(folder, out / f"{name}.tar.gz")
        expected[name] = {
            "day": crawls[-1][1],
            "answered": sorted(before),
            **describe(folder),
        }
        expected[name]["resumed"] = resume(out / f"{name}.tar.gz", expected[name])
        check(name, expected[name])
    return expected


def describe(folder):
    """Return what is in a job, of which this makes a copy."""
    with tempfile.TemporaryDirectory() as scratch:
        copy = shutil.copytree(folder / "job", Path(scratch) / "job")
        with closing(sqlite3.connect(copy / "requests.sqlite")) as database:

            def all_of(query):
                return database.execute(query).fetchall()

            return {
                "requests": [
                    [slot, priority, start, popped, text_of_row(request)]
                    for slot, priority, start, popped, request in all_of(
                        "SELECT slot, priority, start, popped, request FROM requests ORDER BY id"
                    )
                ],
                "set_aside": [
                    text_of_row(request)
                    for (request,) in all_of("SELECT request FROM set_aside ORDER BY id")
                ],
                "failed": all_of("SELECT url, reason, attempts FROM failed ORDER BY url"),
                "round": all_of("SELECT * FROM rounds"),
                "batches": dict(Counter(state for (state,) in all_of("SELECT state FROM batches"))),
                "items_waiting": len(all_of("SELECT * FROM items")),
                "children": len(all_of("SELECT * FROM taken_children")),
                "delta": {
                    table: len(all_of(f"SELECT * FROM delta_{table}"))
                    for table in ("marks", "lists", "shared", "failed")
                },
                "memory": known_to(folder),
            }


def text_of_row(stored):
    """Return which request is stored."""
    return text_of(request_from_dict(pickle.loads(stored), spider=Spider020()))


def known_to(folder, day=LAST_DAY):
    """Return the pages that the store of a story knows, and how many slices it has."""
    from scrapy_bloom.delta.slices import Shape

    from scrapy_bloom.delta.file_store import FileDeltaStore
    from scrapy_bloom.delta.settings import key_of_fingerprint

    memory = FileDeltaStore(
        folder / "memory", Shape(period=8 * DAY), lambda: FIRST_DAY + day * DAY + 3600
    )
    memory.open()
    with closing(memory):
        pages = dict.fromkeys([*whole_site(0), *whole_site(day)])
        known = [each for each in pages if memory.knows(key_of_fingerprint(fingerprint_of(each)))]
        return {"slices": memory.slices.count, "pages": known}


def resume(archive, story):
    """Return what becomes of a copy of a story when it goes on."""
    with tempfile.TemporaryDirectory() as scratch:
        return go_on(unpack(archive, Path(scratch) / "story"), story)


def go_on(folder, story):
    """Let a story go on to its end, ask what has failed once more, and return what has come of
    it."""
    found = []
    if "over but for failed requests" not in story["round"][0]:
        found.append(_go_on(folder, story["day"]))
    retry(folder / "job")
    found.append(_go_on(folder, story["day"]))
    return {"crawls": found, "items": items_of(folder), "memory": known_to(folder)["pages"]}


def _go_on(folder, day):
    (folder / "log").write_text("")
    end = run("resume", day, folder)
    return {**end, "answered": sorted(read_log(folder / "log")["answered"])}


def retry(*place):
    """Let what has failed be asked once more."""
    from scrapy_bloom.commands import main

    with redirect_stdout(io.StringIO()):
        assert main(["retry", *map(str, place)]) == 0


def check(name, story):
    """Fail unless a story is what it was made for, and its continuation complete."""
    resumed, site = story["resumed"], {*whole_site(story["day"])}
    assert all(crawl["finish_reason"] == "finished" for crawl in resumed["crawls"])
    assert resumed["crawls"][-1]["scheduler/failed"] == 0
    assert {"status/503", "callback"} == {reason for _, reason, _ in story["failed"]}
    again = [text for crawl in resumed["crawls"] for text in crawl["answered"]]
    known = [] if name in ("unstored", "failed") else story["memory"]["pages"]
    assert not (missing := site - {*story["answered"], *again, *known}), missing
    for items in resumed["items"].values():
        once = [item for item in items if not item.startswith(("again/1,", "start/"))]
        assert len(once) == len({*once}), once
    if name == "stopped":
        assert [row[:15] for row in story["set_aside"]] == ["GET http://site"]
        assert len(story["requests"]) > 8
        assert story["memory"]["slices"] == 2
        assert "stored" in story["batches"]
    if name == "killed":
        assert {*story["batches"]} == {"waiting", "beginning", "open", "stored"}
        assert story["items_waiting"]
        assert story["children"]
        assert all(story["delta"].values()), story["delta"]
        assert {popped for _, _, _, popped, _ in story["requests"]} == {0, 1}
    phase = {"unstored": "to be stored", "failed": "over but for failed requests"}
    assert story["round"][0][1] == phase.get(name, "running")


def whole_site(day):
    """Return all requests of the site as it is on a day."""
    spider = Spider020()
    waiting = [spider.request("/list/0")]
    found = []
    for request in waiting:
        if text_of(request) not in found:
            found.append(text_of(request))
            linked = links(urlsplit(request.url).path, day)
            waiting += [spider.request(path) for path in linked]
    return found


# --- crawls in Redis


CRAWL, OVER = "v020:bloom", "over:bloom"
DUMP = "redis.json.gz"


def make_crawls(out, base):
    """Make a crawl whose workers were killed, one after the other with the same JOBDIR, and one
    that is over; return what is to be known of them."""
    from tests.redis_backend.server import Server

    with tempfile.TemporaryDirectory() as scratch:
        server = Server(Path(scratch))
        try:
            folder = base / "worker"
            (folder / "feeds").mkdir(parents=True)
            (folder / "log").write_text("")
            assert run("work", LAST_DAY, folder, server.url, CRAWL) is None
            _pass_a_lease(server)
            assert run("work", LAST_DAY, folder, server.url, CRAWL) is None
            _work_until_some_are_alone(folder, server)
            answered = sorted(read_log(folder / "log")["answered"])
            over = base / "over"
            (over / "feeds").mkdir(parents=True)
            ended = run("losing", 0, over, server.url, OVER)
            assert ended == {"finish_reason": "finished", "scheduler/failed": 3}, ended
            with server.client() as client:
                _shorten_a_failure(client)
                dump = dump_redis(client)
            (out / DUMP).write_bytes(gzip.compress(json.dumps(dump).encode(), 9, mtime=0))
            pack(folder, out / "worker.tar.gz")
            found = {"answered": answered, **describe_crawls(server.url)}
        finally:
            server.stop()
        server = Server(Path(scratch))
        try:
            with server.client() as client:
                restore_redis(client, dump)
                assert dump_redis(client) == dump
            assert describe_crawls(server.url) == {name: found[name] for name in (CRAWL, OVER)}
            found["resumed"] = resume_crawls(
                unpack(out / "worker.tar.gz", Path(scratch) / "worker"), server.url
            )
        finally:
            server.stop()
    check_crawls(found)
    return found


def check_crawls(found):
    """Fail unless the crawls are what they were made for, and their continuation complete."""
    resumed = found["resumed"]
    assert all(found[CRAWL][name] for name in ("pending", "claimed", "handed", "alone", "marks"))
    assert [reason for _, _, reason, _ in found[CRAWL]["failed"]] == ["status/503", "callback"]
    assert found[OVER]["over"]
    assert not found[CRAWL]["over"]
    answered = [*found["answered"], *resumed["first"]["answered"]]
    assert {*answered} == {*whole_site(LAST_DAY)}
    pages = {text.partition("site.example/")[2] for text in answered}
    for feed, items in resumed["first"]["items"].items():
        with_items = {item.partition(",")[0] for item in items}
        wanted = {page for page in pages if page.split("/")[0] not in NO_ITEM}
        assert feed == "late.jl" or wanted <= {each.split(" ")[0] for each in with_items}, feed


def _pass_a_lease(server):
    """Let the lease of a worker that is dead run out, as if others were at work."""
    for _ in range(8):
        time.sleep(0.2)
        seconds, micros = server.command("TIME")
        server.command("HSET", f"{{{CRAWL}}}:crawl", "heard", seconds * 1000 + micros // 1000)


def _work_until_some_are_alone(folder, server):
    """Let one more worker claim requests, and kill it when those of the last one are back."""
    worker = subprocess.Popen(
        [*COMMAND, "work on", str(LAST_DAY), str(folder), server.url, CRAWL], cwd=ROOT
    )
    try:
        until = time.monotonic() + 60
        while True:
            time.sleep(0.05)
            found = describe_crawls(server.url)[CRAWL]
            if found["alone"] and found["claimed"] > 4 and found["pending"]:
                break
            assert time.monotonic() < until, found
    finally:
        worker.kill()
        worker.wait()


def _shorten_a_failure(client):
    """Give a failed request the form that it had before 0.2.0 was released."""
    client.eval(
        """
        local name, found = KEYS[1], redis.call('HGETALL', KEYS[1])
        for at = 1, #found, 2 do
          local record = cmsgpack.unpack(found[at + 1])
          if record[4] == 'callback' then
            redis.call('HSET', name, found[at], cmsgpack.pack({unpack(record, 1, 6)}))
          end
        end""",
        1,
        f"{{{OVER}}}:failed",
    )


def describe_crawls(url):
    """Return what is in the crawls."""
    from scrapy_bloom.redis_backend.client import RedisClient
    from scrapy_bloom.redis_backend.failed_store import RedisFailedStore
    from scrapy_bloom.redis_backend.status import look_at, pending_of

    found = {}
    with RedisClient(url, 10) as client:
        for name in (CRAWL, OVER):
            key = f"{{{name}}}"
            if (crawl := look_at(client, key)) is None:
                continue
            found[name] = {
                "start_done": crawl.start_done,
                "over": crawl.over,
                "pending": dict(pending_of(client, key).by_slot),
                "claimed": crawl.in_flight,
                "handed": sum(each.handed for each in crawl.workers),
                "alone": crawl.alone,
                "failed": [
                    [each.url, each.method, each.reason, each.attempts]
                    for each in RedisFailedStore(client, key).requests()
                ],
                "marks": client.call("scard", f"{key}:start"),
            }
    return json.loads(json.dumps(found))


def resume_crawls(folder, url):
    """Let the worker go on with its crawl, and then both crawls with what has failed; return
    what has come of it."""
    found = {"first": _go_on_with(folder, url, CRAWL)}
    for name in (CRAWL, OVER):
        retry(url, "--key", name)
        other = folder.with_name(f"again{name.partition(':')[0]}")
        (other / "feeds").mkdir(parents=True)
        found[name] = _go_on_with(other, url, name)
    return found


def _go_on_with(folder, url, key):
    (folder / "log").write_text("")
    end = run("resume", LAST_DAY if key == CRAWL else 0, folder, url, key)
    answered = sorted(read_log(folder / "log")["answered"])
    return {**end, "answered": answered, "items": items_of(folder)}


def dump_redis(client):
    """Return all keys by their types, bytes as the text of Latin-1; strings compressed."""
    dump = {}
    for name in sorted(client.scan_iter("*", count=1000)):
        kind = client.type(name).decode()
        assert client.ttl(name) == -1
        if kind == "string":
            value = base64.b64encode(zlib.compress(client.get(name), 9))
        elif kind == "hash":
            value = sorted(client.hgetall(name).items())
        elif kind == "list":
            value = client.lrange(name, 0, -1)
        elif kind == "set":
            value = sorted(client.smembers(name))
        else:
            value = client.zrange(name, 0, -1, withscores=True)
        dump[name.decode()] = {"type": kind, "value": _as_text(value)}
    return dump


def restore_redis(client, dump):
    """Put back what `dump_redis` returned, with a client of redis-py."""
    for name, entry in dump.items():
        kind, value = entry["type"], _as_bytes(entry["value"])
        if kind == "string":
            client.set(name, zlib.decompress(base64.b64decode(value)))
        elif kind == "hash":
            client.hset(name, mapping=dict(value))
        elif kind == "list":
            client.rpush(name, *value)
        elif kind == "set":
            client.sadd(name, *value)
        else:
            client.zadd(name, dict(value))


def _as_text(value):
    if isinstance(value, (list, tuple)):
        return [_as_text(each) for each in value]
    return value.decode("latin-1") if isinstance(value, bytes) else value


def _as_bytes(value):
    if isinstance(value, list):
        return [_as_bytes(each) for each in value]
    return value.encode("latin-1") if isinstance(value, str) else value


# --- all of it


def make_filters(out):
    """Make filters that are exact; return what is to be known of them."""
    from scrapy_bloom import BloomFilter, ScalableBloomFilter

    keys = {"first": 0, "last": 299}
    found = {}
    with BloomFilter(300, 1e-2, out / "exact.bloom", secret=SECRET, exact=True) as one:
        found["exact.bloom"] = _fill(one, keys)
    with ScalableBloomFilter(100, 1e-2, out / "growing", secret=SECRET, exact=True) as many:
        found["growing"] = _fill(many, keys)
    (out / "growing" / "lock").unlink()
    return {"keys": keys, **found}


def _fill(bloom_filter, keys):
    numbers = range(keys["first"], keys["last"] + 1)
    bloom_filter.update(b"key %d" % n for n in numbers)
    return {"items": len(bloom_filter), "layers": len(getattr(bloom_filter, "layers", [0]))}


def main(out):
    """Make all files in the directory `out`."""
    if version("scrapy-bloom") != "0.2.0":
        raise SystemExit(f"this is scrapy-bloom {version('scrapy-bloom')}, not 0.2.0")
    with tempfile.TemporaryDirectory() as base:
        expected = {
            "made_with": made_with(),
            "jobs": make_stories(out, Path(base)),
            "redis": make_crawls(out, Path(base)),
            "filters": make_filters(out),
        }
    write(out / "expected.json", expected, 4)


if __name__ == "__main__":
    # by its own name, under which jobs know the classes here
    from tests.data.v020 import make

    if sys.argv[1:2] == ["--crawl"]:
        make.crawl(sys.argv[2], int(sys.argv[3]), Path(sys.argv[4]), *sys.argv[5:7])
    else:
        make.main(Path(sys.argv[1]))
