"""A crawl in Redis of which a key is damaged, every command on it, and a worker: run in a process
of its own, prints one line of JSON for each damage."""

import argparse
import json
import random
import re
import resource
import signal
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from scrapy import Request, Spider
from scrapy.crawler import CrawlerProcess
from scrapy.http import TextResponse

import scrapy_bloom.commands.arguments
import scrapy_bloom.commands.context
import scrapy_bloom.redis.scheduler  # noqa: F401 - before the forks, not in each
from scrapy_bloom.commands import main as bloom
from scrapy_bloom.redis.scripts import COMMIT
from tests.redis.server import Server
from tests.redis.workers import StoreWorker
from tests.world.runner import ASYNCIO, Run, fork, preload

KEY = "books"
HEALTHY = "http://healthy.example.com/"
HEALTHIES = {f"{HEALTHY}{name}" for name in ("first", "later")}
PATIENCE = 60
"""Seconds after which a command or a worker hangs."""
MOST_BYTES = 100 << 20
ROOM = 512 << 20
"""Bytes of addresses for a command or a crawl: stacks of threads are in it, too."""
SETTINGS = {
    "BLOOM_REDIS_LEASE": 1,
    "BLOOM_REDIS_SLOT_WORKERS": 1,
    "BLOOM_REDIS_TIMEOUT": 2,
    "BLOOM_BUDGET": {"capped.example.com": 1},
    "BLOOM_CAPACITY": 1000,
    "BLOOM_DELAY_WAIT": 5,
    "LOG_LEVEL": "INFO",
}
LOOKS = ["info", "info --json", "top --once", "top --json", "workers", "verify", "check x",
    "queue count", "queue count --by slot", "queue count --by callback", "queue list", "failed",
    "failed --reason capped"]  # fmt: skip
CHANGES = ["export {folder}/copy", "push http://new.example.com/", "queue hold new other",
    "queue hold --slot * --for 1h", "queue release --slot *", "retry --reason x",
    "retry --reason capped", "retry", "queue drop --slot held* --yes",
    "queue drop --url *other* --keep --yes", "queue drop --callback x --yes",
    "drop --reason capped --yes", "drop --yes", "queue drop --slot * --yes",
    "clear --yes"]  # fmt: skip
NUMBERS = [b"", b"nan", b"inf", b"-inf", b"-1", b"0", b"1e308", b"1" + b"0" * 20, b"-" + b"9" * 19,
    b"9" * 19, b"9223372036854775807", b"4294967296", b"x", b"\xff\0", b"null", b"[]", b'{"a":1}',
    b'{"time":"x"}', b"1.5", b"9" * 5000]  # fmt: skip
FILLED = {
    "string": ("SET", NUMBERS),
    "list": ("RPUSH", NUMBERS),
    "hash": ("HSET", [part for each in NUMBERS for part in (each, b"x")]),
    "set": ("SADD", NUMBERS),
    "zset": ("ZADD", [part for each in NUMBERS for part in (1, each)]),
    "none": ("DEL", ()),
}
"""By the type of a key, the command that makes it, and what it is given."""


class Pages(Spider):
    """Has nothing but what is in the crawl, and a list of seeds."""

    name = "pages"
    redis_key = "seeds"

    async def start(self):
        yield Request("http://start.example.com/", dont_filter=True)

    def parse(self, response, **_):
        print("fetched", response.url)


class Answer:
    """Answers without a network."""

    def process_request(self, request, spider=None):
        return TextResponse(request.url, request=request)


