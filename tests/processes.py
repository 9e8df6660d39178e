"""Python processes that start at once: forks of one that has imported Scrapy and this package.

A bare start of Python with Scrapy takes a second of CPU, and the tests start hundreds. What
is started here is a process of its own in all that a test can see: arguments, environment,
directory, files, signals, exit status. Not so: it has the hash seed of its parent, all modules
are loaded, and none is freed at its end, which would be half of what a small crawl costs. A test
about any of these starts Python itself.
"""

import atexit
import json
import os
import random
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import traceback
from contextlib import suppress
from functools import partial
from pathlib import Path

from tests.patience import PATIENCE

PACKAGE = Path(__file__).resolve().parent.parent


class Process(subprocess.Popen):
    """A running Python, with what `subprocess.Popen` has.

    `arguments` are those of Python: `-m MODULE …`, `-c CODE …` or `SCRIPT …`. SIGINT interrupts it
    and SIGHUP ends it, however the tests were started.
    """

    def __init__(self, arguments, **options):
        super().__init__([sys.executable, *map(str, arguments)], **options)

    def _execute_child(self, args, *options):
        # as in Popen: after `shell` come both ends of each pipe, of which -1 is none
        cwd, env, pipes = options[4], options[5], options[9:15]
        order = {
            "arguments": args[1:],
            "cwd": os.fspath(cwd or Path.cwd()),
            "env": {**(os.environ if env is None else env)},
        }
        self._told, telling = os.pipe()
        theirs = enumerate((pipes[0], pipes[3], pipes[5]))
        files = [number if end == -1 else end for number, end in theirs]
        with _lock:
            parent, text = _parent(), json.dumps(order).encode()
            socket.send_fds(parent, [len(text).to_bytes(4, "little")], [*files, telling])
            parent.sendall(text)
        os.close(telling)
        self._close_pipe_fds(*pipes)
        self.pid = int.from_bytes(os.read(self._told, 4), "little")
        assert self.pid, "the parent of the tests' processes has ended"

    def _try_wait(self, flags):
        if not select.select([self._told], [], [], 0 if flags else None)[0]:
            return 0, 0
        status = int.from_bytes(os.read(self._told, 4), "little")
        os.close(self._told)
        return self.pid, status

    def _internal_poll(self, **_):
        if self.returncode is None:
            pid, status = self._try_wait(os.WNOHANG)
            if pid:
                self._handle_exitstatus(status)
        return self.returncode


def run(arguments, *, input=None, timeout=PATIENCE, **options):  # noqa: A002
    """Run Python to its end, as `subprocess.run` does with `capture_output`."""
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    options.setdefault("stdin", subprocess.DEVNULL if input is None else subprocess.PIPE)
    with Process(arguments, **options) as process:
        try:
            out, error = process.communicate(input, timeout)
        finally:
            process.kill()
    return subprocess.CompletedProcess(process.args, process.returncode, out, error)


_lock = threading.Lock()
_connection = None


def _parent():
    """Return the connection to the process whose forks the others are."""
    global _connection
    if _connection is None:
        ours, theirs = socket.socketpair()
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.processes", str(theirs.fileno())],
                cwd=PACKAGE,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
            )
        atexit.register(_end_parent, ours, process)
        _connection = ours
    return _connection


def _end_parent(connection, process):
    connection.close()
    process.wait()


def serve(connection):
    """Fork for each order that comes, by way of a process that waits for the end and tells of it;
    return the order in the fork, None at the end of the orders."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nothing is to be reaped
    while True:
        size, files, *_ = socket.recv_fds(connection, 4, 4)
        text, length = b"", int.from_bytes(size, "little")
        # no more than that: what follows is the order of another thread
        while len(text) < length and (part := connection.recv(length - len(text))):
            text += part
        if not size or len(text) < length:
            return None
        *standard, telling = files
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            pid = os.fork()
            if pid == 0:
                for number, each in enumerate(standard):
                    os.dup2(each, number)
            for each in standard:
                os.close(each)
            if pid == 0:
                os.close(telling)
                connection.close()
                return json.loads(text)
            with suppress(BrokenPipeError):  # nobody asks
                os.write(telling, pid.to_bytes(4, "little"))
                os.write(telling, os.waitpid(pid, 0)[1].to_bytes(4, "little"))
            os._exit(0)
        for each in files:
            os.close(each)


def become(order):
    """Make this process the one that was ordered, and return what it does."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    random.seed()
    # those of the parent know what it was that they wrote to
    for name, number in {"stdin": 0, "stdout": 1, "stderr": 2}.items():
        errors = "backslashreplace" if number == 2 else None
        mode = "w" if number else "r"
        stream = open(number, mode, errors=errors, closefd=False)  # noqa: SIM115 - stays open
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    os.chdir(order["cwd"])
    os.environ.clear()
    os.environ.update(order["env"])
    sys.dont_write_bytecode = bool(os.environ.get("PYTHONDONTWRITEBYTECODE"))
    kind, *others = order["arguments"]
    here = order["cwd"]
    if kind == "-m":
        what, *others = others
        does = partial(runpy.run_module, what, run_name="__main__", alter_sys=True)
    elif kind == "-c":
        code, *others = others
        what, does = "-c", partial(exec, code, {"__name__": "__main__"})
    else:
        what, here = kind, str(Path(kind).resolve().parent)
        does = partial(runpy.run_path, what, run_name="__main__")
    sys.path[:1] = [here, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    sys.argv = [what, *others]
    return does


def end_after(does):
    """Call `does`, end with the status that Python's own end would have, and free nothing."""
    status = 1
    try:
        does()
        status = 0
    except SystemExit as end:
        status = end.code
        if not isinstance(status, int | None):
            print(status, file=sys.stderr)
            status = 1
    except KeyboardInterrupt:
        traceback.print_exc()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException:  # noqa: BLE001 - as Python does at the top
        traceback.print_exc()
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status or 0)


def preload():
    """Import what Scrapy, the command and crawls import, but the reactor, each process's own."""
    from importlib import import_module
    from pkgutil import walk_packages

    import scrapy.cmdline
    import scrapy.commands

    import scrapy_bloom
    from tests.world import runner

    for each in walk_packages(scrapy.commands.__path__, "scrapy.commands."):
        import_module(each.name)
    for each in walk_packages(scrapy_bloom.__path__, "scrapy_bloom."):
        if not each.name.endswith("__main__"):
            with suppress(ImportError):  # what an extra installs
                import_module(each.name)
    runner.preload()


if __name__ == "__main__":
    sys.path[0] = str(PACKAGE)
    preload()
    order = serve(socket.socket(fileno=int(sys.argv[1])))
    if order is not None:
        end_after(become(order))
