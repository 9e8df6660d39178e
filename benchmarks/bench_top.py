"""What `scrapy bloom top` takes of a core, beside a job with a million pending requests.

    python benchmarks/bench_top.py [--requests N] [--seconds N]

The job is held open by this process, which notes once a second how far it is; `top` draws
into a terminal of 80 columns.
"""

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

from sidebyside import parser_of

from scrapy_bloom.jobdir import JobDirectory
from tests.stored import Stored

SLOTS = 40
SIZE = struct.pack("HHHH", 24, 80, 0, 0)
NAMES = "pages items duplicates retries pending commits filter_items filter_layers"
FIGURES = {
    **dict.fromkeys(NAMES.split(), 1),
    "in_flight": 16,
    "commit_seconds_max": 0.01,
    "filter_capacity": 2_000_000,
    "filter_bytes": 8_000_000,
}


def filled(path, count):
    """Return the open file of a job with so many pending requests."""
    job = Stored(path)
    for number in range(count):
        job.put(bytes(200), f"slot{number % SLOTS}.example.com")
        if number % 10_000 == 0:
            job.file.commit()
    job.file.commit()
    return job.file


def seconds_of_cpu(pid):
    """Return what a process has taken so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def watched(folder, file, seconds):
    """Run `top` for so long; return its share of a core, and the bytes that it has drawn."""
    pid, terminal = pty.fork()
    if not pid:
        os.environ.pop("COLUMNS", None)
        os.execv(sys.executable, [sys.executable, "-m", "scrapy_bloom", "top", folder])
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, SIZE)
    began, drawn = time.time(), 0
    for second in range(seconds):
        figures = {name: value * (second + 1) for name, value in FIGURES.items()}
        line = json.dumps({"began": began, **figures})
        file.execute("INSERT INTO progress VALUES (?, ?)", (time.time(), line))
        file.commit()
        until = time.monotonic() + 1
        while (left := until - time.monotonic()) > 0:
            if select.select([terminal], [], [], left)[0]:
                drawn += len(os.read(terminal, 1 << 16))
        if second == seconds // 4:  # what Python takes to start is not meant
            start, used = time.monotonic(), seconds_of_cpu(pid)
    share = (seconds_of_cpu(pid) - used) / (time.monotonic() - start)
    os.kill(pid, signal.SIGINT)
    os.waitpid(pid, 0)
    return share, drawn


def main():
    options = parser_of(__doc__, requests=1e6, seconds=40).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        job = JobDirectory(Path(folder))
        file = filled(job.requests, int(options.requests))
        with job.locked():
            share, drawn = watched(folder, file, options.seconds)
        file.close(clean=True)
    print(f"top takes {share:.2%} of a core ({drawn:,} bytes drawn)")


if __name__ == "__main__":
    main()
