"""Stored requests that are crafted or damaged, in a job and in Redis: every command, and a start.

Run by the tests in a process of its own: prints one line of JSON for each trial.
"""

import argparse
import json
import pickle
import random
import re
import shutil
import sqlite3
import sys
import tempfile
from contextlib import closing, suppress
from functools import partial
from math import inf, nan
from pathlib import Path

from scrapy import Request

import scrapy_bloom.sqlite.desk  # noqa: F401 - before the forks, not in each
from scrapy_bloom.crawl.codec import PLAIN
from scrapy_bloom.crawl.failed_request import ATTEMPTS_KEY, FailedRequest
from scrapy_bloom.crawl.records import State
from scrapy_bloom.crawl.request_text import OBJECTS, checksum, pack
from scrapy_bloom.redis.codec import Packed
from tests.crawl.engine import DURABLE, Job
from tests.redis import damages
from tests.redis.damages import HEALTHIES, HEALTHY, KEY, SETTINGS, in_a_fork, junk
from tests.redis.server import Server
from tests.redis.workers import StoreWorker
from tests.world.runner import preload

BAD = "bad.example.com"
URL = f"http://{BAD}/"
FILE = "requests.sqlite"
LOOKS = [line for line in damages.LOOKS if line != "workers"]
CHANGES = ["load REDIS --key new", *damages.CHANGES[2:]]
STATES = (State.PENDING, State.DELAYED, State.FAILED, State.CAPPED)
OURS = {"SCHEDULER": DURABLE, "DUPEFILTER_CLASS": "scrapy_bloom.BloomDupeFilter"}
HUGE = 10**5000
_NAMES = ("url", "method", "headers", "meta", "cb_kwargs", "priority", "callback", "_class")


def _plain(**fields):
    raw = pack({"url": URL, **fields}, BAD)
    return PLAIN + checksum(raw, BAD) + raw


def _objects(raw):
    """Return a request whose objects are these bytes."""
    return _plain(**{OBJECTS: raw})


def _opcodes(value):
    """Return a request with one object, by its opcodes."""
    return _objects(b"\x80\4}X\5\0\0\0flags" + value + b"s.")


_dict = {}
_dict["a"] = _dict
PAYLOADS = {
    **{f"{name} is {what}": _plain(**{name: value}) for name in _NAMES for what, value in
        {"long": HUGE, "a number": 5, "a list": [1]}.items()},
    **{f"{name} is an object": _objects(pickle.dumps({name: 1j}, 4)) for name in _NAMES},
    "url is None": _plain(url=None),
    "referer is a number": _plain(headers={b"Referer": 5}),
    "a class of nothing": _plain(_class="os.system"),
    "counts are long": _plain(meta={"retry_times": HUGE, "depth": HUGE, ATTEMPTS_KEY: HUGE}),
    "slot is a number": _plain(meta={"download_slot": 5}),
    "no such callback": _plain(callback="nothing"),
    "deep pickle": _opcodes(b"]" * 100_000 + b"a" * 99_999),
    "deep key": _opcodes(b"}N" + b"\x85" * 200_000 + b"Ns"),
    "recursive dict": _objects(pickle.dumps({"meta": _dict, "cb_kwargs": _dict}, 4)),
    "no such object": _objects(pickle.dumps([], 4)),
    "objects are no bytes": _plain(**{OBJECTS: [5, b""]}),
    "far memo": _opcodes(b"}r" + (10**8).to_bytes(4, "little")),
    "long bytes": _opcodes(b"\x8e" + (1 << 40).to_bytes(8, "little")),
    "torn pickle": _objects(pickle.dumps({"meta": {"a": 1j}}, 4)[:-7]),
    "no text": b"\xff" * 99,
    **{f"surrogate in {name}": _plain(**{name: f"{URL}\ud800"}) for name in _NAMES[:2]},
    **{f"priority {number}": _plain(priority=number) for number in (nan, inf, 1e308, 2**63)},
    "meta of odd numbers": _plain(meta={"a": nan, "download_timeout": 1e308, "b": -inf}),
    "NUL": _plain(url=f"{URL}\0", callback="par\0se", method="G\0T"),
    "escapes": _plain(url=f"{URL}\x1b[2J\x1b]0;x\7\u202e", method="\x1b[31m", callback="\x1b[2J"),
}  # fmt: skip


