"""The example project: its site is what its list says, and its demo counts what the site saw."""

import json
import os
import re
import shlex
import signal
import socket
import sqlite3
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from w3lib.url import canonicalize_url

from tests import processes
from tests.crawl.engine import query
from tests.redis import server

PROJECT = Path(__file__).resolve().parent.parent / "example_project"
sys.path.insert(0, str(PROJECT))

import harness  # noqa: E402
from example import news  # noqa: E402
from example.model import FLAKY, GONE, MOVED, TOPICS, pages, site  # noqa: E402
from example.spiders.site import SiteSpider  # noqa: E402

from tests.patience import PATIENCE, wait_until  # noqa: E402
from tests.web_server import ServedInThread  # noqa: E402


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    with harness.serve(tmp_path_factory.mktemp("site")) as running:
        yield running


def canonical(requests):
    """Count requests by what Scrapy's fingerprint is made of, which a failure then shows."""
    return Counter((r.method, canonicalize_url(r.url), r.body.decode()) for r in requests)


def scraped(spider, feed, *arguments):
    """Run a spider of the project to its end, without an error; return the items in its feed."""
    command = ["-m", "scrapy", "crawl", spider, *arguments, "-o", feed]
    ended = processes.run(command, cwd=PROJECT, text=True)
    assert ended.returncode == 0, ended.stderr
    assert "ERROR" not in ended.stderr
    return [json.loads(line) for line in feed.read_text().splitlines()]


def test_the_spider_of_the_documents_is_that_of_the_project():
    """Start explains it, line by line."""
    spider = (PROJECT / "example" / "spiders" / "books.py").read_text()
    assert f"```python\n{spider}```" in (PROJECT.parent / "docs" / "start.md").read_text()


@pytest.mark.torture
def test_full_crawl_fetches_exactly_the_known_list(tmp_path):
    """What a complete crawl with Scrapy's own dupefilter fetches is the list, page by page, once.
    It is link-dense, and met each redirect, each 404 and each 500 that heals."""
    with harness.serve(tmp_path) as running:
        run = harness.crawl(running, tmp_path / "job", "stock", settings={"ADDONS": "{}"})
    known = [running.request(*page) for page in pages(harness.SESSION)]
    assert (run.status, run.reason) == (0, "finished")
    assert canonical(running.requests()) == canonical(known)
    assert run.stats["item_scraped_count"] == len(known) >= 3_000
    found = harness.account(running)
    assert (found.fetched, found.twice, found.missed) == (len(known), [], [])
    assert run.filtered / run.offered > 0.9
    redirects = [answer for answer in site(harness.SESSION).values() if answer.location]
    counts = {n: run.stats[f"downloader/response_status_count/{n}"] for n in (301, 302, 404, 500)}
    assert counts[404] == GONE
    assert counts[500] == FLAKY + FLAKY // 2
    assert counts[301] + counts[302] == len(redirects) > 3 * MOVED
    assert run.stats["downloader/request_method_count/POST"] == TOPICS


@pytest.mark.slow
def test_the_embedded_site_lets_a_job_resume(tmp_path):
    """Slow, since it is two crawls of sixty pages: `scrapy crawl site` needs no other site; a job
    finds it again, on another reactor too."""
    settings = [f"JOBDIR={tmp_path / 'job'}", "ADDONS={}", "CLOSESPIDER_PAGECOUNT=60"]
    for reactor in ("asyncioreactor.AsyncioSelector", "selectreactor.Select"):
        named = [*settings, f"TWISTED_REACTOR=twisted.internet.{reactor}Reactor"]
        options = [word for setting in named for word in ("-s", setting)]
        found = scraped("site", tmp_path / "items.jsonl", *options)
    assert len({urlsplit(item["url"]).netloc for item in found}) == 1
    assert len(found) >= 120
    assert {item["status"] for item in found} == {200}
    titles = Counter(item["title"] for item in found)
    assert titles.most_common(1)[0][1] == 1


