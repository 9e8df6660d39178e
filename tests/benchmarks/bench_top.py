"""What `scrapy bloom top` takes of a core, beside a job with a million pending requests.

The job is held open by this process, which notes once a second how far it is; `top` draws
into a terminal of 80 columns.
"""

import argparse
import fcntl
import json
import os
import pty
import select
import signal
import struct
import sys
import tempfile
import termios
import time
from pathlib import Path

from scrapy_bloom.jobdir import JobDirectory
from tests.stored import Stored

SLOTS = 40
COLUMNS, LINES = 80, 24
FIGURES = {
    "pages": 1,
    "items": 1,
    "duplicates": 1,
    "retries": 0,
    "pending": 1,
    "in_flight": 16,
    "commits": 1,
    "commit_seconds_max": 0.01,
    "filter_items": 1,
    "filter_capacity": 2_000_000,
    "filter_layers": 1,
    "filter_bytes": 8_000_000,
}


def make(path, count):
    """Return the open file of a job with so many pending requests."""
    job = Stored(path)
    file = job.file
    for number in range(count):
        job.put(bytes(200), f"slot{number % SLOTS}.example.com")
        if number % 10_000 == 0:
            file.commit()
    file.commit()
    return file


def note(file, began, second):
    """Note how far the job is."""
    figures = {"began": began, **{name: value * (second + 1) for name, value in FIGURES.items()}}
    file.execute("INSERT INTO progress VALUES (?, ?)", (time.time(), json.dumps(figures)))
    file.commit()


def seconds_of_cpu(pid):
    """Return what a process has taken so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=float, default=1e6)
    parser.add_argument("--seconds", type=int, default=40)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        job = JobDirectory(Path(folder))
        file = make(job.requests, int(options.requests))
        with job.locked():
            pid, terminal = pty.fork()
            if not pid:
                os.environ.pop("COLUMNS", None)
                os.execv(sys.executable, [sys.executable, "-m", "scrapy_bloom", "top", folder])
            size = struct.pack("HHHH", LINES, COLUMNS, 0, 0)
            fcntl.ioctl(terminal, termios.TIOCSWINSZ, size)
            began, drawn, start = time.time(), 0, None
            for second in range(options.seconds):
                note(file, began, second)
                until = time.monotonic() + 1
                while (left := until - time.monotonic()) > 0:
                    if select.select([terminal], [], [], left)[0]:
                        drawn += len(os.read(terminal, 1 << 16))
                if second == options.seconds // 4:  # what Python takes to start is not meant
                    start = time.monotonic(), seconds_of_cpu(pid)
            share = (seconds_of_cpu(pid) - start[1]) / (time.monotonic() - start[0])
            os.kill(pid, signal.SIGINT)
            os.waitpid(pid, 0)
        file.close(clean=True)
    print(
        f"{options.requests:,.0f} pending: top takes {share:.2%} of a core ({drawn:,} bytes drawn)"
    )


if __name__ == "__main__":
    main()
