"""A plugin of pytest that writes what became of each test to the file that OUTCOMES names."""

import json
import os
from pathlib import Path

_found = {}


def pytest_runtest_logreport(report):
    if report.failed or (report.nodeid not in _found and (report.when == "call" or report.skipped)):
        _found[report.nodeid] = report.outcome


def pytest_sessionfinish(session):
    if not hasattr(session.config, "workerinput"):
        Path(os.environ["OUTCOMES"]).write_text(json.dumps(_found))