def test_a_start_without_a_host_is_refused():
    """The spider `site` says what it wants."""
    with pytest.raises(ValueError, match="'shop' is not a URL: give it as http://host"):
        SiteSpider("shop")


class AnotherSite(ServedInThread):
    """Three pages with an off-site link, a form that is not for crawlers, and no HTML."""

    def __init__(self):
        self.asked = []

    async def _answer(self, method, path, _body):
        self.asked.append((method, path))
        elsewhere = self.url.replace("127.0.0.1", "localhost")
        body = f"""<title>{path}</title><a href="/one#a">1</a><a href="two">2</a>
            <a href="{elsewhere}/elsewhere">3</a>
            <form method="post" action="/delete">
            <select name="topic"><option>all</select></form>"""
        kind = "text/html" if path != "/two" else "application/pdf"
        return 200, {"Content-Type": kind}, body.encode()


def stored(path):
    """Return {URL: title} of the table that the spider `stored` fills, as far as it is there."""
    with suppress(sqlite3.OperationalError):
        return dict(query(path, "SELECT url, title FROM pages"))
    return {}


def known(running, pattern):
    """Return the URLs of the site's pages whose addresses match, as Scrapy writes them."""
    addresses = [page.url for page in pages(harness.SESSION) if re.fullmatch(pattern, page.url)]
    return {canonicalize_url(running.request("GET", address, "").url) for address in addresses}


@pytest.mark.slow
def test_lists_and_details(served, tmp_path):
    """Slow, since it crawls hundreds of pages: `catalogue` yields each detail of each list once."""
    entries = scraped("catalogue", tmp_path / "entries.jsonl", "-a", f"start={served.url}")
    found = [canonicalize_url(entry["url"]) for entry in entries]
    assert sorted(found) == sorted(known(served, r"/api\?.*name=.*"))


@pytest.mark.slow
def test_a_second_crawl_fetches_what_is_new(served, tmp_path):
    """Slow, since it is two crawls: `news` yields each article once, but those it always asks."""
    arguments = ("-a", f"start={served.url}", "-s", f"BLOOM_DELTA_DIR={tmp_path}/m")
    first, second = (
        [article["url"] for article in scraped("news", tmp_path / f"{name}.jsonl", *arguments)]
        for name in ("first", "second")
    )
    assert len(first) == len({*first}) == news.LISTS * news.ARTICLES
    assert sorted(second) == sorted(
        url for url in first if int(url.rpartition("/")[2]) in news.REWRITTEN
    )