def make(server):
    """Fill the server with a crawl that has something in each kind of its keys."""
    # several slots are many
    vars(COMMIT)["text"] = COMMIT.text.replace("has_few = 256,", "has_few = 3,")
    one, dead = (StoreWorker(server.url, KEY, capacity=capacity, **SETTINGS) for capacity in (2, 3))
    for number in range(12):
        slot = f"{('held', 'other', 'capped', 'lone')[number % 4]}.example.com"
        url = f"http://{slot}/{number}"
        one.store.push(Request(url, meta={"download_slot": slot}, priority=number % 3 // 2), ())
    one.store.push(Request(f"{HEALTHY}first", dont_filter=True), ())
    one.store.push(Request(f"{HEALTHY}later", dont_filter=True), (), 0.5)
    one.store.note(fingerprint=b"x" * 20, mark=b"mark")
    one.exchange()
    for _ in range(2):
        one.fail(one.next(), "download/timeout")
        one.exchange()
    dead.exchange()
    dead.next()
    one.store.hold("held.example.com", 1000, 0)
    one.store.hold("other.example.com", 1, 1)
    one.exchange(2)
    client = server.client()
    packed = "cmsgpack.pack({'0', 'alone.example.com', '2' .. ARGV[1], 0})"
    payload = one.codec.dump(Request("http://alone.example.com/")).payload
    client.eval(f"redis.call('RPUSH', KEYS[1], {packed})", 1, f"{one.key}:quarantined", payload)
    client.rpush("seeds", f"{HEALTHY}seed")
    note = "cmsgpack.pack({ARGV[1], 'dead'})"
    client.eval(f"redis.call('HSET', KEYS[1], '1', {note})", 1, "{seeds}:taken", f"{HEALTHY}noted")
    client.hset("{seeds}:workers", "dead", 1)
    one.leave()
    dead.close()
    return {key: client.dump(key) for key in client.scan_iter()}


def made(server, folder):
    """Return what `make` does, called in a process of its own."""
    dump = folder / "dump"
    Run(fork(lambda: dump.write_text(repr(make(server))), folder / "made"), folder).wait()
    assert dump.exists(), (folder / "made").read_text()
    return eval(dump.read_text())


def restore(client, dump, keys=None):
    """Make the keys, or some of them, what they were."""
    if keys is None:
        client.flushall()
    for key in keys or dump:
        client.restore(key, 0, dump[key], replace=True)


def junk(chance, value):
    cut = chance.randrange(len(value) + 1)
    changed = value[:cut] + bytes([chance.randrange(256)]) + value[cut + 1 :]
    return chance.choice([value[:cut], changed, *(chance.choice(NUMBERS) for _ in range(2))])


def damage(client, chance, key):
    """Damage a key; say how."""
    kind = client.type(key).decode()
    if chance.random() < 0.2:
        other = chance.choice([each for each in FILLED if each != kind])
        client.delete(key)
        command, given = FILLED[other]
        given = [chance.choice(NUMBERS)] if command == "SET" else given
        client.execute_command(command, key, *given)
        return f"is a {other}"
    if kind == "hash":
        field, old = chance.choice(sorted(client.hgetall(key).items()))
        new = junk(chance, old)
        if chance.random() < 0.15:
            client.hdel(key, field)
            return f"{field} is gone"
        client.hset(key, field, new)
        return f"{field}: {old[:40]} is {new[:40]}"
    if kind == "list":
        at = chance.randrange(client.llen(key))
        client.lset(key, at, new := junk(chance, client.lindex(key, at)))
        return f"[{at}] is {new[:40]}"
    if kind == "string":
        client.set(key, chance.choice([b"", b"x", client.get(key)[:-1], b"\xff" * 200_000]))
        return f"has {client.strlen(key)} bytes"
    if kind == "set":
        client.sadd(key, new := junk(chance, client.srandmember(key)))
        return f"has {new[:40]}"
    member, score = client.zrange(key, 0, -1, withscores=True)[0]
    if chance.random() < 0.5:
        score = chance.choice([float("inf"), float("-inf"), -1, 1e308, 0, 2**63])
    else:
        client.zrem(key, member)
        member = junk(chance, member)
    client.zadd(key, {member: score})
    return f"has {member[:40]} at {score}"


def run_commands(folder, lines, place, *options):
    """Run commands on a place, each of which has to end with one line at most of an error."""
    for line in lines:
        name, *words = line.format(folder=folder).split()
        words.insert(1 if name == "queue" else 0, place)
        print(f"== {line}", file=sys.stderr, flush=True)
        signal.alarm(PATIENCE)
        with suppress(SystemExit):
            bloom([name, *words, *options])
        signal.alarm(0)


def work(url):
    crawl(
        BLOOM_REDIS_URL=url,
        BLOOM_REDIS_KEY=KEY,
        SCHEDULER="scrapy_bloom.RedisDurableScheduler",
        DUPEFILTER_CLASS="scrapy_bloom.RedisBloomDupeFilter",
    )


def crawl(**settings):
    signal.alarm(PATIENCE)
    settings = {
        **SETTINGS,
        "ADDONS": {"scrapy_bloom.Addon": 300},
        "DOWNLOADER_MIDDLEWARES": {Answer: 1},
        "TELNETCONSOLE_ENABLED": False,
        "TWISTED_REACTOR": ASYNCIO,
        **settings,
    }
    process = CrawlerProcess(settings)
    crawler = process.create_crawler(Pages)
    process.crawl(crawler)
    process.start()
    print("reason", crawler.stats.get_value("finish_reason"))


def in_a_fork(folder, function, *arguments):
    """Run a function; return what it has printed, with how it has ended if that was not well."""
    log = folder / "log"
    log.unlink(missing_ok=True)

    def limited():
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = pages * resource.getpagesize() + ROOM
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        function(*arguments)
        grown = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
        assert grown < MOST_BYTES, f"Traceback: grown by {grown:,} bytes"

    run = Run(fork(limited, log), folder).wait()
    text = log.read_text(errors="replace") if log.exists() else ""
    return text if run.status == 0 else f"{text}\nTraceback: ended with {run.status}"


def trial(server, dump, chance, folder):
    client = server.client()
    shards = sorted(key for key in dump if re.match(rb"\{books\}:\d", key))
    key = chance.choice(shards if chance.random() < 0.2 else sorted({*dump} - {*shards}))
    state, wrong, begin = chance.getstate(), [], time.monotonic()

    def damaged():
        restore(client, dump)
        chance.setstate(state)
        return damage(client, chance, key)

    def worked():
        text = in_a_fork(folder, work, server.url)
        return text, HEALTHIES & {*re.findall("^fetched (.*)", text, re.M)}

    told = {"key": key.decode(), "how": damaged(), "wrong": wrong}
    memory = client.info("memory")["used_memory"]
    for lines in (LOOKS, *([each] for each in CHANGES)):
        if lines is not LOOKS:
            damaged()
        text = in_a_fork(folder, run_commands, folder, lines, server.url, "--key", KEY)
        if "Traceback" in text:
            wrong.append(text[-3000:])
            with suppress(Exception):
                client.script_kill()
    damaged()
    text, fetched = worked()
    # what the ledger closes with, it logs with its traceback
    text = re.sub(r"(?s)then resume it\.\nTraceback.*?(?=\n\d{4}-)", "", text)
    # its filter is gone where a part of it is
    is_gone = re.search("the (filter|queue) '{books}'.* (is gone|no crawl that they)", text)
    if "Traceback" in text or not (fetched or is_gone or key.decode() in text):
        wrong.append(text[-3000:])
    if not fetched:
        restore(client, dump, [key])
        text, fetched = worked()
        if not fetched:
            wrong.append(f"lost\n{text[-3000:]}")
    if client.info("memory")["used_memory"] - memory > MOST_BYTES:
        wrong.append("the server has grown")
    return told | {"seconds": round(time.monotonic() - begin, 1)}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--damages", type=int, default=3)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    options = parser.parse_args()
    preload()
    with tempfile.TemporaryDirectory(prefix="damages-") as name, Server(Path(name)) as server:
        folder = Path(name)
        dump = made(server, folder)
        for number in range(options.damages):
            told = trial(server, dump, random.Random(options.seed + number), folder)
            print(json.dumps({"number": number, **told}), flush=True)


if __name__ == "__main__":
    sys.exit(main())
