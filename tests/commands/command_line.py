"""The real `scrapy bloom`, in processes of its own, inside and outside a project."""

import json
import os
import re
import signal
import struct
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import scrapy_bloom
from tests import processes
from tests.patience import PATIENCE

PACKAGE = Path(scrapy_bloom.__file__).resolve().parent.parent
URLS = PACKAGE / "tests" / "data" / "urls_kasztp_20000.txt.gz"

EVERY_SUBCOMMAND = {
    *("info", "size", "check", "add", "merge", "clear", "verify", "compare", "plot"),
    *("top", "queue", "failed", "retry", "drop", "delta", "load", "export", "push", "workers"),
}
SEEN = ["http://example.com/", "http://example.com/a?x=1&y=2", "http://example.com/b"]


def files_in(folder):
    """Return all files and directories below a folder, the files with their bytes."""
    paths = sorted(Path(folder).rglob("*"))
    return {path: path.read_bytes() if path.is_file() else None for path in paths}


class Result:
    """What a command has printed; `status` is its exit status."""

    def __init__(self, process):
        self.status = process.returncode
        self.out = process.stdout
        self.error = process.stderr
        assert "Traceback" not in self.error + self.out, self.error

    @property
    def json(self):
        return json.loads(self.out)

    @property
    def lines(self):
        return self.out.splitlines()

    @property
    def width(self):
        """Columns that a terminal needs."""
        return max(map(len, self.lines))

    @property
    def fields(self):
        """The rows of a name and a value."""
        return dict(re.split(r"\s{2,}", line, maxsplit=1) for line in self.lines if "  " in line)

    @property
    def refusal(self):
        """The message of a command that has failed, with one line and status 2."""
        assert self.status == 2, self.out + self.error
        (line,) = self.error.splitlines()
        program, _, message = line.partition(": error: ")
        assert message
        assert "bloom" in program
        return message


def environment():
    """Return the environment in which `scrapy` finds this package."""
    path = [str(PACKAGE), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path), "COLUMNS": "80"}


def begun(folder, *arguments, **options):
    """Begin a command in `folder`, as a process that prints to pipes."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    command = ["-m", "scrapy_bloom", *arguments]
    return processes.Process(command, cwd=folder, env=environment(), text=True, **pipes)


def on_terminal(folder, *arguments, until=b""):
    """Run a command on a terminal, interrupt it when that shows `until`; return status and text."""
    import fcntl
    import pty
    import termios

    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("4H", 24, 80, 0, 0))
    process = begun(folder, *arguments, stdout=follower, stderr=follower)
    os.close(follower)
    shown = b""
    with suppress(OSError):  # the other end is closed
        while part := os.read(leader, 1 << 16):
            shown += part
            if until and until in shown:
                process.send_signal(signal.SIGINT)
                until = b""
    os.close(leader)
    return process.wait(PATIENCE), shown


def bloom(folder, *arguments, stdin=b"", module=False):
    """Run `scrapy bloom` (or `python -m scrapy_bloom`) in `folder`, to its end."""
    command = ["-m", "scrapy_bloom"] if module else ["-m", "scrapy", "bloom"]
    done = processes.run([*command, *arguments], cwd=folder, env=environment(), input=stdin)
    done.stdout, done.stderr = done.stdout.decode(), done.stderr.decode()
    return Result(done)


def in_shell(folder, line, stdin=""):
    """Run a line of a shell, in which `scrapy` is the script that was installed."""
    script = Path(sys.executable).with_name("scrapy")
    scrapy = str(script) if script.exists() else f"{sys.executable} -m scrapy"
    pipes = {"input": stdin, "capture_output": True, "text": True, "timeout": PATIENCE}
    line = line.replace("scrapy", scrapy, 1)
    return Result(subprocess.run(line, shell=True, cwd=folder, env=environment(), **pipes))
