"""The recipes, with the servers and tools that they are for: `make recipes`."""

import json
import os
import pwd
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from collections import Counter
from pathlib import Path

import pytest
from w3lib.url import canonicalize_url

from tests import processes
from tests.patience import wait_until
from tests.redis.server import free_port
from tests.test_example_project import PROJECT, harness, known

pytestmark = pytest.mark.recipe

SCRIPTS = Path(sys.executable).parent
PATH = os.pathsep.join([str(SCRIPTS), os.environ["PATH"]])
PYTHONPATH = os.pathsep.join([str(PROJECT.parent), str(PROJECT)])
UNIT = PROJECT / "scrapy@.service"
BETWEEN = """
import os, signal
from example.postgres import PostgresPipeline

class KilledBetween(PostgresPipeline):
    stored = 0

    def store(self):
        self.stored += bool(self.titles)
        super().store()
        if self.stored == 2:
            os.kill(os.getpid(), signal.SIGKILL)
"""


def tool(name):
    """Return the path of a program, or skip the test."""
    versions = sorted(Path("/usr/lib/postgresql").glob("*/bin"))  # Debian's
    return shutil.which(name, path=os.pathsep.join([PATH, *map(str, versions)])) or pytest.skip(
        f"there is no {name} on the PATH"
    )


def ends(*words, **options):
    """Run a program, and return what it has printed if its status is 0."""
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture
def served(tmp_path):
    with harness.serve(tmp_path) as running:
        yield running


class Postgres:
    """A server in a folder that it removes, on a socket in there; for root it runs as `nobody`."""

    def __init__(self, folder):
        self.folder, self.user = folder, {}
        if os.geteuid() == 0:
            nobody = pwd.getpwnam("nobody")
            os.chown(folder, nobody.pw_uid, nobody.pw_gid)
            self.user = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
        made = [tool("initdb"), "-D", folder / "data", "-U", "crawl", "-A", "trust", "--no-sync"]
        ends(*made, cwd=folder, **self.user)
        self.url = f"postgresql://crawl@/postgres?host={folder}"

    def __enter__(self):
        command = [tool("postgres"), "-D", "data", "-k", self.folder, "-h", "", "-F"]
        self.process = subprocess.Popen(
            command, cwd=self.folder, stderr=subprocess.DEVNULL, **self.user
        )
        ready = [tool("pg_isready"), "-q", "-h", self.folder]
        wait_until(lambda: subprocess.run(ready).returncode == 0)
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGINT)
        self.process.wait()

    def rows(self, query):
        import psycopg

        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(query)
            return cursor.fetchall() if cursor.description else []


@pytest.fixture
def postgres():
    pytest.importorskip("psycopg")
    # not pytest's: the path of a socket is short
    with tempfile.TemporaryDirectory() as folder, Postgres(Path(folder)) as server:
        module = (PROJECT / "example" / "postgres.py").read_text()
        server.rows(re.search(r"^CREATE TABLE .*;$", module, re.MULTILINE)[0])
        yield server


def test_items_in_postgres_are_there_once(served, postgres, tmp_path):
    """Killed between the commit of the database and that of the job, and at random, and stopped by
    a database that is gone: pages are fetched again, and each item is one row."""
    (tmp_path / "between.py").write_text(BETWEEN)
    path = os.pathsep.join([PYTHONPATH, str(tmp_path)])

    def crawl(pipeline="example.postgres.PostgresPipeline"):
        settings = {
            "ITEM_PIPELINES": json.dumps({pipeline: 300}),
            "JOBDIR": tmp_path / "job",
            "POSTGRES_URL": postgres.url,
            "DOWNLOAD_DELAY": 0.05,
        }
        options = [word for each in settings.items() for word in ("-s", "{}={}".format(*each))]
        return processes.Process(
            ["-m", "scrapy", "crawl", "stored", "-a", f"start={served.url}", *options],
            cwd=PROJECT,
            env={**os.environ, "PYTHONPATH": path},
            stderr=subprocess.PIPE,
            text=True,
        )

    def count():
        return len(postgres.rows("SELECT * FROM books"))

    for _ in range(2):
        with crawl("between.KilledBetween") as killed:
            _, log = killed.communicate()
        assert killed.returncode == -signal.SIGKILL, log
    assert count() > 0
    for _ in range(3):
        before, wait = count(), random.random()
        with crawl() as killed:
            wait_until(lambda before=before: count() > before or killed.poll() is not None)
            time.sleep(wait / 5)
            killed.kill()
            killed.communicate()
    with crawl() as stopped:
        before = count()
        wait_until(lambda: count() > before or stopped.poll() is not None)
        postgres.__exit__()
        _, log = stopped.communicate()
    assert "Spider closed (bloom_error)" in log, log
    postgres.__enter__()
    with crawl() as last:
        _, log = last.communicate()
    assert (last.returncode, "ERROR" in log) == (0, False), log
    assert "Round 1 of the job goes on" in log
    rows = [canonicalize_url(url) for (url,) in postgres.rows("SELECT url FROM books")]
    assert Counter(rows) == Counter(known(served, "/glossary/.+"))
    assert harness.account(served).twice


