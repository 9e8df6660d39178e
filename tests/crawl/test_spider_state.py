"""`spider.state` after stops and kills of every kind, and whatever somebody puts into it."""

import os
import pickle

import pytest
from scrapy import signals

from tests.crawl.engine import STOCK, query


@pytest.fixture
def state_file(tmp_path):
    """The file that Scrapy's SpiderState reads and writes."""
    return tmp_path / "job" / "spider.state"


def committed(job, n):
    """Commit a state of a job; return the job."""
    job.spider.state["n"] = n
    job.commit()
    return job


def test_state_is_what_scrapy_has_saved_at_a_stop(make_round, state_file):
    """Also where a handler of spider_closed changes it after the last commit."""
    for n in (1, 0, 2, 2, 1):
        job = committed(make_round(), "committed")
        job.spider.state["n"] = n
        job.scheduler.close("finished")
        job.spider.state["late"] = n
        job.send(signals.spider_closed, reason="finished")
        assert pickle.loads(state_file.read_bytes()) == {"n": n, "late": n}
        saved = state_file.read_bytes()
        job = make_round()
        assert job.spider.state == {"n": n, "late": n}
        assert state_file.read_bytes() == saved
        job.close()


def test_a_state_that_goes_back_to_an_earlier_one_is_committed(make_round, job, crash_round):
    """What an earlier run has committed is not what this one has begun with. Scrapy's own scheduler
    reads what was put back after a kill, too."""
    job.spider.state["n"] = 1
    job.scheduler.close("shutdown")
    job.spider.state["n"] = 2
    job.send(signals.spider_closed, reason="shutdown")
    job = committed(make_round(), 1)
    statements = []
    job.round.file._connection.set_trace_callback(statements.append)
    committed(job, 1)  # unchanged, and not written
    assert not any("spider_state" in each for each in statements)
    resumed = crash_round()
    assert resumed.spider.state == {"n": 1}
    resumed.drop()
    assert make_round(resumed.crawler.settings["JOBDIR"], scheduler=STOCK).spider.state == {"n": 1}


@pytest.mark.parametrize("left", [0, 1000, None])
def test_a_kill_while_scrapy_saves_the_state_costs_nothing(make_round, state_file, left):
    """A file that is empty, torn or not there is that of the last commit; also in a later run."""
    for pages in 1, 1000:
        job = make_round()
        job.spider.state["pages"] = list(range(pages))
        job.close()
    state_file.unlink() if left is None else os.truncate(state_file, left)
    (half := state_file.with_name(".spider.state.bloom.tmp")).touch()  # of a kill that came next
    assert make_round().spider.state == {"pages": list(range(1000))}
    assert not half.exists()


def test_jobs_of_stock_scrapy_open_and_go_back(make_round):
    """Whoever has saved the state last has it."""
    for n, scheduler in enumerate([STOCK, None, STOCK, None, None]):
        options = {"scheduler": scheduler} if scheduler else {}
        job = make_round(**options)
        assert job.spider.state == ({"n": n - 1} if n else {})
        job.spider.state["n"] = n
        job.close()


def test_a_state_that_cannot_be_read_stays(make_round, state_file, caplog):
    """Its class is gone for the time being: Scrapy says so, and the file stays."""
    saved = b"\x80\x04c__main__\nGone\n."
    make_round().close()
    state_file.write_bytes(saved)
    job = make_round()
    assert not hasattr(job.spider, "state")
    job.commit()
    job.close()
    assert state_file.read_bytes() == saved
    assert "Gone" in caplog.text


def test_a_state_that_cannot_be_pickled_is_one_error(make_round, caplog, state_file):
    """The last one that could be stays, and the crawl goes on."""
    job = committed(make_round(), 1)
    job.spider.state["function"] = lambda: None
    for name in "abc":
        job.push(name)
        job.commit()
    job.close("shutdown")
    (error,) = [r for r in caplog.records if r.levelname == "ERROR"]
    assert "spider.state cannot be pickled" in error.getMessage()
    job = make_round()
    assert (job.spider.state, len(job.scheduler)) == ({"n": 1}, 3)
    job.spider.state["function"] = lambda: None
    job.commit()
    job.spider.state = {"n": 2}
    job.close()
    assert pickle.loads(state_file.read_bytes()) == {"n": 2}


def test_without_the_extension_nothing_is_kept(make_round, state_file):
    """Who has switched SpiderState off has a use of his own for the name."""
    job = make_round(EXTENSIONS={"scrapy.extensions.spiderstate.SpiderState": None})
    job.spider.state = {"n": 1}
    job.close()
    assert not state_file.exists()
    assert query(state_file.parent, "SELECT * FROM spider_state") == []
    assert make_round().spider.state == {}