def make_job(folder):
    """Make a stopped job that has a request in each state."""
    job = Job(folder / "job", spider=damages.Pages, **SETTINGS).open()
    store = job.scheduler._store
    job.scheduler.enqueue_request(Request("http://fails.example.com/", priority=9))
    job.commit()
    store.fail(job.scheduler.next_request(), FailedRequest.of(Request(URL), "download/timeout"))
    for number, name in enumerate(("bad", "bad", "other", "held", "capped", "capped", "capped")):
        slot = f"{name}.example.com"
        request = Request(f"http://{slot}/{number}", meta={"download_slot": slot})
        job.scheduler.enqueue_request(request)
    job.scheduler.enqueue_request(Request(f"{HEALTHY}first", dont_filter=True))
    for delay, url in ((0.5, f"{HEALTHY}later"), (0.1, URL), (0.1, "http://other.example.com/")):
        store.push(Request(url, meta={"download_slot": url.split("/")[2]}), (), delay)
    job.scheduler.hold("held.example.com", 1000, 0)
    job.commit()
    job.close("shutdown")
    job.drop()
    with changing(folder / "job") as connection:
        found = {state for (state,) in connection.execute("SELECT state FROM request")}
        assert found == {*STATES}


def changing(job):
    """Give a connection to the file of a job, which changes it at once."""
    return closing(sqlite3.connect(job / FILE, isolation_level=None))


def craft(job, payload):
    """Put a payload into requests in each state, and leave what is healthy as it is."""
    with changing(job) as connection:
        connection.execute(
            "UPDATE request SET slot = (SELECT id FROM slot WHERE name = ?), payload = ? WHERE"
            " slot NOT IN (SELECT id FROM slot WHERE name GLOB 'healthy*' OR name GLOB 'held*')",
            (BAD, payload),
        )


def damage_row(job, seed):
    """Damage a value."""
    chance = random.Random(seed)
    with changing(job) as connection:
        found = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        tables = [name for (name,) in found.fetchall()]
        tables = [each for each in tables if connection.execute(f"SELECT 1 FROM {each}").fetchone()]
        table = chance.choice([*tables, *["request"] * len(STATES)])
        name = chance.choice([row[1] for row in connection.execute(f"PRAGMA table_info({table})")])
        found = connection.execute(f"SELECT CAST({name} AS BLOB) FROM {table}").fetchall()
        (old,) = chance.choice(found)
        others = [None, inf, -inf, 1e308, -1.5, -1, 2**63 - 1, -(2**63)]
        new = junk(chance, old or b"") if chance.random() < 0.6 else chance.choice(others)
        value = chance.choice(["?", "CAST(? AS TEXT)"])
        change = f"UPDATE {table} SET {name} = {value} WHERE CAST({name} AS BLOB) IS ?"
        with suppress(sqlite3.IntegrityError):
            connection.execute(change, (new, old))


def damage_bytes(job, seed):
    """Damage bytes of the file, or tear it."""
    chance = random.Random(seed)
    with (job / FILE).open("r+b") as file:
        at, length = chance.randrange(file.seek(0, 2)), chance.choice([1, 1, 2, 8, 100, 4096])
        if chance.random() < 0.1:
            file.truncate(at)
            return
        if chance.random() < 0.5:  # where something is: most of a page is empty
            at = at // 4096 * 4096 + chance.randrange(64)
        file.seek(at)
        file.write(chance.choice([chance.randbytes(length), bytes(length)]))