def test_a_job_in_scrapyd(served, tmp_path):
    """Cancelled, it stops cleanly; scheduled again with its directory it goes on to the end."""
    pytest.importorskip("scrapyd")
    port, feed = free_port(), tmp_path / "items.jsonl"
    (tmp_path / "scrapyd.conf").write_text(
        f"[scrapyd]\nbind_address = 127.0.0.1\nhttp_port = {port}\npoll_interval = 0.2\n"
        "[settings]\nexample = example.settings\n"
    )

    def ask(name, **fields):
        url, data = f"http://127.0.0.1:{port}/{name}.json", None
        if name == "listjobs":
            url += "?project=example"
        else:
            fields = {"project": "example", **fields}
            data = urllib.parse.urlencode(fields, doseq=True).encode()
        try:
            with urllib.request.urlopen(url, data) as answer:
                return json.load(answer)
        except OSError:  # not yet there
            return {"finished": []}

    def schedule(job):
        feeds = json.dumps({str(feed): {"format": "jsonlines"}})
        settings = [f"JOBDIR={tmp_path / 'job'}", f"FEEDS={feeds}", "LOG_LEVEL=INFO"]
        fields = {"spider": "catalogue", "start": served.url, "setting": settings}
        assert ask("schedule", jobid=job, **fields)["status"] == "ok"

    def end(job):
        wait_until(lambda: job in [each["id"] for each in ask("listjobs")["finished"]])
        return (tmp_path / "logs" / "example" / "catalogue" / f"{job}.log").read_text()

    own = {"PYTHONPATH": PYTHONPATH, "SCRAPY_SETTINGS_MODULE": "example.settings"}  # for an egg
    server = subprocess.Popen(
        [SCRIPTS / "scrapyd"], cwd=tmp_path, env={**os.environ, **own}, stdout=subprocess.DEVNULL
    )
    try:
        wait_until(lambda: "status" in ask("listjobs"))
        schedule("monday")
        wait_until(lambda: served.fetched() > 50)
        ask("cancel", job="monday")
        assert "Spider closed (shutdown)" in end("monday")
        schedule("tuesday")
        assert "Spider closed (finished)" in end("tuesday")
    finally:
        server.terminate()
        server.wait()
    assert harness.account(served).twice == []
    items = [json.loads(line) for line in feed.read_text().splitlines()]
    urls = Counter(canonicalize_url(item["url"]) for item in items)
    assert urls == Counter(known(served, r"/api\?.*name=.*"))


def test_the_unit_of_systemd(served, tmp_path):
    """It is one that systemd takes and thinks well of. Its command ends with status 0 when it is
    told to stop, and with another one when it is killed."""
    analyze, program = tool("systemd-analyze"), "/srv/scrapy/venv/bin/scrapy"
    text = UNIT.read_text().replace(program, str(SCRIPTS / "scrapy"))
    unit = tmp_path / UNIT.name
    unit.write_text(text)
    assert ends(analyze, "verify", "--man=no", unit) == ""
    ends(analyze, "security", "--offline=true", "--threshold=20", unit)
    options = dict(line.split("=", 1) for line in text.splitlines() if line[:1].isupper())
    assert int(options["TimeoutStopSec"]) > 180
    command = (
        options["ExecStart"].replace("/var/lib/scrapy", f"{tmp_path}/lib").replace("%i", "site")
    )
    command = [*shlex.split(command), "-a", f"start={served.url}"]
    for number, status in ((signal.SIGKILL, -9), (signal.SIGTERM, 0)):
        until = served.fetched() + 100
        with subprocess.Popen(
            command,
            cwd=PROJECT,
            env={**os.environ, "PYTHONPATH": PYTHONPATH},
            stderr=subprocess.DEVNULL,
        ) as crawl:
            wait_until(lambda: served.fetched() > until or crawl.poll() is not None)  # noqa: B023
            crawl.send_signal(number)
        assert crawl.returncode == status
    assert (tmp_path / "lib" / "site" / "requests.sqlite").exists()


def test_the_files_of_a_container():
    """Linters find nothing; the command is one of this project."""
    dockerfile = PROJECT / "Dockerfile"
    command = json.loads(dockerfile.read_text().rpartition("CMD ")[2])
    assert command[:3] == ["scrapy", "crawl", "books"]
    assert "books" in ends(SCRIPTS / "scrapy", "list", cwd=PROJECT).split()
    schema = ["--builtin-schema", "vendor.compose-spec"]
    ends(tool("check-jsonschema"), *schema, PROJECT / "compose.yaml")
    ends(tool("hadolint"), dockerfile)
