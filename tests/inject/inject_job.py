"""Gives every crawler of this process, and of those that it starts, an add-on and a JOBDIR.

A `.pth` file of the environment imports it at each start of Python (tests/suite.py), so that the
tests, and the processes that they start, need not know. INJECT_JOBS names the directory of the
job directories (without it nothing is done), INJECT_ADDON the add-on, if any.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import os
import sys
import tempfile
from pathlib import Path

# read now, since tests replace os.environ.get
JOBS, ADDON = os.environ["INJECT_JOBS"], os.environ["INJECT_ADDON"]


class _AfterCrawler(importlib.abc.MetaPathFinder):
    """Patches scrapy.crawler when it is imported: an import here would change what tests see."""

    def find_spec(self, name, path=None, target=None):
        if name != "scrapy.crawler":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        load = spec.loader.exec_module

        def load_and_patch(module):
            load(module)
            _patch(module.Crawler)

        spec.loader.exec_module = load_and_patch
        return spec


def _patch(crawler_class):
    init = crawler_class.__init__

    def init_and_inject(self, *args, **kwargs):
        init(self, *args, **kwargs)
        _inject(self.settings)

    crawler_class.__init__ = init_and_inject


def _inject(settings):
    # Scrapy's shell waits for ever with a JOBDIR: a request that comes back from the disk
    # is not the one whose response it waits for.
    if not settings.get("JOBDIR") and "shell" not in sys.orig_argv:
        settings.set("JOBDIR", _fresh_job(), "default")
    if ADDON:
        addons = {**settings.getdict("ADDONS"), ADDON: 300}
        settings.set("ADDONS", addons, settings.getpriority("ADDONS"))


def _fresh_job():
    test_file = {**os.environ}.get("PYTEST_CURRENT_TEST", "").partition("::")[0]
    return tempfile.mkdtemp(dir=JOBS, prefix=f"{Path(test_file).stem}-")


sys.meta_path.insert(0, _AfterCrawler())
