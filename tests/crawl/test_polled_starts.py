"""Starts of a job while commands and other programs look at it: SEED repeats when it is killed."""

import os
import random
import signal
import sys
import time
from contextlib import redirect_stdout
from io import StringIO

import pytest

from scrapy_bloom.commands import main
from scrapy_bloom.jobdir import JobDirectory
from scrapy_bloom.sqlite.status import JobStatus
from tests.crawl.engine import Job, query
from tests.patience import wait_until
from tests.seeded import seed_of
from tests.world.runner import fork

STARTS = 200
COMMANDS = (["top", "--once"], ["queue", "list"], ["failed"], ["info"], ["verify"])


def look_for_ever(job, looks_at_lock):
    """Do what others do with a job that they may look at."""
    while True:
        for command in () if looks_at_lock else COMMANDS:
            with redirect_stdout(StringIO()):
                # of a list without a request it is 1
                assert main([*command, str(job)]) <= (command[0] == "queue")
            query(job, "SELECT COUNT(*) FROM request")
            JobStatus(job).figures()
        _ = JobDirectory(job).is_locked
        time.sleep(0.001)


def ended(pid):
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)


def start(job, number):
    """Open the job, store a request, and go on until the kill."""
    opened = Job(job).open()
    opened.push(number)
    opened.commit()
    (job.parent / "stored").open("a").write(f"{number}\n")
    while True:
        opened.done(opened.pop())
        opened.push(number, dont_filter=True)


@pytest.mark.torture
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="forks")
@pytest.mark.parametrize("looks_at_lock", [True, False])
def test_no_look_makes_a_start_fail_or_lose_requests(tmp_path, looks_at_lock):
    """Each start follows a kill: in its opening, or when it has stored a request and goes on."""
    job, log, chance = tmp_path / "job", tmp_path / "log", random.Random(seed := seed_of("SEED"))
    print("SEED", seed)
    Job(job).open().close()
    (stored := tmp_path / "stored").touch()
    lookers = [fork(look_for_ever, log, job, looks_at_lock) for _ in range(4)]
    try:
        for number in range(STARTS):
            pid = fork(start, log, job, number)
            if number % 2:
                told = f"{number}\n"
                wait_until(lambda pid=pid, told=told: told in stored.read_text() or ended(pid))
            time.sleep(chance.uniform(0, 0.2))
            os.kill(pid, signal.SIGKILL)
            _, status = os.waitpid(pid, 0)
            assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL, log.read_text()
            lookers = [each for each in lookers if not os.waitpid(each, os.WNOHANG)[0]]
            assert len(lookers) == 4, log.read_text()
    finally:
        for each in lookers:
            os.kill(each, signal.SIGKILL)
            os.waitpid(each, 0)
    assert {*Job(job).open().names()} >= {*stored.read_text().split()}
