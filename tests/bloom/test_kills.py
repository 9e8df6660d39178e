"""What SIGKILL and a power cut leave: a filter that opens and knows its keys."""

import os
import random
import signal
import subprocess
import time
from itertools import count
from pathlib import Path
from threading import Lock

import pytest

from scrapy_bloom import BloomFilter, ScalableBloomFilter
from tests.commands.command_line import environment
from tests.patience import PATIENCE
from tests.processes import Process
from tests.seeded import seed_of

CHILD = Path(__file__).resolve().with_name("adding_process.py")
PAGE = 4096

# a process that is just being started has copies of this one's files, locks and all, so none
# may be started while a filter is open here
NO_START = Lock()


class Adding:
    """A process that adds keys, has imported all it needs and is about to make its filter."""

    def __init__(self, *arguments):
        with NO_START:
            self.process = Process(
                [CHILD, *arguments],
                env=environment(),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
            )
        self.out = b""
        self.read(len(b"ready\n"))

    def read(self, size):
        """Read `size` bytes of what it reports."""
        while size > 0 and (some := self.process.stdout.read(size)):
            self.out += some
            size -= len(some)

    def end(self):
        """Wait for the end; return the numbers it reported, and the steps it took."""
        out, err = self.process.communicate(timeout=PATIENCE)
        ready, *lines = (self.out + out).decode().split("\n")
        assert ready == "ready", err
        self.status = self.process.returncode
        # what follows the last line break was torn
        return [line for line in lines[:-1] if line.isdigit()], err.decode().splitlines()


@pytest.mark.parametrize(
    ("kind", "capacity", "exact"),
    [
        (BloomFilter, 200_000, False),
        (ScalableBloomFilter, 100, False),
        (ScalableBloomFilter, 100, True),
    ],
)
def test_killed_at_random_all_returned_keys_are_known(tmp_path, kind, capacity, exact):
    """In many processes; and with an exact table the number of keys is exact, too."""
    seed = seed_of("SEED")
    chance = random.Random(seed)
    added, unknown = 0, []
    for series in range(2):
        path, keys, unreported = tmp_path / str(series), [], []
        for run in range(8):
            child = Adding(f"{kind.__name__}{'+exact' * exact}", capacity, path, f"{run}-")
            # from the making of the filter to the middle of an add
            child.read(chance.choice([0, 1, chance.randrange(20_000)]))
            time.sleep(chance.choice([0, chance.random() / 100]))
            child.process.kill()
            numbers, errors = child.end()
            assert child.status == -signal.SIGKILL, "\n".join(errors)
            returned = [f"{run}-{number}" for number in numbers]
            keys += returned
            unreported.append(f"{run}-{len(numbers)}")
            if run == 7 or chance.random() < 0.5:  # so that the next finds a clean one
                with NO_START, kind(capacity, 1e-6, path, exact=exact) as found:
                    assert not (found.clean and returned)
                    unknown += [key for key in keys if key not in found]
                    found.check()
                    if exact:
                        there = len(keys) + sum(key in found for key in unreported)
                        unknown += [f"{len(found)} are counted"] * (len(found) != there)
        added += len(keys)
    print("seed", seed, "keys", added)
    assert added > 100
    assert unknown == []


@pytest.mark.parametrize(("moment", "exact"), [("make", False), ("grow", False), ("grow", True)])
def test_killed_while_a_layer_is_made_the_filter_opens(tmp_path, moment, exact):
    """In a process for each step: its name is synced after its pages and before a key goes in."""
    wrong = []
    for step in count():
        path = tmp_path / str(step)
        child = Adding(f"ScalableBloomFilter{'+exact' * exact}", 100, path, "", step, moment)
        keys, steps = child.end()
        if child.status == 0:
            break
        assert child.status == -signal.SIGKILL, steps
        with NO_START, ScalableBloomFilter(100, 1e-6, path, exact=exact) as found:
            wrong += [(step, steps, key) for key in keys if key not in found]
            wrong += [(step, steps, p) for p in path.iterdir() if p.suffix not in (".bloom", "")]
            found.check()
            found.update(f"more {number}" for number in range(200))
            found.check()
            assert len(found.layers) >= 2
        assert len(keys) == (0 if moment == "make" else 100)
    assert wrong == []
    assert step == 2 * len(steps) - 1  # the first unlink finds nothing
    named = next(n for n, name in enumerate(steps) if name in ("link", "rename", "replace"))
    assert "fsync file" in steps[:named]
    assert "pwrite" in steps[: steps.index("fsync file")]
    assert "pwrite" not in steps[steps.index("fsync file") :]
    assert "fsync directory" in steps[named:]
    if hasattr(os, "posix_fallocate"):
        assert "posix_fallocate" in steps[: steps.index("fsync file")]


def torn(page):
    return page[:20] + bytes(PAGE - 20)


def flipped(position, bit):
    return lambda page: page[:position] + bytes([page[position] ^ bit]) + page[position + 1 :]


def random_bytes(page):
    return random.Random(7).randbytes(len(page))


FLIPPED = [flipped(8, 1), *(flipped(position, 0x10) for position in (0, 8, 20, 40))]


@pytest.mark.parametrize("garbage", [bytes, random_bytes, torn, *FLIPPED])
@pytest.mark.parametrize(
    # one is not filled beyond what its error rate holds for, the other has grown
    ("kind", "capacity"),
    [(BloomFilter, 3_000), (ScalableBloomFilter, 1_000)],
)
def test_garbage_in_page_1_is_recounted(tmp_path, kind, capacity, garbage):
    """A torn state page is no reason to refuse, and the next close is a clean one."""
    path = tmp_path / "filter"
    keys = [f"key {number}" for number in range(3_000)]
    with kind(capacity, 1e-6, path) as written:
        written.update(keys)
    files = [path] if path.is_file() else sorted(path.glob("*.bloom"))
    for each in files:
        with each.open("r+b") as file:
            file.seek(PAGE)
            page = file.read(PAGE)
            file.seek(PAGE)
            file.write(bytes(PAGE) if garbage is bytes else garbage(page))
    with kind.open(path) as found:
        assert not found.clean
        assert len(found) == pytest.approx(3_000, rel=0.02)
        assert all(key in found for key in keys)
        found.check()
        assert not found.add("another")
    with kind.open(path) as again:
        assert again.clean
        assert "another" in again


def test_lost_pages_cost_keys_and_not_the_file(tmp_path):
    """Bits that a power cut kept from the disk are keys to be added again, no more."""
    path = tmp_path / "filter"
    keys = [f"key {number}" for number in range(20_000)]
    with BloomFilter(20_000, 1e-6, path) as written:
        written.update(keys)
        blocks = written.nbytes // PAGE
    with path.open("r+b") as file:
        for block in (1, *range(2, 2 + blocks, 4)):
            file.seek(block * PAGE)
            file.write(bytes(PAGE))
    with BloomFilter.open(path) as found:
        known = sum(key in found for key in keys)
        assert known == pytest.approx(len(found), rel=0.05)
        assert 0.5 < known / len(keys) < 0.9
        found.check()
        assert sum(found.add(key) for key in keys) == known
        assert all(key in found for key in keys)