@pytest.mark.slow
def test_a_pipeline_that_stores_before_each_commit(served, tmp_path):
    """Slow, since both processes are Python's own, not forks: the spider `stored` is killed when
    something is in its database, and resumed: each term is there."""
    path = tmp_path / "items.sqlite"
    options = [f"JOBDIR={tmp_path / 'job'}", f"SQLITE_FILE={path}", "DOWNLOAD_DELAY=0.02"]
    arguments = ["crawl", "stored", "-a", f"start={served.url}"]
    arguments += [word for option in options for word in ("-s", option)]
    crawling = [sys.executable, "-m", "scrapy", *arguments]
    with subprocess.Popen(crawling, cwd=PROJECT, stderr=subprocess.DEVNULL) as crawl:
        wait_until(lambda: stored(path))
        crawl.kill()
    assert crawl.returncode == -signal.SIGKILL
    before = stored(path)
    crawling += ["-s", "DOWNLOAD_DELAY=0"]
    ended = subprocess.run(crawling, cwd=PROJECT, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert "ERROR" not in ended.stderr
    assert 0 < len(before) < len(stored(path))
    assert {canonicalize_url(url) for url in stored(path)} == known(served, "/glossary/.+")


@pytest.mark.slow
def test_the_compose_file(tmp_path):
    """Slow, since it starts a server and three Pythons: its commands crawl another site between
    them. The spider follows links, stays on that host and sends no form."""
    yaml = pytest.importorskip("yaml")
    if reason := server.missing():
        pytest.skip(reason)
    services = yaml.safe_load((PROJECT / "compose.yaml").read_text())["services"]
    program, *options = shlex.split(services["redis"]["command"])
    assert program == "redis-server"
    worker = services["worker"]
    assert worker["environment"]["BLOOM_REDIS_URL"] == "redis://redis:6379/0"
    command = worker["command"].replace("$$", "$").replace("/jobs/", f"{tmp_path}/")
    configuration = dict(zip(options[::2], options[1::2], strict=True))
    configuration = {name[2:]: value for name, value in configuration.items()}
    environment = {
        **os.environ,
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "PYTHONPATH": str(PROJECT.parent),
    }
    options = {"cwd": PROJECT, "stderr": subprocess.PIPE, "text": True}
    with server.Server(tmp_path, **configuration) as redis, AnotherSite() as site:
        environment |= {"BLOOM_REDIS_URL": redis.url, "START": f"{site.url}/"}
        crawls = [
            subprocess.Popen(
                shlex.split(command), env={**environment, "HOSTNAME": f"worker{n}"}, **options
            )
            for n in range(worker["deploy"]["replicas"])
        ]
        errors = [crawl.communicate(timeout=PATIENCE)[1] for crawl in crawls]
    assert [crawl.returncode for crawl in crawls] == [0, 0, 0], errors
    assert sorted(site.asked) == [("GET", path) for path in ("/", "/one", "/two")]
    lines = [line for feed in tmp_path.glob("*.jsonl") for line in feed.read_text().splitlines()]
    assert sorted(json.loads(line)["title"] for line in lines) == ["/", "/one"]


def test_account_counts_what_came_twice_and_what_never_came(tmp_path):
    """Two spellings of one request are one page twice, and each unanswered page is missed."""
    log = tmp_path / "site.jsonl"
    lines = [[page.method, page.url, page.body] for page in pages(harness.SESSION)]
    lines.remove(["GET", "/calendar/2024/02/29", ""])
    lines.remove(["POST", "/search", "scope=all&topic=topic-05"])
    lines.append(["GET", "/api?name=n04&module=m03", ""])
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = harness.account(harness.Site("http://127.0.0.1:1/", log))
    assert found.fetched == len(lines)
    assert [each.url for each in found.twice] == ["http://127.0.0.1:1/api?name=n04&module=m03"]
    assert {page.url for page in found.missed} == {"/calendar/2024/02/29", "/search"}
    # offered are the dropped and the enqueued, but for retries, which pass the filter by
    stats = {"dupefilter/filtered": 900, "scheduler/enqueued": 110, "retry/count": 10}
    assert harness.Run(50, 0, stats).offered == 1_000


@pytest.mark.slow
def test_the_demo_leaves_nothing_behind_when_it_is_interrupted(tmp_path):
    """Slow, since the demo crawls: a closed terminal ends it, site and crawl; no file stays."""
    environment = {
        **os.environ,
        "TMPDIR": str(tmp_path),
        "PYTHONPATH": os.pathsep.join([str(PROJECT.parent), os.environ.get("PYTHONPATH", "")]),
    }
    demo = processes.Process(
        [PROJECT / "demo.py"], env=environment, stdout=subprocess.PIPE, text=True
    )
    try:
        assert demo.stdout.readline().startswith("Crawls a site of 3,865 pages")
        next(line for line in demo.stdout if line.startswith("   scrapy-bloom, to 20%: "))
        (note,) = tmp_path.glob("*/scrapy-bloom/site.port")
        port = int(note.read_text())
        socket.create_connection(("127.0.0.1", port), timeout=PATIENCE).close()
        demo.send_signal(signal.SIGHUP)
        rest, _ = demo.communicate(timeout=PATIENCE)
    finally:
        demo.kill()
        demo.wait()
        demo.stdout.close()
    assert demo.returncode == 130
    assert rest.endswith("interrupted\n")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)
