"""A filter in a file belongs to the process that opened it: a forked one finds it closed."""

import os
import signal
import subprocess
import sys

import pytest

from scrapy_bloom import BloomFilter, ScalableBloomFilter
from tests.patience import PATIENCE

KINDS = [BloomFilter, ScalableBloomFilter]

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")


def run(code, kind, path):
    """Run `code` on a new filter, `tested`; it must say "done"; return its status."""
    code = (
        "import multiprocessing, os, signal, subprocess, sys\n"
        "from pathlib import Path\n"
        f"from scrapy_bloom import {kind.__name__} as kind, FilterLockedError\n"
        "path = Path(sys.argv[1])\n"
        "tested = kind(100, 1e-6, path)\n"
        "tested.update(['a', 'b'])\n"
        "def is_locked():\n"
        "    try:\n"
        "        kind.open(path).close()\n"
        "    except FilterLockedError:\n"
        "        return True\n"
        "    return False\n"
        f"{code}"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    ran = subprocess.run(
        [sys.executable, "-c", code, path],
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert "done\n" in ran.stdout, ran.stderr
    return ran.returncode


LEAVING = {
    "sys.exit": """
child = os.fork()
if not child:
    with tested:
        sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
""",
    "multiprocessing": """
def work():
    tested.close()
child = multiprocessing.get_context("fork").Process(target=work)
child.start()
child.join()
assert child.exitcode == 0
""",
}


@pytest.mark.parametrize("leave", LEAVING.values(), ids=LEAVING)
@pytest.mark.parametrize("kind", KINDS)
def test_forked_process_that_ends_leaves_the_filter_open(tmp_path, kind, leave):
    """Its end neither closes nor unlocks the filter of its parent."""
    path = tmp_path / "filter"
    code = f"""{leave}
assert is_locked()
tested.update(str(number) for number in range(90))
print("done", flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    assert run(code, kind, path) == -signal.SIGKILL
    with kind.open(path) as found:
        assert not found.clean
        assert all(str(number) in found for number in range(90))


@pytest.mark.parametrize("kind", KINDS)
def test_forked_process_does_not_keep_the_lock(tmp_path, kind):
    """Others can open a killed process's filter though its children live on, and one of them has to
    keep the map, since a traceback or a thread holds the bits."""
    path, living = tmp_path / "filter", tmp_path / "living"
    os.mkfifo(living)
    code = f"""
with open({str(living)!r}) as waiting:  # until this test closes its end
    held = [layer.bits for layer in tested._newest_first]
    wait = "import sys; sys.stdin.read()"
    subprocess.Popen([sys.executable, "-c", wait], stdin=waiting, stdout=-3, stderr=-3)
    if os.fork():
        print("done", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    os.closerange(0, 3)
    waiting.read()
"""
    writing = os.open(living, os.O_RDWR)  # which waits for no reader
    try:
        assert run(code, kind, path) == -signal.SIGKILL
        with kind.open(path) as found:
            assert not found.clean
    finally:
        os.close(writing)


@pytest.mark.parametrize("kind", KINDS)
def test_forked_process_finds_it_closed(tmp_path, kind):
    """It changes nothing, and can open it to read what its parent adds."""
    path = tmp_path / "filter"
    code = """
def contents():
    return {each: each.read_bytes() for each in path.parent.rglob("*") if each.is_file()}
for early, late in ((88, 90), (98, 98)):
    ours, its = os.pipe()
    tested.update(map(str, range(early)))
    child = os.fork()
    if not child:
        os.read(ours, 1)
        with kind.open(path, read_only=True) as found:
            assert all(str(number) in found for number in range(late))
        before = contents()
        try:
            tested.add("new")
        except ValueError as error:
            assert "closed" in str(error), error
            tested.flush()
            tested.close()
            os._exit(contents() != before)
        os._exit(2)
    tested.update(map(str, range(late)))
    os.write(its, b"x")
    assert os.waitpid(child, 0)[1] == 0
    assert len(tested) == 2 + late
tested.close()
print("done")
"""
    assert run(code, kind, path) == 0
    with kind.open(path) as found:
        assert found.clean
        assert "new" not in found


@pytest.mark.parametrize("kind", KINDS)
def test_forked_process_has_its_own_copy_of_a_filter_in_memory(tmp_path, kind):
    """What either adds is no business of the other."""
    code = """
tested = kind(100, 1e-6)
child = os.fork()
if not child:
    assert not tested.add("its")
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
assert not tested.add("its")
print("done")
"""
    assert run(code, kind, tmp_path / "filter") == 0
