"""Starts of a job while commands look at it, and other programs: none of them fails, and no request
is lost. Set SEED to repeat the moments of the kills."""

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
LOOKS = {
    "test the lock": lambda job: JobDirectory(job).is_locked,
    "sqlite3": lambda job: query(job, "SELECT COUNT(*) FROM request"),
    "figures": lambda job: JobStatus(job).figures(),
    "top": lambda job: status_of("top", job, "--once"),
    "queue": lambda job: status_of("queue", "list", job),
    "failed": lambda job: status_of("failed", job),
    "info": lambda job: status_of("info", job),
    "verify": lambda job: status_of("verify", job),
}


def status_of(*words):
    with redirect_stdout(StringIO()):
        assert main([*map(str, words)]) == 0


def look_for_ever(look, job):
    while True:
        LOOKS[look](job)
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
@pytest.mark.parametrize("looks", [["test the lock"] * 4, ["sqlite3", "figures"], [*LOOKS]])
def test_no_look_makes_a_start_fail_or_lose_requests(tmp_path, looks):
    """Each start follows a kill: in its opening, or when it has stored a request and goes on."""
    job, log, chance = tmp_path / "job", tmp_path / "log", random.Random(seed := seed_of("SEED"))
    print("SEED", seed)
    Job(job).open().close()
    (tmp_path / "stored").touch()

    def stored():
        return (tmp_path / "stored").read_text().split()

    lookers = [fork(look_for_ever, log, look, job) for look in looks]
    try:
        for number in range(STARTS):
            pid = fork(start, log, job, number)
            if number % 2:
                wait_until(lambda pid=pid, told=str(number): ended(pid) or told in stored())
            time.sleep(chance.uniform(0, 0.2))
            os.kill(pid, signal.SIGKILL)
            _, status = os.waitpid(pid, 0)
            assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL, log.read_text()
            lookers = [each for each in lookers if not os.waitpid(each, os.WNOHANG)[0]]
            assert len(lookers) == len(looks), log.read_text()
    finally:
        for each in lookers:
            os.kill(each, signal.SIGKILL)
            os.waitpid(each, 0)
    assert {*Job(job).open().names()} >= {*stored()}