def faults(text):
    """Return what is wrong in the output of a command or a start."""
    return [text[-3000:]] if "Traceback" in text or "\x1b" in text else []


def fetched(text):
    """Return True if a healthy page was fetched."""
    return bool(HEALTHIES & {*re.findall("^fetched (.*)", text, re.M)})


def trial_of_job(folder, server, damage):
    """Run all on a job that was damaged; return what is wrong."""
    job, wrong = folder / "now", []

    def again():
        shutil.rmtree(job, ignore_errors=True)
        shutil.copytree(folder / "job", job)
        damage(job)
        server.client().flushall()

    for lines in (LOOKS, *([each.replace("REDIS", server.url)] for each in CHANGES)):
        again()
        wrong += faults(in_a_fork(folder, damages.run_commands, folder, lines, str(job)))
    again()
    before = (job / FILE).read_bytes()
    text = in_a_fork(folder, lambda: damages.crawl(JOBDIR=str(job), **OURS))
    wrong += faults(text)
    if not fetched(text):
        if not any("ERROR" in line and str(job) in line for line in text.splitlines()):
            wrong.append(f"lost\n{text[-3000:]}")
        if "cannot be used" in text and (job / FILE).read_bytes() != before:
            wrong.append(f"a refused start has changed it\n{text[-3000:]}")
    return wrong


def fill(url, payload):
    """Put requests with this payload into the crawl in Redis, wherever one can be."""
    worker = StoreWorker(url, KEY, capacity=2, **SETTINGS)
    worker.codec.dump = lambda request, **_: Packed("-2", request.url.split("/")[2], payload)
    for delay in (None, None, None, 0.1):
        worker.store.push(Request(URL), (), delay)
    for _ in range(3):
        worker.store.push(Request("http://capped.example.com/"), ())
    worker.exchange()
    worker.next()
    worker.exchange()
    worker.leave()


def trial_of_redis(folder, server, dump, payload):
    """Do the same with a crawl in Redis that has this payload."""
    client = server.client()
    damages.restore(client, dump)
    wrong = faults(in_a_fork(folder, fill, server.url, payload))
    filled = {key: client.dump(key) for key in client.scan_iter()}
    place = (server.url, "--key", KEY)
    for lines in (damages.LOOKS, *([each] for each in damages.CHANGES)):
        damages.restore(client, filled)
        wrong += faults(in_a_fork(folder, damages.run_commands, folder, lines, *place))
    shutil.rmtree(folder / "copy", ignore_errors=True)
    damages.restore(client, filled)
    text = in_a_fork(folder, damages.work, server.url)
    return wrong + faults(text) + ([] if fetched(text) else [f"lost\n{text[-3000:]}"])


def main():
    """Run what the command line says."""
    parser = argparse.ArgumentParser()
    for name in ("--seed", "--damages", "--payloads"):
        parser.add_argument(name, type=int, required=True)
    options = parser.parse_args()
    preload()
    chance = random.Random(options.seed)
    with tempfile.TemporaryDirectory(prefix="damages-") as name, Server(Path(name)) as server:
        folder = Path(name)
        text = in_a_fork(folder, make_job, folder)
        assert "Traceback" not in text, text
        dump = damages.made(server, folder)
        for name in chance.sample([*PAYLOADS], min(options.payloads, len(PAYLOADS))):
            payload = PAYLOADS[name]
            tell(name, trial_of_job(folder, server, partial(craft, payload=payload)))
            tell(name, trial_of_redis(folder, server, dump, payload))
        for number in range(options.damages):
            damage = partial((damage_row, damage_bytes)[number % 2], seed=options.seed + number)
            tell(number, trial_of_job(folder, server, damage))


def tell(number, wrong):
    print(json.dumps({"number": number, "wrong": wrong}), flush=True)


if __name__ == "__main__":
    sys.exit(main())
