"""Writes which test calls which function, in each Python that a test starts, to the file REACHED.

Python imports this from PYTHONPATH before all else; pytest has it as a plugin, too. A line is
written at once, so that of a process that is killed nothing is missing.
"""

import os
import sys
import threading
from contextlib import suppress

from pluggy import HookimplMarker

PREFIX = os.environ["REACHED_PREFIX"]
_file = os.open(os.environ["REACHED"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
_known = set()
_write = os.write  # which a test may replace


def _tell(name):
    test, _, _ = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")
    wide = test.partition("::")[0] if "REACHED_WIDE" in os.environ else test
    with suppress(OSError):  # where the test limits the size of files
        _write(_file, f"{wide}\t{name}\n".encode())


def _call(frame, _event, _argument):
    code = frame.f_code
    if code not in _known:
        _known.add(code)
        _, _, name = code.co_filename.rpartition("/scrapy_bloom/")
        if name and f"scrapy_bloom/{name}".startswith(PREFIX):
            _tell(f"scrapy_bloom/{name}:{code.co_firstlineno}")
        if code.co_name == "keys" and name == "redis/scripts.py":
            _known.discard(code)
            _tell(f"scrapy_bloom/redis/lua/{frame.f_locals['self']._name}.lua:1")


def pytest_runtest_logreport(report):
    """Write how long a phase of a test took; the fourth column says whether it failed."""
    took = f"{report.nodeid}\t{report.duration}\t{report.outcome}\n"
    if "PYTEST_XDIST_WORKER" not in os.environ:
        _write(_file, f"time\t{took}".encode())
    _known.clear()
    sys.settrace(_call)  # a test may have set another one


@HookimplMarker("pytest")(wrapper=True)
def pytest_fixture_setup(fixturedef):
    """What makes a fixture for many tests is called for all of the file."""
    if fixturedef.scope == "function":
        return (yield)
    os.environ["REACHED_WIDE"] = "1"
    _known.clear()
    try:
        return (yield)
    finally:
        del os.environ["REACHED_WIDE"]
        _known.clear()


os.register_at_fork(after_in_child=_known.clear)
threading.settrace(_call)
sys.settrace(_call)
