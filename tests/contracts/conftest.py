"""The contracts are tested where a job can be."""

from tests.crawl.conftest import collect_ignore_glob  # noqa: F401 - for this folder, too
